"""What it costs to know: throughput with metrics and without, in turns, and how long a scrape takes.

A gateway before instant upstreams counts and counts nothing in turns of 0.1 s (`sides/metered_in_turns`) while a client
asks it; the CPU it spent is divided by what it did. All turns within `BLOCK_S` give one ratio; told are the median of
these and its 95% interval. Then a scrape of 32 tenants, 3 lanes and 8 workers, each of which met each other.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks import servers
from benchmarks.gateway import hammer, upstream
from benchmarks.sides.metered_in_turns import TURN_S
from headway.core.fleet.routing import Choice
from headway.core.fleet.worker import WorkerLoad, WorkerSpec
from headway.core.front.admission import AdmissionLimits
from headway.core.front.front import Front, FrontLimits
from headway.core.request import Request, Slo, Usage
from headway.gateway.fleet import FleetDriver
from headway.gateway.fleet.driver import Place
from headway.gateway.fleet.figures import Figures
from headway.gateway.fleet.metrics import FleetCollector, tenants_text, times_of
from headway.gateway.fleet.trail import NS_PER_S, Trail
from headway.metrics.breakdown import Ended
from headway.metrics.exporter import EdgeExporter
from headway.metrics.gaps import Gaps

TARGET_COST_RATIO, TARGET_SCRAPE_MS = 0.02, 20.0
TENANTS, LANES, WORKERS = 32, ("short", "long-prompt", "long-output"), 8
SCRAPES = 50
INSIDE = 512  # requests that run or wait meanwhile
BLOCK_S = 2.0
GAP_S = 0.02  # of the streams
KINDS = ("requests", "streams")


def turns(what: str, given: argparse.Namespace) -> list[tuple[bool, float, int]]:
    """Of each turn: were there metrics, the CPU in s, and how many requests, or chunks of streams, there were."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        streams = ["--tokens", str(round(given.seconds / GAP_S)), "--gap", str(GAP_S)]
        urls = [stack.enter_context(upstream(*(streams if what == "streams" else ()))).url for _ in range(2)]
        config, told = folder / "gateway.toml", folder / "turns.json"
        workers = "".join(f'[[worker]]\nurl = "{url}"\nid = "w{n}"\nkind = "openai"\n' for n, url in enumerate(urls))
        config.write_text(f'log-level = "warning"\nslo-ttft = 5.0\nslo-itl = 1.0\n{workers}')
        port = servers.free_port()
        command = [sys.executable, "-m", "benchmarks.sides.metered_in_turns", "--config", str(config)]
        with servers.Server([*command, "--port", str(port)], port, {"HEADWAY_TURNS": str(told)}) as server:
            hammer(what, server.url, "", "--seconds", str(given.seconds), "--rounds", "1")
        lines = json.loads(told.read_text())
    return [(metered, cpu_s, answers if what == "requests" else chunks) for metered, cpu_s, answers, chunks in lines]


def counting() -> dict[str, float]:
    """What counting a call takes in this process, in µs, one that is refused beside it, and a chunk of a stream: the
    fastest of many, which other work on the machine disturbs least.
    """
    figures, choice = Figures(), Choice("worker-0", {}, {})
    usage, slo = Usage(10, 64, 0), Slo(ttft_ns=5 * NS_PER_S, itl_ns=NS_PER_S)

    def call() -> None:
        trail = Trail(figures)
        trail.tenant, trail.lane, trail.model, trail._slo = "acme", "short", "m", slo
        trail.sent_ns = trail.first_ns = trail.arrival_ns
        trail.tries = [(choice, "")]
        trail.ended("stop", usage)

    streamed = Trail(figures)
    streamed.first_ns = streamed._last_ns = streamed.arrival_ns

    def chunk() -> None:
        streamed.passed(streamed.output_tokens + 1, exact=False)

    def call_and_refusal() -> None:
        call()
        figures.refused("limited", {"tenant": "acme"})

    call_us = _fastest_us(call)
    return {
        "call_us": call_us,
        "refusal_us": _fastest_us(call_and_refusal) - call_us,
        "trail_us": _fastest_us(lambda: Trail(figures)),
        "chunk_us": _fastest_us(chunk),
    }


def _fastest_us(do: Callable[[], object], times: int = 1024, tries: int = 200) -> float:
    """Of one, on average over so many: what is added up only now and then is in it."""
    found = []
    for _ in range(tries):
        began = time.perf_counter()
        for _ in range(times):
            do()
        found.append((time.perf_counter() - began) / times)
    return 1e6 * min(found)


