"""`Delay`: by how much first tokens come later than predicted; so that what is promised is begun in time nearly always.

Whoever must start at the last moment by what a first token takes on average misses its promise every other time.
"""

from __future__ import annotations

# So many of the latest count: fewer are too few to tell a deviation from, more follow a worker that changes too late.
REMEMBERED = 16
# Of mean deviations above the mean: about 3 of 100 come later if errors are normal, 7 if they are exponential.
DEVIATIONS = 2.5


class Delay:
    """Of one worker. Mean and mean deviation, as TCP takes its timeout from round trips (Jacobson 1988; RFC 6298).

    Like there the first error counts whole, and as its own deviation too: one is enough to go by.
    """

    __slots__ = ("_count", "_deviation_ns", "_mean_ns")

    def __init__(self) -> None:
        self._count = 0
        self._mean_ns = self._deviation_ns = 0.0

    def observe(self, late_ns: float) -> None:
        """One came so much later than predicted; sooner, if negative."""
        self._count = min(self._count + 1, REMEMBERED)
        error_ns = late_ns - self._mean_ns
        self._mean_ns += error_ns / self._count
        self._deviation_ns += (abs(error_ns) - self._deviation_ns) / self._count

    @property
    def most_ns(self) -> float:
        """What few exceed; at least 0."""
        return max(0.0, self._mean_ns + DEVIATIONS * self._deviation_ns)
