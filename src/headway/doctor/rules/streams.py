"""Gaps between tokens: a batch too large, prompts that take decode's time, or single long ones that stall it."""

from __future__ import annotations

import numpy as np

from headway.core.pace import Shape
from headway.doctor.finding import Change, Finding
from headway.doctor.rules.case import Case
from headway.doctor.step_model import context_tokens

# Aimed at: a tenth below the promise, so that chance does not break it.
AIM = 0.9
LEAST_BUDGET_TOKENS = 64
# Half of the gaps are so much longer than decode alone: most steps carry prompts.
STARVED = 2.0
SMALL = 0.5  # of the batch that usually runs
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
    to = _seqs_within(case, AIM * promise_s)
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
        "high" if case.model is not None else "medium",
        (
            (Change("a smaller or more quantised model, or a faster device"),)
            if machine
            else (
                Change(f"--max-num-seqs {to}, with as many replicas more as that lets wait", "max_num_seqs", to),
                Change("headway starts nobody who would break --slo-itl for others: set it to "
                       f"{promise_s:g}", "slo_itl", promise_s),
            )
        ),
        cost_s=max(0.0, itl.mean - promise_s) * _tokens(case) + (alone_s - promise_s) * _tokens(case),
        explains=("slot-limit", "decode-starvation", "long-prompt-interference", "long-outputs"),
    )  # fmt: skip


def decode_starvation(case: Case) -> Finding | None:
    """Most steps carry so much of prompts that streams crawl, though nobody waits in a queue."""
    itl, promise_s = case.itl, case.facts.promise.itl_s
    if itl is None or not case.stutters or case.skewed_prompts or _beyond_steps(case):
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
        cost_s=max(0.0, itl.mean - (alone_s or promise_s)) * _tokens(case),
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
    """Most gaps are fine, and some are long: steps in which a long prompt is computed."""
    itl, promise_s, stall_s = case.itl, case.facts.promise.itl_s, case.facts.promise.stall_s
    if itl is None or not case.stutters or not _prompts_seen(case) or _decodes_only(case, 0.02, 0.5):
        return None
    if _beyond_steps(case):
        return None
    alone_s = case.decode_s(max(1.0, case.running))
    if alone_s is not None and alone_s > promise_s:
        return None
    prompts = case.prompts
    lengths = (
        f"; prompts above four times the median make up {prompts.tail_part:.0%} of the prompt tokens"
        if prompts is not None
        else ""
    )
    without = f" (decode alone would take {alone_s * 1e3:.0f} ms)" if alone_s is not None else ""
    return Finding(
        "long-prompt-interference",
        "Streams stall while long prompts are computed",
        "utilisation",
        (
            (f"the median gap is {itl.quantile(0.5) * 1e3:.0f} ms{without}, but {itl.share_above(stall_s):.1%} are "
            f"over {stall_s * 1e3:.0f} ms and p99 is {itl.quantile(0.99) * 1e3:.0f} ms, {case.window}{lengths}"),
        ),
        "high" if case.skewed_prompts and case.model is not None else "medium",
        (
            *budget_change(case),
            Change(f"headway --slo-itl {promise_s:g}"
                   + (", or long prompts in a lane with --long-prompt-slots 2" if case.skewed_prompts else ""),
                   "slo_itl", promise_s),
        ),
        cost_s=itl.part_above(stall_s) * itl.mean * _tokens(case),
        explains=("long-prompts",),
    )  # fmt: skip


def engine_stalls(case: Case) -> Finding | None:
    """Gaps that no step of this engine can make: something else has its processor, or it stands still."""
    itl, stall_s, longest_s = case.itl, case.facts.promise.stall_s, _longest_step_s(case)
    if itl is None or longest_s is None or not case.stutters or not _beyond_steps(case):
        return None
    if case.service.increase("preemptions"):
        return None  # who was thrown out waits for its turn
    return Finding(
        "engine-stalls",
        "Steps take longer than any step of this engine should",
        "low-rate",
        (
            f"{itl.share_above(stall_s):.1%} of the gaps are over {stall_s * 1e3:.0f} ms, {case.window}",
            f"the fullest step that the token budget allows takes {longest_s * 1e3:.0f} ms",
        ),
        "medium",
        (
            Change("look for other work on its processors: other containers, swapping, a device that is throttled"),
            Change("give the engine cores of its own, and as many --threads"),
        ),
        cost_s=itl.part_above(stall_s) * itl.mean * _tokens(case),
        explains=("slow-preprocessing",),
    )


def _longest_step_s(case: Case) -> float | None:
    """A step with the whole budget, as the model of steps has it; None where either is not told."""
    budget, seqs = case.facts.settings.max_num_batched_tokens, max(1, round(case.service.most("running") or 1.0))
    if case.model is None or budget is None:
        return None
    prompts = case.service.spread("prompt_tokens")
    longest = prompts.quantile(1.0) if prompts is not None else budget
    tokens = round(min(budget, longest * max(1.0, case.running)))
    shape = Shape(tokens, seqs, round(seqs * context_tokens(case.service)), round(tokens * longest))
    return case.model.predict_ns(shape) / 1e9


def _beyond_steps(case: Case) -> bool:
    """Are the gaps beyond what is accepted longer than any step can be? By half, since models err."""
    longest_s = _longest_step_s(case)
    return longest_s is not None and 1.5 * longest_s < case.facts.promise.stall_s


def budget_change(case: Case) -> tuple[Change, ...]:
    """The token budget whose step keeps the streams' promise; nothing where it is not too large."""
    model, now = case.model, case.facts.settings.max_num_batched_tokens
    if model is None or model.prefill_token_ns <= 0:
        return (Change("a lower --max-num-batched-tokens (half of it, then look again)", "max_num_batched_tokens"),)
    seqs = max(1, round(case.running))
    rest_ns = model.predict_ns(Shape(0, seqs, round(seqs * context_tokens(case.service))))
    room_ns = AIM * case.facts.promise.stall_s * 1e9 - rest_ns
    tokens = max(LEAST_BUDGET_TOKENS, seqs, int(room_ns / model.prefill_token_ns) // 16 * 16)
    if now is not None and tokens >= now:
        return ()
    return (Change(f"--max-num-batched-tokens {tokens}", "max_num_batched_tokens", tokens),)


def _seqs_within(case: Case, within_s: float) -> int:
    """How many sequences decode within a time."""
    high = int(case.running)
    if case.model is None or not _small_seen(case):
        median = case.itl.quantile(0.5) if case.itl is not None else within_s
        return max(1, int(high * within_s / median))
    while high > 1 and (case.decode_s(high) or 0.0) > within_s:
        high -= max(1, high // 20)
    return max(1, high)


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


def _tokens(case: Case) -> float:
    """Of an answer."""
    output = case.service.spread("output_tokens")
    if output is not None:
        return output.mean
    generated, ended = case.service.increase("generation_tokens"), case.service.increase("ended")
    return generated / ended if generated and ended else 100.0
