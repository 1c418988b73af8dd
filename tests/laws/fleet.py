"""A front before remote workers, on a clock that is just a number, and a recount of all it counts after every stimulus.

A stimulus is a tuple of a name and plain values, so that a story can be made by Hypothesis, shrunk, and told again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from hypothesis import strategies as st

from headway.core.decisions import Decision
from headway.core.errors import HeadwayError
from headway.core.fleet.breaker import Trust
from headway.core.fleet.fleet import Dispatch
from headway.core.fleet.worker import WorkerLoad, WorkerSpec
from headway.core.front.admission import AdmissionLimits
from headway.core.front.front import MAX_ATTEMPTS, Expire, Front, FrontLimits
from headway.core.front.ladder import Level, Mode
from headway.core.front.tenants import TenantLimits, Tenants
from headway.core.front.treatment import Asked
from headway.core.lanes import LaneLimits
from headway.core.request import Request, State, Usage

MS = 1_000_000
S = 1_000 * MS
LANES = (LaneLimits("short"), LaneLimits("long", 40, slots=3))
TENANTS = {
    "a": TenantLimits(weight=2.0, max_concurrency=6),
    "b": TenantLimits(tokens_per_minute=400, requests_per_minute=30),
    "c": TenantLimits(priority=1, max_output_tokens=40, lanes=("short",)),
}
ADMISSION = AdmissionLimits(200, 1 << 40, max_waiting=12, max_waiting_tokens=500, max_running=20)
FRONT = FrontLimits(queue_timeout_ns=20 * S, age_bound_ns=5 * S, lanes=LANES)
Stimulus = tuple[object, ...]


@dataclass
class FleetWorld:
    admission: AdmissionLimits = ADMISSION
    limits: FrontLimits = FRONT
    workers: int = 3
    first_sequences: int = 4
    now: int = MS
    decisions: list[Decision] = field(default_factory=list)
    requests: dict[str, Request] = field(default_factory=dict)  # all that were let in
    at: dict[str, str] = field(default_factory=dict)  # those in flight, and where
    began: set[str] = field(default_factory=set)
    ends: dict[str, str] = field(default_factory=dict)  # the one outcome of each
    sent: list[tuple[str, str]] = field(default_factory=list)  # every dispatch: who, where
    failed_at: dict[str, list[str]] = field(default_factory=dict)
    spent: list[tuple[str, int, int]] = field(default_factory=list)  # tenant, when it was let in, what it came to

    def __post_init__(self) -> None:
        self.tenants = Tenants(TenantLimits(), TENANTS)
        self.front = Front(
            self.admission, self.limits, tenants=self.tenants, remote=True, listener=self.decisions.append
        )
        for number in range(self.workers):
            self.front.add_worker(WorkerSpec(f"w{number}", first_sequences=self.first_sequences), self.now)
        self.added = self.workers

    # -- stimuli -------------------------------------------------------------------------------------------------

    def tell(self, stimuli: Iterable[Stimulus]) -> FleetWorld:
        for name, *values in stimuli:
            getattr(self, f"_{name}")(*values)
            self.audit()
        return self

    def _submit(self, tenant: str, prompt: int, output: int, priority: int, prefix: int) -> None:
        name = f"r{len(self.requests) + len(self.front.refused)}.{len(self.decisions)}"
        request = Request(name, range(prompt), output, tenant=tenant, priority=priority)
        request.prefix = tuple(range(prefix))
        before = self.counters()
        try:
            self.front.submit(request, self.now)
        except HeadwayError:
            assert self.counters() == before, "a refusal changed something"
        else:
            self.requests[name] = request
            for expire in self.front.expire(self.now):  # somebody may have given way
                self.end(expire.request.id, "expired")

    def _plan(self) -> None:
        for instruction in self.front.plan(self.now):
            request = instruction.request
            if isinstance(instruction, Expire):
                self.end(request.id, "expired")
                assert request.state is State.EXPIRED
            else:
                self.dispatched(instruction)

    def dispatched(self, dispatch: Dispatch) -> None:
        name, worker = dispatch.request.id, dispatch.worker
        assert name not in self.at, "sent twice at one time"
        assert name not in self.ends, "sent after its end"
        assert name not in self.began, "sent again after its first byte"
        assert dispatch.request.state is State.PREFILL
        failed = self.failed_at.get(name, [])
        if worker in failed:
            up = {one for one, state in self.front.fleet.workers.items() if not state.draining}
            trusted = {one for one in up if self.front.fleet.workers[one].breaker.trust(self.now) is Trust.CLOSED}
            assert trusted <= set(failed), "sent again where it failed, while another worker is up"
        self.at[name] = worker
        self.sent.append((name, worker))

    def _began(self, number: int) -> None:
        if name := self.pick(sorted(set(self.at) - self.began), number):
            self.front.began(name, self.now)
            self.began.add(name)

    def _settle(self, number: int, output: int) -> None:
        if name := self.pick(sorted(self.began), number):
            request = self.requests[name]
            output = min(output, request.max_tokens)
            self.leave(name, State.FINISHED, output)

    def _cancel(self, number: int) -> None:
        if name := self.pick([name for name in self.requests if name not in self.ends], number):
            waits = name not in self.at
            assert self.front.cancel(name, self.now) is waits
            if waits:
                self.end(name, "cancelled")
            else:
                self.leave(name, State.CANCELLED, 1 if name in self.began else 0)

    def _lost(self, number: int) -> None:
        if not (name := self.pick(sorted(self.at), number)):
            return
        request, worker = self.requests[name], self.at.pop(name)
        self.failed_at.setdefault(name, []).append(worker)
        usage = Usage(request.prompt_tokens, 1) if name in self.began else Usage(0, 0)
        error = self.front.lost(name, self.now, usage=usage)
        if error is None:
            assert name not in self.began
            assert request.state is State.WAITING
        else:
            assert name in self.began or len(self.failed_at[name]) == MAX_ATTEMPTS
            self.end(name, "lost")
            self.spent.append((request.tenant, request.arrival_ns, usage.computed_tokens))
            self.began.discard(name)

    def _observe(self, number: int, age_ms: int, running: int | None, waiting: int | None, kv: float | None) -> None:
        if name := self.pick(list(self.front.fleet.workers), number):
            load = WorkerLoad.at(
                max(0, self.now - age_ms * MS), running=running, waiting=waiting, kv_used_ratio=kv,
                kv_capacity_tokens=2_000,
            )  # fmt: skip
            self.front.observe(name, load, self.now)

    def _health(self, number: int, well: bool) -> None:
        if name := self.pick(list(self.front.fleet.workers), number):
            self.front.fleet.health(name, self.now, well=well)

    def _drain(self, number: int, draining: bool) -> None:
        if name := self.pick(list(self.front.fleet.workers), number):
            self.front.fleet.drain(name, self.now, draining=draining)

    def _replace(self, number: int) -> None:
        """A worker is taken away for good, and another comes. Who was there still ends, one way or another."""
        if name := self.pick(list(self.front.fleet.workers), number):
            left = self.front.remove_worker(name, self.now)
            assert sorted(left) == sorted(one for one, where in self.at.items() if where == name)
            self.front.add_worker(WorkerSpec(f"w{self.added}", first_sequences=self.first_sequences), self.now)
            self.added += 1

    def _treat(self, prompt: int, output: int | None, optional: bool, batch: bool) -> None:
        asked = Asked(prompt_tokens=prompt, max_tokens=output, optional=optional, batch=batch)
        before = self.counters()
        with suppress(HeadwayError):
            self.front.treat(asked, self.now)
        assert self.counters() == before

    def _adapt(self, kv: float | None, slo: float | None) -> None:
        self.front.adapt(self.now, kv_used_ratio=kv, slo_met_ratio=slo)

    def _level(self, level: int, mode: str) -> None:
        self.front.set_levels({Level(level): Mode(mode)}, self.now)

    def _wait(self, ms: int) -> None:
        self.now += ms * MS

    # -- what became of them -------------------------------------------------------------------------------------

    @staticmethod
    def pick(names: list[str], number: int) -> str | None:
        return names[number % len(names)] if names else None

    def leave(self, name: str, state: State, output: int) -> None:
        request = self.requests[name]
        usage = Usage(request.prompt_tokens if name in self.began else 0, output)
        self.front.settle(name, usage, self.now, end=state)
        assert request.state is state
        self.spent.append((request.tenant, request.arrival_ns, usage.computed_tokens))
        del self.at[name]
        self.began.discard(name)
        self.end(name, state.value)

    def end(self, name: str, how: str) -> None:
        assert name not in self.ends, f"{name} ended twice"
        self.ends[name] = how

    def finish(self) -> FleetWorld:
        """Let everything inside end: nothing may be left."""
        for name in list(self.front.fleet.workers):
            self.front.fleet.drain(name, self.now, draining=False)
        for _ in range(400):
            if len(self.ends) == len(self.requests):
                break
            self.tell([("plan",), *[("began", 0)] * len(self.at), *[("settle", 0, 5)] * len(self.at), ("wait", 1_000)])
        assert set(self.ends) == set(self.requests), "somebody is starved or lost"
        self.audit()
        admission, fleet = self.front.admission, self.front.fleet
        assert self.counters()[:5] == (0, 0, 0, 0, 0)
        assert not fleet.flights
        assert all(worker.tokens == worker.work_tokens == 0 for worker in fleet.workers.values())
        assert all(lane.running == lane.running_tokens == lane.waiting == 0 for lane in self.front.lanes._lanes)
        assert all(admission.ledger.held(tenant) == 0 for tenant in [*TENANTS, ""])
        return self

    # -- laws that hold at every moment ----------------------------------------------------------------------------

    def counters(self) -> tuple[object, ...]:
        admission = self.front.admission
        quotas = [(admission.ledger.held(name), admission.ledger.quotas(name, self.now)) for name in [*TENANTS, ""]]
        return (
            admission.requests,
            admission.waiting,
            admission.waiting_tokens,
            admission.running,
            admission.claimed_tokens,
            quotas,
            [one.id for one in self.front.lanes],
        )

    def audit(self) -> None:
        front, admission, fleet = self.front, self.front.admission, self.front.fleet
        inside = {name: request for name, request in self.requests.items() if name not in self.ends}
        waiting = {name for name in inside if name not in self.at}
        assert {one.id for one in front.lanes} == waiting
        assert all(request.state is State.WAITING for name, request in inside.items() if name in waiting)
        assert admission.requests == len(inside)
        assert admission.waiting == len(waiting)
        assert admission.waiting_tokens == sum(inside[name].prompt_tokens for name in waiting)
        assert admission.claimed_tokens == sum(request.total_tokens for request in inside.values())
        assert admission.running == len(self.at) <= (self.admission.max_running or 1 << 30)
        held = Counter(request.tenant for request in inside.values())
        for tenant in [*TENANTS, ""]:
            assert admission.ledger.held(tenant) == held[tenant]
            limit = self.tenants.of(tenant).max_concurrency
            assert not limit or held[tenant] <= limit
        self._recount_lanes(inside)
        assert {name: flight.worker.spec.id for name, flight in fleet.flights.items()} == self.at
        tokens: Counter[str] = Counter()
        for name, flight in fleet.flights.items():
            tokens[inside[name].tenant] += inside[name].prompt_tokens + flight.output_tokens
        assert fleet.shares.tokens == dict(tokens)
        for worker in fleet.workers.values():
            flights = {name: inside[name] for name, where in self.at.items() if where == worker.spec.id}
            assert set(worker.flights) == set(flights)
            in_flight = worker.flights.values()
            outputs = sum(flight.output_tokens for flight in in_flight)
            assert worker.tokens == sum(request.prompt_tokens for request in flights.values()) + outputs
            unread = sum(one.prompt_tokens for one in in_flight if not one.began)
            assert worker.work_tokens == outputs + unread
            assert worker.unread_tokens == unread
            assert worker._begun == sum(one.began for one in in_flight)
            since = [one.prompt_tokens for one in in_flight if one.sent_ns >= worker._used_ns]
            assert worker._since_tokens == sum(since), "sent since its KV use was told"
            recent = [one for one in in_flight if one.recent and one.sent_ns > self.now - S]
            assert worker.recent(self.now) == len(recent) == len([one for one in in_flight if one.recent])

    def _recount_lanes(self, inside: dict[str, Request]) -> None:
        lanes = self.front.lanes
        running = Counter(lanes.lane_of(inside[name]) for name in self.at)
        for lane in lanes._lanes:
            assert lane.running == running[lane.limits.name] <= lane.limits.slots
        by_tenant = Counter(request.tenant for name, request in inside.items() if name not in self.at)
        assert lanes.waiting_by_tenant() == dict(by_tenant)
        assert sum(lanes.waiting_by_lane().values()) == len(lanes)


small = st.integers(0, 30)
submits = st.tuples(
    st.just("submit"),
    st.sampled_from(["", "a", "b", "c"]),
    st.sampled_from([1, 10, 39, 40, 120]),
    st.sampled_from([1, 20, 60]),
    st.integers(0, 2),
    st.integers(0, 2),
)
plans = st.just(("plan",))
stimuli: st.SearchStrategy[Stimulus] = st.one_of(
    submits,
    submits,
    plans,
    plans,
    st.tuples(st.just("began"), small),
    st.tuples(st.just("settle"), small, st.integers(0, 60)),
    st.tuples(st.just("cancel"), small),
    st.tuples(st.just("lost"), small),
    st.tuples(
        st.just("observe"),
        small,
        st.sampled_from([0, 100, 1_000, 20_000]),
        st.sampled_from([None, 0, 3, 50]),
        st.sampled_from([None, 0, 4]),
        st.sampled_from([None, 0.1, 0.99]),
    ),
    st.tuples(st.just("health"), small, st.booleans()),
    st.tuples(st.just("drain"), small, st.booleans()),
    st.tuples(st.just("replace"), small),
    st.tuples(
        st.just("treat"), st.sampled_from([1, 100, 300]), st.sampled_from([None, 5, 500]), st.booleans(), st.booleans()
    ),
    st.tuples(st.just("adapt"), st.sampled_from([None, 0.2, 1.0]), st.sampled_from([None, 0.5, 1.0])),
    st.tuples(st.just("level"), st.integers(1, 6), st.sampled_from(["auto", "on", "off"])),
    st.tuples(st.just("wait"), st.sampled_from([1, 50, 600, 3_000])),
)
stories = st.lists(stimuli, max_size=60)
