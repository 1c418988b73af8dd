"""Which settings won: by more than the noise within a live test, and more than that from one test to the next."""

from __future__ import annotations

from collections.abc import Sequence
from math import hypot, inf, sqrt
from statistics import fmean

import msgspec

from headway.loadtest.result import Interval, Run

# Student's t that is exceeded by chance once in twenty, by degrees of freedom. One-sided: what is asked is whether the
# new settings are better, and those that are not sure to be are not kept.
_T95 = {1: 6.31, 2: 2.92, 3: 2.35, 4: 2.13, 5: 2.02, 6: 1.94, 8: 1.86, 10: 1.81}
_LARGE = 1.65


class Gain(msgspec.Struct, kw_only=True, frozen=True):
    """What one has over another, as a share of all requests. `certain`: its interval is above 0, in each round too."""

    change: float
    low: float
    high: float
    certain: bool


def good_share(run: Run) -> float:
    """The share of the requests due in the window that kept every promise; of a run without any promise, that ended
    well. All tests of one tuning are offered the same requests, so this orders them as goodput does, and is not moved
    by what else happens to fall into the window.
    """
    return _share(run).value or 0.0


def gain(before: Sequence[Run], after: Sequence[Run], repeats: Sequence[Sequence[Run]] = ()) -> Gain:
    """What `after` has over `before`, each tested once or more, in the same order. `repeats`: all tests by settings,
    which show how much tests of the same settings differ.

    The interval within runs is that of a difference of shares (Newcombe 1998, Stat. Med. 17:873, from Wilson's), with
    the arms of repeated runs averaged; the one between runs is Student's t on the pooled spread. The wider one counts,
    and every round must have shown the same.
    """
    ours, theirs = [_share(run) for run in after], [_share(run) for run in before]
    change = fmean(_value(one) for one in ours) - fmean(_value(one) for one in theirs)
    down = hypot(_arm(ours, low=True), _arm(theirs, low=False))
    up = hypot(_arm(ours, low=False), _arm(theirs, low=True))
    spread = _between(repeats) * sqrt(1 / len(ours) + 1 / len(theirs))
    low, high = change - max(down, spread), change + max(up, spread)
    every = all(_value(one) > _value(other) for one, other in zip(ours, theirs, strict=False))
    return Gain(change=change, low=max(-1.0, low), high=min(1.0, high), certain=low > 0 and every)


def _share(run: Run) -> Interval:
    overall = run.summary.overall
    if overall.good_ratio is not None and overall.good_ratio.value is not None:
        return overall.good_ratio
    return Interval(value=overall.fates.get("ok", 0) / overall.requests if overall.requests else 0.0)


def _value(one: Interval) -> float:
    return one.value or 0.0


def _arm(runs: Sequence[Interval], *, low: bool) -> float:
    """From the mean of the runs to an end of its interval; infinite where one of them has none."""
    ends = [one.low if low else one.high for one in runs]
    arms = [abs(_value(one) - end) if end is not None else inf for one, end in zip(runs, ends, strict=True)]
    return sqrt(sum(arm * arm for arm in arms)) / len(arms)


def _between(repeats: Sequence[Sequence[Run]]) -> float:
    """The half-width for one test: t times the standard deviation among tests of the same settings; 0: not known."""
    squares, freedom = 0.0, 0
    for runs in repeats:
        if len(runs) > 1:
            mean = fmean(map(good_share, runs))
            squares += sum((good_share(run) - mean) ** 2 for run in runs)
            freedom += len(runs) - 1
    if not freedom:
        return 0.0
    t = next((value for least, value in _T95.items() if freedom <= least), _LARGE)
    return t * sqrt(squares / freedom)


def order_of_tests(candidates: int, most: int) -> tuple[int, int]:
    """How many candidates are tested, and how many rounds of the current settings and the best one follow.

    Always with the current settings first. Raises ValueError for fewer than two tests.
    """
    if most < 2:
        raise ValueError("one test compares nothing")
    tried = min(candidates, 1 if most < 5 else 2 if most < 8 else 3)
    return tried, max(0, (most - 1 - tried) // 2) if tried else 0
