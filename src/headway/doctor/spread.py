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
_LEAST_WAY = 1e-9


@dataclass(frozen=True, slots=True, eq=False)
class Spread:
    """`values` in ascending order, each so often (`weights`). Of a histogram the sum is exact, and so is how many are
    above an edge of its buckets; quantiles are as fine as these.
    """

    values: Floats
    weights: Floats
    surely: float = 0.0  # the largest sample is at least this: itself, or the lower edge of its bucket

    @classmethod
    def of(cls, values: Iterable[float], weights: Iterable[float] | None = None) -> Spread | None:
        """From samples. None where there are none."""
        found = np.fromiter(values, np.float64)
        many = np.ones(len(found)) if weights is None else np.fromiter(weights, np.float64)
        known = np.isfinite(found) & (many > 0)
        if not known.any():
            return None
        order = np.argsort(found[known], kind="stable")
        values = found[known][order]
        return cls(values, many[known][order], float(values[-1]))

    @classmethod
    def of_buckets(cls, upto: Mapping[float, float], total: float) -> Spread | None:
        """From a histogram: upper bound -> samples up to it, and the sum of all samples. None where it is empty.

        Where in their buckets the samples lie, the sum says on average: at `way` of the width. So they lie as u^a with
        u even in 0 … 1 and the mean 1 / (1 + a) = `way`; each point is the mean of its eighth.
        """
        lows: list[float] = []
        tops: list[float] = []
        counts: list[float] = []
        low, before, rest = 0.0, 0.0, total
        for high in sorted(upto):
            count = max(0.0, upto[high] - before)
            before = max(before, upto[high])
            if count:
                lows.append(low)
                tops.append(high if math.isfinite(high) else _beyond(low, count, rest))
                counts.append(count)
                rest -= count * (low + tops[-1]) / 2
            low = high
        if not counts:
            return None
        low_of, top_of, many = (np.array(column)[:, None] for column in (lows, tops, counts))
        least, room = float((low_of * many).sum()), float(((top_of - low_of) * many).sum())
        way = min(1.0, max(_LEAST_WAY, (total - least) / room)) if room > 0 and total > 0 else 0.5
        upto_here = np.linspace(0.0, 1.0, _POINTS + 1) ** (1.0 / way)
        points = low_of + (top_of - low_of) * np.diff(upto_here) * _POINTS * way
        # A bucket holds what is above its lower edge, up to and with its upper one.
        points = np.minimum(np.maximum(points, np.nextafter(low_of, np.inf)), top_of)
        return cls(points.ravel(), np.repeat(many / _POINTS, _POINTS, axis=1).ravel(), lows[-1])

    @classmethod
    def joined(cls, several: Iterable[Spread]) -> Spread | None:
        """All samples of several."""
        parts = list(several)
        if not parts:
            return None
        values = np.concatenate([one.values for one in parts])
        weights = np.concatenate([one.weights for one in parts])
        order = np.argsort(values, kind="stable")
        return cls(values[order], weights[order], max(one.surely for one in parts))

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


def _beyond(low: float, count: float, rest: float) -> float:
    """How far the open bucket reaches: its mean is what of the sum the others leave, were they in their middles."""
    return max(low * 1.01, 2.0 * rest / count - low, 1e-9)
