"""`SharedQuotas` with a real redis-server: one round trip for many, none for most; the server frozen, gone, back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, monotonic_ns

import pytest

from headway.core.errors import ConfigError, Refused
from headway.core.front.ledger import Amounts, Lease, Ledger
from headway.core.front.sharing import Loss, Mode, Sharing
from headway.core.front.tenants import TenantLimits
from headway.core.request import Request
from headway.workers.quota import SharedQuotas
from headway.workers.quota_redis import RedisStore
from headway.workers.quota_url import PASSWORD_ENV, check_url, shown_url, with_password, without_password
from tests.gateway.fake import until
from tests.redis_server import RedisServer, installed

LEASE_S = 1.5


@dataclass
class Gateway:
    ledger: Ledger
    quotas: SharedQuotas
    leases: list[Lease] = field(default_factory=list)

    async def request(self, tokens: int = 1) -> bool:
        """As the gateway does it."""
        request = Request("r", range(1), tokens)
        if self.quotas.short(request):
            await self.quotas.more()
        try:
            self.leases += self.ledger.take("", [Amounts(1, 1, request.total_tokens)], monotonic_ns())
        except Refused:
            return False
        return True

    def settle(self) -> None:
        while self.leases:
            self.ledger.settle(self.leases.pop(), 1, monotonic_ns())

    @property
    def mode(self) -> Mode:
        return self.quotas.sharing.mode


@asynccontextmanager
async def gateways(
    server: RedisServer, limits: TenantLimits, count: int = 3, loss: Loss = Loss.CLOSED
) -> AsyncIterator[list[Gateway]]:
    prefix = f"shared:{monotonic_ns()}"
    made = []
    for number in range(count):
        ledger = Ledger(lambda _: limits)
        sharing = Sharing(f"g{number}", ledger, lambda _: limits, lease_ns=int(LEASE_S * 1e9), loss=loss)
        made.append(
            Gateway(ledger, SharedQuotas(sharing, RedisStore(server.url, prefix=prefix), shown_url(server.url)))
        )
    try:
        for one in made:
            await one.quotas.start()
        await until(lambda: all(one.quotas.sharing.gateways == count for one in made))
        yield made
    finally:
        await asyncio.gather(*(one.quotas.close() for one in made))


async def test_most_requests_need_no_round_trip_and_many_at_once_need_one(redis_server: RedisServer) -> None:
    async with gateways(redis_server, TenantLimits(max_concurrency=1_200, tokens_per_minute=1_000_000)) as made:
        one = made[0]
        await one.request()
        waited = one.quotas.waited
        assert all([await one.request() for _ in range(50)])
        assert one.quotas.waited == waited
        before = one.quotas.exchanges["answered"]
        assert all(await asyncio.gather(*(one.request(10) for _ in range(500))))
        assert one.quotas.waited > waited
        assert one.quotas.exchanges["answered"] - before <= 3


@pytest.mark.parametrize("limit", [1, 7, 100])
async def test_all_of_a_limit_can_be_had_and_never_more_however_many_try_at_once(
    redis_server: RedisServer, limit: int
) -> None:
    async with gateways(redis_server, TenantLimits(max_concurrency=limit)) as made:

        async def all_try() -> None:
            await asyncio.gather(*(one.request() for one in made for _ in range(limit)))
            assert sum(len(one.leases) for one in made) <= limit
            await asyncio.sleep(0.05)

        deadline = monotonic() + 5
        while sum(len(one.leases) for one in made) < limit and monotonic() < deadline:
            await all_try()
        assert sum(len(one.leases) for one in made) == limit
        for one in made:
            one.settle()


async def test_what_a_stopped_gateway_had_is_free_at_once(redis_server: RedisServer) -> None:
    async with gateways(redis_server, TenantLimits(max_concurrency=8, requests_per_minute=8)) as made:
        first, second, _ = made
        assert [await first.request() for _ in range(8)] == [True] * 8
        first.settle()
        await first.quotas.close()
        assert not await second.request()  # the requests were made
        assert second.ledger.held("") == 0
    async with gateways(redis_server, TenantLimits(max_concurrency=8)) as made:
        first, second, _ = made
        assert [await first.request() for _ in range(8)] == [True] * 8
        first.settle()
        await first.quotas.close()
        assert [await second.request() for _ in range(8)] == [True] * 8


@pytest.mark.parametrize("loss", Loss)
@pytest.mark.parametrize("how", ["frozen", "gone"])
async def test_a_store_that_is_lost_costs_nobody_more_than_a_moment_and_is_found_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, loss: Loss, how: str
) -> None:
    if not installed():
        pytest.skip("redis-server is not installed (Debian: apt-get install redis-server)")
    caplog.set_level(logging.INFO, "headway.quota")
    limits = TenantLimits(max_concurrency=9, tokens_per_minute=6_000)
    with RedisServer(tmp_path) as server:
        async with gateways(server, limits, loss=loss) as made:
            assert all([await one.request() for one in made])
            server.freeze() if how == "frozen" else server.stop()
            while any(one.mode is Mode.STORE for one in made):
                began = monotonic()
                await asyncio.gather(*(one.request(5_000) for one in made))
                assert monotonic() - began < 2.0
                await asyncio.sleep(0.02)
            if loss is Loss.CLOSED:
                assert not any([await one.request() for one in made])
            else:
                assert [await made[0].request() for _ in range(4)] == [True, True, False, False]
            lost = [line for line in caplog.messages if "does not answer" in line]
            await asyncio.sleep(0.3)
            assert len(lost) <= 3  # one line each, however long it takes
            server.thaw() if how == "frozen" else server.start()
            await until(lambda: all(one.mode is Mode.STORE for one in made), 10.0)
            for one in made:
                one.settle()
            deadline = monotonic() + 10
            while len(made[1].leases) < 9 and monotonic() < deadline:
                await made[1].request()
                await asyncio.sleep(0.02)
            assert len(made[1].leases) == 9
            assert all(one.quotas.sharing.losses for one in made)
    says = "refused" if loss is Loss.CLOSED else "1/3 of each limit"
    assert any(says in line for line in caplog.messages)
    assert any("is shared at" in line or "are shared at" in line for line in caplog.messages)


async def test_a_wrong_password_is_told_and_none_is_ever_shown(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    if not installed():
        pytest.skip("redis-server is not installed (Debian: apt-get install redis-server)")
    caplog.set_level(logging.DEBUG)
    with RedisServer(tmp_path, "--requirepass", "s3cret-right") as server:
        for password, mode in (("s3cret-wrong", Mode.CLOSED), ("s3cret-right", Mode.STORE)):
            url = with_password(server.url, {PASSWORD_ENV: password})
            limits = TenantLimits(max_concurrency=1)
            sharing = Sharing("g", Ledger(lambda _: limits), lambda _: limits, lease_ns=10**9)  # noqa: B023
            quotas = SharedQuotas(sharing, RedisStore(url), shown_url(url))
            await quotas.start()
            assert sharing.mode is mode
            await quotas.close()
    assert "s3cret" not in caplog.text
    assert "password" in caplog.text


@pytest.mark.parametrize(
    "url",
    [
        *("localhost:6379", "http://h:1", "redis://", "redis://h:1/two", "redis://h:99999", "redis://h/-1", "unix://"),
        *("redis://h:1?timeout=3", "redis://h:pass@h:x"),
    ],
)
def test_what_is_no_address_is_said(url: str) -> None:
    with pytest.raises(ConfigError, match="--quota-store") as refused:
        check_url(url)
    assert "pass" not in refused.value.message


def test_an_address_is_shown_without_its_password() -> None:
    url = "rediss://ann:p%40ss@h:1/2?ssl_ca_certs=ca.pem"
    check_url(url)
    assert shown_url(url) == "rediss://h:1/2"
    assert without_password(url) == "rediss://ann@h:1/2?ssl_ca_certs=ca.pem"
    assert with_password(without_password(url), {PASSWORD_ENV: "p@ss"}) == url
    assert with_password(url, {PASSWORD_ENV: "other"}) == url
    assert with_password("redis://h", {PASSWORD_ENV: "a/b"}) == "redis://:a%2Fb@h"
