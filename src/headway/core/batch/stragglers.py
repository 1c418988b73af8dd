"""`Stragglers`: when is an item so slow that it is not worth waiting for?

Only asked at the end of a job, when nothing else could use its place.
"""

from __future__ import annotations

from collections import deque

REMEMBERED = 1000
ENOUGH = 20
SHARE = 0.95


class Stragglers:
    """An item is one when it has run `factor` times as long as nearly all others did; 0 for never."""

    def __init__(self, factor: float) -> None:
        self._factor = factor
        self._took_ns: deque[int] = deque(maxlen=REMEMBERED)  # the last ones

    def ended(self, took_ns: int) -> None:
        self._took_ns.append(took_ns)

    @property
    def limit_ns(self) -> int | None:
        """None while nothing can be said."""
        if not self._factor or len(self._took_ns) < ENOUGH:
            return None
        ordered = sorted(self._took_ns)
        return int(self._factor * ordered[int(SHARE * (len(ordered) - 1))])
