"""`Shares`: which tenants have more of the workers' KV than their part, while others are there that have less.

Who floods the service is always waiting, so it fills whatever room there is the moment it appears. Without a bound the
others find every worker full of its work, each time they come, and wait until enough of that has ended.
"""

from __future__ import annotations

from collections.abc import Callable

# A tenant is there for so long after its last request: somebody quiet comes seldom.
PRESENT_NS = 60_000_000_000


class Shares:
    """Tokens in flight by tenant; a law recounts them. `weight` says what part each is to have."""

    __slots__ = ("_present", "_total", "_weight", "_weights", "tokens")

    def __init__(self, weight: Callable[[str], float]) -> None:
        self._weight = weight
        self.tokens: dict[str, int] = {}
        self._total = 0
        self._present: dict[str, tuple[int, float]] = {}  # when it came last, and its weight; who came last is last
        self._weights = 0.0  # of those who are present

    def came(self, tenant: str, now: int) -> None:
        """It has asked for something."""
        _, weight = self._present.pop(tenant, (0, 0.0))
        weight_now = self._weight(tenant)
        self._weights += weight_now - weight
        self._present[tenant] = (now, weight_now)
        while (oldest := next(iter(self._present))) != tenant and self._present[oldest][0] <= now - PRESENT_NS:
            self._weights -= self._present.pop(oldest)[1]

    def sent(self, tenant: str, tokens: int) -> None:
        self.tokens[tenant] = self.tokens.get(tenant, 0) + tokens
        self._total += tokens

    def landed(self, tenant: str, tokens: int) -> None:
        self._total -= tokens
        self.tokens[tenant] -= tokens
        if not self.tokens[tenant]:
            del self.tokens[tenant]

    @property
    def several(self) -> bool:
        """Is there more than one tenant?"""
        return len(self._present) > 1

    def beyond(self, tenant: str) -> bool:
        """Has it more in flight than its part of what all have, while others are there?"""
        if not self.several or tenant not in self._present:
            return False
        return self.tokens.get(tenant, 0) * self._weights > self._total * self._present[tenant][1]
