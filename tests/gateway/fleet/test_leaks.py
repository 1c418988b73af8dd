"""A thousand calls, each with its own fault on either side: nothing is left behind, and each has one end on record."""

from __future__ import annotations

import asyncio
import contextlib
import random

from headway.core.fleet.worker import WorkerSpec
from headway.core.front.front import FrontLimits
from headway.core.front.tenants import TenantLimits, Tenants
from tests.gateway.fake import until
from tests.gateway.fleet import faults
from tests.gateway.fleet.gateway import Fleet, gateway, member
from tests.gateway.fleet.upstream import Asked, Upstream, good, upstreams
from tests.gateway.test_disconnect import connect, raw_request

CALLS = 1_000
AT_ONCE = 48
STAGES = ("half a body", "body sent", "first byte", "in the stream", "stays", "stays")


async def one_call(fleet: Fleet, draw: random.Random) -> None:
    stage = draw.choice(STAGES)
    asked = raw_request(draw.random() < 0.7, n=draw.choice((1, 1, 1, 3)), max_tokens=draw.choice((1, 8, 300)))
    asked = asked.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1)
    reader, writer = await connect(fleet.url)
    with contextlib.suppress(ConnectionError):
        if stage == "half a body":
            writer.write(asked[: len(asked) - draw.randint(1, 40)])
            await asyncio.sleep(draw.uniform(0, 0.02))
        else:
            writer.write(asked)
            await writer.drain()
            if stage == "body sent":
                await asyncio.sleep(draw.choice((0.0, draw.uniform(0, 0.005), draw.uniform(0, 0.1))))
            elif stage == "first byte":
                await reader.read(1)
            elif stage == "in the stream":
                for _ in range(draw.randint(1, 6)):
                    if not await reader.read(200):
                        break
            else:
                async with asyncio.timeout(30):
                    await reader.readuntil(b"\r\n\r\n")  # an answer there is, whatever it is
    writer.close() if draw.random() < 0.5 else writer.transport.abort()


async def test_nothing_is_left_behind() -> None:
    draws = random.Random(7)

    async def anything(upstream: Upstream, asked: Asked, writer: asyncio.StreamWriter) -> None:
        behaviour = draws.choice(faults.ALL) if draws.random() < 0.3 else good
        upstream.gap_s = draws.choice((0.0, 0.0, 0.002, 0.01))
        await behaviour(upstream, asked, writer)

    tenants = Tenants(TenantLimits(max_concurrency=AT_ONCE, requests_per_minute=10**6, tokens_per_minute=10**9))
    async with upstreams(3, anything) as made:
        members = [
            member(f"w{n}", one.url, WorkerSpec(id=f"w{n}", first_sequences=8), first_byte_s=0.3, between_bytes_s=0.2)
            for n, one in enumerate(made)
        ]
        limits = FrontLimits(queue_timeout_ns=2_000_000_000)
        async with gateway(*members, tenants=tenants, front_limits=limits, limits={"max_waiting": 24}) as fleet:
            left = iter(range(CALLS))

            async def client() -> None:
                for number in left:
                    await one_call(fleet, random.Random(number))

            async def killer() -> None:
                for number in range(4):
                    await asyncio.sleep(0.3)
                    victim = made[number % 3]
                    port = int(victim.url.rpartition(":")[2])
                    await victim.kill()
                    await asyncio.sleep(0.1)
                    with contextlib.suppress(OSError):
                        await victim.start(port)

            killing = asyncio.ensure_future(killer())
            async with asyncio.TaskGroup() as group:
                for _ in range(AT_ONCE):
                    group.create_task(client())
            await killing
            await fleet.empty(20)
            await until(lambda: not any(one.inside for one in made), 5)
            entered = sum(fleet.service.figures.ended.values())
            assert entered == fleet.entered
            assert fleet.service.metrics.in_flight == 0
            left_over = fleet.front.admission.ledger.quotas("", fleet.service.driver.clock())["tokens"]
            assert left_over.remaining <= left_over.limit
