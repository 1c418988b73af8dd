"""The prefix cache: cold after a start, or too small for what is asked again."""

from __future__ import annotations

import numpy as np

from headway.doctor.finding import Change, Finding
from headway.doctor.rules.case import Case

# Hits rise or fall by so much of the prompt tokens from one third of the window to another: a cache that fills or was
# emptied, and no chance.
MOVES = 0.2
# Less than half of what could be found is.
LOW = 0.5
LEAST_LOOKUPS = 1000


def cold_cache(case: Case) -> Finding | None:
    found = _by_third(case)
    if found is None or not _prompts_matter(case) or _readmits(case):
        return None
    first, last, mean = found
    warm = max(first, last)
    evicted = _evicts(case)
    if warm - mean < MOVES / 2 or abs(last - first) < MOVES:
        if not evicted or mean > LOW or mean < 0.02:  # nothing at all is found of prompts that share nothing
            return None
        moved = f"{mean:.0%} of prompt tokens are found in the cache, and {evicted}"
        confidence, warm = "medium", 0.8
    else:
        moved = (
            f"of the prompt tokens, {first:.0%} were found in the cache in the first third and {last:.0%} in the last"
        )
        confidence = "high"
    own_s = case.split.own_s if case.split.own_s is not None else case.split.prefill_s or 0.0
    saved_s = own_s * max(0.0, warm - mean) / max(1e-9, 1.0 - mean)
    return Finding(
        "cold-cache",
        "The prefix cache is cold: prompts are computed that are asked again and again",
        "concurrency",
        (
            f"{moved}, {case.window}",
            (f"the prompt's own work is {own_s:.2f} s of a TTFT of {case.split.total_s:.2f} s; a warm cache would save "
            f"about {saved_s:.2f} s of it"),
        ),
        "high" if confidence == "high" else "medium",
        (
            Change("warm it before traffic comes: send each common beginning once after a start, then report ready"),
            Change("put what is the same for all first in prompts"),
            Change("--prefix-cache-scope shared lets tenants share what is the same for all", "prefix_cache_scope",
                   "shared"),
            Change("more KV, so that what is asked again is still there: a larger --kv-cache-gib"),
        ),
        cost_s=saved_s + (case.split.queue_s or 0.0) + (case.split.interference_s or 0.0),
        explains=(
            *("long-prompts", "overload", "long-prompt-interference", "decode-starvation"),
            *("slot-limit", "kv-exhausted"),
        ),
    )  # fmt: skip


def _by_third(case: Case) -> tuple[float, float, float] | None:
    """Hits over lookups in the first and the last third, and in all. By tokens, so that each third is as much work."""
    looked, hit = case.service.steps_of("lookup_tokens"), case.service.steps_of("hit_tokens")
    known = np.isfinite(looked) & np.isfinite(hit) & (looked > 0)
    looked, hit = looked[known], hit[known]
    if looked.sum() < LEAST_LOOKUPS or len(looked) < 6:
        return None
    place = np.cumsum(looked) / looked.sum()
    early, late = place <= 1 / 3, place > 2 / 3
    if not early.any() or not late.any():
        return None
    return (
        float(hit[early].sum() / looked[early].sum()),
        float(hit[late].sum() / looked[late].sum()),
        float(hit.sum() / looked.sum()),
    )


def _evicts(case: Case) -> str | None:
    """Words for a cache that gives up what it holds about as fast as prompts fill it."""
    evictions, ended = case.service.increase("evictions"), case.service.increase("ended")
    if not evictions or not ended or evictions < ended:
        return None
    return f"{evictions / ended:.0f} cached blocks are given up for each request"


def _readmits(case: Case) -> bool:
    """Who was preempted finds its own tokens again: hits that are mostly those tell nothing of what prompts share."""
    times, hits = case.service.increase("preemptions"), case.service.increase("hit_tokens")
    prompts = case.service.spread("prompt_tokens")
    mean = case.service.ratio("prompt_tokens", "ended") or 0.0
    longest = prompts.quantile(0.99) if prompts is not None else 2.0 * mean
    return times is not None and times > 0 and times * longest > 0.5 * (hits or 0.0)


def _prompts_matter(case: Case) -> bool:
    """Users feel the prompts' work: in a TTFT that is late, or that is mostly this and more than half of what is
    accepted.
    """
    found, promise_s = case.ttft_tail, case.facts.promise.ttft_s
    if case.late or (found is not None and found[1] > promise_s):
        return True
    own_s = case.split.own_s or case.split.prefill_s
    return own_s is not None and case.split.share(own_s) >= 0.5 and case.split.total_s >= 0.5 * promise_s
