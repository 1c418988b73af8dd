"""`AllGaps`: the times between tokens, of all requests in one histogram and of each by itself.

A gap is only noted when its token passes, and sorted into its bucket later, many at once: when its request ends, when
there are `BATCH`, or when somebody reads. In a stream's path an append touches the least memory, most of which has left
the processor's caches since the chunk before.
"""

from __future__ import annotations

from array import array

import numpy as np

from headway.metrics.histogram import Histogram
from headway.metrics.names import ITL_BUCKETS_S

BATCH = 512
_BOUNDS = np.array(ITL_BUCKETS_S)


class Gaps:
    """Of one request, from `AllGaps.begin` to `end`."""

    __slots__ = ("_all", "_counts", "_new_s", "_new_times", "_sum")

    def __init__(self, into: Histogram) -> None:
        self._all = into
        self._counts = [0] * (len(ITL_BUCKETS_S) + 1)
        self._sum = 0.0
        self._new_s = array("d")
        self._new_times = array("q")

    def note(self, gap_s: float, times: int) -> None:
        """`times` tokens came, each `gap_s` after the one before it."""
        self._new_s.append(gap_s)
        self._new_times.append(times)
        if len(self._new_s) >= BATCH:
            self.sort()

    def sort(self) -> None:
        if not self._new_s:
            return
        gaps_s, times = np.array(self._new_s), np.array(self._new_times)
        fell = np.bincount(np.searchsorted(_BOUNDS, gaps_s), weights=times, minlength=len(self._counts))
        counts, total = fell.astype(np.int64).tolist(), float(gaps_s @ times)
        self._all.add(counts, total)
        self._counts = [old + new for old, new in zip(self._counts, counts, strict=True)]
        self._sum += total
        del self._new_s[:], self._new_times[:]

    @property
    def counts(self) -> list[int]:
        """By bucket of `ITL_BUCKETS_S`, the last one for what is above all bounds."""
        self.sort()
        return self._counts

    @property
    def count(self) -> int:
        return sum(self.counts)

    @property
    def sum(self) -> float:
        """In s."""
        self.sort()
        return self._sum


class AllGaps:
    """Of all requests since the start, those under way included."""

    def __init__(self) -> None:
        self._histogram = Histogram(ITL_BUCKETS_S)
        self._open: set[Gaps] = set()

    def begin(self) -> Gaps:
        gaps = Gaps(self._histogram)
        self._open.add(gaps)
        return gaps

    def end(self, gaps: Gaps) -> None:
        """No more comes; it can still be read."""
        gaps.sort()
        self._open.discard(gaps)

    @property
    def histogram(self) -> Histogram:
        """As it is now."""
        for gaps in self._open:
            gaps.sort()
        return self._histogram
