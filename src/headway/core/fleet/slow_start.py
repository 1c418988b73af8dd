"""`SlowStart`: how a window grows before anything is known of its worker, as TCP's does before its first loss.

The first window is far too small for most workers, and nobody has ended. But whoever has a first byte runs: so it grows
as often as all in flight have one; as far as the last signal allows that told of a full window and no queue.
"""

from __future__ import annotations

# What a window is multiplied by at a time: where the worker was just full, the half on top is all that queues.
GROWTH = 1.5
# How far first bytes alone let it grow: there are servers that send theirs to whoever comes. Signals are up to a second
# apart, and with a longer leap than three times by half (1.5³ = 3.4) a small worker would be flooded between two.
UNTOLD_RATIO = 3.5
# It ends so long after it first grew: by then requests have ended, and tell what more in flight would gain.
LASTS_NS = 2_000_000_000


class SlowStart:
    """Of one window, of `first` sequences. Whoever sees a queue, or that little is gained, ends it."""

    __slots__ = ("_ends_ns", "_most")

    def __init__(self, first: float) -> None:
        self._most = first * UNTOLD_RATIO
        self._ends_ns = 0  # 0: it has not grown yet

    def told(self, sequences: float) -> None:
        """So many were in flight, and none queued."""
        self._most = max(self._most, sequences * UNTOLD_RATIO)

    def over(self, now: int) -> bool:
        return 0 < self._ends_ns < now

    def grown(self, now: int, sequences: float) -> float:
        """What a window of so many `sequences` becomes, all of which run: as it was where the next signal must tell."""
        if sequences * GROWTH > self._most:
            return sequences
        self._ends_ns = self._ends_ns or now + LASTS_NS
        return sequences * GROWTH
