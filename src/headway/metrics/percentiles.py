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

A sample may be infinite: a wait that was given up, of which only is known that it was longer than so much
(right-censored data). A percentile that such samples reach has no value, only a lower bound: the same percentile with
each of them at what is known of it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from headway.metrics.blocks import REPLICATES, Floats, blocks, deviations
from headway.metrics.figures import Distribution, Interval

PERCENTILES = (50.0, 90.0, 95.0, 99.0, 99.9)
MIN_BEYOND = 10

Weights = npt.NDArray[np.integer] | None


def key(percentile: float) -> str:
    """How a percentile is called in a `Distribution`: "50", "99.9"."""
    return f"{percentile:g}"


def samples_needed(percentile: float) -> int:
    """How many samples there must be for a percentile to be told."""
    share = min(percentile, 100 - percentile) / 100
    return int(np.ceil(MIN_BEYOND / share - 1e-6))


def percentile(values: Floats, q: float, weights: Weights = None) -> float:
    """The q-th percentile (0 … 100). With integer `weights`, that of every value repeated so often."""
    return float(_Ordered(values, weights).at(q / 100))


def distribution(
    values: Floats,
    weights: Weights = None,
    *,
    at_least: Floats | None = None,
    percentiles: tuple[float, ...] = PERCENTILES,
    seed: int = 0,
) -> Distribution:
    """The distribution of `values`, in order of time; NaN is a sample that is undefined and left out.

    `at_least`: what is known of each value that is infinite. Where there are such, nobody knows mean and maximum.

    With integer `weights` each value stands for so many samples at once (a chunk of tokens). They count as one sample
    where it is asked whether there are enough.
    """
    bound = None
    if at_least is not None and np.isinf(values).any():
        bound = _Ordered(*_defined(np.where(np.isinf(values), at_least, values), weights))
    values, weights = _defined(values, weights)
    if not len(values):
        nothing = {key(q): Interval(value=None) for q in percentiles}
        return Distribution(samples=0, mean=None, std=None, min=None, max=None, percentiles=nothing)
    ordered = _Ordered(values, weights)
    ordered.bound = bound
    known = bool(np.isfinite(ordered.values[-1]))
    mean = float(np.average(values, weights=weights)) if known else None
    return Distribution(
        samples=ordered.count,
        mean=mean,
        std=float(np.sqrt(np.average((values - mean) ** 2, weights=weights))) if mean is not None else None,
        min=_finite(ordered.values[0]),
        max=_finite(ordered.values[-1]),
        percentiles={key(q): _interval(values, weights, ordered, q, seed) for q in percentiles},
    )


def percentile_draws(values: Floats, q: float, weights: Weights = None, *, seed: int = 0) -> Floats | None:
    """What the q-th percentile might be, as `REPLICATES` draws; None when there are too few samples.

    A draw beyond the samples is infinite. Two runs are compared by the differences of such draws.
    """
    values, weights = _defined(values, weights)
    if len(values) < samples_needed(q):
        return None
    ordered = _Ordered(values, weights)
    shares = _shares(values, weights, ordered, q, seed)
    draws: Floats = np.where(shares > 1, np.inf, np.where(shares < 0, -np.inf, ordered.at(np.clip(shares, 0, 1))))
    return draws


def _interval(values: Floats, weights: Weights, ordered: _Ordered, q: float, seed: int) -> Interval:
    if len(values) < samples_needed(q):
        return Interval(value=None)
    if not np.isfinite(ordered.at(q / 100)):
        bound = ordered.bound
        return Interval(value=None, low=_finite(bound.at(q / 100)) if bound is not None and bound.count else None)
    low, high = np.quantile(_shares(values, weights, ordered, q, seed), [0.025, 0.975])
    if low == high and ordered.values[0] != ordered.values[-1]:  # few blocks, by chance all alike: nothing was learnt
        return Interval(value=float(ordered.at(q / 100)))
    return Interval(
        value=float(ordered.at(q / 100)),
        low=float(ordered.at(low)) if low >= 0 else None,
        high=_finite(ordered.at(high)) if high <= 1 else None,
    )


def _finite(value: float | np.floating | Floats) -> float | None:
    return float(value) if np.isfinite(value) else None


def _shares(values: Floats, weights: Weights, ordered: _Ordered, q: float, seed: int) -> Floats:
    """The shares of the samples between which the percentile lies, as draws around q / 100."""
    below = values <= ordered.at(q / 100)
    # Each percentile has draws of its own, the same whichever others are asked for.
    rng = np.random.default_rng([seed, round(q * 1000)])
    shares: Floats = q / 100 + deviations(below, rng, weights, at_least=ordered.memory(values))
    assert len(shares) == REPLICATES
    return shares


def _defined(values: Floats, weights: Weights) -> tuple[Floats, Weights]:
    there = ~np.isnan(values)
    if there.all():
        return values, weights
    return values[there], None if weights is None else weights[there]


class _Ordered:
    """Samples by size, and how many are up to each of them."""

    def __init__(self, values: Floats, weights: Weights) -> None:
        if weights is None:
            self.values, self._upto = np.sort(values), None
            self.count = len(values)
        else:
            order = np.argsort(values, kind="stable")
            self.values = values[order]
            self._upto = np.cumsum(weights[order], dtype=np.int64)
            self.count = int(self._upto[-1])
        self._memory = 0
        self.bound: _Ordered | None = None  # the same with what is known of those that are infinite

    def memory(self, values: Floats) -> int:
        """The length of blocks for these samples, in order of time, by where they lie around their median.

        A tail holds few events, and how long they keep together is seen better in the middle.
        """
        if not self._memory:
            self._memory = 2 * blocks(values <= self.at(0.5)).length
        return self._memory

    def at(self, share: float | np.floating | Floats) -> Floats:
        """The values below which `share` (0 … 1) of the samples lie, interpolated."""
        place = np.asarray(share, np.float64) * (self.count - 1)
        below = np.floor(place).astype(np.int64)
        low, high = self._nth(below), self._nth(np.minimum(below + 1, self.count - 1))
        with np.errstate(invalid="ignore"):  # between infinite samples
            between: Floats = low + (high - low) * (place - below)
        value: Floats = np.where((low == high) | (place == below), low, between)
        return value

    def _nth(self, index: npt.NDArray[np.int64]) -> Floats:
        if self._upto is not None:
            index = np.searchsorted(self._upto, index, side="right")
        return self.values[index]
