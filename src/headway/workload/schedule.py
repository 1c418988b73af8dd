"""`schedule`: arrivals and items brought together, from one seed, up to where the load stops."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from headway.workload.arrivals import Arrivals
from headway.workload.draws import stream
from headway.workload.errors import WorkloadError, check_seconds, check_whole
from headway.workload.item import Arrival, Item
from headway.workload.mix import ItemSource

MAX_REQUESTS = 100_000_000


@dataclass(frozen=True, slots=True)
class Stop:
    """Where a load ends: after a time, a number of requests, or whichever comes first."""

    duration_s: float | None = None
    requests: int | None = None

    def __post_init__(self) -> None:
        if self.duration_s is None and self.requests is None:
            raise WorkloadError("a load must stop: give duration_s, requests, or both", field="duration_s")
        if self.duration_s is not None:
            check_seconds("duration_s", self.duration_s)
        if self.requests is not None:
            check_whole("requests", self.requests, 1, MAX_REQUESTS)

    def cut(self, times: Iterator[int]) -> Iterator[int]:
        """The due times before the stop. A request due at the very end of the duration is left out."""
        if self.requests is not None:
            times = itertools.islice(times, self.requests)
        if self.duration_s is not None:
            end_ns = round(self.duration_s * 1e9)
            times = itertools.takewhile(lambda at_ns: at_ns < end_ns, times)
        return times


def items(source: ItemSource, seed: int) -> Iterator[Item]:
    """What `schedule` asks for, without its times: for a closed loop. Ends only when the source does."""
    return source.items(stream(seed, "items"))


def schedule(arrivals: Arrivals, source: ItemSource, stop: Stop, seed: int) -> Iterator[Arrival]:
    """The load. Times and items come from generators of their own: another rate asks for the same items in the same
    order, and other items come at the same times.
    """
    times = stop.cut(arrivals.times(stream(seed, "arrivals")))
    return (Arrival(at_ns, item) for at_ns, item in zip(times, items(source, seed), strict=False))
