"""What makes one scheduler differ from another, as data: ours, and faithful reproductions of other engines'.

A reproduction exists so that a comparison compares policies and nothing else, and so that another engine's behaviour
can be predicted with its own rules.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as ReadOnlySequence
from dataclasses import dataclass

from headway.core.scheduler.sequence import Sequence

# Chooses who gives up its KV, among those who can (in order of start, never empty), at a time.
Victim = Callable[[ReadOnlySequence[Sequence], int], Sequence]


@dataclass(frozen=True, slots=True)
class Policy:
    """Every choice a scheduler makes that another might make differently."""

    name: str
    paced: bool  # prefill is sized, and decode admitted, so that running sequences keep their ITL
    left_by_batch: float  # of the ITL that others were promised: a step that takes longer then costs them nothing
    by_promise: bool  # prompts are fed in order of TTFT slack; otherwise in order of start
    by_tenant: bool  # tenants take turns by what they were served; otherwise nobody looks whose a request is
    decode_first: bool  # decode comes before prefill; otherwise strictly in order of start
    whole_prompt_kv: bool  # a start needs KV for the whole prompt; otherwise for its first chunk
    start_after_preemption: bool  # something new may start in a step that preempted
    max_overtakes: int  # how often a request that finds no KV may be passed
    max_preemptions: int  # after these a sequence is readmitted only with KV for its worst case set aside
    victim: Victim


def newest(able: ReadOnlySequence[Sequence], _now: int) -> Sequence:
    """The one that started last."""
    return able[-1]


def cheapest(able: ReadOnlySequence[Sequence], now: int) -> Sequence:
    """The one with the least to recompute against the most slack.

    The slack of a sequence without a token is what is left of its TTFT; of one that streams, its ITL. Whoever has no
    promise, or has lost it, has all the slack there is. Lower priorities pay first.
    """
    return min(able, key=lambda seq: (-seq.request.priority, seq.computed / _slack_s(seq, now), -seq.handle))


_ALL_SLACK_S = 60.0


def _slack_s(seq: Sequence, now: int) -> float:
    slo = seq.request.slo
    if seq.times.first_token_ns:
        slack_ns = slo.itl_ns
    else:
        slack_ns = seq.request.arrival_ns + slo.ttft_ns - now if slo.ttft_ns else 0
    return slack_ns / 1e9 if slack_ns > 0 else _ALL_SLACK_S


HEADWAY = Policy(
    name="headway",
    paced=True,
    left_by_batch=0.15,
    by_promise=True,
    by_tenant=True,
    decode_first=True,
    whole_prompt_kv=True,
    start_after_preemption=True,
    max_overtakes=16,
    max_preemptions=2,
    victim=cheapest,
)

# vLLM 0.32 (v1 engine) as its users get it: first come, first served; one token budget for running sequences in order
# of start, then for waiting ones; the newest running sequence is recomputed when KV runs out, and comes back first; the
# loop over the waiting ends at the first that does not fit; a step that preempted starts nothing.
VLLM = Policy(
    name="vllm",
    paced=False,
    left_by_batch=0.0,
    by_promise=False,
    by_tenant=False,
    decode_first=False,
    whole_prompt_kv=False,
    start_after_preemption=False,
    max_overtakes=0,
    max_preemptions=1 << 30,
    victim=newest,
)

POLICIES = {policy.name: policy for policy in (HEADWAY, VLLM)}
