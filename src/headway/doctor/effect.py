"""`with_effects`: what a change would do, simulated: the same requests on the same core, as it is and changed.

Wants a model of steps that was fitted (a step log, `headway fit`) and the requests, or their rate and lengths. What a
simulation cannot change (a network, a tokenizer, a router) is not simulated, and nothing is said of it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from headway.core.errors import HeadwayError
from headway.core.pace import StepTime
from headway.core.request import Slo
from headway.core.scheduler.limits import SchedulerLimits
from headway.core.scheduler.policies import POLICIES
from headway.doctor.facts import Asked, Facts
from headway.doctor.finding import Change, Finding
from headway.simulate import Run, Stuck, VirtualRequest, VirtualSettings, VirtualWorker, simulate
from headway.simulate.fit.terms import step_cost

S = 1_000_000_000
# More tell no more: percentiles of so many are steady, and a simulation takes a second.
MOST_REQUESTS = 600
LEAST_REQUESTS = 20
PLENTY_TOKENS = 4_000_000
# Where the change is of a kind and not a number, this is tried.
TRIED = {"kv_cache": 2.0, "replicas": 2.0}


@dataclass(frozen=True, slots=True)
class Outcome:
    """TTFT p95 and mean time between tokens, s."""

    ttft_p95_s: float
    tpot_s: float

    def __str__(self) -> str:
        return f"TTFT p95 {self.ttft_p95_s:.2f} s, {self.tpot_s * 1e3:.0f} ms a token"


def with_effects(findings: Sequence[Finding], facts: Facts) -> tuple[Finding, ...]:
    """The same findings, each with what its changes would do, as far as that can be simulated."""
    asked = _demand(facts)
    if facts.step_time is None or len(asked) < LEAST_REQUESTS:
        return tuple(findings)
    try:
        base = _outcome(_run(asked, _settings(facts, None)))
    except (HeadwayError, Stuck):
        return tuple(findings)
    return tuple(replace(finding, effect=tuple(_effects(finding, facts, asked, base))) for finding in findings)


def _effects(finding: Finding, facts: Facts, asked: Sequence[Asked], base: Outcome) -> list[str]:
    told = []
    for change in finding.changes:
        if change.setting not in _CHANGES:
            continue
        try:
            after = _outcome(_run(asked, _settings(facts, change), slo_itl_s=_slo_itl(change)))
        except (HeadwayError, Stuck, ValueError):
            continue
        what = _CHANGES[change.setting].format(change.value)
        told.append(f"simulated, as it is: {base}; with {what}: {after}")
    return told


_CHANGES = {
    "max_num_seqs": "max-num-seqs {}",
    "max_num_batched_tokens": "max-num-batched-tokens {}",
    "kv_full": "kv-full {}",
    "kv_cache": "twice the KV",
    "replicas": "a second replica",
    "slo_itl": "headway's pacing at --slo-itl {}",
    "clamp_output_tokens": "answers of at most {} tokens",
}


def _slo_itl(change: Change) -> float:
    return float(change.value) if change.setting == "slo_itl" and isinstance(change.value, int | float) else 0.0


def _settings(facts: Facts, change: Change | None) -> tuple[VirtualSettings, int]:
    """The service, and the longest output it allows."""
    assert facts.step_time is not None
    known = facts.settings
    seqs = known.max_num_seqs or facts.service.most("running") or 256
    budget = known.max_num_batched_tokens or 2048
    block = int(known.block_tokens or 16)
    tokens = known.kv_tokens or PLENTY_TOKENS
    kv_full, policy, replicas, longest = known.kv_full or "preempt", known.policy or _policy(facts), 1, 1 << 20
    if change is not None:
        value = change.value
        match change.setting:
            case "max_num_seqs":
                seqs = float(value or seqs)
            case "max_num_batched_tokens":
                if value is None:
                    raise ValueError("no number to try")
                budget = float(value)
            case "kv_full":
                kv_full = str(value)
            case "kv_cache":
                tokens *= TRIED["kv_cache"]
            case "replicas":
                replicas = int(TRIED["replicas"])
            case "slo_itl":
                policy = "headway"
            case "clamp_output_tokens":
                longest = int(value or longest)
    limits = SchedulerLimits(int(seqs), int(max(budget, seqs)), kv_full=kv_full)  # type: ignore[arg-type]
    worker = VirtualWorker(
        limits=limits,
        num_blocks=max(1, int(tokens // block)),
        block_size=block,
        cost=step_cost(np.array([*_coefficients(facts.step_time), 0.0, 0.0])),
        policy=POLICIES[policy],
    )
    return VirtualSettings(workers=(worker,) * replicas), longest


def _coefficients(model: StepTime) -> tuple[float, ...]:
    return (
        model.step_ns,
        model.prefill_token_ns,
        model.decode_seq_ns,
        model.context_token_ns,
        model.attention_token_ns,
    )


def _policy(facts: Facts) -> str:
    return "headway" if facts.source.startswith(("headway", "step log")) else "vllm"


def _run(asked: Sequence[Asked], service: tuple[VirtualSettings, int], slo_itl_s: float = 0.0) -> Run:
    settings, longest = service
    slo = Slo(itl_ns=int(slo_itl_s * S))
    capacity = settings.workers[0].capacity_tokens
    return simulate(
        [
            VirtualRequest(
                f"r{number}",
                int(one.arrival_s * S),
                min(max(1, one.prompt_tokens - one.cached_tokens), capacity - 2),
                min(one.output_tokens, longest, max(1, capacity - one.prompt_tokens)),
                min(one.output_tokens, longest),
                slo=slo,
            )
            for number, one in enumerate(asked)
        ],
        settings,
    )


def _outcome(run: Run) -> Outcome:
    ttft = [record.ttft_ns / S for record in run.records if record.ttft_ns is not None]
    tpot = [record.tpot_ns / S for record in run.records if record.tpot_ns is not None]
    if not ttft:
        raise ValueError("nothing was answered")
    return Outcome(float(np.percentile(ttft, 95)), float(np.mean(tpot)) if tpot else 0.0)


def _demand(facts: Facts) -> Sequence[Asked]:
    """As seen; else as many as came, at random times, with lengths as they are distributed."""
    if facts.demand:
        return facts.demand[:MOST_REQUESTS]
    prompts, outputs = facts.service.spread("prompt_tokens"), facts.service.spread("output_tokens")
    count, window_s = facts.requests, facts.service.window_s
    if prompts is None or outputs is None or not count or not window_s:
        return ()
    draw, many = random.Random(0), int(min(count, MOST_REQUESTS))
    at_s, found = 0.0, []
    for _ in range(many):
        at_s += draw.expovariate(count / window_s)
        found.append(
            Asked(at_s, max(1, round(prompts.quantile(draw.random()))), max(1, round(outputs.quantile(draw.random()))))
        )
    return found
