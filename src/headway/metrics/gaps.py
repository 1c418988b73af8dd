"""`AllGaps`: the times between tokens, of all requests in one histogram and of each by itself.

A gap is only noted when its token passes, in one list for all, and sorted into its buckets later, many at once: when
there are `BATCH`, or when somebody reads. In a stream's path that touches the least memory, most of which has left the
processor's caches since the chunk before.
"""

from __future__ import annotations

from headway.metrics.histogram import Histogram
from headway.metrics.names import ITL_BUCKETS_S

BATCH = 512


class Gaps:
    """Of one request. `AllGaps` notes them, and sorts them whenever they are read."""

    __slots__ = ("_all", "_counts", "_sum")

    def __init__(self, among: AllGaps) -> None:
        self._all = among
        self._counts = [0] * (len(ITL_BUCKETS_S) + 1)
        self._sum = 0.0

    def sorted_into(self, bucket: int, gap_s: float, times: int) -> None:
        self._counts[bucket] += times
        self._sum += gap_s * times

    @property
    def counts(self) -> list[int]:
        """By bucket of `ITL_BUCKETS_S`, the last one for what is above all bounds."""
        self._all.sort()
        return self._counts

    @property
    def count(self) -> int:
        return sum(self.counts)

    @property
    def sum(self) -> float:
        """In s."""
        self._all.sort()
        return self._sum


class AllGaps:
    """Of all requests since the start, those under way included."""

    def __init__(self) -> None:
        self._histogram = Histogram(ITL_BUCKETS_S)
        self._new: list[tuple[Gaps, float, int]] = []

    def note(self, gaps: Gaps, gap_s: float, times: int) -> None:
        """`times` tokens came, each `gap_s` after the one before it."""
        self._new.append((gaps, gap_s, times))
        if len(self._new) >= BATCH:
            self.sort()

    def sort(self) -> None:
        if not self._new:
            return
        new, self._new = self._new, []
        observe = self._histogram.observe
        for gaps, gap_s, times in new:
            gaps.sorted_into(observe(gap_s, times), gap_s, times)

    @property
    def histogram(self) -> Histogram:
        """As it is now."""
        self.sort()
        return self._histogram
