"""The contract of a ledger: of one that counts for itself, and of those that share, through memory or through Redis."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.core.errors import QuotaExceeded
from headway.core.front.ledger import NS_PER_MINUTE, Amounts, Lease, Ledger
from headway.core.front.sharing import Sharing
from headway.core.front.tenants import TenantLimits
from headway.workers.quota_redis import RedisStore
from headway.workers.quota_store import MemoryStore, QuotaStore
from tests.laws.test_quota import limits, moves, total
from tests.redis_server import RedisServer

S = 1_000_000_000
_prefixes = (f"ledger:{number}" for number in itertools.count())
Make = Callable[[Callable[[], int]], QuotaStore]


class Alone:
    """A ledger that counts for itself."""

    def __init__(self, limits: TenantLimits) -> None:
        self.now = S
        self.ledger = Ledger(lambda _: limits)

    def take(self, each: list[Amounts]) -> list[Lease]:
        return self.ledger.take("t", each, self.now)

    def wait(self, ns: int) -> None:
        self.now += ns

    def close(self) -> None:
        pass


class Shared(Alone):
    """One of two that share; the other is idle. It speaks with the store when it has to, and as time passes."""

    def __init__(self, limits: TenantLimits, make: Make, runner: asyncio.Runner) -> None:
        super().__init__(limits)
        self.runner = runner
        self.store = make(lambda: self.now // 1000)
        other = Sharing("other", Ledger(lambda _: limits), lambda _: limits, lease_ns=60 * S)
        self.sharing = Sharing("one", self.ledger, lambda _: limits, lease_ns=60 * S)
        for one in (other, self.sharing):
            self.exchange(one)

    def exchange(self, sharing: Sharing) -> None:
        answer = self.runner.run(self.store.exchange(sharing.ask(self.now)))
        sharing.answered(answer, self.now)

    def take(self, each: list[Amounts]) -> list[Lease]:
        if self.sharing.short("t", total(each), self.now):
            self.exchange(self.sharing)
        return super().take(each)

    def wait(self, ns: int) -> None:
        for step in (ns // 2, ns - ns // 2):  # a lease is longer than a step
            super().wait(step)
            if self.sharing.due(self.now):
                self.exchange(self.sharing)
        self.exchange(self.sharing)

    def close(self) -> None:
        self.runner.run(self.store.close())


Begin = Callable[[TenantLimits], Alone]


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(params=["alone", "memory", "redis"], scope="module")
def begin(request: pytest.FixtureRequest, runner: asyncio.Runner) -> Begin:
    if request.param == "alone":
        return Alone
    if request.param == "memory":
        return lambda limits: Shared(limits, MemoryStore, runner)
    server: RedisServer = request.getfixturevalue("redis_server")

    def make(clock_us: Callable[[], int]) -> QuotaStore:
        return RedisStore(server.url, prefix=next(_prefixes), clock_us=clock_us, timeout_s=5.0)

    return lambda limits: Shared(limits, make, runner)


@settings(max_examples=60, deadline=None)
@given(limits, st.lists(moves, max_size=40))
def test_it_grants_what_there_is_and_nothing_beyond(begin: Begin, given_limits: TenantLimits, story: list[Any]) -> None:
    one = begin(given_limits)
    began_ns, spent, asked = one.now, 0, 0
    held: list[Lease] = []
    for what, how in story:
        if what == "wait":
            one.wait(how % (30 * S))
        elif what == "take":
            each = [Amounts(1, int(number == 0), tokens) for number, tokens in enumerate(how)]
            before = one.ledger.held("t")
            try:
                held += one.take(each)
                asked += 1
            except QuotaExceeded as refused:
                assert one.ledger.held("t") == before
                assert 0 < refused.retry_after_s <= 60
                assert not fits(given_limits, total(each), before, asked, spent)
        elif held:
            lease = held.pop(how[0] % len(held))
            used = min(how[1], lease.amounts.tokens)
            one.ledger.settle(lease, used, one.now)
            spent += used
        assert one.ledger.held("t") == len(held)
        assert not given_limits.max_concurrency or len(held) <= given_limits.max_concurrency
        minutes = 1 + (one.now - began_ns) / NS_PER_MINUTE
        worst = spent + sum(lease.amounts.tokens for lease in held)
        assert not given_limits.tokens_per_minute or worst <= given_limits.tokens_per_minute * minutes
        assert not given_limits.requests_per_minute or asked <= given_limits.requests_per_minute * minutes
    for lease in held:
        one.ledger.settle(lease, 0, one.now)
    for _ in range(4):
        one.wait(29 * S)
    for quota in one.ledger.quotas("t", one.now).values():
        assert quota.remaining == quota.limit
    if given_limits.tokens_per_minute:
        (lease,) = one.take([Amounts(1, 1, given_limits.tokens_per_minute)])
        one.ledger.settle(lease, 0, one.now)
    one.close()


def fits(limits: TenantLimits, more: Amounts, held: int, asked: int, spent: int) -> bool:
    """Is it plain that this must not be refused? Of tokens, while nobody has spent any."""
    return (
        (not limits.max_concurrency or held + more.slots <= limits.max_concurrency)
        and (not limits.requests_per_minute or asked + 1 <= limits.requests_per_minute)
        and (not limits.tokens_per_minute or (not spent and not held and more.tokens <= limits.tokens_per_minute))
    )
