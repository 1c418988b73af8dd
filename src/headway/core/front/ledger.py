"""`Ledger`: what each tenant holds of its limits: slots (concurrency), requests a minute, tokens a minute.

All of it is taken in one go or nothing is, so that a refusal burns nothing; and each `Lease` is settled exactly once,
to what its request really used. What a minute allows is a bucket that holds one minute's worth and refills evenly: over
any time t a tenant spends at most `limit + limit × t / minute`. Tokens are taken at their worst case (prompt and
`max_tokens`), so that no number of concurrent calls can spend more; the rest comes back when a request ends.

Of several gateways that share limits each has its own ledger, which may grant only what it was given (`allow`, with
`refill_ratio` 0): whoever moves allowances between them stores numbers, and decides nothing (`core/front/sharing.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as ReadOnlySequence
from dataclasses import dataclass

from headway.core.errors import MAX_RETRY_AFTER_S, QuotaExceeded, QuotaStoreLost, Refused
from headway.core.front.tenants import NO_LIMITS, TenantLimits

NS_PER_MINUTE = 60_000_000_000
# How much a finished request's stay counts beside what is known of those before it.
STAY_RATE = 0.1
# A store that does not answer is asked again within a second; until it does, nobody can say when it will.
RETRY_LOST_S = 2.0


@dataclass(frozen=True, slots=True)
class Amounts:
    """Of each of the three: what is taken together, what more is allowed, or what is missing."""

    slots: int = 0
    requests: int = 0
    tokens: int = 0

    def __bool__(self) -> bool:
        return bool(self.slots or self.requests or self.tokens)

    def __add__(self, other: Amounts) -> Amounts:
        return Amounts(self.slots + other.slots, self.requests + other.requests, self.tokens + other.tokens)


NOTHING = Amounts()


@dataclass(slots=True)
class Quota:
    """One limit as its tenant sees it: `remaining` now, and whole again in `reset_s` if nothing more is spent."""

    limit: int
    remaining: int
    reset_s: float


class Lease:
    """What one request holds."""

    __slots__ = ("amounts", "settled", "taken_ns", "tenant")

    def __init__(self, tenant: str, amounts: Amounts, now: int) -> None:
        self.tenant = tenant
        self.amounts = amounts
        self.taken_ns = now
        self.settled = False


class _Bucket:
    """What is left to spend. Exact: it counts in parts of which a ns refills as many as a minute allows."""

    __slots__ = ("elsewhere", "gained", "parts", "refilled_ns", "seen_ns")

    def __init__(self, parts: int, now: int) -> None:
        self.parts = parts
        self.refilled_ns = now
        self.gained = 0  # parts that came of themselves, less those that were beyond a minute's worth
        self.elsewhere: int | None = None  # parts that a store had at `seen_ns`, beside those here; None: not seen yet
        self.seen_ns = now

    def refill(self, per_minute: int, now: int) -> None:
        """Up to `now`, and to a minute's worth."""
        before = self.parts
        if (elapsed_ns := now - self.refilled_ns) > 0:
            self.parts += per_minute * elapsed_ns
            self.refilled_ns = now
        self.parts = min(self.parts, per_minute * NS_PER_MINUTE)
        self.gained += self.parts - before

    def begin(self, per_minute: int) -> None:
        """With a minute's worth, which came of itself."""
        self.parts += per_minute * NS_PER_MINUTE
        self.gained += per_minute * NS_PER_MINUTE

    def missing(self, amount: int) -> int:
        """How much more it would have to hold, in whole ones, for `amount` to be taken."""
        return max(0, -(-(amount * NS_PER_MINUTE - self.parts) // NS_PER_MINUTE)) if amount else 0

    def add(self, amount: int) -> None:
        self.parts += amount * NS_PER_MINUTE

    @property
    def whole(self) -> int:
        return self.parts // NS_PER_MINUTE

    def quota(self, limit: int, now: int, *, shared: bool) -> Quota:
        """`shared`: what is in the store counts as well, as it was seen last and has refilled since."""
        most, parts = limit * NS_PER_MINUTE, self.parts
        if shared:
            seen = most if self.elsewhere is None else self.elsewhere + limit * max(0, now - self.seen_ns)
            parts += min(most, seen)
        return Quota(limit, min(limit, max(0, parts // NS_PER_MINUTE)), max(0, most - parts) / limit / 1e9)


class _Account:
    """One tenant's slots and buckets."""

    __slots__ = ("allowed_slots", "limits", "requests", "slots", "stay_ns", "tokens")

    def __init__(self, now: int) -> None:
        self.limits = NO_LIMITS
        self.slots = 0  # held
        self.allowed_slots = 0  # given by `allow`
        self.requests = _Bucket(0, now)
        self.tokens = _Bucket(0, now)
        self.stay_ns = 0.0  # how long a slot is held, on average; 0 before anybody gave one back

    def spend(self, requests: int, tokens: int) -> None:
        """What has no limit is not counted: it would be owed on the day it has one."""
        if self.limits.requests_per_minute:
            self.requests.add(-requests)
        if self.limits.tokens_per_minute:
            self.tokens.add(-tokens)


class Ledger:
    """Quotas by tenant, in memory. `refill_ratio` is the part of each limit that this ledger may grant of itself:
    1 alone; 0 where only what `allow` gave counts; 1/n where n ledgers fell back to a share each.
    """

    def __init__(self, limits: Callable[[str], TenantLimits], *, refill_ratio: float = 1.0) -> None:
        self._limits = limits
        self.refill_ratio = refill_ratio
        self.closed = False  # no tenant that has a limit gets anything: nobody knows what is left
        self.unanswered = False  # what is missing may be in the store, which does not answer: not the tenant's fault
        self._accounts: dict[str, _Account] = {}

    def missing(self, tenant: str, amounts: Amounts, now: int) -> Amounts:
        """What more would have to be allowed for `amounts` to be taken; nothing when they could be."""
        account = self._account(tenant, now)
        limits = account.limits
        if self.closed:
            return Amounts(
                amounts.slots if limits.max_concurrency else 0,
                amounts.requests if limits.requests_per_minute else 0,
                amounts.tokens if limits.tokens_per_minute else 0,
            )
        slots = account.slots + amounts.slots - self._slots_allowed(account) if limits.max_concurrency else 0
        requests = account.requests.missing(amounts.requests) if limits.requests_per_minute else 0
        tokens = account.tokens.missing(amounts.tokens) if limits.tokens_per_minute else 0
        slots = max(0, slots) if amounts.slots else 0
        return Amounts(slots, requests, tokens) if slots or requests or tokens else NOTHING

    def take(self, tenant: str, each: ReadOnlySequence[Amounts], now: int) -> list[Lease]:
        """A lease on each of the amounts, or, with `QuotaExceeded` and nothing changed, on none of them."""
        total = each[0] if len(each) == 1 else sum(each[1:], each[0])
        if missing := self.missing(tenant, total, now):
            raise self._refusal(tenant, missing)
        account = self._accounts[tenant]
        account.slots += total.slots
        account.spend(total.requests, total.tokens)
        return [Lease(tenant, one, now) for one in each]

    def settle(self, lease: Lease, tokens: int, now: int) -> None:
        """Give the slot back, and what was not used; what was used beyond is owed. A second call is a defect."""
        if lease.settled:
            raise AssertionError(f"a lease of tenant {lease.tenant!r} was settled twice")
        lease.settled = True
        account = self._account(lease.tenant, now)
        account.slots -= lease.amounts.slots
        account.spend(0, tokens - lease.amounts.tokens)
        if tokens < lease.amounts.tokens:
            self._account(lease.tenant, now)  # a bucket holds a minute's worth and no more
        stay_ns = now - lease.taken_ns
        account.stay_ns += (stay_ns - account.stay_ns) * (STAY_RATE if account.stay_ns else 1.0)

    def allow(self, tenant: str, more: Amounts, now: int) -> Amounts:
        """Let it grant so much more; or, where negative, less, down to what is not taken. Returns the change made."""
        account = self._account(tenant, now)
        made = Amounts(
            max(more.slots, min(0, account.slots - account.allowed_slots)),
            max(more.requests, -max(0, account.requests.whole)),
            max(more.tokens, -max(0, account.tokens.whole)),
        )
        account.allowed_slots += made.slots
        account.requests.add(made.requests)
        account.tokens.add(made.tokens)
        return made

    def free(self, tenant: str, now: int) -> Amounts:
        """What could be taken now, in whole ones; negative what is owed, or held beyond what is allowed."""
        account = self._account(tenant, now)
        return Amounts(self._slots_allowed(account) - account.slots, account.requests.whole, account.tokens.whole)

    def allowed_slots(self, tenant: str) -> int:
        """By `allow`, whatever the ratio is."""
        account = self._accounts.get(tenant)
        return account.allowed_slots if account is not None else 0

    def set_refill_ratio(self, ratio: float, now: int) -> None:
        """From `now` on: what has refilled until then, if anything, did so at the old one."""
        for tenant, account in self._accounts.items():
            self._account(tenant, now)
            account.requests.refilled_ns = account.tokens.refilled_ns = max(now, account.tokens.refilled_ns)
        self.refill_ratio = ratio

    def gained(self, tenant: str) -> Amounts:
        """Requests and tokens that came of themselves since this was last asked; a part of one is left for later."""
        account = self._accounts.get(tenant)
        if account is None:
            return Amounts()
        whole = Amounts(0, account.requests.gained // NS_PER_MINUTE, account.tokens.gained // NS_PER_MINUTE)
        account.requests.gained -= whole.requests * NS_PER_MINUTE
        account.tokens.gained -= whole.tokens * NS_PER_MINUTE
        return whole

    def left_elsewhere(self, tenant: str, left: Amounts, now: int) -> None:
        """What a store has beside what is allowed here: for `quotas` to tell, and for nobody to take."""
        account = self._account(tenant, now)
        for bucket, whole in ((account.requests, left.requests), (account.tokens, left.tokens)):
            bucket.elsewhere, bucket.seen_ns = whole * NS_PER_MINUTE, now

    def held(self, tenant: str) -> int:
        """Slots taken and not yet given back."""
        account = self._accounts.get(tenant)
        return account.slots if account is not None else 0

    def quotas(self, tenant: str, now: int) -> dict[str, Quota]:
        """Of `requests` and `tokens` a minute, those that are limited."""
        account = self._account(tenant, now)
        shared = not self.refill_ratio
        found = {}
        if limit := account.limits.requests_per_minute:
            found["requests"] = account.requests.quota(limit, now, shared=shared)
        if limit := account.limits.tokens_per_minute:
            found["tokens"] = account.tokens.quota(limit, now, shared=shared)
        return found

    def _account(self, tenant: str, now: int) -> _Account:
        """The tenant's account, refilled up to `now`."""
        account = self._accounts.get(tenant)
        if account is None:
            account = self._accounts[tenant] = _Account(now)
        limits, before, ratio = self._limits(tenant), account.limits, self.refill_ratio
        account.limits = limits
        if ratio:
            requests, tokens = int(limits.requests_per_minute * ratio), int(limits.tokens_per_minute * ratio)
            if limits is not before:  # what was not limited begins full
                account.requests.begin(0 if before.requests_per_minute else requests)
                account.tokens.begin(0 if before.tokens_per_minute else tokens)
            account.requests.refill(requests, now)
            account.tokens.refill(tokens, now)
        return account

    def _slots_allowed(self, account: _Account) -> int:
        # A share of a small limit would be no slot at all, and lock the tenant out.
        ratio = self.refill_ratio
        return max(1, int(account.limits.max_concurrency * ratio)) if ratio else account.allowed_slots

    def _refusal(self, tenant: str, missing: Amounts) -> Refused:
        account = self._accounts[tenant]
        limits = account.limits
        if self.closed or self.unanswered:
            return QuotaStoreLost(
                "This key has limits that several gateways share, and the store that keeps what is left of them does "
                "not answer. Try again.",
                retry_after_s=RETRY_LOST_S,
            )
        if missing.slots:
            # Slots come back one by one, as evenly as they were taken.
            wait_s = account.stay_ns / max(1, account.slots) * missing.slots / 1e9
            return QuotaExceeded(
                f"{account.slots} requests of this key are in the service; its limit is {limits.max_concurrency} at a "
                "time. Wait for one of them.",
                code="concurrency_limit",
                retry_after_s=_within(wait_s or 1.0),
            )
        what = "requests" if missing.requests else "tokens"
        limit = limits.requests_per_minute if missing.requests else limits.tokens_per_minute
        short = missing.requests or missing.tokens
        # Where several ledgers share a limit it refills for all of them: no sooner than if this were the only one.
        wait_s = short / (limit * (self.refill_ratio or 1.0)) * 60
        return QuotaExceeded(
            f"This key's limit is {limit} {what} a minute, and {short} more would be needed now. Wait, or ask for less"
            f"{' (max_tokens counts until the answer has ended)' if what == 'tokens' else ''}.",
            code=f"{what}_per_minute",
            retry_after_s=_within(wait_s),
        )


def _within(wait_s: float) -> float:
    return min(MAX_RETRY_AFTER_S, max(0.001, wait_s))
