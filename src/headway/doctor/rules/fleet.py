"""Between workers: load that is not shared evenly, and one that is slower than the others."""

from __future__ import annotations

import numpy as np

from headway.doctor.facts import Part
from headway.doctor.finding import Change, Finding
from headway.doctor.rules.case import Case

# Of the time that is waited, the share at one worker, and the share while another had room: more often than not.
AT_ONE, NEEDLESS = 0.6, 0.5
# A token takes so many times as long as at the usual worker, which yields as many: chance and uneven load are less.
SLOWER, AS_MANY = 2.0, 1.1
LEAST_GAPS = 200  # at each worker that is compared


def hot_worker(case: Case) -> Finding | None:
    workers = [part for part in case.facts.workers if None not in (part.mean("waiting"), part.mean("running"))]
    if len(workers) < 2:
        return None
    waiting = np.array([part.gauge("waiting") for part in workers])
    running = np.array([part.gauge("running") for part in workers])
    total = float(np.nansum(waiting))
    if total < np.isfinite(waiting).any(axis=0).sum():
        return None  # nobody waits to speak of
    by_worker = np.nansum(waiting, axis=1)
    hot = int(by_worker.argmax())
    others = np.arange(len(workers)) != hot
    # A wait is needless while another worker has nobody waiting and runs fewer sequences. One that does not answer has
    # no room for all that is known: whatever is compared with NaN is not so.
    free = ((waiting[others] == 0) & (running[others] < 0.75 * np.maximum(running[hot], 1))).any(axis=0)
    needless = float(np.nansum(waiting[hot][free])) / total
    if by_worker[hot] / total < AT_ONE or needless < NEEDLESS:
        return None
    name, mean = workers[hot].name, np.nanmean(waiting, axis=1)
    rest = ", ".join(f"{part.name} {mean[place]:.1f}" for place, part in enumerate(workers) if place != hot)
    queue_s = case.split.queue_s or 0.0
    return Finding(
        "hot-worker",
        f"Requests queue at {name} while other workers have room",
        "low-rate",
        (
            (
                f"{mean[hot]:.1f} requests wait there on average, at {rest}; it runs {np.nanmean(running[hot]):.1f}, "
                f"the others {np.nanmean(running[others]):.1f}"
            ),
            f"{needless:.0%} of the time that is waited passes while another worker has nobody waiting, {case.window}",
        ),
        "high",
        (
            Change(
                "route by queue and KV instead of in turns or by hash: `headway serve --worker URL…` weighs each "
                "worker's queue, running sequences, KV and prefix cache"
            ),
            Change("if affinity is wanted, bound it: let no worker hold more than 1.25 times its share of requests"),
        ),
        cost_s=max(queue_s, case.facts.promise.ttft_s * 0.1),
        explains=(
            *("slot-limit", "kv-exhausted", "bursts", "long-outputs", "long-prompt-interference"),
            *("overload", "oversized-batch", "decode-starvation", "preemption-thrash"),
        ),
    )


def slow_worker(case: Case) -> Finding | None:
    """More than its share would make a worker slower as well, but then it would also yield more than the others."""
    found = [
        (part, gap_s, rate)
        for part in case.facts.workers
        if (gap_s := _gap_s(part)) is not None and (rate := part.rate("generation_tokens")) is not None
    ]
    if len(found) < 2 or not (case.late or case.stutters or _stutters(case, found)):
        return None
    slow, gap_s, rate = max(found, key=lambda one: one[1])
    usual_s, usual_rate = (float(np.median([one[place] for one in found if one[0] is not slow])) for place in (1, 2))
    if gap_s < SLOWER * usual_s or rate > AS_MANY * usual_rate:
        return None
    running, others = slow.mean("running"), [one[0].mean("running") for one in found if one[0] is not slow]
    beside = [value for value in others if value is not None]
    output = case.service.spread("output_tokens")
    tokens = output.mean if output is not None else 100.0
    return Finding(
        "slow-worker",
        f"{slow.name} is slower than the other workers",
        "low-rate",
        (
            (
                f"a token takes {gap_s * 1e3:.0f} ms there and {usual_s * 1e3:.0f} ms at the usual one, and it yields "
                f"{rate:.0f} tokens a second, the usual one {usual_rate:.0f}, {case.window}"
            ),
            *(
                (f"it runs {running:.1f} sequences on average, the others {np.mean(beside):.1f}",)
                if running is not None and beside
                else ()
            ),
        ),
        "high",
        (
            Change(
                f"drain {slow.name} and look at its machine: a throttled or shared device, swapping, another model or "
                "precision"
            ),
            Change(
                f"send it less: a lower weight in its [[worker]] table (about {usual_s / gap_s:.2f}), or routing by "
                "what each worker does, as `headway serve --worker URL…` has it"
            ),
        ),
        cost_s=(gap_s - usual_s) * tokens,
        explains=(
            *("hot-worker", "slot-limit", "kv-exhausted", "bursts", "long-outputs", "long-prompt-interference"),
            *("overload", "oversized-batch", "decode-starvation", "preemption-thrash", "engine-stalls", "slow-machine"),
            *("long-prompts", "cold-cache"),
        ),
    )


def _gap_s(part: Part) -> float | None:
    """Between two tokens of a sequence, on average."""
    gaps = part.spread("itl_s")
    return gaps.mean if gaps is not None and gaps.count >= LEAST_GAPS else None


def _stutters(case: Case, found: list[tuple[Part, float, float]]) -> bool:
    """At one of them: in the mean of many workers it would not be seen."""
    promise = case.facts.promise
    gaps = [gaps for part, _, _ in found if (gaps := part.spread("itl_s")) is not None]
    return any(one.share_above(promise.stall_s) >= 0.01 or one.quantile(0.5) > promise.itl_s for one in gaps)
