"""`Histogram`: counts by bucket, as Prometheus reads them; a tenth of what its own client takes for an observation.

What is only noted is sorted into its buckets later, many at once: when there are `BATCH`, or when somebody reads.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import numpy.typing as npt

BATCH = 512


class Histogram:
    """Of observations since the start. `bounds` are upper limits, ascending; what is above all of them counts too."""

    __slots__ = ("_counts", "_new", "_sum", "bounds")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self._counts = [0] * (len(self.bounds) + 1)
        self._sum = 0.0
        self._new: list[float] = []

    @classmethod
    def of(cls, bounds: Sequence[float], counts: Sequence[int], total: float) -> Histogram:
        """With so many in each bucket, and the sum of all of them."""
        made = cls(bounds)
        made._counts, made._sum = list(counts), total
        return made

    def observe(self, value: float, times: int = 1) -> int:
        """Count `value`, so many times over. Returns the number of the bucket it fell into."""
        index = bisect_left(self.bounds, value)
        self._counts[index] += times
        self._sum += value * times
        return index

    def note(self, value: float) -> None:
        """Count `value`, for who need not know where it fell."""
        new = self._new
        new.append(value)
        if len(new) >= BATCH:
            self._sort()

    def add(self, counts: Sequence[int], total: float) -> None:
        """Counts by bucket of somebody with the same bounds, and the sum of what was observed there."""
        mine = self._counts
        for index, count in enumerate(counts):
            if count:
                mine[index] += count
        self._sum += total

    def note_all(self, values: Sequence[float] | npt.NDArray[np.float64]) -> None:
        """Count each of `values`."""
        if len(values):
            self._add_up(np.asarray(values, np.float64))

    def _sort(self) -> None:
        values = np.array(self._new)
        self._new.clear()
        self._add_up(values)

    def _add_up(self, values: npt.NDArray[np.float64]) -> None:
        fell = np.bincount(np.searchsorted(np.array(self.bounds), values), minlength=len(self._counts))
        self.add(fell.tolist(), float(values.sum()))

    @property
    def counts(self) -> list[int]:
        """By bucket, the last one for what is above all bounds."""
        if self._new:
            self._sort()
        return self._counts

    @property
    def sum(self) -> float:
        if self._new:
            self._sort()
        return self._sum

    @property
    def count(self) -> int:
        return sum(self.counts)

    def upto(self, bounds: Sequence[float]) -> list[int]:
        """Observations up to each of `bounds`, which are some of its own, and of all at the end."""
        counts = self.counts
        if len(bounds) == len(self.bounds) and tuple(bounds) == self.bounds:
            return list(accumulate(counts))
        totals, total, mine = [], 0, iter(zip(self.bounds, counts, strict=False))
        for bound in bounds:
            for own, count in mine:
                total += count
                if own == bound:
                    break
            else:
                raise ValueError(f"{bound} is no bound of this histogram: {self.bounds}")
            totals.append(total)
        return [*totals, sum(counts)]

    def cumulative(self) -> list[tuple[str, float]]:
        """(upper bound, observations up to it), the last one for all."""
        names = (*map(str, self.bounds), "+Inf")
        return [(name, float(count)) for name, count in zip(names, self.upto(self.bounds), strict=True)]
