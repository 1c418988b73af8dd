"""`Workload`: the load of the live tests as a simulation takes it, and what of it counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headway.core.request import Slo as EngineSlo
from headway.loadtest.bench.profiles import Offered
from headway.loadtest.errors import InvalidPlan
from headway.loadtest.result import Slo
from headway.loadtest.runner.plan import OpenLoad, read
from headway.simulate import VirtualRequest
from headway.workload.item import Arrival, Item

NS_PER_S = 1_000_000_000
# Token ids of shared beginnings and of what is nobody else's: they must meet neither each other nor those that
# `VirtualRequest` makes up.
_BLOCK, _OWN, _SHARED = 1 << 24, 1 << 50, 1 << 52
MOST_REQUESTS = 20_000


@dataclass(frozen=True, slots=True)
class Outside:
    """What happens to a request outside of the engine, as the probing load showed it.

    `request_ns`: parsing, tokenising, network. `input_tokens`: more than asked, which a chat template adds.
    `jitter_ns`: what a client's worst gaps have beyond an engine's steps.
    """

    request_ns: int = 0
    input_tokens: int = 0
    jitter_ns: int = 0


@dataclass(frozen=True, slots=True)
class Workload:
    """`requests` in order of arrival. Those due in `window_s` count, as in a load test; `rate`: as offered there."""

    requests: tuple[VirtualRequest, ...]
    window_s: tuple[float, float]
    slo: Slo
    outside: Outside
    rate: float

    @property
    def lengths(self) -> list[tuple[int, int]]:
        """Input and output tokens of each."""
        return [(_prompt_tokens(request), request.output_tokens) for request in self.requests]

    @classmethod
    def of(
        cls,
        offered: Offered,
        slo: Slo,
        outside: Outside,
        *,
        by_promise: bool,
        drain_s: float,
        kv_tokens: int | None = None,
    ) -> Workload:
        """The very requests of the live test. `by_promise`: the engine heeds the promises. Who is still served
        `drain_s` after the load has ended is given up, as the test does.

        Raises `InvalidPlan` for a closed loop, an empty load, or one that no KV cache could hold.
        """
        if not isinstance(offered.load, OpenLoad):
            raise InvalidPlan("tune needs an open loop: requests that come whatever the server does.")
        arrivals = _arrivals(offered.load)
        told = offered.described
        ends_s = told.duration_s or 0.0
        if (told.requests is not None and len(arrivals) >= told.requests) or not ends_s:
            ends_s = arrivals[-1].at_ns / NS_PER_S * (1 + 1 / max(1, len(arrivals) - 1))
        window = told.warmup_s, max(told.warmup_s, ends_s - told.cooldown_s)
        promised = _promised(slo) if by_promise else EngineSlo()
        give_up_ns = round((ends_s + drain_s) * NS_PER_S)
        requests = tuple(
            _request(number, arrival, promised, outside, give_up_ns) for number, arrival in enumerate(arrivals)
        )
        _check_fit(requests, kv_tokens)
        due = sum(window[0] <= arrival.at_ns / NS_PER_S < window[1] for arrival in arrivals)
        if not due:
            raise InvalidPlan("No request is due between warm-up and cool-down: use a longer --duration or more load.")
        return cls(requests, window, slo, outside, due / (window[1] - window[0]))


def _arrivals(load: OpenLoad) -> list[Arrival]:
    found: list[Arrival] = []
    for arrival in read(load.arrivals):
        found.append(arrival)
        if len(found) > MOST_REQUESTS:
            raise InvalidPlan(
                f"This load has more than {MOST_REQUESTS:,} requests, too many to search with: use a shorter "
                "--duration, or --requests."
            )
    if not found:
        raise InvalidPlan("This load has no request at all: use a longer --duration or a higher rate.")
    return found


def _promised(slo: Slo) -> EngineSlo:
    return EngineSlo(*(round((limit_s or 0.0) * NS_PER_S) for limit_s in (slo.ttft_s, slo.itl_s)))


def _request(number: int, arrival: Arrival, slo: EngineSlo, outside: Outside, give_up_ns: int) -> VirtualRequest:
    item, at_ns = arrival.item, arrival.at_ns + outside.request_ns
    return VirtualRequest(
        str(number),
        at_ns,
        _prompt(number, item, outside.input_tokens),
        max_tokens=max(1, item.output_tokens),
        output_tokens=max(1, item.output_tokens),
        cancel_ns=max(give_up_ns, at_ns + 1),
        tenant=item.tenant,
        slo=slo,
    )


def _prompt(number: int, item: Item, more: int) -> int | Sequence[int]:
    """Its length, or token ids where its beginning is somebody else's too."""
    tokens = max(1, item.input_tokens + more)
    if not item.prefix_blocks or item.prefix_block_tokens < 1:
        return tokens
    length = min(item.prefix_block_tokens, _BLOCK)
    shared = [_SHARED + block * _BLOCK + place for block in item.prefix_blocks for place in range(length)][:tokens]
    own = _OWN + number * _BLOCK
    return [*shared, *range(own, own + tokens - len(shared))]


def _prompt_tokens(request: VirtualRequest) -> int:
    return request.prompt if isinstance(request.prompt, int) else len(request.prompt)


def _check_fit(requests: Sequence[VirtualRequest], kv_tokens: int | None) -> None:
    longest = max(requests, key=lambda request: _prompt_tokens(request) + request.max_tokens)
    total = _prompt_tokens(longest) + longest.max_tokens
    if kv_tokens is not None and total > kv_tokens:
        raise InvalidPlan(
            f"The longest request of this load comes to {total:,} tokens, and the server's KV cache holds "
            f"{kv_tokens:,}. Use shorter lengths, or give the server more KV."
        )
