"""Arrivals and services for simulations under test, small enough to be crowded."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from headway.core.front.front import FrontLimits
from headway.core.lanes import LaneLimits
from headway.core.request import Slo
from headway.core.scheduler.limits import SchedulerLimits
from headway.core.scheduler.policies import HEADWAY, VLLM
from headway.executors.simulated import StepCost
from headway.simulate import Run, StepRecord, VirtualRequest, VirtualSettings, VirtualWorker

MS = 1_000_000
COST = StepCost(
    step_ns=2 * MS, prefill_token_ns=MS, decode_sequence_ns=MS // 2, context_token_ns=7_000, prefill_attention_ns=300
)
TWO_LANES = (LaneLimits("short"), LaneLimits("long", min_prompt_tokens=20, slots=2))
PROMISES = [Slo(), Slo(ttft_ns=60 * MS, itl_ns=8 * MS), Slo(ttft_ns=400 * MS, itl_ns=30 * MS, ttft_limit_ns=2_000 * MS)]


def worker(**changes: object) -> VirtualWorker:
    """One that holds 40 blocks of 4 tokens."""
    limits: dict[str, object] = {"max_num_seqs": 4, "max_num_batched_tokens": 24}
    limits |= {name: changes.pop(name) for name in list(changes) if name in SchedulerLimits.__slots__}
    settings = {"num_blocks": 40, "block_size": 4, "cost": COST, **changes}
    return VirtualWorker(limits=SchedulerLimits(**limits), **settings)  # type: ignore[arg-type]


workers = st.builds(
    worker,
    num_blocks=st.integers(20, 60),
    max_num_seqs=st.integers(1, 6),
    max_num_batched_tokens=st.sampled_from([16, 24, 64]),
    chunk_multiple_tokens=st.sampled_from([1, 4]),
    kv_full=st.sampled_from(["preempt", "wait", "reject"]),
    prefix_cache=st.booleans(),
    policy=st.sampled_from([HEADWAY, VLLM]),
    plans_ahead=st.booleans(),
)
fronts = st.builds(
    FrontLimits,
    queue_timeout_ns=st.sampled_from([0, 150 * MS]),
    age_bound_ns=st.sampled_from([0, 100 * MS]),
    lanes=st.sampled_from([FrontLimits().lanes, TWO_LANES]),
)
settings = st.builds(
    VirtualSettings,
    workers=st.lists(workers, min_size=1, max_size=3).map(tuple),
    front=fronts,
    log_steps=st.just(True),
    keeps_kv=st.booleans(),
)


@st.composite
def arrivals(draw: st.DrawFn, most: int = 14) -> list[VirtualRequest]:
    """In no particular order; several at one time; prompts of their own, or sharing a beginning."""
    made = []
    for number in range(draw(st.integers(0, most))):
        arrival_ns = draw(st.integers(0, 40)) * 7 * MS
        prompt = draw(st.integers(1, 40))
        shared = draw(st.booleans())
        max_tokens = draw(st.integers(1, 30))
        request = VirtualRequest(
            f"r{number}",
            arrival_ns,
            [*range(min(prompt, 17)), *range(1000 * number, 1000 * number + prompt - 17)] if shared else prompt,
            max_tokens,
            draw(st.integers(1, max_tokens + 3)),
            priority=draw(st.sampled_from([0, 0, 0, 1])),
            slo=draw(st.sampled_from(PROMISES)),
        )
        if draw(st.integers(0, 4)) == 0:
            request = replace(request, cancel_ns=arrival_ns + draw(st.integers(0, 200)) * MS)
        made.append(request)
    return made


def single_steps(run: Run, services: VirtualSettings) -> list[StepRecord]:
    """What `run` did, with every leap told step by step, by worker and time."""
    steps = [each for step in run.steps for each in step.singles(services.workers[step.worker].cost)]
    return sorted(steps, key=lambda step: (step.worker, step.planned_ns))


def told(run: Run) -> list[tuple[object, ...]]:
    """Records as values: errors compare by what they say."""
    return [
        (
            *(r.id, r.arrival_ns, r.lane, r.worker, r.started_ns, r.first_token_ns, r.ended_ns),
            *(r.output_tokens, r.cached_tokens, r.end, str(r.error)),
        )
        for r in run.records
    ]
