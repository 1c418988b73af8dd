"""`QuotaStore`: where gateways that share limits meet. It keeps what each holds, and gives out what there is.

What to ask for and what to give back is decided in `core/front/sharing.py`. `MemoryStore` is the whole of what a store
does, in plain words and for gateways of one process; the contract suite holds the Redis one to it.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from headway.core.front.ledger import Amounts
from headway.core.front.sharing import Answer, Ask, Got, Want

US_PER_MINUTE = 60_000_000
SHORT_US = 1_000_000  # so long others hear that somebody wanted more than there was
# No lease is longer: one that seems to be was made before the clock was set back.
MAX_LEASE_S = 60.0


class QuotaStoreFault(Exception):
    """The store did not answer, or answered what is none. Its text names no password."""


class QuotaStore(Protocol):
    """An ask is applied once, or not at all; whoever gets no answer does not know which."""

    async def exchange(self, ask: Ask) -> Answer:
        """One round trip. Raises `QuotaStoreFault`."""

    async def close(self) -> None:
        """Give up the connection."""


@dataclass(slots=True)
class _Bucket:
    """Parts of which a µs refills as many as a minute allows. None: not limited yet; it begins full."""

    parts: int | None = None

    def refill(self, limit: int, elapsed_us: int, age_us: int) -> None:
        if not limit:
            self.parts = None
        elif self.parts is None:
            self.parts = limit * min(US_PER_MINUTE, age_us)
        else:
            self.parts = min(limit * US_PER_MINUTE, self.parts + limit * elapsed_us)

    def change(self, more: int, owed: int, limit: int, *, gives: bool) -> int:
        """Charge what is owed; take back, or give what there is of `more`. Returns what was given."""
        if self.parts is None:
            return min(0, more)
        self.parts -= owed * US_PER_MINUTE
        given = min(more, max(0, self.whole) if gives else 0)
        self.parts = min(limit * US_PER_MINUTE, self.parts - given * US_PER_MINUTE)
        return given

    @property
    def whole(self) -> int:
        return (self.parts or 0) // US_PER_MINUTE


@dataclass(slots=True)
class _Tenant:
    at_us: int
    requests: _Bucket = field(default_factory=_Bucket)
    tokens: _Bucket = field(default_factory=_Bucket)
    slots: dict[str, int] = field(default_factory=dict)
    short_us: int | None = None  # when somebody last got less than it wanted, and who
    short: str = ""


class MemoryStore:
    """`clock_us` may jump, as a server's does."""

    def __init__(self, clock_us: Callable[[], int]) -> None:
        self._clock_us = clock_us
        self.forget()

    def forget(self) -> None:
        """As a server does that starts again without what it knew."""
        self._epoch = secrets.token_hex(8)
        self._born_us: int | None = None  # None: from the first gateway on; else when it was found to have forgotten
        self._leases: dict[str, int] = {}
        self._numbers: dict[str, int] = {}
        self._tenants: dict[str, _Tenant] = {}
        self._wait_us = 0

    async def exchange(self, ask: Ask) -> Answer:
        return self.apply(ask)

    async def close(self) -> None:
        pass

    def apply(self, ask: Ask) -> Answer:
        now, lease_us = self._clock_us(), ask.lease_ns // 1000
        if ask.epoch and ask.epoch != self._epoch and self._born_us is None:
            # Some gateways hold what is not known here: all may tell before anything is given out.
            self._born_us, self._wait_us = now, now + lease_us
        before = self._numbers.get(ask.gateway, 0)
        if ask.number <= before:
            raise QuotaStoreFault("the ask came after a later one")
        self._numbers[ask.gateway] = ask.number
        self._renew(ask, now, lease_us)
        if self._wait_us - now > MAX_LEASE_S * 1e6:  # the clock was set back
            self._wait_us = now + lease_us
        wait_us = max(0, self._wait_us - now)
        got = tuple(self._apply(want, ask.gateway, before, now, gives=not wait_us) for want in ask.wants)
        return Answer(self._epoch, before, len(self._leases), got, wait_us * 1000)

    def _renew(self, ask: Ask, now: int, lease_us: int) -> None:
        longest = now + int(MAX_LEASE_S * 1e6)
        self._leases = {
            gateway: now + lease_us if until > longest else until
            for gateway, until in self._leases.items()
            if until > now
        }
        self._leases[ask.gateway] = now + lease_us
        if ask.leaves:
            del self._leases[ask.gateway]

    def _apply(self, want: Want, gateway: str, before: int, now: int, *, gives: bool) -> Got:
        tenant = self._tenants.get(want.tenant)
        if tenant is None:
            tenant = self._tenants[want.tenant] = _Tenant(now)
        elapsed_us, tenant.at_us = max(0, now - tenant.at_us), now
        age_us = US_PER_MINUTE if self._born_us is None else max(0, now - self._born_us)
        limit, more, owed = want.limit, want.more, want.owed if before < want.owed_since else Amounts()
        tenant.slots = {other: slots for other, slots in tenant.slots.items() if other in self._leases}
        others = sum(slots for other, slots in tenant.slots.items() if other != gateway)
        slots = max(want.held, min(want.slots, limit.slots - others if gives else 0))
        if slots and gateway in self._leases:
            tenant.slots[gateway] = slots
        else:
            tenant.slots.pop(gateway, None)
        tenant.requests.refill(limit.requests, elapsed_us, age_us)
        tenant.tokens.refill(limit.tokens, elapsed_us, age_us)
        requests = tenant.requests.change(more.requests, owed.requests, limit.requests, gives=gives)
        tokens = tenant.tokens.change(more.tokens, owed.tokens, limit.tokens, gives=gives)
        short_us, others_short = tenant.short_us, False
        if short_us is not None:
            others_short = tenant.short != gateway and 0 <= now - short_us < SHORT_US
        if slots < want.slots or requests < more.requests or tokens < more.tokens:
            tenant.short, tenant.short_us = gateway, now
        left = Amounts(limit.slots - others - slots, tenant.requests.whole, tenant.tokens.whole)
        return Got(want.tenant, slots, Amounts(0, requests, tokens), left, others_short)
