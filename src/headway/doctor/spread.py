"""`Spread`: how a quantity is distributed over a window, from samples or from a histogram's buckets."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
# Points that stand for the samples of a bucket: they lie anywhere in it.
_POINTS = 8


@dataclass(frozen=True, slots=True, eq=False)
class Spread:
    """`values` in ascending order, each so often (`weights`). Of a histogram the sum is exact, quantiles are as fine
    as its buckets.
    """

    values: Floats
    weights: Floats

    @classmethod
    def of(cls, values: Iterable[float], weights: Iterable[float] | None = None) -> Spread | None:
        """From samples. None where there are none."""
        found = np.fromiter(values, np.float64)
        many = np.ones(len(found)) if weights is None else np.fromiter(weights, np.float64)
        known = np.isfinite(found) & (many > 0)
        if not known.any():
            return None
        order = np.argsort(found[known], kind="stable")
        return cls(found[known][order], many[known][order])

    @classmethod
    def of_buckets(cls, upto: Mapping[float, float], total: float) -> Spread | None:
        """From a histogram: upper bound -> samples up to it, and the sum of all samples. None where it is empty."""
        values: list[float] = []
        weights: list[float] = []
        low, before = 0.0, 0.0
        for high in sorted(upto):
            count = max(0.0, upto[high] - before)
            before = max(before, upto[high])
            if count:
                top = high if math.isfinite(high) else _beyond(low, count, total, values, weights)
                values += [low + (top - low) * (point + 0.5) / _POINTS for point in range(_POINTS)]
                weights += [count / _POINTS] * _POINTS
            low = high
        if not values:
            return None
        found, many = np.array(values), np.array(weights)
        rough = float(found @ many)
        if rough > 0 and total > 0:  # where in their buckets the samples lie, the exact sum says on average
            found = found * min(1.5, max(0.5, total / rough))
        return cls(found, many)

    @classmethod
    def joined(cls, several: Iterable[Spread]) -> Spread | None:
        """All samples of several."""
        parts = list(several)
        if not parts:
            return None
        values = np.concatenate([one.values for one in parts])
        weights = np.concatenate([one.weights for one in parts])
        order = np.argsort(values, kind="stable")
        return cls(values[order], weights[order])

    @property
    def count(self) -> float:
        return float(self.weights.sum())

    @property
    def sum(self) -> float:
        return float(self.values @ self.weights)

    @property
    def mean(self) -> float:
        return self.sum / self.count

    def quantile(self, share: float) -> float:
        """The value that this share (0 … 1) of the samples do not exceed."""
        upto = np.cumsum(self.weights)
        place = int(np.searchsorted(upto, share * upto[-1], side="left"))
        return float(self.values[min(place, len(self.values) - 1)])

    def share_above(self, value: float) -> float:
        """The share of samples above `value`."""
        return float(self.weights[self.values > value].sum()) / self.count

    def part_above(self, value: float) -> float:
        """The share of the *sum* that samples above `value` make up."""
        above = self.values > value
        whole = self.sum
        return float(self.values[above] @ self.weights[above]) / whole if whole > 0 else 0.0

    @property
    def tail_part(self) -> float:
        """The share of the sum made up by samples above four times the median.

        Exponential lengths give 0.24, lognormal ones with sigma 1 give 0.35: above a half, a few are most of it.
        """
        return self.part_above(4.0 * self.quantile(0.5))


def _beyond(low: float, count: float, total: float, values: list[float], weights: list[float]) -> float:
    """How far the open bucket reaches: its mean is what of the sum the others leave."""
    rest = total - sum(value * weight for value, weight in zip(values, weights, strict=True))
    return max(low * 1.01, 2.0 * rest / count - low, 1e-9)
