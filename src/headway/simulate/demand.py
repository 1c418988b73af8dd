"""From a load to what a simulation is told: items and arrivals of `workload` become `VirtualRequest`s.

requests = requests_of(read_trace("trace.jsonl").arrivals)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

from headway.core.request import NO_SLO, PREFIX_TOKENS, Slo
from headway.core.spans import Spans
from headway.simulate.settings import VirtualRequest
from headway.workload.item import Arrival, Item


@dataclass(frozen=True, slots=True, kw_only=True)
class Clients:
    """What all requests of a load have in common. Times are ns.

    `timeout_ns`: so long a client waits for the whole answer, then it leaves; 0 is for ever. `way_ns`: what a request
    spends outside of the service before it arrives there. `shares` says who may reuse whose KV: "tenant", or all.
    """

    slo: Slo = NO_SLO
    timeout_ns: int = 0
    retries: int = 0
    way_ns: int = 0
    max_model_len: int | None = None
    shares: str = "shared"


EVERYBODY = Clients()


def request_of(item: Item, number: int, sent_ns: int, clients: Clients = EVERYBODY) -> VirtualRequest:
    """The request that is sent at `sent_ns`. It asks for exactly as many tokens as the item says, as a load test does.

    `number` is its place in the load; nobody else has the same.
    """
    blocks, unit = item.prefix_blocks, item.prefix_block_tokens
    prompt = Spans(item.input_tokens, number, blocks, unit) if blocks else Spans(item.input_tokens, number)
    return VirtualRequest(
        id=f"r{number}",
        arrival_ns=sent_ns + clients.way_ns,
        prompt=prompt,
        max_tokens=item.output_tokens,
        output_tokens=item.output_tokens,
        cancel_ns=sent_ns + clients.timeout_ns if clients.timeout_ns else None,
        tenant=item.tenant,
        slo=clients.slo,
        cache_scope=item.tenant if clients.shares == "tenant" else "",
        prefix=_prefix(item) if blocks else (),
        retries=clients.retries,
    )


def requests_of(arrivals: Iterable[Arrival], clients: Clients = EVERYBODY) -> list[VirtualRequest]:
    """An open load."""
    make = partial(request_of, clients=clients)
    return [make(arrival.item, number, arrival.at_ns) for number, arrival in enumerate(arrivals)]


def _prefix(item: Item) -> tuple[int, ...]:
    """Of each leading block of PREFIX_TOKENS tokens that is shared, a number for all up to its end."""
    shared = min(item.input_tokens, len(item.prefix_blocks) * item.prefix_block_tokens)
    unit, chain, made = item.prefix_block_tokens, 0, []
    for end in range(PREFIX_TOKENS, shared + 1, PREFIX_TOKENS):
        # Hashes of whole numbers are the same in every process.
        chain = hash((chain, *item.prefix_blocks[(end - PREFIX_TOKENS) // unit : -(-end // unit)], end % unit))
        made.append(chain)
    return tuple(made)
