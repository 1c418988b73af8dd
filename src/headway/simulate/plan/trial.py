"""`Trial`: some requests against some replicas on virtual time, and whether the promise held.

One replica is an engine with its own queue. Before several stands a router that sends each request where the fewest are
in flight. Whatever is refused or fails took for ever.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from headway.core.front.front import FrontLimits
from headway.core.request import Request
from headway.metrics import latency, percentiles
from headway.metrics.figures import Interval
from headway.metrics.latency import Floats, Timings
from headway.simulate.demand import EVERYBODY, requests_of
from headway.simulate.drive import simulate
from headway.simulate.plan.promise import Promise
from headway.simulate.plan.traffic import clients_of
from headway.simulate.run import Run
from headway.simulate.settings import NS_PER_S, VirtualFleet, VirtualSettings, VirtualWorker
from headway.simulate.timings import timings
from headway.workload.item import Arrival

# The router knows what is in flight; it never needs to ask a replica for its load.
_NEVER_ASKED_NS = 1 << 50
# A queue grows when each quarter of a day waits longer than the one before, and the last so much longer.
GROWS, QUARTERS = 1.5, 4
LEAST_GROWING = 80  # requests: of fewer, chance makes a queue look as if it grew


@dataclass(frozen=True, slots=True)
class Trial:
    """What came of it. `samples`: "ttft", "itl", "e2e" in s, infinite for what never came; in order of time."""

    run: Run
    seconds: float  # over which requests came
    samples: Mapping[str, Floats]
    failed: int
    grows: bool  # does the queue, without end?

    def at(self, name: str, percentile: float) -> float:
        """That percentile of a latency, s. 0 where there is nothing to wait for: ITL of outputs of one token."""
        values = self.samples[name]
        return percentiles.percentile(values, percentile) if len(values) else 0.0

    def strain(self, promise: Promise) -> float:
        """The promise nearest to breaking: its latency as a share of its limit. Above 1 it does not hold."""
        if self.grows:
            return float("inf")
        return max(self.at(name, promise.percentile) / limit_s for name, limit_s in promise.limits())

    def broken(self, promise: Promise) -> str:
        """The promise that breaks most, by name; "queue" when it grows without end; empty when all hold."""
        if self.grows:
            return "queue"
        shares = {name: self.at(name, promise.percentile) / limit_s for name, limit_s in promise.limits()}
        worst = max(shares, key=shares.__getitem__)
        return worst if shares[worst] > 1 else ""


def settings_of(worker: VirtualWorker, replicas: int, *, steps: bool = False) -> VirtualSettings:
    """`replicas` of a worker. `steps`: what each step carried is kept."""
    front = FrontLimits() if worker.policy.by_promise else FrontLimits(age_bound_ns=0)
    fleet = None
    if replicas > 1:
        fleet = VirtualFleet(route=fewest_in_flight, scrape_every_ns=_NEVER_ASKED_NS)
    return VirtualSettings(workers=(worker,) * replicas, front=front, fleet=fleet, log_tokens=True, log_steps=steps)


def fewest_in_flight(_request: Request, in_flight: Mapping[str, int]) -> str:
    """A plain router: the first of those that have the fewest."""
    return min(in_flight, key=in_flight.__getitem__)


def tried(
    arrivals: Sequence[Arrival],
    settings: VirtualSettings,
    promise: Promise,
    *,
    edge_s: float = 0.0,
    request_ns: int = 0,
) -> Trial:
    """Simulate. `edge_s`: so much at the beginning and at the end is not judged, but for half of the day at most;
    `request_ns` is what each request takes outside of the engines.

    Raises `ConfigError` for settings that contradict each other.
    """
    clients = clients_of(promise) if settings.workers[0].policy.by_promise else EVERYBODY
    run = simulate(requests_of(arrivals, clients), settings)
    seconds = max(1e-9, (arrivals[-1].at_ns - arrivals[0].at_ns) / NS_PER_S)
    edge_s = min(edge_s, seconds / 4)
    judged = timings(run).due_within((edge_s, seconds - edge_s + 1e-9))
    return Trial(
        run=run,
        seconds=seconds,
        samples=_samples(judged, request_ns / 1e9),
        failed=int((~judged.ok).sum()),
        grows=_grows(run, promise),
    )


def _samples(judged: Timings, outside_s: float) -> dict[str, Floats]:
    never = ~judged.ok
    found = {"ttft": latency.ttft_s(judged), "e2e": latency.e2e_s(judged)}
    samples = {name: np.where(never | np.isnan(values), np.inf, values + outside_s) for name, values in found.items()}
    return samples | {"itl": np.asarray(judged.gaps_ns, np.float64) / 1e9}


def _grows(run: Run, promise: Promise) -> bool:
    """Whether waiting for a slot lasts longer and longer, as it does when more comes than can be served.

    What is a small part of a promise may as well be chance.
    """
    waits = np.array([(record.started_ns - record.arrival_ns) / 1e9 for record in run.records if record.started_ns])
    if len(waits) < LEAST_GROWING:
        return False
    # Arrivals of the last quarter find a queue that is no longer fed; it still is the longest if it grew.
    quarters = [float(part.mean()) for part in np.array_split(waits, QUARTERS)]
    served_s = np.mean([(record.ended_ns - record.started_ns) / 1e9 for record in run.records if record.started_ns])
    least_s = max(0.25 * float(served_s), 0.5 * (promise.ttft_s or 0.0), 0.25 * (promise.e2e_s or 0.0))
    rising = all(later > earlier for earlier, later in pairwise(quarters))
    return rising and quarters[-1] > GROWS * quarters[1] and quarters[-1] > least_s


@dataclass(frozen=True, slots=True)
class Pool:
    """The same on several days: samples of all, in order, so that a percentile has enough."""

    trials: Sequence[Trial]

    def interval(self, name: str, percentile: float, *, seed: int = 0) -> Interval:
        """The percentile with its 95% interval, where there are samples enough; without one, its value alone."""
        values = np.concatenate([trial.samples[name] for trial in self.trials])
        if not len(values):
            return Interval(value=0.0)
        told = percentiles.distribution(values, percentiles=(percentile,), seed=seed)
        found = told.percentiles[percentiles.key(percentile)]
        if found.value is None:
            value = percentiles.percentile(values, percentile)
            return Interval(value=value if np.isfinite(value) else None)
        return found

    def holds(self, promise: Promise) -> bool:
        """Each day, and by the upper end of the interval over all days: chance alone must not break a promise."""
        if any(trial.grows or trial.broken(promise) for trial in self.trials):
            return False
        for name, limit_s in promise.limits():
            found = self.interval(name, promise.percentile)
            if found.high is not None and found.high > limit_s:
                return False
        return True
