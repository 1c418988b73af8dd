"""`shares`: how many tokens each visible chunk of an answer brought, from whatever the server told about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headway.loadtest.record import CountedBy


@dataclass(frozen=True, slots=True)
class Shares:
    """`tokens` are of the visible chunks in order of arrival; `total` also counts those that were never seen."""

    counted: CountedBy
    total: int
    tokens: list[int]


def shares(owners: Sequence[int], counts: Sequence[int], total: int | None, stopped: int, hidden: int = 0) -> Shares:
    """`owners`: the choice of each chunk; `counts`: the running count it carried, -1 if none; `total`: of the answer,
    None if not told; `stopped`: how many choices ended by an end token, which is counted and never seen; `hidden`: how
    many tokens of the total were never seen because they were thoughts, which come before all else.
    """
    running = _running(owners, counts, total) if owners and min(counts) >= 0 else None
    if running is not None:
        total = sum(running) if total is None else total
        return Shares(CountedBy.USAGE_BY_CHUNK, total, _without(hidden, owners, running))
    if total is None or (owners and total <= hidden):
        return Shares(CountedBy.CHUNKS, len(owners), [1] * len(owners))
    shown = total - hidden
    seen = shown - stopped if 0 < shown - len(owners) <= stopped else shown
    return Shares(CountedBy.USAGE, total, evenly(seen, len(owners)))


def _without(hidden: int, owners: Sequence[int], tokens: list[int]) -> list[int]:
    """Hidden tokens were counted with the first chunk of their choice."""
    if not hidden:
        return tokens
    left = list(tokens)
    begun: set[int] = set()
    for place, owner in enumerate(owners):
        if owner not in begun:
            begun.add(owner)
            taken = min(hidden, max(left[place] - 1, 0))
            left[place] -= taken
            hidden -= taken
    return left


def evenly(total: int, chunks: int) -> list[int]:
    """At least one each; where there are more tokens than chunks, they are spread so that no two differ by over one."""
    if total <= chunks:
        return [1] * chunks
    return [(place + 1) * total // chunks - place * total // chunks for place in range(chunks)]


def _running(owners: Sequence[int], counts: Sequence[int], total: int | None) -> list[int] | None:
    """Tokens by chunk, if the counts run over all choices together (Headway) or over each by itself (vLLM).

    The total tells which, as far as there is one; else counts that grow with every chunk run over all.
    """
    together = [count - before for before, count in zip((0, *counts), counts, strict=False)]
    apart, last = [], dict.fromkeys(owners, 0)
    for owner, count in zip(owners, counts, strict=True):
        apart.append(count - last[owner])
        last[owner] = count
    likely = (together, apart) if min(together) > 0 else (apart, together)
    fit = [tokens for tokens in likely if _grows(tokens) and (total is None or sum(tokens) <= total)]
    return max(fit, key=sum) if total is not None and fit else next(iter(fit), None)


def _grows(tokens: Sequence[int]) -> bool:
    """A server that repeats its final usage in every chunk, or counts backwards, does not count as it goes."""
    return min(tokens) >= 0 and (len(tokens) == 1 or any(tokens[1:]))
