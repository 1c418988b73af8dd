"""What no settings can help: promises that a request breaks even when it has the whole server to itself."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from headway.core.pace import chunk_attention
from headway.loadtest.errors import InvalidPlan
from headway.metrics.latency import Floats
from headway.simulate.fit import StepFit
from headway.tune.workload import Workload

TAIL = 99


class Alone(msgspec.Struct, kw_only=True, frozen=True):
    """One promise, kept by requests that have the server to themselves. `share`: of the load's. `why`: in words."""

    term: str  # "ttft", "itl", "e2e"
    limit_s: float
    share: float
    tail_s: float  # at the p99 of what it depends on
    why: str


def alone(fit: StepFit, workload: Workload) -> list[Alone]:
    """Of each promise that was made, what the fit says of an idle server. Queues only make it worse."""
    cost, outside_s = fit.cost, workload.outside.request_ns / 1e9
    prompts, outputs = np.array(workload.lengths, np.float64).T
    prefill = np.array([_prefill_s(fit, int(tokens)) for tokens in prompts]) + outside_s
    step = (cost.step_ns + cost.decode_sequence_ns + cost.context_token_ns * (prompts + outputs / 2)) / 1e9
    whole = prefill + step * np.maximum(0.0, outputs - 1)
    tail_prompt, tail_output = (int(np.percentile(each, TAIL, method="higher")) for each in (prompts, outputs))
    slo = workload.slo
    words = {
        "ttft": f"one prefill of p99 length ({tail_prompt:,} tokens) takes {{}}",
        "itl": "a step of one stream alone takes {}",
        "e2e": f"a request of p99 length (up to {tail_prompt:,} tokens in, {tail_output:,} out) takes {{}} alone",
    }
    times: dict[str, tuple[float | None, Floats]] = {
        "ttft": (slo.ttft_s, prefill),
        "itl": (slo.itl_s, step),
        "e2e": (slo.e2e_s, whole),
    }
    return [_one(term, limit, each, words[term]) for term, (limit, each) in times.items() if limit is not None]


def _prefill_s(fit: StepFit, tokens: int) -> float:
    """In one step: no other way to cut it costs less."""
    cost = fit.cost
    attention = cost.prefill_attention_ns * chunk_attention(0, tokens)
    return (cost.step_ns + cost.prefill_step_ns + cost.prefill_token_ns * tokens + attention) / 1e9


def _one(term: str, limit_s: float, times: Floats, words: str) -> Alone:
    tail = float(np.percentile(times, TAIL, method="higher"))
    why = f"--slo-{term} is {limit_s:g} s, and {words.format(f'{tail:.3g} s')}"
    return Alone(term=term, limit_s=limit_s, share=float((times <= limit_s).mean()), tail_s=tail, why=why)


def check(found: Sequence[Alone], wanted: float) -> list[str]:
    """`wanted`: the share of requests that must keep every promise. Returns what is possible and yet worth saying.

    Raises `InvalidPlan` that names the promise which breaks alone.
    """
    for one in found:
        if one.share < wanted or one.share == 0:
            kept = f"{one.share:.0%} of the requests keep it" if one.share else "no request keeps it"
            raise InvalidPlan(
                f"No settings keep this promise: {one.why} on an idle server; {kept}, where "
                f"{max(wanted, 0.01):.0%} must. Promise more time, or send shorter requests."
            )
    return [f"{1 - one.share:.0%} of the requests cannot keep theirs: {one.why}" for one in found if one.share < 1]
