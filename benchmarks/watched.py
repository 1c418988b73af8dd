"""A virtual service that is scraped while it runs: what a `/metrics` page of headway or of vLLM would have shown.

The pages are text in Prometheus' format, so that what reads them is what reads a live server. Steps are taken one by
one, since counters of a leap are told only at its end.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heappop
from typing import Any, Literal

from headway.core.request import Request
from headway.core.scheduler.sequence import Ended, Event, Produced
from headway.core.scheduler.step import Outcome, Step
from headway.engine.journal import VERSION, request_line, step_line
from headway.metrics.names import DURATION_BUCKETS_S, ITL_BUCKETS_S, TOKENS_BUCKETS, TTFT_BUCKETS_S
from headway.simulate import Record, Run, VirtualRequest, VirtualSettings
from headway.simulate.drive import Pulling
from headway.simulate.engine import VirtualEngine
from headway.simulate.fleet import Sending

Dialect = Literal["headway", "vllm"]
S = 1_000_000_000
# vLLM's own, of iteration tokens.
STEP_BUCKETS = (1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0)
VLLM_TTFT_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
               80.0, 160.0, 640.0, 2560.0)  # fmt: skip
VLLM_ITL_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
VLLM_E2E_S = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0)
BUCKETS: dict[str, dict[str, Sequence[float]]] = {
    "headway": {
        "headway_time_to_first_token_seconds": TTFT_BUCKETS_S,
        "headway_inter_token_latency_seconds": ITL_BUCKETS_S,
        "headway_request_duration_seconds": DURATION_BUCKETS_S,
        "headway_tokenise_seconds": TTFT_BUCKETS_S,
        "headway_queue_seconds": TTFT_BUCKETS_S,
        "headway_prefill_seconds": TTFT_BUCKETS_S,
        "headway_decode_seconds": DURATION_BUCKETS_S,
        "headway_request_input_tokens": TOKENS_BUCKETS,
        "headway_request_output_tokens": TOKENS_BUCKETS,
    },
    "vllm": {
        "vllm:time_to_first_token_seconds": VLLM_TTFT_S,
        "vllm:inter_token_latency_seconds": VLLM_ITL_S,
        "vllm:e2e_request_latency_seconds": VLLM_E2E_S,
        "vllm:request_queue_time_seconds": VLLM_E2E_S,
        "vllm:request_prefill_time_seconds": VLLM_E2E_S,
        "vllm:request_decode_time_seconds": VLLM_E2E_S,
        "vllm:request_prompt_tokens": TOKENS_BUCKETS,
        "vllm:request_generation_tokens": TOKENS_BUCKETS,
        "vllm:iteration_tokens_total": STEP_BUCKETS,
    },
}
# What is observed -> its name in each dialect; headway shows no histogram of steps.
NAMES: dict[str, dict[str, str]] = {
    dialect: dict(
        zip(
            ("ttft", "itl", "e2e", "queue", "prefill", "decode", "prompt", "output"),
            [name for name in names if "tokenise" not in name and "iteration" not in name],
            strict=True,
        )
    )
    for dialect, names in BUCKETS.items()
}


@dataclass(slots=True)
class Histogram:
    bounds: Sequence[float]
    counts: list[int] = field(default_factory=list)
    sum: float = 0.0

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def lines(self, name: str, labels: str) -> Iterable[str]:
        upto = 0
        comma = "," if labels else ""
        for bound, count in zip([*self.bounds, "+Inf"], self.counts, strict=True):
            upto += count
            yield f'{name}_bucket{{le="{bound}"{comma}{labels}}} {upto}'
        shown = f"{{{labels}}}" if labels else ""
        yield f"{name}_sum{shown} {self.sum}"
        yield f"{name}_count{shown} {upto}"


@dataclass(frozen=True, slots=True)
class Page:
    at_s: float
    text: str


class Watch:
    """What is counted of one engine, or of all, as its requests pass."""

    def __init__(self, dialect: Dialect, tokenise_s: float = 0.0) -> None:
        self.dialect = dialect
        self.histograms = {name: Histogram(bounds) for name, bounds in BUCKETS[dialect].items()}
        self.tokenise_s = tokenise_s
        self.prompt_tokens = 0
        self.ended: dict[str, int] = {}
        self._last_ns: dict[str, int] = {}

    def observe(self, what: str, value: float) -> None:
        self.histograms[NAMES[self.dialect][what]].observe(value)

    def produced(self, record: Record, tokens: int, now: int) -> None:
        last = self._last_ns.get(record.id)
        self._last_ns[record.id] = now
        if last is None:
            self.prompt_tokens += record.prompt_tokens
            self.observe("ttft", (now - record.arrival_ns) / S + self.tokenise_s)
            if self.dialect == "headway":
                self.histograms["headway_tokenise_seconds"].observe(self.tokenise_s + 0.001)
            return
        for _ in range(tokens):
            self.observe("itl", (now - last) / S / tokens)

    def over(self, record: Record, event: Ended) -> None:
        self._last_ns.pop(record.id, None)
        reason = event.reason.value if event.reason is not None else event.state.value
        self.ended[reason] = self.ended.get(reason, 0) + 1
        times = event.times
        if not times.first_token_ns:
            return
        self.observe("e2e", (times.ended_ns - record.arrival_ns) / S + self.tokenise_s)
        self.observe("queue", (times.started_ns - record.arrival_ns) / S)
        self.observe("prefill", (times.first_token_ns - times.started_ns) / S)
        self.observe("decode", (times.ended_ns - times.first_token_ns) / S)
        self.observe("prompt", float(event.usage.prompt_tokens))
        self.observe("output", float(event.usage.output_tokens))

    def text(self, engine: VirtualEngine, waiting: int, waiting_tokens: int, labels: str = "") -> list[str]:
        """A page's lines of one engine."""
        scheduler, shown = engine.scheduler, f"{{{labels}}}" if labels else ""
        counters, pool = scheduler.counters, scheduler.pool
        lines: dict[str, Any]
        if self.dialect == "headway":
            lines = {
                "headway_sequences_running": len(scheduler.running),
                "headway_requests_waiting": waiting,
                "headway_requests_in_service": waiting + len(scheduler.running) + len(scheduler.preempted),
                "headway_waiting_tokens": waiting_tokens,
                "headway_sequences_preempted": len(scheduler.preempted),
                "headway_kv_usage_ratio": pool.used_blocks / pool.num_blocks,
                "headway_kv_blocks": pool.num_blocks,
                "headway_kv_set_aside_blocks": scheduler.residents.set_aside_blocks,
                "headway_kv_resident_tokens": scheduler.kv_tokens,
                "headway_max_num_seqs": scheduler.limits.max_num_seqs,
                "headway_max_num_batched_tokens": scheduler.limits.max_num_batched_tokens,
                "headway_prefill_tokens_total": counters.prefill_tokens,
                "headway_decode_tokens_total": counters.decode_tokens,
                "headway_prefill_seconds_total": counters.prefill_seconds,
                "headway_decode_seconds_total": counters.decode_seconds,
                "headway_steps_total": counters.steps,
                "headway_preemptions_total": counters.preemptions,
                "headway_recomputed_tokens_total": counters.recomputed_tokens,
                "headway_kv_evictions_total": pool.counters.evictions,
                "headway_prefix_lookup_tokens_total": pool.counters.looked_up_tokens,
                "headway_prefix_hit_tokens_total": pool.counters.hit_tokens,
                "headway_step_real_seconds_total": counters.real_seconds,
            }
            ended = [f'headway_requests_ended_total{{reason="{why}"}} {n}' for why, n in self.ended.items()]
        else:
            lines = {
                "vllm:num_requests_running": len(scheduler.running),
                "vllm:num_requests_waiting": waiting + len(scheduler.preempted),
                "vllm:kv_cache_usage_perc": pool.used_blocks / pool.num_blocks,
                "vllm:prompt_tokens_total": self.prompt_tokens,
                "vllm:generation_tokens_total": counters.decode_tokens + sum(
                    self.histograms["vllm:time_to_first_token_seconds"].counts),
                "vllm:num_preemptions_total": counters.preemptions,
                "vllm:prefix_cache_queries_total": pool.counters.looked_up_tokens,
                "vllm:prefix_cache_hits_total": pool.counters.hit_tokens,
            }  # fmt: skip
            comma = "," if labels else ""
            ended = [
                f'vllm:request_success_total{{finished_reason="{why}"{comma}{labels}}} {n}'
                for why, n in self.ended.items()
            ]
            ended.append(
                f'vllm:cache_config_info{{block_size="{pool.block_size}",num_gpu_blocks="{pool.num_blocks}",'
                f'enable_prefix_caching="True"{comma}{labels}}} 1.0'
            )
        out = [f"{name}{shown} {value}" for name, value in lines.items()] + ended
        for name, histogram in self.histograms.items():
            out += histogram.lines(name, labels)
        return out


