"""The stable region: the highest load that keeps every promise, with bounded errors and memory to spare, and keeps on.

The search only decides. It asks for one probe after the other, and the next step follows from the probes so far and
from nothing else; so a search is taken up again by giving it its earlier probes. `bench.search` is the loop around it:

    while isinstance(step := next_step(search, probes), NextProbe):
        probes.append(...)      # of a run at step.load
    step.load, step.reason      # the answer, and what is in the way of more

Measurements are noisy, and near the border, where promises are only just kept or broken, a single one may say either.
So:

1. The load is doubled until something breaks, or halved until nothing does. Then the bracket is bisected
   (geometrically).
2. A probe whose interval of good requests includes the share that must be good decides nothing: the load is probed
   again, and all its probes are pooled, until their common interval is on one side or `repeats` are used up.
3. When the bracket is narrow, its lower end must hold for `sustain` windows on end, and its upper end must break
   twice: an unlucky probe would otherwise cut off everything above it. Either may open the bracket again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from math import sqrt

import msgspec

from headway.loadtest.errors import InvalidPlan
from headway.loadtest.probe import Bound, LoadAnswer, Opinion, Probe, Requirements, opinion
from headway.loadtest.result import Struct

REPEATS = 3


@dataclass(frozen=True, slots=True)
class Search:
    """What is searched for, and how hard."""

    start: float  # the first load tried
    tolerance: float = 0.03  # width of the last bracket, as a share of its upper end
    window_s: float = 60.0  # of a probe
    sustain: float = 3.0  # windows on end for which the answer must hold
    repeats: int = REPEATS  # probes of one load while it is undecided
    whole: bool = False  # loads are whole numbers: a concurrency
    lowest: float = 0.01
    highest: float = 1e6
    most_probes: int = 60
    wanted: Requirements = field(default_factory=Requirements)

    def __post_init__(self) -> None:
        if not 0 < self.lowest <= self.start <= self.highest:
            raise InvalidPlan(f"The first load, {self.start:g}, must lie between {self.lowest:g} and {self.highest:g}.")
        if not 0 < self.tolerance < 1:
            raise InvalidPlan(f"The tolerance is a share of the load, above 0 and below 1; {self.tolerance:g} is not.")
        if self.repeats < 1 or self.sustain < 1:
            raise InvalidPlan("There must be at least one probe of a load, and it must be sustained for one window.")

    @property
    def unit(self) -> str:
        """Of its loads."""
        return "at a time" if self.whole else "req/s"


@dataclass(frozen=True, slots=True)
class NextProbe:
    """A probe that is wanted: a run at this load whose window, without warm-up and cool-down, is so long."""

    load: float
    window_s: float


class Stable(Struct):
    """The answer. `load` is None when even the lowest load tried does not hold."""

    load: float | None
    reason: str  # what is in the way of more, in one line
    bound: str  # the same in one word: promise, errors, memory, unsteady, client, limit, probes
    breaks_at: float | None  # the lowest load that does not hold; None: none was tried
    tolerance: float | None  # (breaks_at − load) / breaks_at
    sustained: bool  # it held for `Search.sustain` windows on end
    converged: bool  # the bracket is as narrow as was asked for
    probes: list[Probe]  # all of them: throughput against p99 is drawn from these
    repeats: int = REPEATS  # as the search had it: fewer probes of a load may have left it undecided


@dataclass(frozen=True, slots=True)
class _Rung:
    """All probes of one load."""

    load: float
    probes: Sequence[Probe]
    opinion: Opinion

    def sustained(self, window_s: float) -> bool:
        # A window a little short of what was asked (its last request was due before its end) is no other window.
        return any(probe.window_s > 0.9 * window_s for probe in self.probes)


def next_step(search: Search, probes: Sequence[Probe]) -> NextProbe | Stable:
    """The probe to make next, or the answer."""
    low, high, undecided = _bracket(_rungs(search, probes))
    wanted = _wanted(search, low, high, undecided)
    if wanted is None:
        return _answer(search, probes, low, high)
    if len(probes) < search.most_probes:
        return wanted
    return _unfinished(search, _answer(search, probes, low, high), low, high, undecided)


def _wanted(search: Search, low: _Rung | None, high: _Rung | None, undecided: _Rung | None) -> NextProbe | None:
    """The probe that would be made next; None when there is nothing left to ask."""
    if undecided is not None:
        long = undecided.sustained(search.sustain * search.window_s)
        return NextProbe(undecided.load, search.window_s * (search.sustain if long else 1))
    if low is None and high is None:
        return NextProbe(search.start, search.window_s)
    if high is None:
        assert low is not None
        if low.load < search.highest:
            return NextProbe(min(_rounded(search, 2 * low.load), search.highest), search.window_s)
    elif low is None:
        if high.load > search.lowest and not (search.whole and high.load <= 1):
            return NextProbe(max(_rounded(search, high.load / 2), search.lowest), search.window_s)
    elif not _narrow(search, low.load, high.load):
        return NextProbe(_rounded(search, sqrt(low.load * high.load)), search.window_s)
    return _confirm(search, low, high)


def _confirm(search: Search, low: _Rung | None, high: _Rung | None) -> NextProbe | None:
    """The bracket is narrow: what is still to be seen twice?"""
    long_s = search.sustain * search.window_s
    # A prober whose windows are always shorter than asked will not be asked for ever.
    if low is not None and not low.sustained(long_s) and len(low.probes) <= search.repeats:
        return NextProbe(low.load, long_s)
    if high is not None and len(high.probes) < min(2, search.repeats):
        return NextProbe(high.load, search.window_s)
    return None


def _rungs(search: Search, probes: Sequence[Probe]) -> list[_Rung]:
    by_load = groupby(sorted(probes, key=lambda probe: probe.load), key=lambda probe: probe.load)
    return [
        _Rung(load, group, opinion(group, search.wanted, repeats=search.repeats))
        for load, probes_of in by_load
        if (group := list(probes_of))
    ]


def _bracket(rungs: Sequence[_Rung]) -> tuple[_Rung | None, _Rung | None, _Rung | None]:
    """The highest load that holds, the lowest that does not, and one between them that is undecided."""
    high = next((rung for rung in rungs if rung.opinion.answer in {LoadAnswer.BREAKS, LoadAnswer.CLIENT}), None)
    below = [rung for rung in rungs if high is None or rung.load < high.load]
    low = next((rung for rung in reversed(below) if rung.opinion.answer is LoadAnswer.HOLDS), None)
    between = [rung for rung in below if low is None or rung.load > low.load]
    return low, high, next((rung for rung in between if rung.opinion.answer is LoadAnswer.OPEN), None)


def _narrow(search: Search, low: float, high: float) -> bool:
    if search.whole and high - low <= 1:
        return True
    return not low < _rounded(search, sqrt(low * high)) < high or (high - low) / high <= search.tolerance


def _rounded(search: Search, load: float) -> float:
    """A load that people can read; nearer than any server can tell apart."""
    return float(max(round(load), 1)) if search.whole else float(f"{load:.4g}")


def _answer(search: Search, probes: Sequence[Probe], low: _Rung | None, high: _Rung | None) -> Stable:
    if high is not None:
        bound, reason = high.opinion.bound or Bound.LIMIT, f"at {high.load:g}: {high.opinion.reason}"
    elif low is not None:
        bound, reason = Bound.LIMIT, f"{low.load:g} is the highest load the search was allowed (--highest)"
    else:
        bound, reason = Bound.LIMIT, "nothing was decided"
    return Stable(
        load=low.load if low else None,
        reason=reason,
        bound=bound.value,
        breaks_at=high.load if high else None,
        tolerance=(high.load - low.load) / high.load if low and high else None,
        sustained=low is not None and low.sustained(search.sustain * search.window_s),
        converged=True,
        probes=list(probes),
        repeats=search.repeats,
    )


def _unfinished(
    search: Search, answer: Stable, low: _Rung | None, high: _Rung | None, undecided: _Rung | None
) -> Stable:
    """The answer of a search that may make no more probes: which limit that was, what held, and what is still open."""
    said = []
    if low is not None:
        said.append(f"{low.load:g} {search.unit} held {_times(search, low)}")
    if undecided is not None:
        said.append(f"{undecided.load:g} {search.unit} held {_times(search, undecided)} and was not finished")
    if high is not None:
        said.append(f"at {high.load:g}: {high.opinion.reason}")
    elif undecided is None and low is not None and low.load < search.highest:
        said.append("more was not tried")
    ended = f"the search ended after its {len(answer.probes)} probe{'s' * (len(answer.probes) > 1)} (--most-probes)"
    return msgspec.structs.replace(
        answer,
        reason=". ".join([ended, "; ".join(said)]) if said else ended,
        bound=answer.bound if high is not None else Bound.PROBES.value,
        converged=False,
    )


def _times(search: Search, rung: _Rung) -> str:
    """In how many of its probes, each by itself, it held."""
    each = [opinion([probe], search.wanted, repeats=1).answer for probe in rung.probes]
    held = each.count(LoadAnswer.HOLDS)
    if held < len(each):
        return f"{held} of {len(each)} times"
    return {1: "once", 2: "twice"}.get(held, f"{held} times")
