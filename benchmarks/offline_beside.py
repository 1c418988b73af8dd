"""Chat and a batch on one `headway serve`: does chat notice, and does the batch get what the simulator says is left?

The batch is one of the Batch API, in the store of the same server. On the simulated executor both cost what the
simulator is told; with a real model what is left is told by a fit of the run's own step log.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks import client, servers
from benchmarks import offline_job as work
from benchmarks.client import Planned, Sample
from benchmarks.offline_virtual import COST, S, left_beside
from headway.core.request import Slo
from headway.executors.simulated_text import SimulatedTokenizer
from headway.simulate import VirtualRequest
from headway.simulate.fit import fit, read_step_log

CHAT_RATE = 0.5
CHAT_WORDS, CHAT_OUTPUT_TOKENS = (20, 60), (32, 96)
TTFT_S = 1.0
ITEMS_PER_S = 20  # more than any engine here can do
DRAIN_S = 30.0
POLL_S = 0.2
COMMON = ("time", "water", "light", "place", "house", "river", "story", "music", "table", "world")  # a token each


def chats(duration_s: float, itl_s: float, seed: int) -> list[Planned]:
    """Poisson arrivals of short questions."""
    draw = random.Random(seed)
    planned: list[Planned] = []
    at_s = draw.expovariate(CHAT_RATE)
    while at_s < duration_s:
        prompt = " ".join(draw.choices(COMMON, k=draw.randint(*CHAT_WORDS)))
        planned.append(Planned(at_s, prompt, draw.randint(*CHAT_OUTPUT_TOKENS), TTFT_S, itl_s))
        at_s += draw.expovariate(CHAT_RATE)
    return planned


def _virtual(planned: Sequence[Planned]) -> list[VirtualRequest]:
    tokenizer = SimulatedTokenizer()
    return [
        VirtualRequest(
            f"chat-{number}",
            int(one.at_s * S),
            len(tokenizer.encode(f"user: {one.prompt}\nassistant:")),
            one.output_tokens,
            one.output_tokens,
            slo=Slo(ttft_ns=int(one.ttft_s * S), itl_ns=int(one.itl_s * S)),
        )
        for number, one in enumerate(planned)
    ]


class _Batch:
    """One of the Batch API, from its upload to what it came to when it was cancelled."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session, self._url = session, f"{url}/v1"
        self._id = ""
        self.began = 0.0

    async def begin(self, job: work.Job) -> None:
        lines = [json.loads(line) for line in work.lines(job)]
        for line in lines:
            line["body"]["model"] = servers.NAME
        form = aiohttp.FormData({"purpose": "batch"})
        form.add_field("file", "".join(json.dumps(line) + "\n" for line in lines).encode(), filename="in.jsonl")
        file = await self._asked("POST", "/files", data=form)
        wanted = {"input_file_id": file["id"], "endpoint": "/v1/completions", "completion_window": "24h"}
        self._id = (await self._asked("POST", "/batches", json=wanted))["id"]
        while not (await self._told())["request_counts"]["completed"]:  # noqa: ASYNC110 - it is a server's
            await asyncio.sleep(POLL_S)
        self.began = time.perf_counter()

    async def ended_tok_s(self) -> float:
        """Cancel it. Tokens of the items that were finished, a second since the first was."""
        wall_s = time.perf_counter() - self.began
        await self._asked("POST", f"/batches/{self._id}/cancel")
        while (batch := await self._told())["status"] != "cancelled":
            assert batch["status"] != "completed", "the batch ended before the chats did: more items"
            await asyncio.sleep(POLL_S)
        async with self._session.get(f"{self._url}/files/{batch['output_file_id']}/content") as response:
            response.raise_for_status()
            found = [json.loads(line) for line in (await response.text()).splitlines()]
        return float(sum(one["response"]["body"]["usage"]["total_tokens"] for one in found)) / wall_s

    async def _told(self) -> dict[str, Any]:
        return await self._asked("GET", f"/batches/{self._id}")

    async def _asked(self, method: str, path: str, **more: Any) -> dict[str, Any]:
        async with self._session.request(method, self._url + path, **more) as response:
            told: dict[str, Any] = await response.json()
            if response.status != 200:
                raise SystemExit(f"{method} {path} was answered with {response.status}: {told}")
            return told


async def _measured(url: str, planned: list[Planned], job: work.Job) -> tuple[list[Sample], float]:
    async with client.new_session() as session:
        batch = _Batch(session, url)
        await batch.begin(job)
        samples = await client.run(url, servers.NAME, planned, DRAIN_S)
        return samples, await batch.ended_tok_s()


def beside(arguments: argparse.Namespace) -> dict[str, Any]:
    executor, duration_s, itl_s = arguments.executor or "simulated", arguments.duration, arguments.itl
    planned = chats(duration_s, itl_s, arguments.seed)
    job = work.make_job(round(ITEMS_PER_S * duration_s), ids=work.ids_of(executor))
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        log = Path(folder) / "steps.jsonl"
        flags = ["--executor", executor, "--store", folder, "--step-log", str(log)]
        flags += ["--kv-cache-gib", str(arguments.kv_cache_gib)]
        if executor != "simulated":
            flags += ["--dtype", arguments.dtype, "--kv-cache-dtype", arguments.kv_cache_dtype or arguments.dtype]
        with servers.headway(arguments.model, *flags) as server:
            samples, batch_tok_s = asyncio.run(_measured(server.url, planned, job))
        cost = COST if executor == "simulated" else fit(logs=[read_step_log(log)]).cost
    left = left_beside(_virtual(planned), job, duration_s, cost)
    verdicts = Counter(sample.verdict for sample in samples)
    gaps_s = [gap_s for sample in samples for gap_s in sample.gaps_s]
    result = {
        "chats": len(samples),
        "good_ratio": verdicts["good"] / len(samples),
        "verdicts": dict(verdicts),
        "lag_s": max(sample.lag_s for sample in samples),
        "ttft_p99_s": client.percentile([sample.ttft_s or float("inf") for sample in samples], 0.99),
        "gaps_within_ratio": sum(gap_s <= itl_s for gap_s in gaps_s) / max(1, len(gaps_s)),
        "gap_p99_median_s": client.percentile([sample.gap_p99_s for sample in samples], 0.5),
        "batch_tok_s": batch_tok_s,
        "left_tok_s": left.batch_tok_s,
        "left_ratio": batch_tok_s / left.batch_tok_s,
        "simulated_good_ratio": left.good_ratio,
    }
    print(
        f"{len(samples)} chats, sent at most {result['lag_s'] * 1e3:.0f} ms late: {json.dumps(dict(verdicts))}\n"
        f"  {result['good_ratio']:.1%} within {TTFT_S:g} s and {itl_s * 1e3:g} ms: "
        f"TTFT p99 {result['ttft_p99_s']:.2f} s; {result['gaps_within_ratio']:.2%} of gaps are within; "
        f"p99 gap of the median chat {result['gap_p99_median_s'] * 1e3:.0f} ms\n"
        f"batch: {batch_tok_s:.0f} tok/s, {result['left_ratio']:.1%} of the {left.batch_tok_s:.0f} that the simulator "
        f"says are left while {left.good_ratio:.1%} of chats are within"
    )
    return result
