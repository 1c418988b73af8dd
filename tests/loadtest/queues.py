"""Scripted servers in virtual time: queues whose law is known in closed form, told as the records of a load test.

A queue is arrivals and service times; Lindley's recursion gives everybody's wait. What the load tester says about the
records can then be held against Erlang's and Pollaczek's formulas instead of against another measurement.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from math import exp, factorial, log

import numpy as np
import numpy.typing as npt

from headway.loadtest.record import CountedBy, Fate, Record
from headway.metrics.latency import Timings

Floats = npt.NDArray[np.float64]
NS_PER_S = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Served:
    """When each request arrived, when a server took it, and when it was done. Seconds."""

    arrived: Floats
    started: Floats
    ended: Floats


def poisson(rng: np.random.Generator, rate: float, duration_s: float) -> Floats:
    """Moments of a Poisson process: their number is random, as in life."""
    count = rng.poisson(rate * duration_s)
    return np.sort(rng.uniform(0, duration_s, count))


def single(arrived: Floats, service: Floats) -> Served:
    """One server, first come first served: Lindley's recursion, without a loop."""
    steps = service[:-1] - np.diff(arrived)
    walk = np.concatenate(([0.0], np.cumsum(steps)))
    wait = walk - np.minimum.accumulate(np.minimum(walk, 0.0))
    started = arrived + wait
    return Served(arrived, started, started + service)


def several(arrived: Floats, service: Floats, servers: int) -> Served:
    """Some servers with one queue: each request takes the one that is free first (Kiefer and Wolfowitz)."""
    free = [0.0] * servers
    started = np.empty_like(arrived)
    for index, (at, takes) in enumerate(zip(arrived.tolist(), service.tolist(), strict=True)):
        started[index] = begin = max(at, free[0])
        heapq.heapreplace(free, begin + takes)
    return Served(arrived, started, started + service)


# -- laws --------------------------------------------------------------------------------------------------------


def mm1_sojourn_beyond(rate: float, service_rate: float, limit_s: float) -> float:
    """M/M/1: the share of requests that spend longer than the limit, waiting and service together."""
    return exp(-(service_rate - rate) * limit_s) if rate < service_rate else 1.0


def md1_wait_beyond(rate: float, service_s: float, limit_s: float) -> float:
    """M/D/1: the share of requests that wait longer than the limit (Erlang 1909)."""
    if rate * service_s >= 1:
        return 1.0
    total = 0.0
    for number in range(int(limit_s / service_s) + 1):
        left = rate * (limit_s - number * service_s)
        total += (-left) ** number / factorial(number) * exp(left)
    return 1 - (1 - rate * service_s) * total


def mmk_wait_beyond(rate: float, service_rate: float, servers: int, limit_s: float) -> float:
    """M/M/k: the share of requests that wait longer than the limit (Erlang's C formula)."""
    offered = rate / service_rate
    if offered >= servers:
        return 1.0
    last = offered**servers / factorial(servers) * servers / (servers - offered)
    waits = last / (sum(offered**n / factorial(n) for n in range(servers)) + last)
    return waits * exp(-(servers * service_rate - rate) * limit_s)


def crossing(beyond: Callable[[float], float], share: float, highest: float) -> float:
    """The load at which the share of bad requests reaches `share`."""
    low, high = 0.0, highest
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if beyond(middle) < share else (low, middle)
    return low


def mm1_crossing(service_rate: float, limit_s: float, share: float) -> float:
    return service_rate + log(share) / limit_s


# -- as a load test sees it --------------------------------------------------------------------------------------


def records(
    served: Served,
    *,
    prefill: float = 0.5,
    tokens: int = 5,
    lag_s: Floats | float = 0.0,
    fates: dict[int, Fate] | None = None,
    kind: str = "",
) -> list[Record]:
    """The first `prefill` of the service ends with the first token, the others follow evenly."""
    made = []
    service = served.ended - served.started
    first = _ns(served.started + prefill * service)
    last = _ns(served.ended)
    due = _ns(served.arrived)
    sent = _ns(served.arrived + lag_s)
    for index in range(len(due)):
        begin, end = int(first[index]), int(last[index])
        at = [begin + (end - begin) * step // (tokens - 1) for step in range(tokens)] if tokens > 1 else [begin]
        fate = (fates or {}).get(index, Fate.OK)
        record = Record(index, kind, "", 100, tokens, scheduled_ns=int(due[index]), sent_ns=int(sent[index]), fate=fate)
        record.ended_ns = end if tokens > 1 else begin
        if fate is Fate.OK:
            record.first_ns, record.last_ns = at[0], at[-1]
            record.gaps_ns = array("q", [b - a for a, b in pairwise(at)])
            record.gap_tokens = array("H", [1] * (tokens - 1))
            record.first_tokens, record.chunks, record.output_tokens = 1, tokens, tokens
            record.input_tokens, record.counted = 100, CountedBy.USAGE
        else:
            record.error, record.status = "the server said no", 500
        made.append(record)
    return made


def timings(served: Served, *, prefill: float = 0.5) -> Timings:
    """The same as columns, without tokens but the first: for searches that need millions of requests."""
    n = len(served.arrived)
    first = _ns(served.started + prefill * (served.ended - served.started))
    one = np.ones(n, np.int64)
    return Timings(
        scheduled_ns=_ns(served.arrived),
        sent_ns=_ns(served.arrived),
        first_ns=first,
        last_ns=first,
        ended_ns=_ns(served.ended),
        ok=np.ones(n, np.bool_),
        given_up=np.zeros(n, np.bool_),
        input_tokens=100 * one,
        output_tokens=one,
        first_tokens=one,
        gap_counts=0 * one,
        gaps_ns=np.zeros(0, np.int64),
        gap_tokens=np.zeros(0, np.uint16),
    )


def _ns(seconds: Floats) -> npt.NDArray[np.int64]:
    return np.round(seconds * NS_PER_S).astype(np.int64)
