"""Percentiles that say how sure they are, of samples that are correlated in time.

The value interpolates linearly between order statistics, as numpy does (Hyndman and Fan 1996, type 7). The interval
is Woodruff's (1952, JASA 47:635): how far the *share of samples below the percentile* may be off is found by block
bootstrap (`blocks`), and the samples at those shares bound the percentile. Against drawing percentiles themselves
this takes one pass over the samples instead of a thousand, so a million samples take a fraction of a second, and it
is the variant with the better coverage (Falk and Kaufmann 1991, Ann. Statist. 19:485, "backward critical points").

A percentile is told only where at least `MIN_BEYOND` samples are expected beyond it: p99 needs 1,000 samples, p99.9
10,000. Of independent samples about 4 beyond it would do for a 95 % interval that ends inside the sample (0.99^n ≤
2.5 % for p99; Hahn and Meeker 1991, "Statistical Intervals", 5.2); the rest is room for correlation. Ten is also the
textbook limit from which a count may be taken as roughly normal.

A sample may be infinite: a wait that was given up, of which only is known that it was longer than so much (`at_least`:
right-censored data). Whether it is the largest of all or an ordinary one that was cut short, nobody knows, so it is
taken for one of those that took longer than it was waited for: Kaplan and Meier's estimate (`ordered`). The block
bootstrap draws the influence of each sample on that estimate (Reid 1981, Ann. Statist. 9:78), which without such
samples is again whether it lies below the percentile. It rests on waits being given up for reasons that have nothing to
do with how long they would have taken: a run that ends, a time limit.

That is not so where the slow ones are given up sooner: at the end of a run in which the queue grew, the last to come
would have waited longest and were waited for least; and a server that fails may fail at what takes long. Of such
samples (`doubted`) nothing is assumed. They may have been about to end when they were given up, or never: the
percentile is between these two. Where both lie within its interval, the doubt is less than the noise; else it has no
value, only the lower bound.

What lies beyond the last sample that is known has no value, only a lower bound: the same percentile with each sample at
what is known of it. So has what fewer than `MIN_BEYOND` samples were waited for long enough to tell.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt

from headway.metrics.blocks import REPLICATES, Floats, deviations
from headway.metrics.figures import Distribution, Interval
from headway.metrics.ordered import MIN_BEYOND, Ordered, Weights, ordered

PERCENTILES = (50.0, 90.0, 95.0, 99.0, 99.9)

Bools = npt.NDArray[np.bool_]
_T = TypeVar("_T", bound=np.generic)


def key(percentile: float) -> str:
    """How a percentile is called in a `Distribution`: "50", "99.9"."""
    return f"{percentile:g}"


def samples_needed(percentile: float) -> int:
    """How many samples there must be for a percentile to be told."""
    share = min(percentile, 100 - percentile) / 100
    return int(np.ceil(MIN_BEYOND / share - 1e-6))


def percentile(values: Floats, q: float, weights: Weights = None) -> float:
    """The q-th percentile (0 … 100). With integer `weights`, that of every value repeated so often."""
    return float(ordered(values, weights).at(q / 100))


def quantiles(values: Floats, ratios: Floats, weights: Weights = None, at_least: Floats | None = None) -> Floats:
    """The values up to which these shares (0 … 1) of the samples lie, infinite beyond what is known."""
    there = ~np.isnan(values)
    return ordered(values[there], _of(weights, there), _of(at_least, there)).at(ratios)


def distribution(
    values: Floats,
    weights: Weights = None,
    at_least: Floats | None = None,
    doubted: Bools | None = None,
    *,
    percentiles: tuple[float, ...] = PERCENTILES,
    seed: int = 0,
) -> Distribution:
    """The distribution of `values`, in order of time; NaN is a sample that is undefined and left out.

    `at_least`: what is known of each value that is infinite; `doubted`: which of those may have been given up for what
    they were. Where such a one is the largest, or there is one in doubt, nobody knows mean and maximum.

    With integer `weights` each value stands for so many samples at once (a chunk of tokens). They count as one sample
    where it is asked whether there are enough.
    """
    there = ~np.isnan(values)
    values, weights, at_least = values[there], _of(weights, there), _of(at_least, there)
    if not len(values):
        nothing = {key(q): Interval(value=None) for q in percentiles}
        return Distribution(samples=0, mean=None, std=None, min=None, max=None, percentiles=nothing)
    by_size, extremes = ordered(values, weights, at_least), _extremes(values, weights, at_least, _of(doubted, there))
    known = extremes is None and bool(np.isfinite(by_size.values[-1]))
    mean = float(np.average(by_size.values, weights=by_size.masses)) if known else None
    spread = np.average((by_size.values - mean) ** 2, weights=by_size.masses) if mean is not None else None
    told = {}
    for q in percentiles:
        found = _interval(values, weights, by_size, q, seed)
        in_doubt = extremes is not None and not _within(found, *(each.at(q / 100) for each in extremes))
        told[key(q)] = _bounded(by_size, q) if in_doubt and found.value is not None else found
    return Distribution(
        samples=by_size.count,
        mean=mean,
        std=float(np.sqrt(spread)) if spread is not None else None,
        min=_finite(by_size.values[0]),
        max=_finite(by_size.values[-1]) if known else None,
        percentiles=told,
    )


def percentile_draws(
    values: Floats, q: float, weights: Weights = None, at_least: Floats | None = None, *, seed: int = 0
) -> Floats | None:
    """What the q-th percentile might be, as `REPLICATES` draws; None when there are too few samples.

    A draw beyond the samples is infinite. Two runs are compared by the differences of such draws.
    """
    there = ~np.isnan(values)
    values, weights, at_least = values[there], _of(weights, there), _of(at_least, there)
    if len(values) < samples_needed(q):
        return None
    by_size = ordered(values, weights, at_least)
    shares = _shares(values, weights, by_size, q, seed)
    draws: Floats = np.where(shares > 1, np.inf, np.where(shares < 0, -np.inf, by_size.at(np.clip(shares, 0, 1))))
    return draws


def _extremes(
    values: Floats, weights: Weights, at_least: Floats | None, doubted: Bools | None
) -> tuple[Ordered, Ordered] | None:
    """As if those that are doubted had ended when they were given up, and as if they never would. None: no doubt."""
    if doubted is None or at_least is None or not (doubted := doubted & np.isinf(values)).any():
        return None
    ended, never = np.where(doubted & ~np.isnan(at_least), at_least, values), np.where(doubted, np.nan, at_least)
    return ordered(ended, weights, at_least), ordered(values, weights, never)


def _within(found: Interval, least: Floats, most: Floats) -> bool:
    low, high = (-np.inf if found.low is None else found.low), (np.inf if found.high is None else found.high)
    return bool(low <= least and most <= high and np.isfinite(most))


def _bounded(by_size: Ordered, q: float) -> Interval:
    return Interval(value=None, low=_finite(by_size.lower_bound(q / 100)))


def _interval(values: Floats, weights: Weights, by_size: Ordered, q: float, seed: int) -> Interval:
    if len(values) < samples_needed(q):
        return Interval(value=None)
    value = float(by_size.at(q / 100))
    if not np.isfinite(value) or not by_size.backs(value):
        return _bounded(by_size, q)
    low, high = np.quantile(_shares(values, weights, by_size, q, seed), [0.025, 0.975])
    if low == high and by_size.values[0] != by_size.values[-1]:  # few blocks, by chance all alike: nothing was learnt
        return Interval(value=value)
    return Interval(
        value=value,
        low=float(by_size.at(low)) if low >= 0 else None,
        high=_finite(by_size.at(high)) if high <= 1 else None,
    )


def _finite(value: float | np.floating | Floats) -> float | None:
    return float(value) if np.isfinite(value) else None


def _shares(values: Floats, weights: Weights, by_size: Ordered, q: float, seed: int) -> Floats:
    """The shares of the samples between which the percentile lies, as draws around q / 100."""
    below = by_size.influence(values, float(by_size.at(q / 100)))
    # Each percentile has draws of its own, the same whichever others are asked for.
    rng = np.random.default_rng([seed, round(q * 1000)])
    shares: Floats = q / 100 + deviations(below, rng, weights, at_least=by_size.memory(values))
    assert len(shares) == REPLICATES
    return shares


def _of(column: npt.NDArray[_T] | None, rows: Bools) -> npt.NDArray[_T] | None:
    return None if column is None else column[rows]
