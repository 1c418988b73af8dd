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
taken for one of those that took longer than it was waited for: Kaplan and Meier's estimate (1958, JASA 53:457), in the
form of Efron (1967, 5th Berkeley Symp. 4:831), in which each such sample hands its weight on to all that lie beyond it,
in equal parts. The block bootstrap draws the influence of each sample on that estimate (Reid 1981, Ann. Statist. 9:78),
which without such samples is again whether it lies below the percentile. It rests on waits being given up for reasons
that have nothing to do with how long they would have taken: a run that ends, a time limit.

What lies beyond the last sample that is known has no value, only a lower bound: the same percentile with each sample at
what is known of it. So has what fewer than `MIN_BEYOND` samples were waited for long enough to tell.
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
    return float(_ordered(values, weights, None).at(q / 100))


def quantiles(values: Floats, ratios: Floats, weights: Weights = None, at_least: Floats | None = None) -> Floats:
    """The values up to which these shares (0 … 1) of the samples lie, infinite beyond what is known."""
    return _ordered(*_defined(values, weights, at_least)).at(ratios)


def distribution(
    values: Floats,
    weights: Weights = None,
    at_least: Floats | None = None,
    *,
    percentiles: tuple[float, ...] = PERCENTILES,
    seed: int = 0,
) -> Distribution:
    """The distribution of `values`, in order of time; NaN is a sample that is undefined and left out.

    `at_least`: what is known of each value that is infinite. Where such a one is the largest, nobody knows mean and
    maximum.

    With integer `weights` each value stands for so many samples at once (a chunk of tokens). They count as one sample
    where it is asked whether there are enough.
    """
    values, weights, at_least = _defined(values, weights, at_least)
    if not len(values):
        nothing = {key(q): Interval(value=None) for q in percentiles}
        return Distribution(samples=0, mean=None, std=None, min=None, max=None, percentiles=nothing)
    ordered = _ordered(values, weights, at_least)
    known = bool(np.isfinite(ordered.values[-1]))
    mean = float(np.average(ordered.values, weights=ordered.masses)) if known else None
    spread = np.average((ordered.values - mean) ** 2, weights=ordered.masses) if mean is not None else None
    return Distribution(
        samples=ordered.count,
        mean=mean,
        std=float(np.sqrt(spread)) if spread is not None else None,
        min=_finite(ordered.values[0]),
        max=_finite(ordered.values[-1]),
        percentiles={key(q): _interval(values, weights, ordered, q, seed) for q in percentiles},
    )


def percentile_draws(
    values: Floats, q: float, weights: Weights = None, at_least: Floats | None = None, *, seed: int = 0
) -> Floats | None:
    """What the q-th percentile might be, as `REPLICATES` draws; None when there are too few samples.

    A draw beyond the samples is infinite. Two runs are compared by the differences of such draws.
    """
    values, weights, at_least = _defined(values, weights, at_least)
    if len(values) < samples_needed(q):
        return None
    ordered = _ordered(values, weights, at_least)
    shares = _shares(values, weights, ordered, q, seed)
    draws: Floats = np.where(shares > 1, np.inf, np.where(shares < 0, -np.inf, ordered.at(np.clip(shares, 0, 1))))
    return draws


def _interval(values: Floats, weights: Weights, ordered: _Ordered, q: float, seed: int) -> Interval:
    if len(values) < samples_needed(q):
        return Interval(value=None)
    value = float(ordered.at(q / 100))
    if not np.isfinite(value) or not ordered.backs(value):
        return Interval(value=None, low=_finite(ordered.lower_bound(q / 100)))
    low, high = np.quantile(_shares(values, weights, ordered, q, seed), [0.025, 0.975])
    if low == high and ordered.values[0] != ordered.values[-1]:  # few blocks, by chance all alike: nothing was learnt
        return Interval(value=value)
    return Interval(
        value=value,
        low=float(ordered.at(low)) if low >= 0 else None,
        high=_finite(ordered.at(high)) if high <= 1 else None,
    )


def _finite(value: float | np.floating | Floats) -> float | None:
    return float(value) if np.isfinite(value) else None


def _shares(values: Floats, weights: Weights, ordered: _Ordered, q: float, seed: int) -> Floats:
    """The shares of the samples between which the percentile lies, as draws around q / 100."""
    below = ordered.influence(values, float(ordered.at(q / 100)))
    # Each percentile has draws of its own, the same whichever others are asked for.
    rng = np.random.default_rng([seed, round(q * 1000)])
    shares: Floats = q / 100 + deviations(below, rng, weights, at_least=ordered.memory(values))
    assert len(shares) == REPLICATES
    return shares


