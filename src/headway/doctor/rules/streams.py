"""Gaps between tokens: a batch too large, prompts that take decode's time, or single long ones that stall it."""

from __future__ import annotations

import numpy as np

from headway.doctor.finding import Change, Finding
from headway.doctor.rules.case import Case
from headway.doctor.rules.stops import beyond_steps
from headway.simulate.slots import ITL_AIM, LEAST_BUDGET_TOKENS

# Half of the gaps are so much longer than decode alone: most steps carry prompts.
STARVED = 2.0
SMALL = 0.5  # of the batch that usually runs
MOST_BUDGET_TOKENS = 1 << 16  # where the limit is not told
MADE = 0.5  # of the time in long gaps at least, prompts must take: streams wait for nothing else
KV_ROOM = 0.8  # in use on average, so that its peaks fit as well


def oversized_batch(case: Case) -> Finding | None:
    """Decode alone, with as many as run, is slower than is accepted; with few it would not be."""
    itl, promise_s = case.itl, case.facts.promise.itl_s
    if itl is None or not case.stutters or case.running < 2:
        return None
    alone_s = case.decode_s(case.running)
    if alone_s is None:
        if not _decodes_only(case) or itl.quantile(0.5) <= promise_s:
            return None
        alone_s = itl.quantile(0.5)
    if alone_s <= promise_s:
        return None
    single_s = case.decode_s(1) if _small_seen(case) else None
    to = _seqs_within(case, ITL_AIM * promise_s)
    machine = single_s is not None and single_s > promise_s
    return Finding(
        "slow-machine" if machine else "oversized-batch",
        "Even one sequence alone decodes too slowly" if machine else "The batch is too large for smooth streams",
        "utilisation",
        (
            (f"a step that only decodes the {case.running:.0f} sequences that run takes {alone_s * 1e3:.0f} ms; "
            f"accepted between tokens are {promise_s * 1e3:.0f} ms"),
            f"the median gap is {itl.quantile(0.5) * 1e3:.0f} ms, p99 {itl.quantile(0.99) * 1e3:.0f} ms, {case.window}",
            *((f"alone a sequence has a step of {single_s * 1e3:.0f} ms",) if single_s is not None else ()),
        ),
        "high" if case.steps is not None else "medium",
        (
            (Change("a smaller or more quantised model, or a faster device"),)
            if machine
            else (
                Change(f"--max-num-seqs {to}, with as many replicas more as that lets wait", "max_num_seqs", to),
                Change(f"headway --slo-itl {promise_s:g} starts nobody who would break it for others", "slo_itl",
                       promise_s),
            )
        ),
        cost_s=(alone_s - promise_s) * case.tokens,
        explains=("slot-limit", "decode-starvation", "long-prompt-interference", "long-outputs"),
    )  # fmt: skip


def decode_starvation(case: Case) -> Finding | None:
    """Most steps carry so much of prompts that streams crawl, though nobody waits in a queue."""
    itl, promise_s = case.itl, case.facts.promise.itl_s
    if itl is None or not case.stutters or case.skewed_prompts or beyond_steps(case):
        return None
    median_s, alone_s = itl.quantile(0.5), case.decode_s(max(1.0, case.running))
    share = case.prefill_share
    if alone_s is None:
        if median_s <= promise_s or not _prompts_seen(case) or _decodes_only(case):
            return None
    elif alone_s > promise_s or (median_s < STARVED * alone_s and itl.mean < STARVED * alone_s):
        return None
    if share is not None and share < 0.5 and median_s <= promise_s:
        return None
    taken = f"prompts take {share:.0%} of the engine's time" if share is not None else "most steps carry prompts"
    without = f"; decode alone would take {alone_s * 1e3:.0f} ms" if alone_s is not None else ""
    waiting = case.service.mean("waiting")
    return Finding(
        "decode-starvation",
        "Streams crawl because prompts take the engine's time",
        "utilisation",
        (
            (f"half of the gaps are at least {median_s * 1e3:.0f} ms, {itl.share_above(promise_s):.0%} over "
            f"the accepted {promise_s * 1e3:.0f} ms{without}, {case.window}"),
            taken + (f", while {waiting:.1f} requests wait on average" if waiting is not None else ""),
        ),
        "high" if share is not None else "medium",
        (
            *budget_change(case),
            Change(f"headway --slo-itl {promise_s:g} sizes each step's prompts so that streams keep it", "slo_itl",
                   promise_s),
            Change("compute prompts on workers of their own (disaggregated prefill), or add a replica"),
        ),
        cost_s=max(0.0, itl.mean - (alone_s or promise_s)) * case.tokens,
        explains=(
            "long-prompt-interference",
            *(("kv-exhausted", "preemption-thrash") if _crawl_fills_kv(case) else ()),
        ),
    )  # fmt: skip


