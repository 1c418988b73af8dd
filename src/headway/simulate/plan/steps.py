"""What replicas did, from the log of their steps: how full, how busy, with what; and whether such were measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from headway.core.pace import Shape
from headway.executors.simulated import StepCost
from headway.metrics.latency import Floats
from headway.simulate.advice import Facts, Latency
from headway.simulate.fit import Valid
from headway.simulate.fit.terms import COLUMNS, Prefix
from headway.simulate.plan.promise import Promise
from headway.simulate.plan.trial import Trial
from headway.simulate.run import StepRecord
from headway.simulate.settings import VirtualWorker
from headway.simulate.slots import Steps

PEAK = 95  # percentile of time: what is called the peak of running sequences and of KV use
# Of steps: so many may be unlike what was measured, as the first and the last of a run are.
STRANGE_RATIO = 0.01
FULL = 0.95  # of a budget


@dataclass(frozen=True, slots=True)
class Work:
    """Over all replicas. Shares of time are of steps' time; `kinds` sums to 1."""

    kinds: dict[str, float]  # "weights", "kv", "arithmetic": what the time of steps goes to
    busy_ratio: float
    running: float  # sequences in a step, at the peak
    kv_used_ratio: float  # at the peak
    kv_mean_ratio: float
    full_budget_ratio: float | None  # of steps with prompts
    decode_step_s: float | None  # the mean step of decode alone
    context_tokens: float | None  # of one running sequence


def work_of(steps: Sequence[StepRecord], worker: VirtualWorker, *, replicas: int, seconds: float) -> Work:
    """`seconds`: over which requests came."""
    took = np.array([(step.ended_ns - step.planned_ns) / 1e9 for step in steps])
    running = np.array([len(step.rows) for step in steps], np.float64)
    used = np.array([_blocks(step, worker.block_size) for step in steps], np.float64) / worker.num_blocks
    fed = [step.prefill_tokens + step.decode_tokens for step in steps if step.prefill_tokens]
    full = sum(tokens >= FULL * worker.limits.max_num_batched_tokens for tokens in fed)
    alone = [step for step in steps if step.decode_tokens and not step.prefill_tokens]
    alone_s = [(step.ended_ns - step.planned_ns) / 1e9 for step in alone]
    contexts = [step.context_tokens / step.decode_tokens + step.repeat // 2 for step in alone]
    return Work(
        kinds=_kinds(steps, worker.cost),
        busy_ratio=float(took.sum()) / (seconds * replicas),
        running=_peak(running, took),
        kv_used_ratio=_peak(used, took),
        kv_mean_ratio=float(np.average(used, weights=took)) if len(used) else 0.0,
        full_budget_ratio=full / len(fed) if fed else None,
        decode_step_s=sum(alone_s) / sum(step.repeat for step in alone) if alone else None,
        context_tokens=float(np.average(contexts, weights=alone_s)) if alone else None,
    )


def _blocks(step: StepRecord, block_size: int) -> int:
    """That its sequences hold, in the middle of a leap."""
    grown = step.repeat // 2
    return sum(-(-(row.start + row.tokens + grown) // block_size) for row in step.rows)


def _peak(values: Floats, weights: Floats) -> float:
    """The value that is not exceeded for `PEAK` percent of the time."""
    if not len(values):
        return 0.0
    order = np.argsort(values)
    upto = np.cumsum(weights[order])
    place = int(np.searchsorted(upto, PEAK / 100 * upto[-1]))
    return float(values[order][min(place, len(values) - 1)])


def _kinds(steps: Sequence[StepRecord], cost: StepCost) -> dict[str, float]:
    """A step's constant is reading the weights and launching; a KV token is read; the rest is arithmetic."""
    if not steps:
        return {}
    prefix = Prefix(sorted(steps, key=lambda step: step.ended_ns))
    total = dict(zip(COLUMNS, prefix.until(prefix.ended_ns[-1:])[0].tolist(), strict=True))
    times = {
        "weights": cost.step_ns * total["step_ns"] + cost.prefill_step_ns * total["prefill_step_ns"],
        "kv": cost.context_token_ns * total["context_token_ns"],
        "arithmetic": cost.prefill_token_ns * total["prefill_token_ns"]
        + cost.decode_sequence_ns * total["decode_seq_ns"]
        + cost.prefill_attention_ns * total["attention_token_ns"],
    }
    whole = sum(times.values()) or 1.0
    return {name: time / whole for name, time in times.items()}


def strange(steps: Sequence[StepRecord], valid: Valid | None) -> str:
    """What of these steps was not measured, in words; empty when all but a few were."""
    if valid is None or not steps:
        return ""
    shapes = [Shape(*map(int, row)) for row in np.ceil(Prefix(steps).shapes - 1e-9).astype(np.int64)]
    outside = [shape for shape in shapes if not valid.covers(shape)]
    if len(outside) <= STRANGE_RATIO * len(shapes):
        return ""
    return "; ".join(_beyond(outside, valid)) or "steps of other kinds"


def _beyond(shapes: Sequence[Shape], valid: Valid) -> list[str]:
    limits = (
        ("prompt tokens", [shape.prefill_tokens for shape in shapes], valid.max_prefill_tokens),
        ("decoding sequences", [shape.decode_seqs for shape in shapes], valid.max_decode_seqs),
        ("tokens of context", [shape.context_tokens for shape in shapes], valid.max_context_tokens),
        (
            "prompt tokens × tokens before them",
            [shape.attention_tokens for shape in shapes],
            valid.max_attention_tokens,
        ),
    )
    said = [
        f"steps of up to {max(values):,} {what} are needed, and up to {limit:,} were seen"
        for what, values, limit in limits
        if max(values) > limit
    ]
    fewest = min((shape.decode_seqs for shape in shapes if shape.decode_seqs), default=valid.min_decode_seqs)
    if fewest < valid.min_decode_seqs:
        said.append(
            f"steps of {fewest:,} decoding sequences are needed, and at least {valid.min_decode_seqs:,} were seen"
        )
    return said


def facts_of(trial: Trial, work: Work, worker: VirtualWorker, promise: Promise, *, replicas: int) -> Facts:
    """A trial as `advise` takes it: one replica, on average."""
    records = trial.run.records
    waited_s = sum(max(0, record.started_ns - record.arrival_ns) for record in records if record.started_ns) / 1e9
    limits_s, cost = dict(promise.limits()), worker.cost
    longest = max((record.prompt_tokens for record in records), default=0)
    context = work.context_tokens
    steps = Steps(cost.step_time, context, longest, cost.prefill_step_ns) if context is not None else None

    def told(name: str) -> Latency:
        return Latency(trial.at(name, promise.percentile), limits_s.get(name))

    return Facts(
        max_num_seqs=worker.limits.max_num_seqs,
        max_num_batched_tokens=worker.limits.max_num_batched_tokens,
        running=work.running,
        waiting=waited_s / trial.seconds / replicas,
        kv_used_ratio=work.kv_used_ratio,
        preemptions=sum(counters.preemptions for counters in trial.run.counters),
        requests=len(records),
        full_budget_ratio=work.full_budget_ratio,
        decode_step_s=work.decode_step_s,
        steps=steps,
        ttft=told("ttft"),
        itl=told("itl"),
        e2e=told("e2e"),
    )
