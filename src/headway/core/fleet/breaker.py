"""`Breaker`: whether a worker is trusted with requests, as data with `now`; nothing here waits or wakes.

closed → `FAILURES` in a row → open for a while, doubled each time → half-open: one request finds out → closed, or open.
"""

from __future__ import annotations

from enum import Enum

FAILURES = 3
FIRST_REST_NS = 1_000_000_000
LONGEST_REST_NS = 30_000_000_000


class Trust(Enum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


class Breaker:
    """One worker's. A failure is a connection that failed, or an answer that broke off or was an error of its own."""

    __slots__ = ("_failures", "_probing", "_rest_ns", "_rests_until_ns")

    def __init__(self) -> None:
        self._failures = 0  # in a row
        self._rests_until_ns: int | None = None  # while not closed: when one may try
        self._rest_ns = FIRST_REST_NS
        self._probing = False  # one tries

    def trust(self, now: int) -> Trust:
        if self._rests_until_ns is None:
            return Trust.CLOSED
        return Trust.HALF_OPEN if now >= self._rests_until_ns else Trust.OPEN

    @property
    def closed(self) -> bool:
        """Is nothing wrong with it?"""
        return self._rests_until_ns is None

    def allows(self, now: int) -> bool:
        """May a request be sent?"""
        if self._rests_until_ns is None:
            return True
        trust = self.trust(now)
        return trust is Trust.CLOSED or (trust is Trust.HALF_OPEN and not self._probing)

    def retry_after_ns(self, now: int) -> int:
        """When somebody may try; 0 for now."""
        return max(0, (self._rests_until_ns or 0) - now)

    def sent(self, now: int) -> bool:
        """A request goes there. Is it the one that finds out?"""
        self._probing = self.trust(now) is Trust.HALF_OPEN
        return self._probing

    def nothing_learnt(self) -> None:
        """The one that was to find out was taken back."""
        self._probing = False

    def succeeded(self) -> None:
        self._failures, self._rests_until_ns, self._rest_ns, self._probing = 0, None, FIRST_REST_NS, False

    def failed(self, now: int) -> None:
        self._failures += 1
        self._probing = False
        if self._rests_until_ns is not None:
            if now < self._rests_until_ns:
                return  # one that was sent before
            self._rest_ns = min(LONGEST_REST_NS, 2 * self._rest_ns)
        elif self._failures < FAILURES:
            return
        self._rests_until_ns = now + self._rest_ns

    def is_back(self, now: int) -> None:
        """Something else has seen it well: let one request find out at once."""
        if self._rests_until_ns is not None:
            self._rests_until_ns = min(self._rests_until_ns, now)