def _crawl_fills_kv(case: Case) -> bool:
    """Would KV have room if streams were as quick as decode alone? As much shorter each would hold its blocks, and so
    many fewer would at once (Little's law).
    """
    itl, kv, alone_s = case.itl, case.service.mean("kv_ratio"), case.decode_s(max(1.0, case.running))
    return itl is not None and kv is not None and alone_s is not None and kv * alone_s < KV_ROOM * itl.mean


def stalls(case: Case) -> Finding | None:
    """Most gaps are fine, and some are long: steps in which prompts are computed. Where no few of these are much longer
    than the others, it is none of them, but all.
    """
    itl, promise_s, stall_s = case.itl, case.facts.promise.itl_s, case.facts.promise.stall_s
    if itl is None or not case.stutters or not _prompts_seen(case) or _decodes_only(case, 0.02, 0.5):
        return None
    if beyond_steps(case) or decode_starvation(case) is not None:
        return None
    alone_s, share = case.decode_s(max(1.0, case.running)), case.prefill_share
    if alone_s is not None and alone_s > promise_s:
        return None
    if share is not None and share < MADE * itl.part_above(stall_s):
        return None
    skewed, prompts = bool(case.skewed_prompts), case.prompts
    lengths = (
        (f"prompts above four times the median make up {prompts.tail_part:.0%} of the prompt tokens",)
        if prompts is not None and skewed
        else ()
    )
    taken = (f"prompts take {share:.0%} of the engine's time",) if share is not None else ()
    without = f" (decode alone would take {alone_s * 1e3:.0f} ms)" if alone_s is not None else ""
    return Finding(
        "long-prompt-interference" if skewed else "decode-starvation",
        "Streams stall while long prompts are computed" if skewed else "Streams stall while prompts are computed",
        "utilisation",
        (
            (f"the median gap is {itl.quantile(0.5) * 1e3:.0f} ms{without}, but {itl.share_above(stall_s):.1%} are "
            f"over {stall_s * 1e3:.0f} ms and p99 is {itl.quantile(0.99) * 1e3:.0f} ms, {case.window}"),
            *lengths, *taken,
        ),
        "high" if skewed and case.steps is not None else "medium",
        (
            *budget_change(case),
            Change(f"headway --slo-itl {promise_s:g} sizes each step's prompts so that streams keep it", "slo_itl",
                   promise_s),
            *((Change("long prompts in a lane with --long-prompt-slots 2"),) if skewed else ()),
            Change("compute prompts on workers of their own (disaggregated prefill), or add a replica"),
        ),
        cost_s=itl.part_above(stall_s) * itl.mean * case.tokens,
        explains=("long-prompts",),
    )  # fmt: skip


def budget_change(case: Case) -> tuple[Change, ...]:
    """The token budget whose step keeps the streams' promise; nothing where it is not too large, or none would."""
    steps, now = case.steps, case.facts.settings.max_num_batched_tokens
    if steps is None or steps.time.prefill_token_ns <= 0:
        return (Change("a lower --max-num-batched-tokens (half of it, then look again)", "max_num_batched_tokens"),)
    most, seqs = round(now or MOST_BUDGET_TOKENS), max(1.0, case.running)
    fits = steps.budget_within(most, seqs, ITL_AIM * case.facts.promise.stall_s)
    tokens = fits // 16 * 16
    if fits >= most or tokens < max(LEAST_BUDGET_TOKENS, seqs):
        return ()
    return (Change(f"--max-num-batched-tokens {tokens}", "max_num_batched_tokens", tokens),)


def _seqs_within(case: Case, within_s: float) -> int:
    """How many sequences decode within a time, at least one: by the model of steps, else in proportion."""
    most = int(case.running)
    if case.steps is not None and _small_seen(case):
        return max(1, case.steps.seqs_within(most, within_s))
    median_s = case.itl.quantile(0.5) if case.itl is not None else within_s
    return max(1, int(most * within_s / median_s))


def _small_seen(case: Case) -> bool:
    """Were there batches much smaller than the usual one, or is there a fit? Else the window does not tell a step's
    constant from what each sequence adds.
    """
    running = case.service.gauge("running")
    known = running[np.isfinite(running) & (running > 0)]
    return case.facts.step_time is not None or (len(known) > 0 and float(known.min()) <= SMALL * case.running)


def _decodes_only(case: Case, share: float = 0.1, ratio: float = 2.0) -> bool:
    """Prompts are so little of the work that they cannot be what makes most gaps long; few of them need less.

    `ratio`: of prompt tokens to decoded ones, where no more is known. A prompt's token costs less than a decoded one.
    """
    if case.prefill_share is not None:
        return case.prefill_share < share
    prompt, decode = case.service.increase("prompt_tokens"), case.service.increase("generation_tokens")
    return prompt is not None and decode is not None and prompt < ratio * decode


def _prompts_seen(case: Case) -> bool:
    """Is it told at all how much of the work prompts are? What is not known is nobody's fault."""
    return case.prefill_share is not None or bool(case.service.increase("prompt_tokens"))