class Watched(Pulling):
    """One engine, scraped every so often."""

    def __init__(
        self, requests: list[VirtualRequest], settings: VirtualSettings, dialect: Dialect, *,
        every_s: float = 1.0, until_s: float, tokenise_s: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__(requests, settings)
        self.counts = Watch(dialect, tokenise_s)
        self.pages: list[Page] = []
        self.log: list[dict[str, Any]] = []  # what `--step-log` would have written, but for its header
        self._steps_told = 0
        self._logged: Step | None = None
        self._every_ns, self._next_ns, self._until_ns = int(every_s * S), 0, int(until_s * S)

    def next_instant(self) -> int | None:
        at_ns = super().next_instant()
        if self.now >= self._until_ns:
            return None
        return self._next_ns if at_ns is None else min(at_ns, self._next_ns)

    def run(self) -> Run:
        while (at_ns := self.next_instant()) is not None:
            self.now = at_ns
            while self._happenings and self._happenings[0].at_ns == at_ns:
                self._happen(heappop(self._happenings))
            self._end_steps(at_ns)
            self.decide(at_ns)
            self.begin_steps(at_ns)
            if at_ns == self._next_ns:  # a scrape sees the engine in the middle of a step
                self._next_ns += self._every_ns
                self.pages.append(Page(at_ns / S, "\n".join(self._lines())))
        return Run(
            list(self.records.values()), self._log or [], self.now,
            tuple(engine.scheduler.counters for engine in self.engines),
            tuple(engine.scheduler.pool.counters for engine in self.engines),
        )  # fmt: skip

    def _lines(self) -> list[str]:
        if self.counts.dialect == "vllm" and self._log is not None:
            for step in self._log[self._steps_told :]:
                self.counts.histograms["vllm:iteration_tokens_total"].observe(step.prefill_tokens + step.decode_tokens)
            self._steps_told = len(self._log)
        admission = self.front.admission
        return self.counts.text(self.engines[0], admission.waiting, admission.waiting_tokens)

    def tell(self, events: Sequence[Event], engine: VirtualEngine) -> None:
        for event in events:
            if isinstance(event, Produced):
                self.counts.produced(self.records[event.request.id], len(event.tokens), self.now)
        super().tell(events, engine)
        if (last := engine._last) is not None and last[0] is not self._logged:
            self._logged = step = last[0]
            outcome = Outcome(step.id, [], engine.cost.of(step) / S)
            self.log.append(step_line(step, outcome, self.now, float(engine.cost.of(step)), self._gauges(engine)))

    def _gauges(self, engine: VirtualEngine) -> dict[str, int]:
        scheduler = engine.scheduler
        return {
            "running": len(scheduler.running),
            "preempted": len(scheduler.preempted),
            "waiting": self.front.admission.waiting,
            "kv_tokens": scheduler.kv_tokens,
            "kv_blocks_used": scheduler.pool.used_blocks,
        }

    def step_log(self) -> str:
        """The file. Its header says what the engine was."""
        scheduler = self.engines[0].scheduler
        header = {
            "kind": "header", "log": "step", "version": VERSION, "model": "virtual",
            "config": {
                "max_num_seqs": scheduler.limits.max_num_seqs,
                "max_num_batched_tokens": scheduler.limits.max_num_batched_tokens,
                "kv_full": scheduler.limits.kv_full,
                "policy": self._settings.workers[0].policy.name,
            },
            "executor": {
                "num_blocks": scheduler.pool.num_blocks, "block_size": scheduler.pool.block_size,
                "chunk_multiple_tokens": scheduler.limits.chunk_multiple_tokens,
            },
        }  # fmt: skip
        return "\n".join(json.dumps(line) for line in (header, *self.log)) + "\n"

    def ended(self, record: Record, event: Ended, engine: VirtualEngine) -> None:
        self.counts.over(record, event)
        self.log.append(request_line(event, record.lane))
        super().ended(record, event, engine)


class WatchedFleet(Sending):
    """A gateway or a plain router before several engines, each scraped as an instance of its own."""

    def __init__(
        self, requests: list[VirtualRequest], settings: VirtualSettings, dialect: Dialect, *,
        every_s: float = 1.0, until_s: float,
    ) -> None:  # fmt: skip
        super().__init__(requests, settings)
        self.each = [Watch(dialect) for _ in self.servers]
        self.pages: list[Page] = []
        self._every_ns, self._next_ns, self._until_ns = int(every_s * S), 0, int(until_s * S)

    def next_instant(self) -> int | None:
        at_ns = super().next_instant()
        if self.now >= self._until_ns:
            return None
        return self._next_ns if at_ns is None else min(at_ns, self._next_ns)

    def begin_steps(self, now: int) -> None:
        super().begin_steps(now)
        if now == self._next_ns:
            self._next_ns += self._every_ns
            self.pages.append(Page(now / S, "\n".join(self._lines())))

    def _lines(self) -> list[str]:
        lines = []
        for number, (watch, server) in enumerate(zip(self.each, self.servers, strict=True)):
            name = f"w{number}"
            lines += watch.text(server.engine, server.waiting, 0, f'instance="{name}"')
        return lines

    def tell(self, events: Sequence[Event], engine: VirtualEngine) -> None:
        for event in events:
            if isinstance(event, Produced):
                self.each[engine.number].produced(self.records[event.request.id], len(event.tokens), self.now)
        super().tell(events, engine)

    def ended(self, record: Record, event: Ended, engine: VirtualEngine) -> None:
        self.each[engine.number].over(record, event)
        super().ended(record, event, engine)

    @staticmethod
    def to_first(_: Request, in_flight: dict[str, int]) -> str:
        return next(iter(in_flight))
