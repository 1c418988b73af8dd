"""`with_effects`: what a change would do, simulated: the same requests on the same core, as it is and changed.

Wants a model of steps that was fitted (a step log, `headway fit`) and the requests, or their rate and lengths. What a
simulation cannot change (a network, a tokenizer, a router) is not simulated, and nothing is said of it. A change that
turns out to be no better is said to be, and stands last.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace

import numpy as np

from headway.core.errors import HeadwayError
from headway.core.front.front import FrontLimits
from headway.core.lanes import LaneLimits
from headway.core.request import Slo
from headway.core.scheduler.limits import SchedulerLimits
from headway.core.scheduler.policies import POLICIES
from headway.doctor.facts import Asked, Facts, Promise
from headway.doctor.finding import Change, Finding
from headway.metrics.server_flags import in_words_of
from headway.simulate import Run, Stuck, VirtualRequest, VirtualSettings, VirtualWorker, simulate
from headway.simulate.fit.terms import step_cost

S = 1_000_000_000
# More tell no more: percentiles of so many are steady, and a simulation takes a second.
MOST_REQUESTS = 600
LEAST_REQUESTS = 20
PLENTY_TOKENS = 4_000_000
# Where the change is of a kind and not a number, this is tried.
TRIED = {"kv_cache": 2.0, "replicas": 2.0}
# So much of the requests, or of what one takes altogether, is no chance and no error of a fit.
MORE_KEPT, SOONER = 0.02, 0.95
STALLS = 0.01  # of a stream's gaps may be longer than most of them may be
LONG_PROMPT_SLOTS = 2


@dataclass(frozen=True, slots=True)
class Outcome:
    """`kept`: of the requests, how many have their first token and their gaps as soon as they were promised. Times are
    s: TTFT p95, gap p99, and what a request takes altogether on average.
    """

    kept: float
    ttft_p95_s: float
    itl_p99_s: float
    e2e_s: float

    def __str__(self) -> str:
        return f"{self.kept:.0%} as promised, TTFT p95 {self.ttft_p95_s:.2f} s, ITL p99 {self.itl_p99_s * 1e3:.0f} ms"

    def better_than(self, other: Outcome) -> bool:
        more = self.kept - other.kept
        return more >= MORE_KEPT or (more > -MORE_KEPT and self.e2e_s < SOONER * other.e2e_s)


@dataclass(frozen=True, slots=True)
class _Service:
    """`slo`: what its scheduler keeps. `longest`: the most tokens that an answer may have."""

    settings: VirtualSettings
    slo: Slo
    longest: int


def with_effects(findings: Sequence[Finding], facts: Facts) -> tuple[Finding, ...]:
    """The same findings, each with what its changes would do, as far as that can be simulated."""
    asked = _demand(facts)
    if facts.step_time is None or len(asked) < LEAST_REQUESTS:
        return tuple(findings)
    try:
        base = _outcome(_run(asked, _service(facts, None)), facts.promise)
    except (HeadwayError, Stuck, ValueError):
        return tuple(findings)
    return tuple(_with_effect(finding, facts, asked, base) for finding in findings)


def _with_effect(finding: Finding, facts: Facts, asked: Sequence[Asked], base: Outcome) -> Finding:
    """What helps most stands first, and last what does not."""

    def standing(one: tuple[Change, Outcome | None]) -> tuple[int, float, float]:
        _, after = one
        if after is None:
            return 1, 0.0, 0.0
        return 0 if after.better_than(base) else 2, -round(after.kept / MORE_KEPT), after.e2e_s

    found = sorted(((change, _after(change, facts, asked)) for change in finding.changes), key=standing)
    told = [
        f"with {_named(change, facts)}: {after}" + ("" if after.better_than(base) else ", no better")
        for change, after in found
        if after is not None
    ]
    effect = (f"simulated, as it is: {base}", *told) if told else ()
    return replace(finding, changes=tuple(change for change, _ in found), effect=effect)


def _after(change: Change, facts: Facts, asked: Sequence[Asked]) -> Outcome | None:
    """None where it cannot be simulated."""
    if change.setting not in _CHANGES:
        return None
    try:
        return _outcome(_run(asked, _service(facts, change)), facts.promise)
    except (HeadwayError, Stuck, ValueError):
        return None


_CHANGES = {
    "max_num_seqs": "--max-num-seqs {}",
    "max_num_batched_tokens": "--max-num-batched-tokens {}",
    "kv_full": "--kv-full {}",
    "kv_cache": "twice the KV",
    "replicas": "a second replica",
    "slo_itl": "headway's pacing at --slo-itl {}",
    "long_prompt_tokens": f"headway, and prompts from {{}} tokens on in {LONG_PROMPT_SLOTS} slots of their own",
    "clamp_output_tokens": "answers of at most {} tokens",
}


def _named(change: Change, facts: Facts) -> str:
    """As the server calls it."""
    words = _CHANGES[change.setting].format(change.value)
    return (in_words_of(facts.speaks, words) or words).removeprefix("--")


def _service(facts: Facts, change: Change | None) -> _Service:
    assert facts.step_time is not None
    known = facts.settings
    seqs = known.max_num_seqs or facts.service.most("running") or 256
    budget = known.max_num_batched_tokens or 2048
    block = int(known.block_tokens or 16)
    tokens = known.kv_tokens or PLENTY_TOKENS
    kv_full, replicas, longest = known.kv_full or "preempt", 1, 1 << 20
    policy = known.policy or ("headway" if facts.kind == "headway" else "vllm")
    slo_itl_s, front = known.slo_itl_s or 0.0, FrontLimits()
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
                policy, slo_itl_s = "headway", float(value or 0.0)
            case "long_prompt_tokens":
                long = LaneLimits("long-prompt", int(value or 0), slots=LONG_PROMPT_SLOTS)
                policy, front = "headway", FrontLimits(lanes=(LaneLimits("short"), long))
            case "clamp_output_tokens":
                longest = int(value or longest)
    limits = SchedulerLimits(int(seqs), int(max(budget, seqs)), kv_full=kv_full)  # type: ignore[arg-type]
    worker = VirtualWorker(
        limits=limits,
        num_blocks=max(1, int(tokens // block)),
        block_size=block,
        cost=step_cost(np.array([*astuple(facts.step_time), facts.prefill_step_ns, 0.0])),
        policy=POLICIES[policy],
    )
    settings = VirtualSettings(workers=(worker,) * replicas, front=front, log_tokens=True)
    return _Service(settings, Slo(ttft_ns=int((known.slo_ttft_s or 0.0) * S), itl_ns=int(slo_itl_s * S)), longest)


def _run(asked: Sequence[Asked], service: _Service) -> Run:
    capacity, longest = service.settings.workers[0].capacity_tokens, service.longest
    return simulate(
        [
            VirtualRequest(
                f"r{number}",
                int(one.arrival_s * S),
                min(max(1, one.prompt_tokens - one.cached_tokens), capacity - 2),
                min(one.output_tokens, longest, max(1, capacity - one.prompt_tokens)),
                min(one.output_tokens, longest),
                slo=service.slo,
            )
            for number, one in enumerate(asked)
        ],
        service.settings,
    )


def _outcome(run: Run, promise: Promise) -> Outcome:
    """Raises `ValueError` where nothing was answered."""
    served = [record for record in run.records if record.token_ns]
    if not served:
        raise ValueError("nothing was answered")
    ttft_s = np.array([(record.first_token_ns - record.arrival_ns) / S for record in served])
    gaps_s = [np.diff(np.array(record.token_ns)) / S for record in served]
    smooth = [
        not len(gaps) or (gaps.mean() <= promise.itl_s and (gaps > promise.stall_s).mean() <= STALLS) for gaps in gaps_s
    ]
    every = np.concatenate([*gaps_s, np.zeros(1)])
    return Outcome(
        kept=float(((ttft_s <= promise.ttft_s) & smooth).sum()) / len(run.records),
        ttft_p95_s=float(np.percentile(ttft_s, 95)),
        itl_p99_s=float(np.percentile(every, 99)),
        e2e_s=float(np.mean([(record.ended_ns - record.arrival_ns) / S for record in served])),
    )


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
