"""The throughput-latency curve of one replica over batch sizes, and its knee.

A batch of n is what a closed loop of n keeps full. Here it is simulated as n slots before a queue that never empties:
who is k-th to start takes the slot of who was (k - n)-th to end, and asked at that moment.

The knee is where throughput over latency, Kleinrock's power, is highest (ICC 1979, 43.1): before it a larger batch
brings more than it costs, after it less. Of steps that take a + b · n it is the batch of a / b.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from headway.metrics import percentiles
from headway.simulate.demand import requests_of
from headway.simulate.drive import simulate
from headway.simulate.plan.candidate import Candidate, Limits
from headway.simulate.plan.promise import Promise
from headway.simulate.plan.steps import strange
from headway.simulate.plan.traffic import Traffic
from headway.simulate.plan.trial import settings_of
from headway.simulate.run import Run
from headway.workload.item import Arrival

MOST_BATCH = 512
REQUESTS, TURNS = 32, 1.5  # of a point: so many, and so many for each slot
BEYOND = 2  # points that break the promise are shown
ENOUGH = 8  # times the traffic, by one replica: beyond the knee a larger batch is no question
GAIN = 0.02  # a point that brings less than this more than the one before is the last: the batch no longer grows


class CurvePoint(msgspec.Struct, kw_only=True, frozen=True):
    """One batch size. Rates are of one replica; times in s, at the promise's percentile. `outside`: what of it was not
    measured, and then there are no figures.
    """

    batch: int
    request_rate: float | None = None
    output_token_rate: float | None = None
    ttft_s: float | None = None
    itl_s: float | None = None
    itl_p50_s: float | None = None
    e2e_s: float | None = None
    e2e_mean_s: float | None = None
    keeps: bool | None = None  # the promise
    outside: str = ""


class Knee(msgspec.Struct, kw_only=True, frozen=True):
    """The batch at which throughput over latency is highest."""

    batch: int
    output_token_rate: float
    itl_p50_s: float


def curve_of(
    candidate: Candidate,
    traffic: Traffic,
    promise: Promise,
    *,
    max_model_len: int,
    budget: Callable[[int], int],
    sizes: Sequence[int],
    seed: int = 0,
    progress: Callable[[], None] = lambda: None,
) -> list[CurvePoint]:
    """A point for each of `sizes`, which rise, until KV is full, throughput no longer rises, the promise is broken, or,
    beyond the knee, one replica does far more than the traffic.

    Raises `ConfigError` when nothing fits.
    """
    points: list[CurvePoint] = []
    broken = 0
    for batch in sizes:
        drawn = traffic.draw(seed, REQUESTS + round(TURNS * batch))
        point, held = _point(candidate, drawn, promise, max_model_len, Limits(batch, max(budget(batch), batch)))
        progress()
        before = points[-1].output_token_rate if points else None
        if point.output_token_rate is not None and before is not None and not held:
            break  # it only preempts
        points.append(point)
        if point.outside:
            break
        broken += point.keeps is False
        if broken >= BEYOND or (before is not None and (point.output_token_rate or 0.0) < before * (1 + GAIN)):
            break
        if (point.request_rate or 0.0) > ENOUGH * traffic.rate and knee_of(points) is not None:
            break
    return points


def batches(most: int) -> list[int]:
    """1, 2, 4, … and the most."""
    return sorted({*(2**power for power in range(most.bit_length()) if 2**power <= most), most})


def knee_of(points: Sequence[CurvePoint]) -> Knee | None:
    """None where it is not among the points: at the last one power still rises."""
    known = [point for point in points if point.output_token_rate and point.itl_p50_s]
    if len(known) < 3:
        return None
    power = [(point.output_token_rate or 0.0) / (point.itl_p50_s or 1.0) for point in known]
    best = int(np.argmax(power))
    if best == len(known) - 1:
        return None
    found = known[best]
    return Knee(batch=found.batch, output_token_rate=found.output_token_rate or 0.0, itl_p50_s=found.itl_p50_s or 0.0)


def _point(
    candidate: Candidate, drawn: Sequence[Arrival], promise: Promise, max_model_len: int, limits: Limits
) -> tuple[CurvePoint, bool]:
    """And whether KV held so many without throwing anybody out."""
    batch = limits.max_num_seqs
    worker = candidate.worker(limits, max_model_len)
    backlog = [Arrival(0, arrival.item) for arrival in drawn]
    run = simulate(requests_of(backlog), settings_of(worker, 1, steps=True))
    outside = strange(run.steps, candidate.valid)
    if outside:
        return CurvePoint(batch=batch, outside=outside), True
    return _told(run, batch, promise, candidate.request_ns), not any(counters.preemptions for counters in run.counters)


def _told(run: Run, batch: int, promise: Promise, request_ns: int) -> CurvePoint:
    """Of the time in which every slot was taken: from when half of the first have ended to when the last started."""
    records = sorted((record for record in run.records if record.finished), key=lambda record: record.started_ns)
    ends = sorted(record.ended_ns for record in records)
    asked = [0] * min(batch, len(records)) + ends[: max(0, len(records) - batch)]
    begin, end = ends[min(batch // 2, len(ends) - 1)], records[-1].started_ns
    if end <= begin:
        begin, end = 0, max(ends)
    times = [np.array(record.token_ns or (), np.int64) for record in records]
    tokens = np.concatenate(times)
    gaps = np.concatenate([np.diff(each)[(each[1:] > begin) & (each[1:] <= end)] for each in times]) / 1e9
    here = [number for number, record in enumerate(records) if begin <= asked[number] <= end and record.first_token_ns]
    ttft = np.array([(records[number].first_token_ns - asked[number] + request_ns) / 1e9 for number in here])
    e2e = np.array([(records[number].ended_ns - asked[number] + request_ns) / 1e9 for number in here])
    seconds = (end - begin) / 1e9
    ended = sum(begin < at <= end for at in ends)
    q = promise.percentile
    found = {
        name: percentiles.percentile(values, q)
        for name, values in (("ttft", ttft), ("itl", gaps), ("e2e", e2e))
        if len(values)
    }
    return CurvePoint(
        batch=batch,
        request_rate=ended / seconds,
        output_token_rate=float(((tokens > begin) & (tokens <= end)).sum()) / seconds,
        ttft_s=found.get("ttft"),
        itl_s=found.get("itl"),
        itl_p50_s=percentiles.percentile(gaps, 50) if len(gaps) else None,
        e2e_s=found.get("e2e"),
        e2e_mean_s=float(e2e.mean()) if len(e2e) else None,
        keeps=all(found.get(name, 0.0) <= limit_s for name, limit_s in promise.limits()),
    )
