"""Prompts that others wait for, and prompts that are simply long."""

from __future__ import annotations

from headway.doctor.finding import Change, Finding
from headway.doctor.rules.case import Case
from headway.doctor.rules.queue import refuse_late
from headway.doctor.rules.streams import budget_change

MOST = 0.5
LEAST_SHARE = 0.1  # of the engine's time: prompts that take less are in nobody's way


def prompt_queue(case: Case) -> Finding | None:
    """Slots and KV are free, and yet requests wait, or crawl: steps are full of other prompts' tokens."""
    waited, split = case.waited, case.split
    if waited is None or not case.late or case.facts.is_gateway:
        return None
    queue_s = (split.queue_s or 0.0) * waited.budget
    among_s = split.interference_s or 0.0
    delayed_s = queue_s + among_s
    if delayed_s < MOST * ((split.queue_s or 0.0) + among_s) or delayed_s <= 0:
        return None
    if not case.matters(delayed_s):
        return None
    prompts, share = case.prompts, case.prefill_share
    if case.prefill_queued is not None:
        share = case.prefill_queued
    if share is not None and share < LEAST_SHARE:
        return None
    if prompts is None or not case.skewed_prompts:
        full = waited.queued_share >= MOST or (share is not None and share >= MOST)
        return _overload(case, delayed_s) if full else None
    found = case.ttft_tail
    return Finding(
        "long-prompt-interference",
        "Long prompts hold up all others: steps are full of their tokens",
        "concurrency",
        (
            f"of a mean TTFT of {split.total_s:.2f} s, {queue_s:.2f} s pass waiting while slots and KV are free, and "
            f"{among_s:.2f} s beside others' prompts" + (f"; {found[0]} is {found[1]:.2f} s" if found else ""),
            (
                f"prompts above four times the median are {prompts.share_above(4 * prompts.quantile(0.5)):.0%} of all "
                f"and {prompts.tail_part:.0%} of the prompt tokens (median {prompts.quantile(0.5):.0f}, p99 "
                f"{prompts.quantile(0.99):.0f})"
            ),
            *_prefill_words(case),
        ),
        "high",
        _apart(case, round(4 * prompts.quantile(0.5))),
        cost_s=delayed_s,
        explains=("long-prompts",),
    )


def _apart(case: Case, edge: int) -> tuple[Change, ...]:
    """`edge`: how many tokens a long prompt has at least."""
    itl_s = case.facts.promise.itl_s
    return (
        Change(
            f"a lane of their own: --long-prompt-tokens {edge} and --long-prompt-slots 2", "long_prompt_tokens", edge
        ),
        *budget_change(case),
        Change(
            f"headway --slo-itl {itl_s:g} sizes each step's prompts so that streams keep it; and it orders them by "
            "what is left of --slo-ttft",
            "slo_itl",
            itl_s,
        ),
        Change("cut prompts: fewer retrieved chunks, shorter tool definitions; or a pool of workers for long contexts"),
    )


def _prefill_words(case: Case) -> tuple[str, ...]:
    share, queued = case.prefill_share, case.prefill_queued
    if share is None:
        return ()
    beside = f" ({queued:.0%} while somebody waits)" if queued is not None and f"{queued:.0%}" != f"{share:.0%}" else ""
    return (f"prompts take {share:.0%} of the engine's time{beside}, {case.window}",)


def _overload(case: Case, delayed_s: float) -> Finding:
    rate, prompts = case.service.rate("prompt_tokens"), case.prompts
    lengths = (
        "whether a few prompts are much longer than most is not told"
        if prompts is None
        else f"the median prompt is of {prompts.quantile(0.5):.0f} tokens, the p99 of {prompts.quantile(0.99):.0f}: "
        f"those above four times the median make up {prompts.tail_part:.0%} of the prompt tokens, less than half"
    )
    return Finding(
        "overload",
        "Prompts come faster than steps can take them in",
        "concurrency",
        (
            (
                f"somebody waits in {case.waited.queued_share if case.waited else 0.0:.0%} of samples while slots and "
                f"KV are free, {case.window}"
            ),
            lengths,
            *_prefill_words(case),
            *((f"{rate:,.0f} prompt tokens are computed a second",) if rate is not None else ()),
        ),
        "medium",
        (
            Change("another replica", "replicas"),
            refuse_late(case),
            Change("shorter prompts, or a shared beginning that the prefix cache can find"),
        ),
        cost_s=delayed_s,
        explains=("long-prompts", "long-prompt-interference"),
    )


def long_prompts(case: Case) -> Finding | None:
    """The prompt's own work is more than is accepted, with nobody in the way."""
    own_s, promise_s = case.split.own_s, case.facts.promise.ttft_s
    if own_s is None or own_s <= promise_s or case.split.share(own_s) < MOST:
        return None
    prompts = case.service.spread("prompt_tokens")
    lengths = f"a prompt has {prompts.mean:.0f} tokens on average" if prompts is not None else "prompts are long"
    return Finding(
        "long-prompts",
        "Prompts are long: their own work is later than is accepted",
        "low-rate",
        (f"{lengths}; alone in the engine one takes {own_s:.2f} s, of a TTFT of {case.split.total_s:.2f} s",),
        "medium",
        (
            Change("shorten prompts, or put what they share first, so that the prefix cache finds it"),
            Change("more tokens a step, while nobody streams: a higher --max-num-batched-tokens",
                   "max_num_batched_tokens"),
            Change("split prefill over more devices (--tensor-parallel-size)"),
        ),
        cost_s=own_s - promise_s,
    )  # fmt: skip
