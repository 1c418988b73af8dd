"""Queues that are not KV's: slots that are taken, by whom, and by how many at once."""

from __future__ import annotations

import math

import numpy as np

from headway.doctor.finding import Change, Finding
from headway.doctor.rules.case import MOST_SHOWN, Case
from headway.doctor.spread import Floats
from headway.metrics.server_flags import flag_of
from headway.simulate.slots import ITL_AIM, seqs_by_kv

MOST = 0.5
# Variance over mean of the arrivals in an interval: 1 for independent ones (Poisson); 3 does not come by chance in
# a dozen intervals (chi-square with 11 degrees of freedom beyond 33: once in 2,000).
BURSTY = 3.0
LEAST_INTERVALS = 12
# The average of what comes over what the server finishes while it is busy: below this it would be served without a
# queue to speak of, if it came evenly (independent arrivals wait five service times at 0.85: M/M/1).
FITS = 0.85
GROWTH = 4.0  # times the slots that there are: more is not advised at once


def bursts(case: Case) -> Finding | None:
    """The average would do: it is well below what is finished while somebody waits. The peaks would not."""
    waited, (arrivals, passed_s) = case.waited, _arrivals(case)
    if waited is None or not case.late or len(arrivals) < LEAST_INTERVALS:
        return None
    # Of intervals that are not alike, each is expected to have as many as its length allows (Pearson's chi-square).
    expected = arrivals.sum() * passed_s / passed_s.sum()
    dispersion = float(((arrivals - expected) ** 2 / expected).mean()) if arrivals.any() else 0.0
    used = _utilisation(case)
    if dispersion < BURSTY or used is None or used > FITS:
        return None
    peak, rate = float((arrivals / passed_s).max()), float(arrivals.sum() / passed_s.sum())
    queue_s, found = case.split.queue_s or 0.0, case.ttft_tail
    most = max(1, round(rate * case.facts.promise.ttft_s * 2))
    worst = f"; TTFT {found[0]} is {found[1]:.2f} s" if found is not None else ""
    return Finding(
        "bursts",
        "Requests come in bursts: the average rate hides the queue",
        "low-rate",
        (
            (
                f"{rate:.1f} requests come a second on average, up to {peak:.1f}; variance over mean of arrivals is "
                f"{dispersion:.1f}, where independent ones give 1"
            ),
            (
                f"while somebody waits, {rate / used:.1f} are finished a second: the average takes {used:.0%} of that. "
                f"Somebody waits in {waited.queued_share:.0%} of the samples, {queue_s:.2f} s each on average{worst}, "
                f"{case.window}"
            ),
        ),
        "high" if used < MOST else "medium",
        (
            Change(
                f"bound the queue, so that a burst is told to come again: --max-waiting {most}", "max_waiting", most
            ),
            refuse_late(case),
            Change('smooth what comes at once: batch work with "headway": {"batch": true} or a lower priority'),
            Change(f"size replicas by the peak, not by the average: {peak / max(rate, 1e-9):.1f} times as much comes"),
        ),
        cost_s=queue_s,
        explains=(
            *("slot-limit", "kv-exhausted", "long-prompt-interference", "overload", "long-outputs"),
            "oversized-batch",
        ),
    )


def refuse_late(case: Case) -> Change:
    limit_s = case.facts.promise.ttft_s
    return Change(f"refuse early what would be late: --ttft-limit {limit_s:g}", "ttft_limit", limit_s)


def _utilisation(case: Case) -> float | None:
    """What is finished in all, over what would be at the pace at which it is while somebody waits."""
    ended, waiting = case.service.steps_of("ended"), case.service.gauge("waiting")
    known = np.isfinite(ended) & np.isfinite(waiting[1:]) & np.isfinite(waiting[:-1])
    queued = known & (waiting[1:] > 0) & (waiting[:-1] > 0)
    if queued.sum() < 3 or not ended[queued].any():
        return None
    passed_s = np.diff(case.service.times_s)
    while_queued = float(ended[queued].sum() / passed_s[queued].sum())
    return float(ended[known].sum() / passed_s[known].sum()) / while_queued


