"""Samples by size, those included of which is only known that they are larger than so much.

`Ordered` is numpy's quantiles (Hyndman and Fan 1996, type 7). `Censored` is Kaplan and Meier's estimate (1958, JASA
53:457), in the form of Efron (1967, 5th Berkeley Symp. 4:831): each sample that was given up hands its weight on to all
that lie beyond it, in equal parts.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from headway.metrics.blocks import Floats, blocks

MIN_BEYOND = 10

Weights = npt.NDArray[np.integer] | None
Numbers = npt.NDArray[np.number]


def ordered(values: Floats, weights: Weights, at_least: Floats | None = None) -> Ordered:
    """`at_least`: what is known of each value that is infinite."""
    return Censored(values, weights, at_least) if np.isinf(values).any() else Ordered.of(values, weights)


class Ordered:
    """Samples by size, and how many are up to each of them."""

    def __init__(self, values: Floats, masses: Numbers | None, upto: Numbers | None, count: int) -> None:
        self.values = values
        self.masses = masses  # what each counts; None: one
        self._upto = upto
        self.count = count
        self._memory = 0

    @classmethod
    def of(cls, values: Floats, weights: Weights) -> Ordered:
        """Where each of them is known."""
        if weights is None:
            return Ordered(np.sort(values), None, None, len(values))
        order = np.argsort(values, kind="stable")
        upto = np.cumsum(weights[order], dtype=np.int64)
        return Ordered(values[order], weights[order], upto, int(upto[-1]))

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


class Censored(Ordered):
    """The same of samples of which some are infinite. Those that are known have the weight of those on top that were
    given up before; what is left when none is known any more lies at infinity.
    """

    def __init__(self, values: Floats, weights: Weights, at_least: Floats | None) -> None:
        unknown = np.isinf(values)
        reached = values if at_least is None else np.where(unknown & ~np.isnan(at_least), at_least, values)
        self._order = order = np.lexsort((unknown, reached))  # what ends when another is given up ended before it
        self._reached, self._unknown = reached[order], unknown[order]
        heavy = np.ones(len(values)) if weights is None else weights[order].astype(np.float64)
        count = round(heavy.sum())
        self._left = np.maximum(count - np.cumsum(heavy), 0.0)  # beyond each
        # What is left of the weight when nothing lies beyond goes nowhere.
        handed_on = np.divide(heavy, self._left, out=np.zeros(len(heavy)), where=self._unknown & (self._left > 0))
        known = ~self._unknown
        times, masses = self._reached[known], (heavy * np.cumprod(1 + handed_on))[known]
        upto = np.cumsum(masses)
        if self._unknown[-1]:
            times = np.append(times, np.inf)
            masses = np.append(masses, count - (upto[-1] if len(upto) else 0.0))
            upto = np.append(upto, count)
        upto = upto - 1e-9 * count  # a whole number of samples is not to be missed by rounding
        upto[-1] = count
        super().__init__(times, masses, upto, count)
        # By how much one sample at risk makes the estimate fall short, at each of those that are known.
        told = known & (self._left > 0)
        steps = np.divide(heavy, self._left * (self._left + heavy), out=np.zeros(len(heavy)), where=told)
        self._burden = np.cumsum(steps)
        self._bound = Ordered.of(reached, weights)

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
