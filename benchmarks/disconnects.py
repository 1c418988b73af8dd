"""Clients that leave at every stage, and what is left of them: nothing, or this fails.

Over HTTP against `headway serve` with the simulated executor: each client leaves while it sends its body, before the
first byte, in the stream, or not at all, after a random time. Then everything that `/load` counts as inside must be
zero, and the server must answer as before.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks import client, servers

INSIDE = (
    "requests",
    "running",
    "step_tokens",
    "kv_tokens",
    "waiting",
    "waiting_tokens",
    "preempted",
    "kv_blocks_used",
    "kv_blocks_set_aside",
)
# How far a client goes before it leaves; a random moment within.
STAGES = ("connected", "half a body", "body sent", "first byte", "in the stream", "stays")
CALM_S = 20.0
# Small, so that 20,000 take minutes; and KV for fewer than run, so that some are preempted when they leave.
PROMPT_WORDS = (3, 10, 40)
OUTPUT_TOKENS = (1, 4, 40)
KV_CACHE_GIB = "0.02"


async def visit(host: str, port: int, draw: random.Random, stages: Counter[str]) -> None:
    """One client on a socket of its own: a real disconnect is a closed or reset connection."""
    stage = draw.choice(STAGES)
    stages[stage] += 1
    body = json.dumps(
        {
            "model": servers.NAME,
            "prompt": client.text(draw, draw.choice(PROMPT_WORDS)),
            "max_tokens": draw.choice(OUTPUT_TOKENS),
            "n": draw.choice((1, 1, 1, 3)),
            "temperature": 1.0,
            "ignore_eos": True,
            "stream": draw.random() < 0.8,
        }
    ).encode()
    head = "POST /v1/completions HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\nConnection: close\r\n"
    request = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
    reader, writer = await asyncio.open_connection(host, port)
    try:
        if stage == "connected":
            return
        if stage == "half a body":
            writer.write(request[: len(request) - len(body) // 2])
            await writer.drain()
            await asyncio.sleep(draw.uniform(0, 0.05))
            return
        writer.write(request)
        await writer.drain()
        if stage == "body sent":
            await asyncio.sleep(draw.choice((0.0, draw.uniform(0, 0.02), draw.uniform(0, 0.3))))
        elif stage == "first byte":
            await reader.read(1)
        elif stage == "in the stream":
            for _ in range(draw.randint(1, 12)):
                if not await reader.read(256):
                    break
        else:
            while await reader.read(1 << 16):
                pass
    finally:
        if draw.random() < 0.5:
            writer.transport.abort()  # a reset
        else:
            writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def load_of(url: str) -> dict[str, Any]:
    async with client.new_session() as session, session.get(f"{url}/load") as response:
        body: dict[str, Any] = await response.json()
        return body


async def leave_all(url: str, given: argparse.Namespace) -> tuple[Counter[str], Counter[str]]:
    """Stages at which clients left, and what failed on the client's side (a refusal to connect, say)."""
    host, port = url.removeprefix("http://").split(":")
    draws = iter([random.Random(given.seed + number) for number in range(given.clients)])
    stages: Counter[str] = Counter()
    failed: Counter[str] = Counter()
    done = 0

    async def work() -> None:
        nonlocal done
        for draw in draws:
            try:
                await visit(host, int(port), draw, stages)
            except OSError as error:
                failed[type(error).__name__] += 1
            done += 1
            if done % 2_000 == 0:
                print(f"{done} clients left", file=sys.stderr, flush=True)

    async with asyncio.TaskGroup() as group:
        for _ in range(given.concurrency):
            group.create_task(work())
    return stages, failed


async def calm(url: str) -> tuple[dict[str, Any], float]:
    """`/load` once nothing is inside, or after CALM_S, and how long that took."""
    began = time.perf_counter()
    while True:
        load = await load_of(url)
        if not any(load[name] for name in INSIDE) or time.perf_counter() - began > CALM_S:
            return load, time.perf_counter() - began
        await asyncio.sleep(0.05)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=20_000, help="how many come (default 20,000)")
    parser.add_argument("--concurrency", type=int, default=128)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model", default=servers.DEFAULT_MODEL, help="for its tokenizer; nothing is computed")
    parser.add_argument("--headway-flags", default="", help="more flags for the server, in one string")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the counters to FILE")
    given = parser.parse_args()

    flags = ("--executor", "simulated", "--kv-cache-gib", KV_CACHE_GIB, *given.headway_flags.split())
    with servers.headway(given.model, *flags) as server:
        began = time.perf_counter()
        before = server.resident_bytes()
        stages, failed = asyncio.run(leave_all(server.url, given))
        seconds = time.perf_counter() - began
        load, calm_s = asyncio.run(calm(server.url))
        probe = client.Sample(client.Planned(0.0, "still there?", 8, 60, 60))

        async def ask() -> None:
            async with client.new_session() as session:
                await client.stream(session, server.url, servers.NAME, probe, time.perf_counter())

        asyncio.run(ask())
        after = server.resident_bytes()

    left = {name: load[name] for name in INSIDE}
    print(f"{sum(stages.values()):,} clients in {seconds / 60:.1f} min, left at: {dict(stages)}")
    print(f"could not connect or were reset: {dict(failed) or 'none'}")
    print(f"ended: {load['ended_total']}; refused: {load['refused_total']}; preemptions {load['preemptions_total']}")
    print(f"inside {calm_s:.2f} s after the last left: {left}")
    print(f"RSS {before / 2**20:.0f} MiB before, {after / 2**20:.0f} MiB after; then it answered: {probe.verdict}")
    lost = sum(left.values())
    print(f"left inside / target 0: {lost}")
    if given.json:
        result = {"stages": stages, "failed": failed, "load": load, "calm_s": calm_s, "probe": probe.verdict}
        given.json.write_text(json.dumps(result, indent=2) + "\n")
    if lost or probe.verdict != "good":
        raise SystemExit("FAILED: something was left inside, or the server does not answer any more")


if __name__ == "__main__":
    main()
