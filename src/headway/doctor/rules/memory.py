"""KV: full, so that requests wait for it; or over-committed, so that work is done twice."""

from __future__ import annotations

import math

from headway.doctor.finding import Change, Finding
from headway.doctor.rules.case import Case
from headway.doctor.step_model import context_tokens
from headway.simulate.slots import seqs_by_kv

# A fifth of the requests thrown out, or of the prompt work done again: more than the reserve that servers are run with.
LOST = 0.2
LEAST_PREEMPTIONS = 5
# The blame is KV's when more of the waiting passes for want of it than for anything else.
MOST = 0.5


def preemption_thrash(case: Case) -> Finding | None:
    service = case.service
    times = service.increase("preemptions")
    if times is None or times < LEAST_PREEMPTIONS:
        return None
    lost, each = _lost(case)
    if (each or 0.0) < LOST and (lost or 0.0) < LOST:
        return None
    severe = _severe(lost, each)
    evidence = [f"{times:,.0f} preemptions {case.window}" + (f", {each:.2f} for each request" if each else "")]
    if lost is not None:
        evidence.append(f"{lost:.0%} of the prompt tokens computed had been computed before")
    kv = service.mean("kv_ratio")
    if kv is not None:
        evidence.append(f"KV is {kv:.0%} used on average, {case.running:.1f} sequences run")
    e2e = service.spread("e2e_s")
    wait = Change("--kv-full wait: set the worst case aside at the start, so that it cannot happen", "kv_full", "wait")
    fewer, more = (*_fewer(case), wait), (*_more_kv(), Change("another replica", "replicas"))
    queued = (service.mean("waiting") or 0.0) >= 1  # fewer at once make them wait longer still
    return Finding(
        "preemption-thrash",
        "Sequences lose their KV to each other and are computed again",
        "memory",
        tuple(evidence),
        "high",
        (*more, *fewer) if queued else (*fewer, *more),
        cost_s=max(lost or 0.0, min(1.0, each or 0.0)) * (e2e.mean if e2e is not None else 1.0),
        explains=(
            *(("kv-exhausted", "bursts", "decode-starvation") if severe else ()),
            *("slot-limit", "long-prompt-interference", "long-outputs"),
            *("oversized-batch", "overload", "cold-cache"),
        ),
    )  # fmt: skip


def _lost(case: Case) -> tuple[float | None, float | None]:
    """Of the prompt tokens computed, the share that had been computed before; and preemptions for each request."""
    service = case.service
    times, ended = service.increase("preemptions"), service.increase("ended")
    ended = ended if ended is not None else case.facts.requests
    again, computed = service.increase("recomputed_tokens"), service.increase("prompt_tokens")
    lost = again / computed if again is not None and computed else None
    return lost, times / ended if times is not None and ended else None


def _severe(lost: float | None, each: float | None) -> bool:
    """More goes into doing work again than waiting for KV costs. Where that is not told: each is thrown out once."""
    return lost >= LOST if lost is not None else (each or 0.0) >= 1.0


def kv_exhausted(case: Case) -> Finding | None:
    waited = case.waited
    if waited is None or not case.late or waited.kv < MOST or not case.queue_matters(waited.kv):
        return None
    service, kv = case.service, case.service.mean("kv_ratio")
    free = f" of {waited.limit:.0f} slots" if waited.limit_told and waited.limit is not None else ""
    evidence = [
        f"{waited.kv:.0%} of the time that requests wait passes while no KV is free for them, {case.window}",
        (
            f"KV is {kv or 0.0:.0%} used on average (at most {service.most('kv_ratio') or 0.0:.0%}); {case.running:.1f}"
            f"{free} run, {service.mean('waiting') or 0.0:.1f} wait"
        ),
        _queue_words(case),
    ]
    head = (service.most("kv_ratio") or 1.0) < 0.9
    return Finding(
        "kv-exhausted",
        "A long prompt at the head waits for KV, and all wait behind it"
        if head
        else "The KV cache is full: requests wait for memory, not for compute",
        "memory",
        tuple(evidence),
        "high" if kv is not None and kv >= 0.9 and not case.outnumbered else "medium",
        (*_more_kv(case), *_fewer_tokens()),
        cost_s=(case.split.queue_s or 0.0) * waited.kv,
        explains=(
            *("slot-limit", "overload", "long-prompt-interference"),
            *(() if _severe(*_lost(case)) else ("preemption-thrash",)),
        ),
    )


def _queue_words(case: Case) -> str:
    found, queue_s = case.ttft_tail, case.split.queue_s
    said = f"a request waits {queue_s:.2f} s on average" if queue_s is not None else "how long is not told"
    return said + (f"; TTFT {found[0]} is {found[1]:.2f} s" if found is not None else "")


def _more_kv(case: Case | None = None) -> tuple[Change, ...]:
    grow = ""
    if case is not None:
        waiting, running = case.service.mean("waiting") or 0.0, case.running
        if running:
            factor = min(8.0, (running + waiting) / running)
            grow = f" about {factor:.1f} times as much holds those who wait now;"
    return (
        Change(
            f"more KV:{grow} a larger --kv-cache-gib",
            "kv_cache",
        ),
        Change("--kv-cache-dtype u8, which holds twice as many tokens", "kv_cache_dtype", "u8"),
    )


def _fewer(case: Case) -> tuple[Change, ...]:
    """So many sequences as KV holds at the length they reach; nothing where no more than these are let in."""
    capacity, each = case.facts.settings.kv_tokens, context_tokens(case.service)
    output = case.service.spread("output_tokens")
    each += output.mean / 2 if output is not None else 0.0  # they must fit at their end, not on average
    value = max(1, int(seqs_by_kv(each, capacity) if capacity and each else 0.8 * case.running))
    if value >= (case.facts.settings.max_num_seqs or math.inf):
        return ()
    return (Change(f"--max-num-seqs {value}: so many fit into KV at their full length", "max_num_seqs", value),)


def _fewer_tokens() -> tuple[Change, ...]:
    return (
        Change("limit --max-model-len to what users need", "max_model_len"),
        Change("limit max_tokens to what users need, or add a replica"),
    )