def _arrivals(case: Case) -> tuple[Floats, Floats]:
    """In each interval: who has ended, and how many more are inside; and how long it was, in s."""
    service = case.service
    inside = service.gauge("in_service")
    if np.isnan(inside).all():
        inside = service.gauge("running") + service.gauge("waiting") + np.nan_to_num(service.gauge("preempted"))
    came = service.steps_of("ended") + np.diff(inside)
    known = np.isfinite(came)
    return np.maximum(0.0, came[known]), np.diff(service.times_s)[known]


def long_outputs(case: Case) -> Finding | None:
    """A few long answers hold most of the slots' time; or all are longer than anybody waits for."""
    decode = case.service.spread("decode_s") or case.service.spread("output_tokens")
    output = case.service.spread("output_tokens")
    if decode is None:
        return None
    waited, promise = case.waited, case.facts.promise
    blocked = case.late and waited is not None and waited.slots >= MOST
    in_seconds = case.service.spread("decode_s") is not None
    held = decode.part_above(4.0 * decode.quantile(0.5))
    tokens = f"; an answer has {output.mean:.0f} tokens on average, 1 in 20 more than {output.quantile(0.95):.0f}" \
        if output is not None else ""  # fmt: skip
    evidence: tuple[str, ...]
    if blocked and held >= MOST:
        evidence = (
            f"answers that stream more than four times as long as the median hold {held:.0%} of the time in slots; "
            f"they are {decode.share_above(4.0 * decode.quantile(0.5)):.0%} of all" + tokens,
            f"{waited.slots if waited else 0.0:.0%} of the time that requests wait passes while all slots are taken",
        )
    elif blocked and in_seconds and decode.mean > promise.e2e_s:
        evidence = (f"an answer streams for {decode.mean:.0f} s on average" + tokens,)
    elif (slow := _slow_by_length(case)) is not None:
        evidence = (slow + tokens,)
    else:
        return None
    cap, slots = _cap_tokens(case), max(1, round(((waited and waited.limit) or case.running) / 2))
    queue_s = (case.split.queue_s or 0.0) * (waited.slots if blocked and waited is not None else 0.0)
    return Finding(
        "long-outputs",
        "Long answers hold the slots" if blocked else "Answers are long: they take their time one token after another",
        "utilisation" if blocked else "low-rate",
        (*evidence, f"{case.running:.1f} sequences run on average, {case.window}"),
        "high" if in_seconds and output is not None else "medium",
        (
            Change(f"limit max_tokens to {cap}, by the clients or by --clamp-output-tokens {cap}",
                   "clamp_output_tokens", cap),
            Change(f"a lane of their own: --long-output-slots {slots} keep the other slots for short answers",
                   "long_output_slots", slots),
            Change("do long work later: \"background\": true with --store, or a pool of its own"),
        ),
        cost_s=queue_s if blocked else (case.service.spread("e2e_s") or decode).mean - promise.e2e_s,
        explains=("slot-limit",),
    )  # fmt: skip


def _slow_by_length(case: Case) -> str | None:
    """Answers take longer than is accepted, though each token comes in time and nobody waits."""
    if case.stutters:
        return None
    e2e, decode, itl = (case.service.spread(name) for name in ("e2e_s", "decode_s", "itl_s"))
    if e2e is None or itl is None or e2e.mean <= case.facts.promise.e2e_s or itl.mean > case.facts.promise.itl_s:
        return None
    part = decode.mean / e2e.mean if decode is not None else 1.0 - (case.split.total_s / e2e.mean)
    if part < 0.8:
        return None
    return f"an answer takes {e2e.mean:.0f} s, of which {part:.0%} is streaming at {itl.mean * 1e3:.0f} ms a token"


def _cap_tokens(case: Case) -> int:
    """As many tokens as come in the time that is accepted for an answer; at most what 9 in 10 answers need."""
    itl, output = case.itl, case.service.spread("output_tokens")
    by_time = case.facts.promise.e2e_s / itl.mean if itl is not None and itl.mean > 0 else 1024.0
    usual = output.quantile(0.9) if output is not None else by_time
    return max(16, round(min(by_time, usual)))


