"""Resident memory of the server and all its processes: idle, under load, and over many requests.

`--kv-cache-gib 0.5` on the default model. Small prompts and short outputs, so that many requests take minutes: a leak
is counted in requests, not in tokens. Flat means that the last quarter uses no more than the second one did.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

import aiohttp

from benchmarks import client, servers

GIB = 1 << 30
TARGET_BYTES = 1.5 * GIB
TARGET_GROWTH_BYTES = 32 << 20  # from the second quarter to the last: noise of allocators, not a leak
SAMPLE_EVERY_S = 0.5
LOAD_REQUESTS = 64  # at once, of LOAD_WORDS, to fill slots and KV
LOAD_WORDS = 150


@dataclass(frozen=True)
class Reading:
    """RSS of all processes at one moment, by how many requests had been answered."""

    answered: int
    rss_bytes: int


class Watch:
    """Reads a server's memory all the time, from a thread."""

    def __init__(self, server: servers.Server) -> None:
        self.readings: list[Reading] = []
        self.answered = 0
        self._server = server
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(SAMPLE_EVERY_S):
            self.readings.append(Reading(self.answered, self._server.resident_bytes()))

    def between(self, low: float, high: float, count: int) -> float:
        """Median RSS while the answered share of `count` was between `low` and `high`; of the nearest, if none was."""
        inside = [one.rss_bytes for one in self.readings if low * count <= one.answered <= high * count]
        return statistics.median(inside or [self.readings[-1].rss_bytes])


async def flood(url: str, watch: Watch, given: argparse.Namespace) -> None:
    """`requests` short completions, `concurrency` at a time; one in eight streams. Any failure ends the benchmark."""
    draw = random.Random(given.seed)

    def bodies() -> Iterator[dict[str, object]]:
        for number in range(given.requests):
            words = client.text(draw, draw.randint(*given.words))
            tokens = draw.randint(1, given.output_tokens)
            yield {
                "model": servers.NAME,
                "prompt": words,
                "max_tokens": tokens,
                "temperature": 0.8,
                "stream": not number % 8,
            }

    todo = bodies()
    async with client.new_session() as session:

        async def work() -> None:
            for body in todo:
                async with session.post(f"{url}/v1/completions", json=body) as response:
                    text = await response.text()
                    if response.status != 200:
                        raise SystemExit(f"a request was answered {response.status}: {text[:300]}")
                watch.answered += 1
                if watch.answered % 1_000 == 0:
                    print(f"{watch.answered} answered", file=sys.stderr, flush=True)

        async with asyncio.TaskGroup() as group:
            for _ in range(given.concurrency):
                group.create_task(work())


async def load(url: str, seed: int) -> None:
    """Fill slots and KV once."""
    draw = random.Random(seed)
    at_once = [client.Planned(0.0, client.text(draw, LOAD_WORDS), 64, 600, 600) for _ in range(LOAD_REQUESTS)]
    at_once.append(client.Planned(0.0, client.text(draw, 2_000), 64, 600, 600))
    samples = await client.run(url, servers.NAME, at_once, 600.0)
    if errors := [sample.error for sample in samples if sample.error]:
        raise SystemExit(f"under load {len(errors)} requests failed: {errors[0]}")


async def counters(url: str) -> dict[str, int]:
    async with aiohttp.ClientSession() as session, session.get(f"{url}/load") as response:
        body: dict[str, int] = await response.json()
        return {name: body[name] for name in ("requests", "running", "waiting", "memory_bytes", "kv_reserved_bytes")}


def pair(text: str) -> tuple[int, int]:
    low, _, high = text.partition("-")
    return int(low), int(high or low)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=20_000, help="short requests after the load (default 20,000)")
    parser.add_argument("--concurrency", type=int, default=48)
    parser.add_argument("--words", type=pair, default=(3, 12), metavar="LOW-HIGH", help="of a prompt (default 3-12)")
    parser.add_argument("--output-tokens", type=int, default=4, help="most of an answer (default 4)")
    parser.add_argument("--kv-cache-gib", type=float, default=0.5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model", default=servers.DEFAULT_MODEL, help="what `headway serve` would take")
    parser.add_argument("--headway-flags", default="", help="more flags for the server, in one string")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write figures and readings to FILE")
    given = parser.parse_args()

    flags = ("--kv-cache-gib", f"{given.kv_cache_gib:g}", *given.headway_flags.split())
    with servers.headway(given.model, *flags) as server:
        time.sleep(1.0)
        idle = server.resident_bytes()
        with Watch(server) as watch:
            asyncio.run(load(server.url, given.seed))
        peak = max(reading.rss_bytes for reading in watch.readings)
        began = time.perf_counter()
        with Watch(server) as watch:
            asyncio.run(flood(server.url, watch, given))
            time.sleep(2 * SAMPLE_EVERY_S)
        minutes = (time.perf_counter() - began) / 60
        left = asyncio.run(counters(server.url))
        by_process = dict(servers.processes(server.pid))

    start, second = watch.readings[0].rss_bytes, watch.between(0.25, 0.5, given.requests)
    last, end = watch.between(0.75, 1.0, given.requests), watch.readings[-1].rss_bytes
    most = max([peak, *(reading.rss_bytes for reading in watch.readings)])
    print(f"{'RSS of all processes':<44} {'MiB':>7}")
    for name, value in (
        ("idle", idle),
        (f"peak under load ({LOAD_REQUESTS + 1} at once)", peak),
        (f"start of {given.requests:,} requests", start),
        ("their second quarter, median", second),
        ("their last quarter, median", last),
        ("end", end),
        ("most ever", most),
    ):
        print(f"{name:<44} {value / 2**20:>7.0f}")
    print(f"by process at the end, MiB: {', '.join(f'{rss / 2**20:.0f}' for rss in by_process.values())}")
    print(f"{given.requests:,} requests in {minutes:.1f} min; inside at the end: {left}")
    print(f"most / target {TARGET_BYTES / GIB:g} GiB: {most / TARGET_BYTES:.2f}x")
    growth = (last - second) / TARGET_GROWTH_BYTES
    print(f"growth, second to last quarter / target {TARGET_GROWTH_BYTES >> 20} MiB: {growth:.2f}x")
    if given.json:
        figures = {"idle": idle, "peak": peak, "start": start, "second": second, "last": last, "end": end, "most": most}
        readings = [asdict(reading) for reading in watch.readings]
        given.json.write_text(json.dumps({"bytes": figures, "left": left, "readings": readings}, indent=2) + "\n")


if __name__ == "__main__":
    main()
