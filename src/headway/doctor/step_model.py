"""What steps cost, from what a server counted: `step_time(facts)`, and the parts of a step that follow from it.

Where there is no fit, it is solved from the window itself: in each interval the engine's time is a constant for each
step, and a time for each prompt token and each decoded one (the model of `core/pace.py` without context).
"""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np

from headway.core.pace import StepTime
from headway.doctor.facts import Facts, Part
from headway.doctor.spread import Floats
from headway.simulate.slots import Steps

LEAST_INTERVALS = 12  # four for each coefficient
# Of fewer, two for each, long ones must agree: what is random in them has averaged out.
FEW_INTERVALS = 6
# An explanation that leaves so much of an interval's time unexplained on average is none.
MOST_ERROR, MOST_ERROR_OF_FEW = 0.35, 0.1


def step_time(facts: Facts) -> StepTime | None:
    """The given fit, else solved from the window's intervals; None where they do not say."""
    if facts.step_time is not None:
        return facts.step_time
    service = facts.service
    prompt, decode, busy = service.steps_of("prompt_tokens"), service.steps_of("generation_tokens"), _busy_s(service)
    steps = _steps(service, decode)
    table = np.column_stack([steps, prompt, decode])
    whole = np.isfinite(table).all(axis=1) & np.isfinite(busy) & (steps > 0) & (busy > 0)
    if whole.sum() < FEW_INTERVALS:
        return None
    most_error = MOST_ERROR if whole.sum() >= LEAST_INTERVALS else MOST_ERROR_OF_FEW
    found = _nonnegative(table[whole], busy[whole], most_error)
    if found is None:
        return None
    step, token, seq = (float(value) * 1e9 for value in found)
    return StepTime(step, token, seq, 0.0, 0.0)


def _busy_s(service: Part) -> Floats:
    """What the engine worked in each interval: as it says; else the whole interval, where it had work throughout."""
    if "step_real_s" in service.totals:
        return service.steps_of("step_real_s")
    running = service.gauge("running")
    passed = np.diff(service.times_s)
    return np.where((running[1:] > 0) & (running[:-1] > 0), passed, np.nan)


def _steps(service: Part, decode: Floats) -> Floats:
    """Steps in each interval: as counted; else as many as each running sequence got tokens."""
    if "steps" in service.totals:
        return service.steps_of("steps")
    running = service.gauge("running")
    both = (running[1:] + running[:-1]) / 2
    return np.where(both > 0, decode / np.maximum(both, 1e-9), np.nan)


def _nonnegative(table: Floats, busy: Floats, most_error: float) -> Floats | None:
    """Least squares of the relative error with no coefficient below zero: the best of all subsets of columns."""
    rows, ones = table / busy[:, None], np.ones(len(busy))
    scale = np.sqrt((rows**2).mean(axis=0))
    best: tuple[float, Floats] | None = None
    for count in (3, 2, 1):
        for chosen in combinations(range(3), count):
            columns = list(chosen)
            if (scale[columns] == 0).any():
                continue
            solved, *_ = np.linalg.lstsq(rows[:, columns] / scale[columns], ones, rcond=1e-6)
            if (solved < 0).any():
                continue
            values = np.zeros(3)
            values[columns] = solved / scale[columns]
            error = float(np.abs(rows @ values - 1).mean())
            if best is None or error < best[0] - 0.01:  # fewer columns only where they explain more
                best = error, values
    return best[1] if best is not None and best[0] <= most_error else None


def steps_of(facts: Facts, model: StepTime) -> Steps:
    """The same under this load."""
    prompts = facts.service.spread("prompt_tokens")
    longest = prompts.quantile(1.0) if prompts is not None else None
    return Steps(model, context_tokens(facts.service), longest, facts.prefill_step_ns)


def prefill_share(facts: Facts, model: StepTime, *, queued: bool = False) -> float | None:
    """Of the engine's time in the window, what went to prompts: 0 … 1. `queued`: while somebody waits."""
    service = facts.service
    if queued:
        service = _while_queued(service)
    prompt, decode = service.increase("prompt_tokens"), service.increase("generation_tokens")
    if prompt is None or decode is None:
        return None
    per_token_ns = model.prefill_token_ns + model.attention_token_ns * mean_prompt_tokens(service, 0.0) / 2
    work_ns = per_token_ns * max(0.0, prompt - (service.increase("hit_tokens") or 0.0) * _counts_hits(facts))
    steps = service.increase("steps") or decode / max(1.0, service.mean("running") or 1.0)
    rest_ns = model.step_ns * steps + model.decode_seq_ns * decode
    rest_ns += model.context_token_ns * decode * context_tokens(service)
    return work_ns / (work_ns + rest_ns) if work_ns + rest_ns > 0 else None


def _while_queued(service: Part) -> Part:
    """What was counted in the intervals that somebody waits in, and who ran then."""
    waiting = service.gauge("waiting") + np.nan_to_num(service.gauge("preempted"))
    queued = (waiting[1:] > 0) | (waiting[:-1] > 0)
    there = np.concatenate(([False], queued)) | np.concatenate((queued, [False]))
    totals = {
        name: np.concatenate(([0.0], np.nancumsum(np.where(queued, service.steps_of(name), 0.0))))
        for name in service.totals
    }
    gauges = {name: np.where(there, series, np.nan) for name, series in service.gauges.items()}
    return replace(service, totals=totals, gauges=gauges)


def _counts_hits(facts: Facts) -> float:
    """Are prompt tokens that were found in the cache among those counted as prompt tokens? vLLM and SGLang: yes."""
    return 0.0 if facts.kind == "headway" else 1.0


def new_prompt_tokens(facts: Facts) -> float | None:
    """Prompt tokens that a request has computed, on average."""
    service = facts.service
    ended = service.spread("ttft_s") or service.spread("queue_s")
    prompt = service.increase("prompt_tokens")
    if prompt is not None and ended is not None:
        found = (service.increase("hit_tokens") or 0.0) * _counts_hits(facts)
        return max(0.0, prompt - found) / ended.count
    spread = service.spread("prompt_tokens")
    return spread.mean if spread is not None else None


def mean_prompt_tokens(service: Part, otherwise: float) -> float:
    spread = service.spread("prompt_tokens")
    return spread.mean if spread is not None else otherwise


def context_tokens(service: Part) -> float:
    """KV tokens of a running sequence, on average; 0 where it is not told."""
    held, running = service.mean("kv_tokens"), service.mean("running")
    if held is not None and running:
        return held / running
    prompt, output = service.spread("prompt_tokens"), service.spread("output_tokens")
    return (prompt.mean if prompt else 0.0) + (output.mean / 2 if output else 0.0)
