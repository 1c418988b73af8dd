"""Which of the workers that have room gets a request: the one with the least score, a sum of terms that each say why.

The unit of every term is one typical request's worth of delay, so that a term can be read, and weighed against another.
What is unknown of a worker counts as the mean of what is known of the others, and so does, more and more, what it said
long ago: silence is neither a recommendation nor a verdict.

A score is only as good as its signals, so it never decides alone: of all that was sent within a second (`BURST_NS`) and
has no first byte yet, no worker gets more than its share by weight plus `BURST_SLACK`, while another has room.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from collections.abc import Sequence as ReadOnlySequence
from dataclasses import dataclass

from headway.core.fleet.worker import UNKNOWN as SILENT
from headway.core.fleet.worker import Signal, WorkerState, belief
from headway.core.request import Request

BURST_SLACK = 2

# What the terms weigh: how many requests' delay the worst reasonable value is worth.
RUNNING = 2.0  # a full window
WAITING = 1.0  # each sequence that queues inside the worker
KV = 0.5  # times k / (1 - k): 0.5 at half full, 4.5 at nine tenths
BATCH = 0.5  # steps twice as large as the others'
LATENCY = 0.5  # twice the others' first token, or token gap
MEMORY = 4.0  # no headroom left
MEMORY_LOW_RATIO = 0.1
FULL_RATIO = 0.98  # beyond this, k / (1 - k) says nothing more


@dataclass(slots=True)
class Choice:
    """A worker, and why: its terms, which add up to its score, and what the others scored.

    Never changed. Not frozen, like the other records that every request makes: of five fields a frozen one took 2.7 µs
    to make, this 0.5.
    """

    worker: str
    terms: dict[str, float]
    others: dict[str, float]

    @property
    def score(self) -> float:
        return sum(self.terms.values())


def choose(workers: ReadOnlySequence[WorkerState], request: Request, typical_tokens: float, now: int) -> Choice:
    """The best of `workers`, all of which have room. `typical_tokens` is what a request usually comes to."""
    found = scored(workers, request, typical_tokens, now)
    fair = within_fair_share(workers, now)
    scores = {worker.spec.id: sum(found[worker.spec.id].values()) for worker in fair}
    # Of equals, the one with the least of ours, then the first that was added: a replay must choose alike.
    best = min(fair, key=lambda worker: (scores[worker.spec.id], len(worker.flights) / worker.spec.weight))
    del scores[best.spec.id]
    return Choice(best.spec.id, found[best.spec.id], scores)


def scored(
    workers: ReadOnlySequence[WorkerState], request: Request, typical_tokens: float, now: int
) -> dict[str, dict[str, float]]:
    """Every worker's terms for `request`."""
    said = [signals(worker, now) for worker in workers]
    means = [_mean(known, none) for known, none in zip(zip(*said, strict=True), NOTHING_KNOWN, strict=True)]
    return {
        worker.spec.id: terms(worker, request, known, means, typical_tokens=typical_tokens, now=now)
        for worker, known in zip(workers, said, strict=True)
    }


def within_fair_share(workers: ReadOnlySequence[WorkerState], now: int) -> list[WorkerState]:
    """Those that one more request would not give more of this burst than their share and the slack. Never nobody."""
    recent = [worker.recent(now) for worker in workers]
    each = (sum(recent) + 1) / sum([worker.spec.weight for worker in workers])
    return [
        worker
        for worker, count in zip(workers, recent, strict=True)
        if count + 1 <= math.ceil(each * worker.spec.weight - 1e-9) + BURST_SLACK
    ]


# A value, and how far to believe it.
Known = tuple[float, float]
UNKNOWN: Known = (0.0, 0.0)
# What stands for the mean of a signal that nobody tells: of each a value that makes no difference.
NOTHING_KNOWN = (0.0, 0.0, 0.0, 0.0, 0.0, 1.0)


def signals(worker: WorkerState, now: int) -> tuple[Known, Known, Known, Known, Known, Known]:
    """Waiting, KV use, batch tokens, TTFT, ITL, memory headroom."""
    load = worker.load
    # What it says; or what we have measured, which is never late.
    measured = (worker.ttft_ns / 1e9, 1.0) if worker.ttft_ns > 0 else UNKNOWN
    if load is SILENT:
        return (UNKNOWN, UNKNOWN, UNKNOWN, measured, UNKNOWN, UNKNOWN)
    kv_used_ratio = worker.kv_used_ratio(now)
    return (
        _said(load.waiting, now),
        (kv_used_ratio, belief(load.kv_used_ratio, now)) if kv_used_ratio is not None else UNKNOWN,
        _said(load.batch_tokens, now),
        _said(load.ttft_s, now) if load.ttft_s is not None else measured,
        _said(load.itl_s, now),
        _said(load.memory_headroom_ratio, now),
    )


def terms(
    worker: WorkerState,
    request: Request,
    known: ReadOnlySequence[Known],
    means: ReadOnlySequence[float],
    *,
    typical_tokens: float,
    now: int,
) -> dict[str, float]:
    """The score of one worker, lower is better, in typical requests."""
    # As it said, as far as that is believed, and else as the others. Unrolled: it is done for each worker every time.
    (waiting, a), (kv_used_ratio, b), (batch_tokens, c), (ttft_s, d), (itl_s, e), (memory_ratio, f) = known
    waiting = waiting * a + means[0] * (1.0 - a)
    kv_used_ratio = kv_used_ratio * b + means[1] * (1.0 - b)
    batch_tokens = batch_tokens * c + means[2] * (1.0 - c)
    ttft_s = ttft_s * d + means[3] * (1.0 - d)
    itl_s = itl_s * e + means[4] * (1.0 - e)
    memory_ratio = memory_ratio * f + means[5] * (1.0 - f)
    used = min(FULL_RATIO, kv_used_ratio)
    return {
        # What is still to be computed there: of ours in tokens, of others' in typical requests.
        "work": (worker.work_tokens / typical_tokens + worker.foreign(now)) / worker.spec.weight,
        # How full its window is: a slow worker's small window says what work in tokens does not.
        "running": RUNNING * len(worker.flights) / max(1.0, worker.window.sequences),
        "waiting": WAITING * waiting,
        "kv": KV * used / (1.0 - used),
        "batch": BATCH * _beyond(batch_tokens, means[2]),
        "ttft": LATENCY * _beyond(ttft_s, means[3]),
        "itl": LATENCY * _beyond(itl_s, means[4]),
        "memory": MEMORY * max(0.0, 1.0 - memory_ratio / MEMORY_LOW_RATIO),
        # What it need not compute: as soon as it has that much more to do than others, it is no favourite any more.
        "prefix": -worker.cached_tokens(request) / typical_tokens,
    }


def _said(signal: Signal | None, now: int) -> Known:
    return (signal.value, belief(signal, now)) if signal is not None else UNKNOWN


def _mean(known: Iterable[Known], nothing: float) -> float:
    """Of what is believed; `nothing` where nothing is."""
    total = weight = 0.0
    for value, believed in known:
        total += value * believed
        weight += believed
    return total / weight if weight else nothing


def _beyond(value: float, mean: float) -> float:
    """How much more than the others': 0 for as much, 1 for twice, at most 3; less than them down to -1."""
    return min(3.0, value / mean - 1.0) if mean else 0.0