def cost(told: list[tuple[bool, float, int]]) -> dict[str, float]:
    """The median of the blocks' ratios, and its 95% interval: by ranks, as a binomial law tells how many lie below."""
    busy = [(metered, cpu_s, count) for metered, cpu_s, count in told if count]
    size = round(BLOCK_S / TURN_S)
    blocks = [busy[first : first + size] for first in range(size, len(busy) - size + 1, size)]  # the first warms
    pairs = [(_each_us(block, metered=True), _each_us(block, metered=False)) for block in blocks]
    ratios = sorted(metered / bare for metered, bare in pairs)
    rank = max(0, math.floor(len(ratios) / 2 - 1.96 * math.sqrt(len(ratios)) / 2))
    return {
        "metered_us": statistics.median(metered for metered, _ in pairs),
        "bare_us": statistics.median(bare for _, bare in pairs),
        "cost_ratio": statistics.median(ratios) - 1,
        "lowest": ratios[rank] - 1,
        "highest": ratios[-1 - rank] - 1,
        "blocks": len(ratios),
    }


def _each_us(block: list[tuple[bool, float, int]], *, metered: bool) -> float:
    cpu_s, counts = zip(
        *((cpu_s, count) for with_metrics, cpu_s, count in block if with_metrics == metered), strict=True
    )
    return 1e6 * float(sum(cpu_s)) / float(sum(counts))


def scrape() -> dict[str, float]:
    """Writing the answer, in this process: the event loop does nothing else meanwhile. In CPU, and by the clock."""
    front = Front(AdmissionLimits(1 << 20, 1 << 40), FrontLimits(), remote=True)
    driver, figures = FleetDriver(front), Figures()
    for number in range(WORKERS):
        front.add_worker(WorkerSpec(id=f"worker-{number}", models=frozenset({"m"})), driver.clock())
        load = WorkerLoad.at(driver.clock(), running=3.0, waiting=1.0, kv_used_ratio=0.5, ttft_s=0.1, itl_s=0.02)
        front.observe(f"worker-{number}", load, driver.clock())
    for number in range(INSIDE):
        request = Request(f"r{number}", range(100), 64, tenant=f"tenant-{number % TENANTS}", model="m")
        driver.places[request.id] = Place(driver, request)
        front.lanes.add(request, driver.clock())
    for tenant, lane, worker in product(range(TENANTS), LANES, range(WORKERS)):
        gaps = Gaps(figures.gaps)
        for gap_s in (0.004, 0.02, 0.03, 0.4):
            figures.gaps.note(gaps, gap_s, 1)
        labels = {"tenant": f"tenant-{tenant}", "lane": lane, "worker": f"worker-{worker}", "model": "m"}
        for outcome in ("good", "failed", "cancelled", "limited"):
            figures.calls.ended(Ended(outcome, 900, 0, 5, 0.2, 0.7, gaps, None, labels))
    exporter = EdgeExporter(FleetCollector(driver, figures), lambda: figures.calls, lambda: times_of(figures))
    exporter.of_tenants.append(lambda: tenants_text(driver, figures))
    exporter.render()
    clock_ms, cpu_ms = [], []
    for _ in range(SCRAPES):
        began, worked = time.perf_counter(), time.process_time()
        body = exporter.render()
        cpu_ms.append(1e3 * (time.process_time() - worked))
        clock_ms.append(1e3 * (time.perf_counter() - began))
    return {
        "lines": float(body.count(b"\n")),
        "kilobytes": len(body) / 1e3,
        "cpu_ms": statistics.median(cpu_ms),
        "median_ms": statistics.median(clock_ms),
        "p90_ms": sorted(clock_ms)[int(0.9 * SCRAPES)],
        "fastest_ms": min(clock_ms),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="of requests, and of streams")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to FILE")
    given = parser.parse_args()
    told: dict[str, Any] = {"scrape": scrape(), "counting": counting()}
    told |= {what: cost(turns(what, given)) for what in KINDS}
    for what, unit in (("requests", "request"), ("streams", "chunk")):
        one = told[what]
        print(
            f"{what}: {one['metered_us']:.1f} us of CPU a {unit}, {one['bare_us']:.1f} without metrics: "
            f"{one['cost_ratio']:+.1%} (95%: {one['lowest']:+.1%} to {one['highest']:+.1%}, {one['blocks']} blocks; "
            f"target {TARGET_COST_RATIO:.0%})"
        )
    one = told["counting"]
    print(
        f"in this process: {one['call_us'] - one['trail_us']:.1f} us to count a call, {one['refusal_us']:.1f} one that "
        f"is refused beside it, {one['chunk_us']:.2f} a chunk; "
        f"of a gateway's CPU without it {(one['call_us'] - one['trail_us']) / told['requests']['bare_us']:.1%} "
        f"and {one['chunk_us'] / told['streams']['bare_us']:.1%}"
    )
    one = told["scrape"]
    print(
        f"scrape: {one['median_ms']:.1f} ms, p90 {one['p90_ms']:.1f}, of CPU {one['cpu_ms']:.1f} "
        f"(target {TARGET_SCRAPE_MS:g}); "
        f"{one['lines']:,.0f} lines, {one['kilobytes']:,.0f} kB"
    )
    if given.json:
        given.json.write_text(json.dumps(told, indent=2))


if __name__ == "__main__":
    main()
