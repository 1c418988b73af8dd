"""10,000 calls through a gateway, with faults of workers and clients at every stage: nothing may be left behind.

The small form of this runs in the tests (`tests/gateway/fleet/test_leaks.py`); this is the same with more calls, with
the gateway's memory beside it. Fails when a counter is not zero at the end or a call has no end on record.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import random
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from headway.core.fleet.worker import WorkerSpec
from headway.core.front.front import FrontLimits
from headway.core.front.tenants import TenantLimits, Tenants
from headway.engine.memory import resident_bytes
from tests.gateway.fleet import faults
from tests.gateway.fleet.gateway import gateway, member
from tests.gateway.fleet.test_leaks import one_call
from tests.gateway.fleet.upstream import Asked, Upstream, good, upstreams

CALM_S = 30.0


async def run(given: argparse.Namespace) -> dict[str, Any]:
    draws = random.Random(given.seed)
    behaved: Counter[str] = Counter()

    async def anything(upstream: Upstream, asked: Asked, writer: asyncio.StreamWriter) -> None:
        behaviour = draws.choice(faults.ALL) if draws.random() < given.faults else good
        behaved[behaviour.__name__] += 1
        upstream.gap_s = draws.choice((0.0, 0.0, 0.002, 0.01))
        await behaviour(upstream, asked, writer)

    tenants = Tenants(TenantLimits(max_concurrency=given.concurrency, requests_per_minute=10**7))
    async with upstreams(3, anything) as made:
        specs = [WorkerSpec(id=f"w{number}") for number in range(3)]
        members = [
            member(spec.id, one.url, spec, first_byte_s=0.3, between_bytes_s=0.2)
            for spec, one in zip(specs, made, strict=True)
        ]
        limits = FrontLimits(queue_timeout_ns=2_000_000_000)
        async with gateway(*members, tenants=tenants, front_limits=limits, limits={"max_waiting": 24}) as fleet:
            numbers = iter(range(given.calls))

            async def client() -> None:
                for number in numbers:
                    await one_call(fleet, random.Random(given.seed + number))
                    if number % 1_000 == 999:
                        print(f"{number + 1} calls made", file=sys.stderr, flush=True)

            async def killer() -> None:
                while True:
                    await asyncio.sleep(draws.uniform(0.5, 2.0))
                    victim = draws.choice(made)
                    port = int(victim.url.rpartition(":")[2])
                    await victim.kill()
                    await asyncio.sleep(0.2)
                    with contextlib.suppress(OSError):
                        await victim.start(port)

            before_bytes = resident_bytes() or 0
            killing = asyncio.ensure_future(killer())
            async with asyncio.TaskGroup() as group:
                for _ in range(given.concurrency):
                    group.create_task(client())
            killing.cancel()
            began = time.perf_counter()
            while any(fleet.inside.values()) and time.perf_counter() - began < CALM_S:  # noqa: ASYNC110 - counters tell nobody
                await asyncio.sleep(0.05)
            gc.collect()
            return {
                "calls": given.calls,
                "let_in": fleet.entered,
                "ended": dict(fleet.service.figures.ended),
                "left_behind": {name: count for name, count in fleet.inside.items() if count},
                "returned": fleet.service.figures.returned,
                "behaved": dict(behaved),
                "memory_grown_mib": ((resident_bytes() or 0) - before_bytes) / 2**20,
            }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=10_000)
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--faults", type=float, default=0.3, help="share of calls whose worker misbehaves")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the counts to FILE")
    given = parser.parse_args()
    found = asyncio.run(run(given))
    print(json.dumps(found, indent=2))
    if given.json:
        given.json.write_text(json.dumps(found, indent=2))
    ends = sum(found["ended"].values())
    if found["left_behind"] or ends != found["let_in"]:
        raise SystemExit(f"leaked: {found['left_behind']}; {found['let_in']} let in, {ends} ends on record")
    print(f"{found['let_in']} let in, {ends} ends on record, nothing left behind")


if __name__ == "__main__":
    main()
