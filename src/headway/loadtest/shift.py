"""A level that changes once: the step that a trend over the whole window does not see when it comes late.

Of all places where a series may be cut in two, the one whose parts differ most is taken: the largest t statistic
(Worsley 1979, JASA 74:365). It is the largest of many, and blocks that are neighbours are alike, so no table says how
large it becomes by chance. That is drawn: as many series without a step, whose blocks remember one another as much as
these do (a first-order autoregression), go the same way. How much that is is known badly from twenty blocks, so one
standard error more is assumed.

Latencies are taken as logarithms: they are positive, their tail is long, and a step is told as a ratio.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import exp, expm1

import numpy as np

from headway.metrics.latency import Floats

LEAST = 2  # blocks on each side: one alone is an accident
DRAWS = 2000
MEMORIES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)  # of the autoregression
SHORTEST = 1e-9  # s; what took less is as good as nothing, which has no logarithm


@dataclass(frozen=True, slots=True)
class Shift:
    """The likeliest place of a step in a series of blocks."""

    place: int  # the first block after it
    before: float
    after: float
    p_value: float  # of such a step, up or down and wherever, where there is none; not below 1 / (DRAWS + 1)

    @property
    def change(self) -> float:
        return self.after - self.before

    @property
    def relative(self) -> float:
        return self.change / self.before if self.before else 0.0


@dataclass(frozen=True, slots=True, eq=False)
class _Cuts:
    """The best cut of each of some series."""

    statistic: Floats
    place: np.ndarray[tuple[int], np.dtype[np.int64]]
    before: Floats
    step: Floats
    memory: Floats  # how much neighbours are alike beside the step: their correlation


def shift(blocks: Floats) -> Shift:
    """`blocks` are positive, and NaN where one is empty: those are left out."""
    places = np.flatnonzero(~np.isnan(blocks))
    if len(places) < 2 * LEAST + 1:
        return Shift(0, 0.0, 0.0, 1.0)
    found = _cut(np.log(np.maximum(blocks[places], SHORTEST))[None, :])
    before, step = float(found.before[0]), float(found.step[0])
    place = int(places[found.place[0]])
    if abs(expm1(step)) < 1e-9:  # all alike but for rounding
        return Shift(place, exp(before), exp(before), 1.0)
    by_chance = _by_chance(len(places), _memory(len(places), float(found.memory[0])))
    beyond = int((by_chance.statistic >= found.statistic[0]).sum())
    return Shift(place, exp(before), exp(before + step), (1 + beyond) / (1 + DRAWS))


def _cut(series: Floats) -> _Cuts:
    n = series.shape[1]
    cuts = np.arange(LEAST, n - LEAST + 1)
    upto = np.cumsum(series, axis=1)
    means_before = upto[:, cuts - 1] / cuts
    steps = (upto[:, -1:] - upto[:, cuts - 1]) / (n - cuts) - means_before
    between = np.abs(steps) * np.sqrt(cuts * (n - cuts) / n)
    rows, best = np.arange(len(series)), np.argmax(between, axis=1)
    before, step = means_before[rows, best], steps[rows, best]
    rest = series - before[:, None] - np.where(np.arange(n) < cuts[best][:, None], 0.0, step[:, None])
    power = np.maximum((rest**2).sum(axis=1), np.finfo(np.float64).tiny)
    return _Cuts(
        statistic=between[rows, best] / np.sqrt(power / (n - 2)),
        place=cuts[best],
        before=before,
        step=step,
        memory=(rest[:, 1:] * rest[:, :-1]).sum(axis=1) / power,
    )


def _memory(n: int, seen: float) -> float:
    """What autoregression to assume where neighbours were seen to be so much alike: the next that was drawn.

    The best cut takes some of the correlation away, and short series show less than there is: the same is seen in what
    was drawn, and undone by it. The standard error is Bartlett's (1946), 1 / √n.
    """
    shown = np.maximum.accumulate([float(_by_chance(n, memory).memory.mean()) for memory in MEMORIES])
    place = int(np.searchsorted(shown, seen + n**-0.5))
    return MEMORIES[min(place, len(MEMORIES) - 1)]


@lru_cache(maxsize=512)
def _by_chance(n: int, memory: float) -> _Cuts:
    """Cuts of series of n blocks without a step: the same on every machine, so that a verdict is."""
    rng = np.random.default_rng([n, round(memory * 100)])
    series = rng.normal(size=(DRAWS, n))
    series[:, 0] /= np.sqrt(1 - memory**2)
    for place in range(1, n):
        series[:, place] += memory * series[:, place - 1]
    return _cut(series)