def slot_limit(case: Case) -> Finding | None:
    waited = case.waited
    if waited is None or not case.late or waited.slots < MOST or waited.limit is None or case.facts.is_gateway:
        return None
    if not case.queue_matters(waited.slots):
        return None
    decode_s = case.decode_s(waited.limit)
    if decode_s is not None and decode_s > case.facts.promise.itl_s:
        return None  # more slots would make streams slower than they may be: that is another finding
    to = _slots(case, waited.limit)
    queue_s, kv = case.split.queue_s or 0.0, case.service.mean("kv_ratio")
    room = f", while KV is {kv:.0%} used" if kv is not None else ""
    flag = flag_of(case.facts.speaks, "max_num_seqs")
    called = "max_num_seqs" if flag == "--max-num-seqs" else flag
    name = f"{called} is" if waited.limit_told else "they never run more than"
    evidence = [
        (
            f"{waited.slots:.0%} of the time that requests wait passes while all slots are taken: {name} "
            f"{waited.limit:.0f}{room}, {case.window}"
        ),
        f"{case.service.mean('waiting') or 0.0:.1f} wait on average, {case.wait_words}"
        + (f"; TTFT {case.ttft_tail[0]} is {case.ttft_tail[1]:.2f} s" if case.ttft_tail else ""),
    ]
    gain, pays = (case.steps.gain(waited.limit, to), case.steps.pays(waited.limit, to)) if case.steps else (None, False)
    if gain is not None:
        evidence.append(f"a batch of {to} would yield {gain:.2f} times the tokens a second, by the time steps take")
    changes = [Change(f"--max-num-seqs {to}", "max_num_seqs", to)] if to > waited.limit else []
    if not pays or not changes:
        changes.append(Change("another replica: the engine has little more to give", "replicas"))
    return Finding(
        "slot-limit",
        "Requests wait for a slot, and the engine has room for more",
        "concurrency",
        tuple(evidence),
        "high" if waited.limit_told and not case.outnumbered else "medium",
        tuple(changes),
        cost_s=queue_s * waited.slots,
    )


def full_windows(case: Case) -> Finding | None:
    """A gateway sends no worker more than its window holds: what the worker does with these, it tells itself."""
    waited, waiting = case.waited, np.nan_to_num(case.service.gauge("waiting"))
    if waited is None or not case.late or not case.facts.is_gateway:
        return None
    workers = case.facts.workers or (case.service,)
    held, room = (np.array([part.gauge(name) for part in workers]) for name in ("in_flight", "window_seqs"))
    # Who has nothing while others wait is down, or of another model.
    full = ((held >= np.floor(room)) | (np.nan_to_num(held) == 0)).all(axis=0) & (np.nan_to_num(held) > 0).any(axis=0)
    share, queue_s = float(waiting[full].sum()) / max(float(waiting.sum()), 1e-9), case.split.queue_s or 0.0
    if share < MOST or not case.queue_matters(share):
        return None
    each = [
        f"{part.name if len(workers) > 1 else 'its worker'} {part.mean('in_flight') or 0.0:.1f} of "
        f"{part.mean('window_seqs') or 0.0:.1f}"
        for part in workers[:MOST_SHOWN]
    ]
    return Finding(
        "full-windows",
        "Requests wait at the gateway: its workers have all that it sends them at a time",
        "concurrency",
        (
            (
                f"{share:.0%} of the time that requests wait passes while every worker has as many in flight as its "
                f"window: {', '.join(each)}, {case.window}"
            ),
            f"{case.service.mean('waiting') or 0.0:.1f} wait at the gateway on average, {case.wait_words}"
            + (f"; TTFT {case.ttft_tail[0]} is {case.ttft_tail[1]:.2f} s" if case.ttft_tail else ""),
            "a window grows while its worker has no queue and yields more for it; why it does not, the worker tells",
        ),
        "high",
        (Change(case.ask_workers), Change("another worker, if they have no more to give"), refuse_late(case)),
        cost_s=queue_s * share,
        explains=("bursts", "long-outputs"),
    )


def _slots(case: Case, limit: float) -> int:
    """Enough for those who run and wait, as far as KV, a step's budget and the streams' promise let them."""
    kv, budget = case.service.most("kv_ratio"), case.facts.settings.max_num_batched_tokens
    wanted = limit + (case.service.mean("waiting") or 0.0)
    to = int(min(math.ceil(wanted), GROWTH * limit, seqs_by_kv((kv or 0.0) / limit), budget or math.inf))
    if case.steps is not None:
        to = min(to, case.steps.seqs_within(to, ITL_AIM * case.facts.promise.itl_s))
    return max(math.ceil(limit), to)
