"""`serve`: a measured server, simulated: when each request passed each of its stations, as it would have written it.

What its own log says differs from what a simulation says by two habits of servers, and both are made up for here:

- *queued* is stamped when the engine takes a request in, which it does between steps;
- a server that *plans ahead* plans a step while the one before is computed. So a request is *scheduled* one step before
  its first step begins; and what has ended keeps its KV for a step more, for which every output is simulated one token
  longer. (That an arrival is seen one plan later is the simulated worker's own habit.)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headway.core.errors import ConfigError
from headway.core.front.front import FrontLimits
from headway.executors.simulated import StepCost
from headway.simulate.drive import simulate
from headway.simulate.fit.model import Server
from headway.simulate.fit.terms import Floats, Integers, Prefix
from headway.simulate.settings import VirtualRequest, VirtualSettings


@dataclass(frozen=True, slots=True)
class Demand:
    """What is asked of a server: arrivals (ns, at the engine's door), and lengths in tokens. In order of arrival."""

    arrival_ns: Integers
    prompt_tokens: Integers
    output_tokens: Integers

    def __len__(self) -> int:
        return len(self.arrival_ns)

    def first(self, count: int) -> Demand:
        """The first so many to arrive."""
        return Demand(self.arrival_ns[:count], self.prompt_tokens[:count], self.output_tokens[:count])

    def shaken(self, spread_s: float, seed: int) -> Demand:
        """The same, but each arrives a little sooner or later: another day that is like this one.

        Whose chunk meets whose is chance; what several such days have in common is not.
        """
        late_ns = np.random.default_rng(seed).normal(0.0, spread_s * 1e9, len(self)).astype(np.int64)
        arrival_ns = np.sort(np.maximum(0, self.arrival_ns + late_ns))
        return Demand(arrival_ns - arrival_ns[:1], self.prompt_tokens, self.output_tokens)


@dataclass(frozen=True, slots=True)
class Served:
    """By request, in order of the demand, ns: what a server with event stamps would have logged; and its steps."""

    demand: Demand
    queued_ns: Integers
    scheduled_ns: Integers
    first_ns: Integers
    last_ns: Integers
    prefix: Prefix

    @property
    def queue_s(self) -> Floats:
        """From queued to scheduled."""
        return (self.scheduled_ns - self.queued_ns) / 1e9

    @property
    def prefill_s(self) -> Floats:
        """From scheduled to the first token."""
        return (self.first_ns - self.scheduled_ns) / 1e9

    @property
    def ttft_s(self) -> Floats:
        """From arrival to the first token."""
        return (self.first_ns - self.demand.arrival_ns) / 1e9

    @property
    def tpot_s(self) -> Floats:
        """Mean time between tokens; NaN for a single one."""
        gaps = self.demand.output_tokens - 1
        return np.where(gaps > 0, (self.last_ns - self.first_ns) / np.maximum(1, gaps) / 1e9, np.nan)

    @property
    def e2e_s(self) -> Floats:
        """From arrival to the last token."""
        return (self.last_ns - self.demand.arrival_ns) / 1e9


def serve(demand: Demand, server: Server, cost: StepCost) -> Served:
    """Simulate `server` under `demand`.

    Raises:
        ConfigError: limits that contradict each other, or a request that the server could never hold.
        Stuck: nobody can be started any more.
    """
    ahead = int(server.plans_ahead)
    requests = [
        VirtualRequest(str(number), int(arrival), int(prompt), int(output) + ahead, int(output) + ahead)
        for number, (arrival, prompt, output) in enumerate(
            zip(demand.arrival_ns, demand.prompt_tokens, demand.output_tokens, strict=True)
        )
    ]
    # Others' waiting rooms know no ageing; with one tenant and no promises order is that of arrival either way.
    settings = VirtualSettings(
        workers=(server.worker(cost),), front=FrontLimits(age_bound_ns=0), log_steps=True, leaps=True
    )
    run = simulate(requests, settings)
    by_id = {record.id: record for record in run.records}
    records = [by_id[request.id] for request in requests]
    for record in records:
        if not record.finished:
            why = f": {record.error}" if record.error is not None else ""
            raise ConfigError(f"request {record.id} could not be simulated, it was {record.end}{why}")
    prefix = Prefix(run.steps)
    started = np.array([record.started_ns for record in records], np.int64)
    first = np.array([record.first_token_ns for record in records], np.int64)
    last = np.array([record.ended_ns for record in records], np.int64)
    if ahead:
        started, last = _step_before(started, prefix), _end_before(last, first, prefix)
    queued = np.minimum(_taken_in(demand.arrival_ns, prefix), started)
    return Served(demand, np.maximum(queued, demand.arrival_ns), np.maximum(started, queued), first, last, prefix)


def _taken_in(arrival_ns: Integers, prefix: Prefix) -> Integers:
    """When each is taken in: at the end of the step under way, or at once."""
    under_way = np.searchsorted(prefix.ended_ns, arrival_ns, side="left")
    inside = np.minimum(under_way, len(prefix.ended_ns) - 1)
    busy = (under_way < len(prefix.ended_ns)) & (prefix.planned_ns[inside] <= arrival_ns)
    return np.where(busy, prefix.ended_ns[inside], arrival_ns)


def _step_before(started_ns: Integers, prefix: Prefix) -> Integers:
    """When the step before the one planned at `started_ns` began, if one was under way until then."""
    own = np.searchsorted(prefix.planned_ns, started_ns, side="left")
    before = np.maximum(0, own - 1)
    busy = (own > 0) & (prefix.ended_ns[before] == started_ns)
    return np.where(busy, prefix.planned_ns[before], started_ns)


def _end_before(last_ns: Integers, first_ns: Integers, prefix: Prefix) -> Integers:
    """The end of the step before the one that ended at `last_ns`: the token that was one too many is taken off."""
    own = np.searchsorted(prefix.ended_ns, last_ns, side="left")
    return np.maximum(first_ns, prefix.ended_ns[np.maximum(0, own - 1)])
