"""What the benchmarks on virtual time share: a worker, what is promised, and arrivals at a chosen rate.

The worker is a 24 GB GPU with an 8B model in 16 bits: its KV is what vLLM printed for that pair (RTX 4090, Llama 3.1
8B: 2,588 blocks of 16), and its times are what they come to: a step reads 16 GB at 1 TB/s, a prompt token takes 16
GFLOP. Nothing depends on the machine that runs the benchmark, and the same seed gives the same figures everywhere.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from headway.core.request import Slo
from headway.core.scheduler.limits import SchedulerLimits
from headway.core.scheduler.policies import POLICIES
from headway.executors.simulated import StepCost
from headway.metrics.goodput import promises_met
from headway.simulate import Run, VirtualRequest, VirtualWorker
from headway.simulate.timings import timings
from headway.workload.traces import Cut, read_trace

S = 1_000_000_000
GPU = StepCost(
    step_ns=16_500_000,
    prefill_token_ns=120_000,
    decode_sequence_ns=50_000,
    context_token_ns=140,
    prefill_attention_ns=0,
)
# What the goodput benchmark promises: a document may take longer to be read than a question.
TTFT_S, DOCUMENT_TTFT_S, ITL_S = 1.0, 5.0, 0.15
DOCUMENT_TOKENS = 1_000
# What clients ask for at most: none knows how long its answer will be.
MAX_TOKENS = 1_024
GOOD_SHARE = 0.9


@dataclass(frozen=True, slots=True)
class Asked:
    """A request of a load: when, relative to the others, and what."""

    at_s: float
    prompt_tokens: int
    output_tokens: int


def worker(policy: str) -> VirtualWorker:
    """With limits at which a step with a full prefill chunk keeps the promised gap."""
    limits = SchedulerLimits(max_num_seqs=256, max_num_batched_tokens=512)
    return VirtualWorker(limits=limits, num_blocks=2_588, block_size=16, cost=GPU, policy=POLICIES[policy])


def of_trace(path: Path, count: int, longest: int) -> list[Asked]:
    """The first requests of a trace, at its own pace."""
    trace = read_trace(path, Cut(limit=count, max_input_tokens=longest, max_output_tokens=MAX_TOKENS), sort=True)
    return [Asked(one.at_ns / 1e9, one.item.input_tokens, one.item.output_tokens) for one in trace.arrivals]


def skewed(count: int, seed: int, longest: int) -> list[Asked]:
    """Poisson arrivals, one a second; most are short, some prompts and some outputs are twenty times as long."""
    draws = random.Random(seed)
    made, at_s = [], 0.0
    for _ in range(count):
        at_s += draws.expovariate(1.0)
        prompt = draws.lognormvariate(5.5, 0.8) * (20 if draws.random() < 0.08 else 1)
        output = draws.lognormvariate(4.0, 0.7) * (10 if draws.random() < 0.08 else 1)
        made.append(Asked(at_s, int(min(max(prompt, 8), longest)), int(min(max(output, 4), MAX_TOKENS))))
    return made


def promise(prompt_tokens: int) -> Slo:
    """What a request is promised."""
    ttft_s = DOCUMENT_TTFT_S if prompt_tokens >= DOCUMENT_TOKENS else TTFT_S
    return Slo(ttft_ns=int(ttft_s * S), itl_ns=int(ITL_S * S))


def at_rate(load: list[Asked], rate: float) -> list[VirtualRequest]:
    """The same requests in the same order, `rate` a second on average."""
    scale = (len(load) - 1) / (load[-1].at_s - load[0].at_s) / rate
    return [
        VirtualRequest(
            f"r{number}",
            int((one.at_s - load[0].at_s) * scale * S),
            one.prompt_tokens,
            max(MAX_TOKENS, one.output_tokens),
            one.output_tokens,
            slo=promise(one.prompt_tokens),
        )
        for number, one in enumerate(load)
    ]


def good(run: Run) -> np.ndarray:
    """Which requests kept both promises: TTFT, and the p99 of their token gaps."""
    found = timings(run)
    short = promises_met(found, ttft_s=TTFT_S, itl_s=ITL_S)
    long = promises_met(found, ttft_s=DOCUMENT_TTFT_S)
    ttft: np.ndarray = np.where(found.input_tokens >= DOCUMENT_TOKENS, long["ttft"], short["ttft"])
    return ttft & short["itl"]


def finished_rate(run: Run) -> float:
    """Requests a second, while the service was full: of those that ended neither first nor last."""
    ends = np.sort([record.ended_ns for record in run.records if record.finished]) / S
    first, last = len(ends) // 10, len(ends) * 8 // 10
    return float((last - first) / (ends[last] - ends[first]))


def highest(
    serves: Callable[[float], float], start: float, tolerance: float = 0.02
) -> tuple[float, list[tuple[float, float]]]:
    """The highest rate at which `serves(rate)`, a share, is at least `GOOD_SHARE`; and all rates that were tried."""
    tried: list[tuple[float, float]] = []

    def kept(rate: float) -> bool:
        tried.append((rate, serves(rate)))
        return tried[-1][1] >= GOOD_SHARE

    low, high = 0.0, start
    while kept(high):
        low, high = high, high * 1.5
    while low == 0.0:
        rate = high / 1.5
        low, high = (rate, high) if kept(rate) else (0.0, rate)
        if rate < start / 1e3:
            return 0.0, tried
    while high / low > 1 + tolerance:
        rate = (low * high) ** 0.5
        low, high = (rate, high) if kept(rate) else (low, rate)
    return low, tried
