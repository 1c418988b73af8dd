"""Who gives way when the waiting room is full: whoever has filled it, for a tenant that has less than its part of it.

The room is shared by weight, among those who wait there and the one who comes; by count and by prompt tokens, whichever
is short. Whoever comes gets in as far as its part goes, or with its only request; and what leaves for it is the newest
of the tenant that is furthest beyond its own part, that stands no better than the comer, and never a tenant's last.
So nobody is displaced for a tenant that could then be displaced for it in turn.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as ReadOnlySequence

from headway.core.errors import QueueFull
from headway.core.front.admission import Admission
from headway.core.lanes import Lanes
from headway.core.request import Request

# What is short: places, or prompt tokens.
COUNT, TOKENS = 0, 1


def who_gives_way(
    tenant: str, requests: ReadOnlySequence[Request], lanes: Lanes, admission: Admission
) -> list[Request]:
    """Those whose leaving would let all of `requests` in; nobody, where there is room, or where that cannot be.

    Without requests: for the next one of the tenant's, of which nothing else is known.
    """
    asks = max(1, len(requests)), sum([request.prompt_tokens for request in requests])
    if not admission.crowded(*asks):
        return []
    weight, limits = admission.tenants.weight, admission.limits
    counts, tokens = lanes.waiting_by_tenant(), lanes.tokens_by_tenant()
    held = {name: [counts[name], tokens[name]] for name in counts}
    own = held.setdefault(tenant, [0, 0])
    room = limits.max_waiting, limits.max_waiting_tokens
    missing = [
        sum(holds[measure] for holds in held.values()) + asks[measure] - room[measure] for measure in (COUNT, TOKENS)
    ]
    parts = 1.0 / sum(weight(name) for name in held)
    for measure in (COUNT, TOKENS):
        part = room[measure] * weight(tenant) * parts
        if missing[measure] > 0 and own[COUNT] and own[measure] + asks[measure] > part:
            return []
    priority = max((request.priority for request in requests), default=0)
    leaving: list[Request] = []
    newest: dict[str, Iterator[Request]] = {}
    while missing[COUNT] > 0 or missing[TOKENS] > 0:
        measure = COUNT if missing[COUNT] > 0 else TOKENS
        beyond = [
            (holds[measure] / weight(name), name)
            for name, holds in held.items()
            if name != tenant and holds[COUNT] > 1 and holds[measure] > room[measure] * weight(name) * parts
        ]
        if not beyond:
            return []
        name = max(beyond, key=lambda one: one[0])[1]
        if name not in newest:
            newest[name] = (one for one in lanes.newest_of(name) if one.priority >= priority)
        other = next(newest[name], None)
        if other is None:
            del held[name]
            continue
        leaving.append(other)
        for at, amount in ((COUNT, 1), (TOKENS, other.prompt_tokens)):
            held[name][at] -= amount
            missing[at] -= amount
    return leaving


def gave_way(retry_after_s: float) -> QueueFull:
    """For a request that was let in, and had to leave."""
    return QueueFull(
        "The waiting room is full, and this key has more than its share of it: the request gave its place to another's "
        "(--max-waiting, --max-waiting-tokens).",
        retry_after_s=retry_after_s,
    )
