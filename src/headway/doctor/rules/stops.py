"""An engine that stands still: no step for seconds while requests run, or gaps that none of its steps can make."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from headway.doctor.facts import Part
from headway.doctor.finding import Change, Finding
from headway.doctor.rules.case import Case

MODELS_ERR = 1.5  # a step may take so many times as long as it should
LEAST_STOP_S = 2.0  # shorter ones are steps of a machine that is busy
SLOW_STEP_S = 5.0  # where it is not known how long steps take
FELT = 0.05  # of the window, or of the time between tokens: what a p95 would feel


def engine_stalls(case: Case) -> Finding | None:
    """Something else has its processor, or it stands still."""
    evidence, delay_s = _stood_still(case)
    frequent = _gaps_beyond_steps(case)
    if not evidence and not frequent:
        return None
    longest_s = longest_step_s(case)
    steps = (f"the fullest step that it can have takes {longest_s * 1e3:.0f} ms",) if longest_s is not None else ()
    itl = case.itl
    gaps_s = itl.part_above(case.facts.promise.stall_s) * itl.mean * case.tokens if frequent and itl else 0.0
    return Finding(
        "engine-stalls",
        "The engine stood still while requests ran" if evidence else "Gaps are longer than any step of this engine",
        "low-rate",
        (*evidence, *frequent, *steps),
        "high" if evidence and steps else "medium",
        (
            Change("look at what stopped it, in its log and the kernel's: a machine that was frozen or moved, "
                   "swapping, a device that hangs or is throttled"),
            Change("give the engine cores of its own, which no other container uses"),
            Change("as many --threads as it has cores of its own"),
        ),
        cost_s=max(delay_s, gaps_s),
        # What is told of these is time that nobody accounts for: here it is accounted for.
        explains=(
            *("slow-preprocessing", "overload", "long-prompt-interference", "long-prompts", "decode-starvation"),
            *(("bursts", "cold-cache") if evidence else ()),
        ),
    )  # fmt: skip


def longest_step_s(case: Case) -> float | None:
    """A step with the whole budget, or with the longest prompts of all that run, s; None where neither is told."""
    budget, steps = case.facts.settings.max_num_batched_tokens, case.steps
    if steps is None or (budget is None and steps.prompt_tokens is None):
        return None
    seqs = max(1.0, case.service.most("running") or 1.0)
    prompts = steps.prompt_tokens if steps.prompt_tokens is not None else budget or 0.0
    tokens = seqs + prompts * max(1.0, case.running)
    return steps.step_s(round(min(budget if budget is not None else math.inf, tokens)), seqs)


def beyond_steps(case: Case) -> bool:
    """Are the gaps beyond what is accepted longer than any step can be? By half, since models err."""
    longest_s = longest_step_s(case) if case.facts.settings.max_num_batched_tokens is not None else None
    return longest_s is not None and MODELS_ERR * longest_s < case.facts.promise.stall_s


def _gaps_beyond_steps(case: Case) -> tuple[str, ...]:
    """More than a few. Who was thrown out waits for its turn."""
    itl, stall_s = case.itl, case.facts.promise.stall_s
    if itl is None or not case.stutters or not beyond_steps(case) or case.service.increase("preemptions"):
        return ()
    return (f"{itl.share_above(stall_s):.1%} of the gaps are over {stall_s * 1e3:.0f} ms, {case.window}",)


def _stood_still(case: Case) -> tuple[tuple[str, ...], float]:
    """In words, and how much later a request is for it, s. Nothing where nobody felt it."""
    longest_s, service = longest_step_s(case), case.service
    least_s = max(LEAST_STOP_S, MODELS_ERR * longest_s) if longest_s is not None else SLOW_STEP_S
    parts = [part for part in case.facts.workers if "steps" in part.totals] or [service]
    if longest_s is None and "steps" not in parts[0].totals:
        return (), 0.0  # a long prompt may be in the making, where only tokens are counted
    stops = [(*stop, part.name) for part in parts for stop in _stops(part) if stop[0] >= least_s]
    stood_s, requests = sum(stop_s for stop_s, *_ in stops), max(1.0, case.facts.requests or 0.0)
    felt = bool(case.missed) or stood_s >= FELT * service.window_s > 0
    words, delay_s = [], sum(stop_s * inside for stop_s, inside, _ in stops) / requests
    if stops:
        stop_s, inside, name = max(stops)
        who = name if len(parts) > 1 else "it"
        more = f", and stood for {stood_s:.0f} s in all" if len(stops) > 1 else ""
        words.append(
            f"{who} took no step for {stop_s:.0f} s while {inside:.0f} requests were inside{more}, {case.window}"
        )
    itl = case.itl
    if itl is not None and itl.surely >= least_s and not service.increase("preemptions"):
        part = itl.part_above(least_s)
        felt |= part >= FELT
        words.append(
            f"a stream waited at least {itl.surely:.1f} s for its next token; of the time between tokens {part:.0%} is "
            f"in gaps over {least_s:.1f} s, {case.window}"
        )
        delay_s = max(delay_s, part * itl.sum / requests)
    return (tuple(words), delay_s) if felt else ((), 0.0)


def _stops(part: Part) -> Iterator[tuple[float, float]]:
    """Each time for which nothing was done while requests ran, s, and how many were inside. From one sample to the
    next: with whatever part of an interval it did something in, that is no stop.
    """
    steps = part.steps_of("steps")
    done = steps if "steps" in part.totals else part.steps_of("generation_tokens") + part.steps_of("prompt_tokens")
    running = part.gauge("running")
    inside = running + np.nan_to_num(part.gauge("waiting"))
    still = (done == 0) & (running[:-1] > 0) & (running[1:] > 0)
    edges = np.flatnonzero(np.diff(np.concatenate(([0], still.astype(int), [0]))))
    for begin, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        yield float(part.times_s[end] - part.times_s[begin]), float(np.nanmax(inside[begin : end + 1]))
