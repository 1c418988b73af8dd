"""A made-up run that looks like a real one: a small batching server with slots, a KV cache, a queue and one stall,
under a Poisson load of two kinds and two tenants. Used by the tests, and for the pictures in the docs:

    python -m tests.loadtest.report.sample_run report.html
"""

from __future__ import annotations

import math
import sys
from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from headway.loadtest.record import CountedBy, Fate, Record
from headway.loadtest.report.html import run_page
from headway.loadtest.result import Environment, Load, Run, Signals, Slo, Target
from headway.loadtest.summary import client_figures, summarise
from headway.loadtest.table import tabulate
from headway.loadtest.verdict import judge
from headway.metrics.rivals import RIVALS

SLO = Slo(ttft_s=0.5, itl_s=0.08, e2e_s=20.0)
SECOND = 10**9


@dataclass(slots=True)
class _Sequence:
    record: Record
    to_prefill: int
    last_ns: int = -1


@dataclass(slots=True)
class Server:
    """Steps of `base + prefill tokens + sequences`; a full queue answers 429; it freezes once."""

    stall_at_s: float
    slots: int = 48
    kv_tokens: int = 40_000
    most_waiting: int = 24
    chunk_tokens: int = 1024
    stall_s: float = 2.4
    waiting: deque[_Sequence] = field(default_factory=deque)
    running: list[_Sequence] = field(default_factory=list)
    preemptions: int = 0
    prefilled: int = 0
    generated: int = 0

    def kv_used(self) -> int:
        return sum(one.record.asked_input_tokens - one.to_prefill + _made(one.record) for one in self.running)

    def admit(self, record: Record) -> None:
        if len(self.waiting) >= self.most_waiting:
            record.fate, record.status, record.retry_after_s = Fate.LIMITED, 429, 2.0
            record.error = "The waiting room is full (24 requests); come again in 2 s."
            record.headers_ns = record.ended_ns = record.sent_ns + 2_000_000
        else:
            self.waiting.append(_Sequence(record, record.asked_input_tokens))

    def step(self, now_ns: int) -> int:
        """Runs one; returns when it ended."""
        while self.waiting and len(self.running) < self.slots:
            if self.kv_used() + self.waiting[0].to_prefill + 2 * self.chunk_tokens > self.kv_tokens:
                break
            self.running.append(self.waiting.popleft())
        while self.kv_used() + self.chunk_tokens > self.kv_tokens and len(self.running) > 1:
            self.preemptions += 1
            victim = self.running.pop()
            victim.to_prefill = victim.record.asked_input_tokens
            self.waiting.appendleft(victim)
        budget, prefilled = self.chunk_tokens, 0
        decoding = [one for one in self.running if not one.to_prefill]
        for one in self.running:
            chunk = min(budget, one.to_prefill)
            one.to_prefill, budget, prefilled = one.to_prefill - chunk, budget - chunk, prefilled + chunk
        end_ns = now_ns + 6_000_000 + 24_000 * prefilled + 300_000 * len(decoding)
        if now_ns < self.stall_at_s * SECOND <= end_ns:
            end_ns += int(self.stall_s * SECOND)
        for one in self.running:
            if not one.to_prefill:
                self._token(one, end_ns)
        self.prefilled += prefilled
        self.running = [one for one in self.running if one.record.ended_ns < 0]
        return end_ns

    def _token(self, one: _Sequence, now_ns: int) -> None:
        record = one.record
        self.generated += 1
        record.chunks += 1
        if record.first_ns < 0:
            record.first_ns, record.first_tokens = now_ns, 1
        else:
            record.gaps_ns.append(now_ns - one.last_ns)
            record.gap_tokens.append(1)
        one.last_ns = record.last_ns = now_ns
        if _made(record) >= record.asked_output_tokens:
            record.ended_ns, record.fate, record.finish_reason = now_ns + 300_000, Fate.OK, "length"


def _made(record: Record) -> int:
    return record.chunks


@dataclass(frozen=True, slots=True, repr=False)
class Sample:
    run: Run
    records: list[Record]


def sample(
    *, seed: int = 7, rate: float = 14.0, duration_s: float = 120.0, profile: str = "rate", faults: bool = True
) -> Sample:
    """Without `faults`, only load makes it slow."""
    rng = np.random.default_rng(seed)
    is_ramp = profile == "ramp"
    records = _due(rng, rate, duration_s, ramp=is_ramp)
    server = Server(70.0 if faults and not is_ramp else math.inf, most_waiting=10_000 if is_ramp else 24)
    signals = Signals(source="vllm")
    _serve(server, records, signals, rng, spoilt=0.005 if faults else 0.0)
    elapsed_s = max([duration_s, *(record.ended_ns / SECOND for record in records)])
    return Sample(
        assemble(records, signals, elapsed_s=elapsed_s, rate=rate, duration_s=duration_s, profile=profile), records
    )


def _due(rng: np.random.Generator, rate: float, duration_s: float, *, ramp: bool) -> list[Record]:
    """A mix of short and long requests. A ramp rises from nothing to `rate`."""
    count = rng.poisson(rate * duration_s * (0.5 if ramp else 1.0))
    shares = np.sort(rng.random(count))
    at_s = (np.sqrt(shares) if ramp else shares) * duration_s
    records = []
    for index, due_s in enumerate(at_s):
        is_long = rng.random() < 0.18
        middle_in, middle_out = (2200, 120) if is_long else (260, 90)
        record = Record(
            index=index,
            kind="long" if is_long else "short",
            tenant="acme" if rng.random() < 0.6 else "globex",
            asked_input_tokens=int(np.clip(rng.lognormal(np.log(middle_in), 0.35), 16, 6000)),
            asked_output_tokens=int(np.clip(rng.lognormal(np.log(middle_out), 0.4), 2, 400)),
            scheduled_ns=int(due_s * SECOND),
        )
        record.sent_ns = record.scheduled_ns + int(rng.lognormal(np.log(90_000), 0.7))
        records.append(record)
    return records


