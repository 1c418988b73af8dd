"""`Delay`: by how much first tokens come later than predicted; so that what is promised is begun in time nearly always.

Whoever must start at the last moment by what a first token takes on average misses its promise every other time.
"""

from __future__ import annotations

# How much the latest counts, and how many mean deviations few of them exceed.
RATE = 1 / 16
DEVIATIONS = 2.5


class Delay:
    """Mean and mean deviation, as TCP takes its timeout from round trips (Jacobson 1988)."""

    __slots__ = ("_deviation_ns", "_mean_ns")

    def __init__(self) -> None:
        self._mean_ns = self._deviation_ns = 0.0

    def observe(self, late_ns: float) -> None:
        """One came so much later than predicted; sooner, if negative."""
        error_ns = late_ns - self._mean_ns
        self._mean_ns += error_ns * RATE
        self._deviation_ns += (abs(error_ns) - self._deviation_ns) * RATE

    @property
    def most_ns(self) -> float:
        """What few exceed; at least 0."""
        return max(0.0, self._mean_ns + DEVIATIONS * self._deviation_ns)
