"""Queues that are not KV's: slots that are taken, by whom, and by how many at once."""

from __future__ import annotations

import numpy as np

from headway.doctor.finding import Change, Finding
from headway.doctor.rules.case import Case
from headway.doctor.spread import Floats

MOST = 0.5
# Variance over mean of the arrivals in an interval: 1 for independent ones (Poisson); 3 does not come by chance in
# a dozen intervals (chi-square with 11 degrees of freedom beyond 33: once in 2,000).
BURSTY = 3.0
LEAST_INTERVALS = 12
# The average of what comes over what the server finishes while it is busy: below this it would be served without a
# queue to speak of, if it came evenly (independent arrivals wait five service times at 0.85: M/M/1).
FITS = 0.85
# A bound that steps of decode make slower by less than this is worth raising: the batch shares what a step costs.
GAINS = 1.1


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
                f"bound the queue, so that a burst is told to come again: --max-waiting "
                f"{max(1, round(rate * case.facts.promise.ttft_s * 2))}, and --ttft-limit "
                f"{case.facts.promise.ttft_s:g}",
                "max_waiting",
                max(1, round(rate * case.facts.promise.ttft_s * 2)),
            ),
            Change('smooth what comes at once: batch work with "headway": {"batch": true} or a lower priority'),
            Change(f"size replicas by the peak, not by the average: {peak / max(rate, 1e-9):.1f} times as much comes"),
        ),
        cost_s=queue_s,
        explains=(
            *("slot-limit", "kv-exhausted", "long-prompt-interference", "overload", "long-outputs"),
            "oversized-batch",
        ),
    )


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
    cap = _cap_tokens(case)
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
            Change("a lane of their own: --long-output-tokens and --long-output-slots keep slots for short answers",
                   "long_output_slots"),
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
    if waited is None or not case.late or waited.slots < MOST or waited.limit is None:
        return None
    decode_s = case.decode_s(waited.limit)
    if decode_s is not None and decode_s > case.facts.promise.itl_s:
        return None  # more slots would make streams slower than they may be: that is another finding
    to = _slots(case, waited.limit)
    queue_s, kv = case.split.queue_s or 0.0, case.service.mean("kv_ratio")
    room = f", while KV is {kv:.0%} used" if kv is not None else ""
    name = "max_num_seqs is" if waited.limit_told else "they never run more than"
    evidence = [
        (
            f"{waited.slots:.0%} of the time that requests wait passes while all slots are taken: {name} "
            f"{waited.limit:.0f}{room}, {case.window}"
        ),
        f"{case.service.mean('waiting') or 0.0:.1f} wait on average, for {queue_s:.2f} s each"
        + (f"; TTFT {case.ttft_tail[0]} is {case.ttft_tail[1]:.2f} s" if case.ttft_tail else ""),
    ]
    gain = _gain(case, waited.limit, to)
    if gain is not None:
        evidence.append(f"a batch of {to} would yield {gain:.2f} times the tokens a second, by the time steps take")
    changes = [Change(f"--max-num-seqs {to}", "max_num_seqs", to)] if to > waited.limit else []
    if gain is None or gain < GAINS or not changes:
        changes.append(Change("another replica: the engine has little more to give", "replicas"))
    return Finding(
        "slot-limit",
        "Requests wait for a slot, and the engine has room for more",
        "concurrency",
        tuple(evidence),
        "high" if waited.limit_told else "medium",
        tuple(changes),
        cost_s=queue_s * waited.slots,
    )


def _slots(case: Case, limit: float) -> int:
    """Enough for those who run and wait, as far as KV and the streams' promise let them."""
    wanted = limit + (case.service.mean("waiting") or 0.0)
    kv = case.service.most("kv_ratio")
    by_kv = 0.85 * limit / kv if kv else wanted
    to = max(limit, min(wanted, by_kv, 4 * limit))
    if case.model is not None:
        while to > limit and (case.decode_s(to) or 0.0) > 0.9 * case.facts.promise.itl_s:
            to -= max(1.0, 0.05 * to)
    return int(np.ceil(max(limit, to)))


def _gain(case: Case, limit: float, to: float) -> float | None:
    """Tokens a second at one batch over those at another."""
    before, after = case.decode_s(limit), case.decode_s(to)
    return (to / after) / (limit / before) if before and after else None