def _serve(
    server: Server, records: Sequence[Record], signals: Signals, rng: np.random.Generator, spoilt: float
) -> None:
    coming = deque(records)
    now_ns, next_scrape_ns = 0, 0
    while coming or server.waiting or server.running:
        while coming and coming[0].sent_ns <= now_ns:
            record = coming.popleft()
            if rng.random() < spoilt:  # a request now and then goes wrong for another reason
                _spoil(record, rng)
            else:
                server.admit(record)
        if now_ns >= next_scrape_ns:
            _scrape(server, signals, now_ns)
            next_scrape_ns = now_ns + SECOND
        if server.waiting or server.running:
            now_ns = server.step(now_ns)
        elif coming:
            now_ns = max(now_ns, min(coming[0].sent_ns, next_scrape_ns))
    for record in records:
        record.headers_ns = (
            max(record.headers_ns, record.sent_ns + 1_500_000) if record.status != 0 or record.ok else -1
        )
        if record.ok:
            record.status, record.counted = 200, CountedBy.USAGE
            record.input_tokens, record.output_tokens = record.asked_input_tokens + 7, record.chunks
            record.recounted_tokens = record.output_tokens - int(rng.random() < 0.01) * 4


def _spoil(record: Record, rng: np.random.Generator) -> None:
    if rng.random() < 0.5:
        record.fate, record.error = Fate.CONNECTION, "Connection reset by peer"
        record.ended_ns = record.sent_ns + 40_000_000
    else:
        record.fate, record.status = Fate.SERVER_ERROR, 500
        record.error = "CUDA out of memory. Tried to allocate 96.00 MiB"
        record.ended_ns = record.sent_ns + 900_000_000


def _scrape(server: Server, signals: Signals, now_ns: int) -> None:
    signals.times_s.append(round(now_ns / SECOND, 3))
    told = {
        "running": len(server.running),
        "waiting": len(server.waiting),
        "kv_used_ratio": server.kv_used() / server.kv_tokens,
        "preemptions_total": server.preemptions,
        "prompt_tokens_total": server.prefilled,
        "generation_tokens_total": server.generated,
    }
    for name, value in told.items():
        signals.series.setdefault(name, []).append(float(value))


# -- from records to a run -------------------------------------------------------------------------------------------


def assemble(
    records: Sequence[Record],
    signals: Signals,
    *,
    elapsed_s: float,
    rate: float,
    duration_s: float,
    profile: str = "rate",
) -> Run:
    table, load = tabulate(records), _load(rate, duration_s, profile)
    summary = summarise(table, load, SLO, rival_tools=tuple(RIVALS))
    client = client_figures(
        table, load, summary.window_s, processes=1, cpu_ratio=0.11, loop_lags_s=np.full(2000, 0.0002)
    )
    return Run(
        started_at="2026-11-30T10:00:00.000+00:00",
        elapsed_s=elapsed_s,
        target=Target(url="http://localhost:8000/v1", endpoint="chat", model="qwen3-8b"),
        load=load,
        slo=SLO,
        environment=_environment(),
        client=client,
        summary=summary,
        verdict=judge(table, summary, client, load),
        signals=signals,
    )


def _load(rate: float, duration_s: float, profile: str) -> Load:
    described = f"Poisson, {rate:g} req/s for {duration_s:g} s" if profile == "rate" else f"0 to {rate:g} req/s"
    return Load(
        profile=profile,
        loop="open",
        description=described,
        rate=rate,
        duration_s=duration_s,
        warmup_s=10.0 if profile == "rate" else 0.0,
        cooldown_s=5.0 if profile == "rate" else 0.0,
        seed=7,
        options={"burstiness": 1.0, "unique_prefix": True} if profile == "rate" else {"start_rate": 0.0},
        settings={"mix": "82% short, 18% long", "prompts": "synthetic, each with a beginning of its own"},
    )


def _environment() -> Environment:
    return Environment(
        model="qwen3-8b",
        precision="bf16",
        device="H100 SXM",
        device_count=1,
        memory_bytes=80 * 2**30,
        framework="vllm 0.14.0",
        flags={"max_num_seqs": "48", "max_num_batched_tokens": "1024", "enable_prefix_caching": "true"},
        noted={"rack": "b7"},
        client={"headway": "0.1.0", "python": "3.11", "cpu": "2 cores"},
    )


def many(of: Sample, count: int) -> Sample:
    """The same again and again, one after the other, until there are `count` requests."""
    records: list[Record] = []
    span_ns = int(of.run.elapsed_s * SECOND)
    while len(records) < count:
        shift_ns = len(records) // len(of.records) * span_ns
        records += [_later(record, shift_ns, len(records) + place) for place, record in enumerate(of.records)]
    records = records[:count]
    elapsed_s = max(record.ended_ns for record in records) / SECOND
    return Sample(changed(of.run, elapsed_s=elapsed_s), records)


def _later(record: Record, shift_ns: int, index: int) -> Record:
    names = ("scheduled_ns", "sent_ns", "headers_ns", "first_ns", "last_ns", "ended_ns")
    moved = {name: at_ns + shift_ns for name in names if (at_ns := getattr(record, name)) >= 0}
    return replace(record, **moved, index=index, gaps_ns=array("q", record.gaps_ns))


def changed(run: Run, **fields: Any) -> Run:
    return msgspec.structs.replace(run, **fields)


def main(path: str) -> None:
    made = sample()
    Path(path).write_text(run_page(made.run, made.records, rivals=("vllm",)), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
