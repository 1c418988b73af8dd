"""The storm of `benchmarks.overload` over HTTP: a gateway and two simulated workers, or a gateway that is running."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import random
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import aiohttp

from benchmarks import client, servers
from benchmarks.client import Planned, Sample

TTFT_S, ITL_S = 1.0, 0.15
WORDS, OUTPUT_TOKENS = (40, 160), (16, 64)
LOOK_EVERY_S, PROBE_S = 0.25, 20.0
LATE_S = 0.05

# (time, waiting, height, levels in force)
Seen = list[tuple[float, int, int, frozenset[str]]]


@contextlib.contextmanager
def started(workers: int, queue_timeout_s: float) -> Iterator[str]:
    """A gateway of our own before simulated workers of ours."""
    serve = [sys.executable, "-m", "headway", "serve"]
    with contextlib.ExitStack() as stack:
        urls = []
        for _ in range(workers):
            port = servers.free_port()
            flags = ["--executor", "simulated", "--served-model-name", servers.NAME, "--port", str(port)]
            urls.append(stack.enter_context(servers.Server([*serve, *flags, "--log-level", "warning"], port)).url)
        port = servers.free_port()
        flags = [flag for url in urls for flag in ("--worker", url)]
        flags += ["--port", str(port), "--queue-timeout", f"{queue_timeout_s:g}", "--log-level", "warning"]
        yield stack.enter_context(servers.Server([*serve, *flags], port)).url


def schedule(rate: float, seconds: float, begin_s: float, draws: random.Random) -> list[Planned]:
    made, at_s = [], begin_s + draws.expovariate(rate)
    while at_s < begin_s + seconds:
        prompt = client.text(draws, draws.randrange(*WORDS))
        made.append(Planned(at_s, prompt, draws.randrange(*OUTPUT_TOKENS), TTFT_S, ITL_S))
        at_s += draws.expovariate(rate)
    return made


Stream = Callable[[Sample], Awaitable[None]]


async def patiently(stream: Stream, sample: Sample, tries: int) -> int:
    """As often as allowed, when `Retry-After` says. Returns how often it came."""
    for number in range(1, tries + 1):
        sample.forget_refusal()
        await stream(sample)
        if sample.retry_after_s is None or number == tries:
            return number
        await asyncio.sleep(sample.retry_after_s)
    return tries


async def send(
    url: str, model: str, planned: list[Planned], patient_every: int, retries: int
) -> tuple[list[Sample], list[int]]:
    samples = [Sample(one) for one in planned]
    async with client.new_session() as session:
        zero, tasks = time.perf_counter(), []

        async def stream(sample: Sample) -> None:
            await client.stream(session, url, model, sample, zero)

        for number, sample in enumerate(samples):
            await asyncio.sleep(max(0.0, zero + sample.planned.at_s - time.perf_counter()))
            tries = retries if patient_every and number % patient_every == 0 else 1
            tasks.append(asyncio.create_task(patiently(stream, sample, tries)))
        return samples, await asyncio.gather(*tasks)


async def watch(url: str, zero: float, seen: Seen) -> None:
    """(time, waiting, height, levels in force), a few times a second."""
    async with client.new_session() as session:
        while True:
            with contextlib.suppress(aiohttp.ClientError, KeyError):
                async with session.get(f"{url}/load") as response:
                    waiting = int((await response.json())["waiting"])
                async with session.get(f"{url}/admin/ladder") as response:
                    ladder = await response.json()
                levels = frozenset(name for name, level in ladder["levels"].items() if level["active"])
                seen.append((time.perf_counter() - zero, waiting, ladder["height"], levels))
            await asyncio.sleep(LOOK_EVERY_S)


async def capacity_of(url: str, model: str, draws: random.Random) -> float:
    """Requests a second that end while far too many were sent."""
    samples, _ = await send(url, model, schedule(150.0, 4.0, 0.0, draws), 0, 1)
    ends = sorted(sample.ended_s for sample in samples if not sample.error)
    first, last = len(ends) // 10, len(ends) * 8 // 10
    return (last - first) / (ends[last] - ends[first])


async def measured(
    given: argparse.Namespace, phases: list[tuple[float, float]], goals: dict[str, Any]
) -> dict[str, Any]:
    """`phases` are (share of capacity, seconds), the second the overload. Figures as `overload.judged` gives them."""
    context = contextlib.nullcontext(given.live) if given.live else started(2, given.queue_timeout)
    with context as url:
        model, draws = await client.model_of(url), random.Random(given.seed)
        capacity = given.capacity or await capacity_of(url, model, draws)
        await client.settle(url, model)
        best = 0.0
        for share in (0.8, 1.0):
            samples, _ = await send(url, model, schedule(capacity * share, PROBE_S, 0.0, draws), 0, 1)
            good = sum(sample.verdict == "good" for sample in samples) / PROBE_S
            best = max(best, good)
            why = dict(Counter(sample.verdict for sample in samples))
            print(f"steady at {share:g} of {capacity:.1f} req/s: {good:.1f} good a second; {why}", flush=True)
            await client.settle(url, model)
        planned: list[Planned] = []
        begin_s = 0.0
        for share, seconds in phases:
            planned += schedule(capacity * share, seconds, begin_s, draws)
            begin_s += seconds
        seen: Seen = []
        watching = asyncio.create_task(watch(url, time.perf_counter(), seen))
        samples, tries = await send(url, model, planned, goals["patient_every"], goals["retries"])
        await asyncio.sleep(1.0)
        watching.cancel()
    found = _judged((samples, tries), seen, (phases[0][1], phases[0][1] + phases[1][1]), goals)
    return {**found, "best_goodput": best, "of_best": found["goodput"] / best if best else 0.0}


def _judged(
    sent: tuple[list[Sample], list[int]], seen: Seen, ends_s: tuple[float, float], goals: dict[str, Any]
) -> dict[str, Any]:
    """`sent` are requests and how often each came; `ends_s` the begin and end of the overload."""
    (samples, tries), (start_s, end_s) = sent, ends_s
    during = [one for one in samples if start_s <= one.planned.at_s < end_s]
    after = [one for one in samples if one.planned.at_s >= end_s + goals["normal_after_s"]]
    patient = [number for number in range(len(samples)) if number % goals["patient_every"] == 0]
    changes: Counter[str] = Counter()
    for (*_, before), (*_, now) in itertools.pairwise(seen):
        changes.update(before ^ now)
    lags_s = [one.lag_s for one, number in zip(samples, tries, strict=True) if number == 1]
    late = client.percentile(lags_s, 0.99)
    if late > LATE_S:
        print(f"CLIENT LATE: p99 {late * 1e3:.0f} ms behind its schedule; the machine is too busy for this")
    goodput = sum(one.verdict == "good" for one in during) / (end_s - start_s)
    return {
        "goodput": goodput,
        "most_waiting": max(waiting for _, waiting, _, _ in seen),
        "ends": dict(Counter(one.error or "finished" for one in samples)),
        "patient": len(patient),
        "patient_tries": max(tries[number] for number in patient),
        "patient_refused": sum(samples[number].error == "http 429" for number in patient),
        "good_after": sum(one.verdict == "good" for one in after) / max(1, len(after)),
        "waiting_after": max((w for at_s, w, _, _ in seen if at_s >= end_s + goals["normal_after_s"]), default=0),
        "ladder_down_s": max((at_s for at_s, _, height, _ in seen if height), default=end_s) - end_s,
        "changes": dict(changes),
        "cut_short": sum(one.verdict == "tokens" for one in samples),
    }
