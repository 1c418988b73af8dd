"""Between workers: load that is not shared evenly."""

from __future__ import annotations

import numpy as np

from headway.doctor.finding import Change, Finding
from headway.doctor.rules.case import Case

# Of the time that is waited, the share at one worker, and the share while another had room: more often than not.
AT_ONE, NEEDLESS = 0.6, 0.5


def hot_worker(case: Case) -> Finding | None:
    workers = [part for part in case.facts.workers if "waiting" in part.gauges]
    if len(workers) < 2:
        return None
    waiting = np.nan_to_num(np.array([part.gauge("waiting") for part in workers]))
    running = np.nan_to_num(np.array([part.gauge("running") for part in workers]))
    total = float(waiting.sum())
    if total / waiting.shape[1] < 1.0:
        return None  # nobody waits to speak of
    by_worker = waiting.sum(axis=1)
    hot = int(by_worker.argmax())
    others = np.arange(len(workers)) != hot
    # A wait is needless while another worker has nobody waiting and runs fewer sequences.
    free = ((waiting[others] == 0) & (running[others] < 0.75 * np.maximum(running[hot], 1))).any(axis=0)
    needless = float(waiting[hot][free].sum()) / total
    if by_worker[hot] / total < AT_ONE * max(1.0, 1.6 / len(workers)) or needless < NEEDLESS:
        return None
    name, mean = workers[hot].name, waiting.mean(axis=1)
    rest = ", ".join(f"{part.name} {mean[place]:.1f}" for place, part in enumerate(workers) if place != hot)
    queue_s = case.split.queue_s or 0.0
    return Finding(
        "hot-worker",
        f"Requests queue at {name} while other workers have room",
        "low-rate",
        (
            (
                f"{mean[hot]:.1f} requests wait there on average, at {rest}; it runs {running[hot].mean():.1f}, the "
                f"others {running[others].mean():.1f}"
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