def _defined(values: Floats, weights: Weights, at_least: Floats | None) -> tuple[Floats, Weights, Floats | None]:
    there = ~np.isnan(values)
    if there.all():
        return values, weights, at_least
    return values[there], None if weights is None else weights[there], None if at_least is None else at_least[there]


def _ordered(values: Floats, weights: Weights, at_least: Floats | None) -> _Ordered:
    return _Censored(values, weights, at_least) if np.isinf(values).any() else _Ordered(values, weights)


class _Ordered:
    """Samples by size, and how many are up to each of them."""

    def __init__(self, values: Floats, weights: Weights) -> None:
        self.masses: npt.NDArray[np.number] | None = None  # what each counts; None: one
        self._upto: npt.NDArray[np.number] | None = None
        self.count = len(values)
        if weights is None:
            self.values = np.sort(values)
        else:
            order = np.argsort(values, kind="stable")
            self.values, self.masses = values[order], weights[order]
            self._upto = np.cumsum(self.masses, dtype=np.int64)
            self.count = int(self._upto[-1])
        self._memory = 0

    def memory(self, values: Floats) -> int:
        """The length of blocks for these samples, in order of time, by where they lie around their median.

        A tail holds few events, and how long they keep together is seen better in the middle.
        """
        if not self._memory:
            self._memory = 2 * blocks(values <= self.at(0.5)).length
        return self._memory

    def backs(self, value: float) -> bool:
        """Whether enough of the samples say something about so large a value: all do."""
        del value
        return True

    def lower_bound(self, share: float) -> Floats:
        """What is known of the value below which `share` of the samples lie."""
        return self.at(share)

    def influence(self, values: Floats, limit: float) -> Floats | npt.NDArray[np.bool_]:
        """How much each sample adds to the share of those up to `limit`: all of itself, or nothing."""
        below: npt.NDArray[np.bool_] = values <= limit
        return below

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


class _Censored(_Ordered):
    """The same of samples of which some are infinite. Those that are known have the weight of those on top that were
    given up before; what is left when none is known any more lies at infinity.
    """

    def __init__(self, values: Floats, weights: Weights, at_least: Floats | None) -> None:
        unknown = np.isinf(values)
        reached = values if at_least is None else np.where(unknown & ~np.isnan(at_least), at_least, values)
        self._order = order = np.lexsort((unknown, reached))  # what ends when another is given up ended before it
        self._reached, self._unknown = reached[order], unknown[order]
        heavy = np.ones(len(values)) if weights is None else weights[order].astype(np.float64)
        self.count = round(heavy.sum())
        self._left = np.maximum(self.count - np.cumsum(heavy), 0.0)  # beyond each
        # What is left of the weight when nothing lies beyond goes nowhere.
        handed_on = np.divide(heavy, self._left, out=np.zeros(len(heavy)), where=self._unknown & (self._left > 0))
        masses = heavy * np.cumprod(1 + handed_on)
        known = ~self._unknown
        self.values, self.masses = self._reached[known], masses[known]
        upto = np.cumsum(self.masses)
        if self._unknown[-1]:
            self.values = np.append(self.values, np.inf)
            self.masses = np.append(self.masses, self.count - (upto[-1] if len(upto) else 0.0))
            upto = np.append(upto, self.count)
        else:
            upto[-1] = self.count  # but for rounding
        self._upto = upto - 1e-9 * self.count  # a whole number of samples is not to be missed by rounding
        self._upto[-1] = self.count
        # By how much one sample at risk makes the estimate fall short, at each of those that are known.
        told = known & (self._left > 0)
        steps = np.divide(heavy, self._left * (self._left + heavy), out=np.zeros(len(heavy)), where=told)
        self._burden = np.cumsum(steps)
        self._bound = _Ordered(reached, weights)
        self._memory = 0

    def backs(self, value: float) -> bool:
        """By those that had not been given up before, as many samples as their weight is of the whole."""
        place = int(np.searchsorted(self._reached, value))
        left = self._left[place - 1] if place else self.count
        return bool(left / self.count * len(self._reached) >= MIN_BEYOND - 1e-6)

    def lower_bound(self, share: float) -> Floats:
        return self._bound.at(share)

    def influence(self, values: Floats, limit: float) -> Floats:
        """As a share of the whole, per unit of weight: positive where it is known to lie below the limit."""
        inside = int(np.searchsorted(self._reached, limit, side="right"))
        place = int(np.searchsorted(self.values, limit, side="right"))
        beyond = self.count - (float(self.masses[:place].sum()) if self.masses is not None else 0.0)
        ended = np.divide(1.0, self._left, out=np.zeros(len(values)), where=~self._unknown & (self._left > 0))
        ended[inside:] = 0.0
        burden = self._burden.copy()
        burden[inside:] = burden[inside - 1] if inside else 0.0
        result = np.empty(len(values))
        result[self._order] = beyond * (ended - burden)
        return result
