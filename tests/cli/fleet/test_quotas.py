"""Three gateways as processes, one real Redis: together they grant what one may, also when one of them is killed -9."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from time import monotonic

import aiohttp
import pytest

from headway.cli import status
from headway.workers.quota_url import PASSWORD_ENV
from tests.cli.running import Server
from tests.gateway.fake import until
from tests.gateway.fleet.upstream import STREAM, Asked, Upstream, chunk, framed, upstreams
from tests.redis_server import RedisServer, installed

LIMIT = 6
LEASE_S = 2.0
PASSWORD = "s3cret"
BODY = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 8, "stream": True}


class Worker:
    """It begins to answer, and goes on for ever."""

    def __init__(self) -> None:
        self.most = 0  # at a time

    async def hold(self, upstream: Upstream, asked: Asked, writer: asyncio.StreamWriter) -> None:
        self.most = max(self.most, upstream.inside)
        writer.write(STREAM + framed(chunk("on and on")))
        await asyncio.sleep(3600)


@asynccontextmanager
async def gateways(worker: Upstream, redis: RedisServer, folder: Path, *losses: str) -> AsyncIterator[list[Server]]:
    config = folder / "gateway.toml"
    config.write_text(
        f'quota-store = "{redis.url}"\nquota-lease = {LEASE_S}\n'
        f'[[worker]]\nurl = "{worker.url}"\nid = "w"\nfirst-sequences = 64\n'
        f'[[tenant]]\nname = "*"\nmax-concurrency = {LIMIT}\n'
    )
    async with AsyncExitStack() as stack:
        made = [Server("--config", str(config), "--quota-loss", loss) for loss in losses]
        await asyncio.gather(*(asyncio.to_thread(one.__enter__) for one in made))
        for one in made:
            stack.push_async_callback(asyncio.to_thread, one.__exit__, None, None, None)
        yield made


class Clients:
    """Each request stays open; `open` by gateway."""

    def __init__(self, session: aiohttp.ClientSession, worker: Upstream) -> None:
        self.session = session
        self.worker = worker
        self.open: dict[str, list[aiohttp.ClientResponse]] = {}
        self.refused: list[tuple[int, str, float]] = []

    @property
    def count(self) -> int:
        return sum(len(found) for found in self.open.values())

    async def ask(self, gateway: Server) -> bool:
        response = await self.session.post(f"{gateway.url}/v1/chat/completions", json=BODY)
        if response.status == 200:
            self.open.setdefault(gateway.url, []).append(response)
            return True
        error = (await response.json())["error"]
        self.refused.append((response.status, error["code"], float(response.headers["Retry-After"])))
        return False

    async def all_ask(self, *gateways: Server) -> None:
        await asyncio.gather(*(self.ask(one) for one in gateways for _ in range(LIMIT)))

    async def fill(self, *gateways: Server, within_s: float) -> float:
        began = monotonic()
        while self.count < LIMIT:
            await self.all_ask(*gateways)
            assert self.count <= LIMIT
            assert monotonic() - began < within_s, f"only {self.count}"
            await asyncio.sleep(0.05)
        return monotonic() - began

    async def leave(self) -> None:
        for responses in self.open.values():
            for response in responses:
                response.close()
        self.open.clear()
        await until(lambda: self.worker.inside == 0)

    async def metrics(self, gateway: Server) -> dict[str, float]:
        async with self.session.get(f"{gateway.url}/metrics") as response:
            lines = (await response.text()).splitlines()
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")}


@pytest.mark.slow
async def test_three_gateways_share_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not installed():
        pytest.skip("redis-server is not installed (Debian: apt-get install redis-server)")
    monkeypatch.setenv(PASSWORD_ENV, PASSWORD)
    counting = Worker()
    with RedisServer(tmp_path, "--requirepass", PASSWORD) as redis:
        async with (
            upstreams(1, counting.hold) as (worker,),
            gateways(worker, redis, tmp_path, "closed", "closed", "share") as (first, second, third),
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session,
        ):
            assert f"shared at {redis.url} by" in "".join(third.log)
            clients = Clients(session, worker)
            await clients.fill(first, second, third, within_s=30)
            assert {code for _, code, _ in clients.refused} == {"concurrency_limit"}
            assert worker.inside == LIMIT

            # One dies without a word. Nobody has its slots before its lease is over, and then somebody does.
            await clients.leave()
            await clients.fill(first, within_s=30)
            first.process.send_signal(signal.SIGKILL)
            await asyncio.to_thread(first.wait)
            await clients.leave()
            took_s = await clients.fill(second, third, within_s=LEASE_S + 30)
            assert took_s > LEASE_S / 2
            assert (await clients.metrics(second))["headway_quota_gateways"] == 2

            # The store dies, and comes back knowing nothing.
            await clients.leave()
            redis.stop()
            for gateway, mode in ((second, "closed"), (third, "share")):
                while not (await clients.metrics(gateway))[f'headway_quota_mode{{mode="{mode}"}}']:
                    await asyncio.sleep(0.05)
            clients.refused.clear()
            await clients.all_ask(second)
            assert clients.count == 0
            assert {(status, code) for status, code, _ in clients.refused} == {(503, "quota_store_lost")}
            assert all(1 <= wait_s <= 60 for _, _, wait_s in clients.refused)
            await clients.all_ask(third)
            assert clients.count == LIMIT // 2
            redis.start()
            await clients.fill(second, third, within_s=LEASE_S + 30)
            await clients.leave()
            await clients.fill(second, within_s=30)
            assert (await clients.metrics(second))["headway_quota_losses_total"] >= 1
            await clients.leave()
            assert counting.most == LIMIT
        for gateway in (second, third):
            said = "".join(gateway.log)
            assert f"the store of quotas at {redis.url} does not answer" in said
            assert "which was lost for" in said
            assert PASSWORD not in said


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--worker", "http://h:1", "--quota-store", "h:6379"], "is no address of a store"),
        (["--worker", "http://h:1", "--quota-lease", "0.5"], "between"),
        (["--quota-store", "redis://h"], "is for a gateway"),
    ],
)
def test_what_cannot_be_is_said(capsys: pytest.CaptureFixture[str], arguments: list[str], says: str) -> None:
    assert status(["serve", *arguments]) == 2
    assert says in capsys.readouterr().err


def test_what_is_in_effect_is_printed_without_the_password(capsys: pytest.CaptureFixture[str]) -> None:
    url = f"redis://ann:{PASSWORD}@h:1/2"
    assert status(["serve", "--worker", "http://h:1", "--quota-store", url, "--print-config"]) == 0
    out = capsys.readouterr().out
    assert PASSWORD not in out
    assert 'quota-store = "redis://ann@h:1/2"' in out
    assert PASSWORD_ENV in out
