"""`Front`: decides before an engine is touched: who is let in, who waits and in what order, who is slowed or turned
away, and where each request runs.

A request enters by `submit` and leaves by exactly one of: `settle` (it was started and ended there), `cancel` while it
waits, an `Expire` from `expire` or `plan`, `fail_waiting`, or a `lost` that returns an error. The waiting room is here
and nowhere else. Engines in this process pull from it (`pull`); remote workers are sent what their windows have room
for (`plan`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Sequence as ReadOnlySequence
from dataclasses import dataclass

from headway.core.alarms import Alarms
from headway.core.decisions import Decision, Kind, Listener, submitted
from headway.core.errors import Draining, HeadwayError, InvalidRequest, Refused, WorkerLost
from headway.core.fairness import Fairness
from headway.core.fleet.fleet import Dispatch, Fleet
from headway.core.fleet.routing import Choice
from headway.core.fleet.worker import WorkerLoad, WorkerSpec
from headway.core.front.admission import NS_PER_S, Admission, AdmissionLimits, Reservation
from headway.core.front.ladder import Ladder, Level, LevelChange, Mode
from headway.core.front.ledger import Ledger
from headway.core.front.overload import Overload
from headway.core.front.promises import Promises, expired, unreachable
from headway.core.front.replicas import ANY_NUMBER, ReplicaLimits
from headway.core.front.room import gave_way, who_gives_way
from headway.core.front.tenants import Tenants
from headway.core.front.treatment import Asked, Degradation, Treatment
from headway.core.lanes import ONE_LANE, Accepts, Fit, LaneLimits, Lanes
from headway.core.pace import StepTimeModel
from headway.core.request import Request, RequestId, State, Usage, move
from headway.core.scheduler.policies import HEADWAY, Policy

# A restart takes a few seconds, and so does another server's taking over.
RETRY_WHEN_CLOSED_S = 5.0
# On so many workers a request is tried before it is given up.
MAX_ATTEMPTS = 3
NOTHING = Usage(0, 0)


@dataclass(frozen=True, slots=True)
class Expire:
    """The request waited too long, or had to give its place to another tenant's; tell its owner."""

    request: Request
    error: Refused


@dataclass(frozen=True, slots=True)
class FrontLimits:
    """How long requests wait, and in which lanes. Times are ns; 0 is no bound."""

    queue_timeout_ns: int = 0
    age_bound_ns: int = 30 * NS_PER_S  # after this a request goes before everybody younger of its tenant
    lanes: tuple[LaneLimits, ...] = ONE_LANE
    replicas: ReplicaLimits = ANY_NUMBER  # how few and how many workers are ever asked for


class Front:
    """Admission, the waiting room, the fleet and the ladder, composed: nobody else composes them.

    `model` tells how long a prompt takes to feed, where one engine's steps are known. `remote`: requests are sent to
    the workers of `fleet`, instead of being pulled.
    """

    def __init__(
        self,
        admission: AdmissionLimits,
        limits: FrontLimits,
        *,
        model: StepTimeModel | None = None,
        tenants: Tenants | None = None,
        ledger: Ledger | None = None,
        degradation: Degradation | None = None,
        remote: bool = False,
        policy: Policy = HEADWAY,
        listener: Listener | None = None,
    ) -> None:
        self.tenants = tenants or Tenants()
        self.admission = Admission(admission, self.tenants, ledger)
        self.limits = limits
        self.fairness = Fairness(self.tenants.weight, apart=policy.by_tenant)
        self.lanes = Lanes(limits.lanes, max_overtakes=policy.max_overtakes, fairness=self.fairness, listener=listener)
        self.fleet = Fleet(listener, self.tenants.weight)
        self.overload = Overload(degradation or Degradation(), limits.replicas, listener)
        self.remote = remote
        self.draining = False
        self.closed = ""  # why nobody is let in at the moment; empty when open
        self.refused: dict[str, int] = {}  # by error code, since start
        self.ended: dict[str, int] = {}  # requests that ended here, never started, by state, since start
        self._listener = listener
        sent_to = self.fleet if remote else None
        self._promises = Promises(limits.queue_timeout_ns, limits.age_bound_ns, model, policy, sent_to)
        self._reservations: dict[RequestId, Reservation] = {}
        self.give_up = Alarms()
        self._gave_way: dict[RequestId, Expire] = {}  # their owners have not been told

    # -- at the door -----------------------------------------------------------------------------------------------

    def treat(self, asked: Asked, now: int) -> Treatment:
        """What becomes of a request before it is prepared: the ladder's levels, and the limits. See `treatment.py`."""
        limits = self.tenants.of(asked.tenant)
        try:
            treatment = self.overload.treat(asked, limits, self.admission)
        except HeadwayError as refusal:
            self._count_refusal(refusal, asked.id, now, asked.prompt_tokens)
            raise
        if treatment.degraded:
            numbers = {"max_tokens": treatment.max_tokens, "priority": treatment.priority}
            self._decided(now, "degrade", asked.id, treatment.header, **numbers)
        return treatment

    def submit(self, request: Request, now: int) -> None:
        """Let `request` into the waiting room, or raise the `HeadwayError` that says why not: it was never inside."""
        self.submit_all([request], now)

    def submit_all(self, requests: ReadOnlySequence[Request], now: int) -> None:
        """Let all of them in, or none: the samples and prompts of one call stand or fall together."""
        prompt_tokens = sum([request.prompt_tokens for request in requests])
        try:
            reservations = self._reserved(requests, now)
        except HeadwayError as refusal:
            self._count_refusal(refusal, requests[0].id, now, prompt_tokens)
            raise
        self.overload.demand.offered(len(requests), prompt_tokens)
        for reservation in reservations:
            self._admit(reservation, now)

    def _reserved(self, requests: ReadOnlySequence[Request], now: int) -> list[Reservation]:
        if len(requests) > 1:
            if len({request.id for request in requests}) < len(requests):
                raise InvalidRequest("Two requests of one call have the same id.", param="request_id")
            assert len({request.tenant for request in requests}) == 1, "one call has one tenant"
        for request in requests:
            self._check(request, now)
            self._promises.stamp(request, now)
            self._check_ttft(request, now)
        leaving = who_gives_way(requests[0].tenant, requests, self.lanes, self.admission)
        reservations = self.admission.reserve(requests, now, leaving=leaving)
        for other in leaving:
            self._leave_waiting(other, State.EXPIRED, now)
            self._gave_way[other.id] = Expire(other, gave_way(self.admission.retry_after_s()))
            self.refused["queue_full"] = self.refused.get("queue_full", 0) + 1
            self._decided(now, "displace", other.id, f"by {requests[0].id}")
        return reservations

    def _admit(self, reservation: Reservation, now: int) -> None:
        request = reservation.request
        request.state = State.WAITING
        self._reservations[request.id] = reservation
        if self._listener is not None:
            self._listener(submitted(request, self.lanes.lane_of(request), now))
        self.lanes.add(request, now)
        self.fleet.shares.came(request.tenant, now)
        self._wait(request)

    def check_door(self, now: int, tenant: str = "") -> None:
        """Raise what `submit` would raise for any request of `tenant`, so that a refusal comes before it is read."""
        try:
            self._check_open()
            if not who_gives_way(tenant, (), self.lanes, self.admission):
                self.admission.check_waiting()
        except HeadwayError as refusal:
            self._count_refusal(refusal, "", now, None)
            raise

    # -- starting --------------------------------------------------------------------------------------------------

    def pull(self, accepts: Accepts, now: int) -> Request | None:
        """The next request for an engine that `accepts` it, or None. The caller must start what it is given."""
        request = self._next(accepts, now)
        if request is not None:
            self._charge(request, request.prompt_tokens + self.fairness.expected_output_tokens(request))
            self._decided(now, "start", request.id, waited_ns=now - request.arrival_ns)
        return request

    def _next(self, accepts: Accepts, now: int) -> Request | None:
        if not self.admission.may_start:
            return None
        request = self.lanes.take(accepts, now)
        if request is not None:
            self.give_up.drop(request.id)
            self.admission.start(self._reservations[request.id], now)
        return request

    def _charge(self, request: Request, tokens: int) -> None:
        self._reservations[request.id].charged_tokens = tokens
        self.fairness.charge(request.tenant, tokens)

    def plan(self, now: int) -> list[Expire | Dispatch]:
        """What should happen at `now`: who is turned away, who is sent where. Ask whenever something has changed."""
        return [*self.expire(now), *self._dispatch(now)]

    def _dispatch(self, now: int) -> Iterator[Dispatch]:
        choice: Choice | None = None

        def accepts(request: Request) -> Fit:
            nonlocal choice
            found = self.fleet.choose(request, self._reservations[request.id].tried, now)
            choice = found if isinstance(found, Choice) else None
            return found if isinstance(found, Fit) else Fit.START

        while len(self.lanes) and self.fleet.has_room(now):
            request = self._next(accepts, now)
            if request is None or choice is None:
                return
            output_tokens = self.fairness.expected_output_tokens(request)
            flight = self.fleet.send(request, choice.worker, output_tokens, now)
            self._charge(request, flight.tokens)
            request.state = move(request.state, State.PREFILL)
            if self._listener is not None:
                numbers = {"waited_ns": now - request.arrival_ns, **choice.terms}
                self._listener(Decision(now, "dispatch", request.id, choice.worker, numbers))
            yield Dispatch(request, choice.worker, choice)

    # -- the fleet -------------------------------------------------------------------------------------------------

    def add_worker(self, spec: WorkerSpec, now: int) -> None:
        self.fleet.add(spec, now)
        self._fleet_changed()

    def remove_worker(self, worker_id: str, now: int) -> list[RequestId]:
        """It gets nothing more. Returns who is still there; each is to be settled or `lost`, like any other."""
        left = self.fleet.remove(worker_id, now)
        self._fleet_changed()
        return left

    def observe(self, worker_id: str, load: WorkerLoad, now: int) -> None:
        """What a worker says of itself; each signal counts from when it was true."""
        self.fleet.observe(worker_id, load, now)
        self._fleet_changed()

    def _fleet_changed(self) -> None:
        self.admission.kv_capacity_tokens = self.fleet.kv_capacity_tokens or self.admission.limits.kv_capacity_tokens

    def began(self, request_id: RequestId, now: int) -> None:
        """The first byte of a dispatched request came back."""
        self.fleet.began(request_id, now)
        request = self._reservations[request_id].request
        if request.state is State.PREFILL:
            request.state = move(request.state, State.DECODE)

    def lost(
        self, request_id: RequestId, now: int, *, began: bool = False, usage: Usage = NOTHING
    ) -> WorkerLost | None:
        """The worker of a dispatched request failed it. None: it waits again, where it stood, for another worker.

        Otherwise it had begun, or has been tried often enough: it is settled, and this is what its owner is to hear.
        """
        reservation = self._reservations[request_id]
        request = reservation.request
        flight = self.fleet.flights[request_id]
        reservation.tried += (flight.worker.spec.id,)
        began = began or flight.began
        if began or len(reservation.tried) >= MAX_ATTEMPTS:
            self.settle(request_id, usage, now, end=State.FAILED, failed=True)
            return WorkerLost(
                "The worker failed while it was answering; what was sent is incomplete."
                if began
                else f"The request was tried on {len(reservation.tried)} workers, and all of them failed."
            )
        self.fleet.land(request, now, failed=True)
        self.fairness.correct(request.tenant, -reservation.charged_tokens)
        request.state = move(request.state, State.WAITING)
        self.admission.put_back(reservation)
        self.lanes.put_back(request, now)
        self._wait(request)
        self._decided(now, "return", request_id, reservation.tried[-1])
        return None

    def reconfigure(self, admission: AdmissionLimits, limits: FrontLimits, degradation: Degradation) -> None:
        """Change limits. What was granted under the old ones stays granted; the lanes keep their classes."""
        self.lanes.set_limits(limits.lanes)
        self.admission.limits, self.limits = admission, limits
        self.overload.degradation, self.overload.replicas.limits = degradation, limits.replicas
        self._promises.set_bounds(limits.queue_timeout_ns, limits.age_bound_ns)
        self._fleet_changed()

    # -- the ladder ------------------------------------------------------------------------------------------------

    def adapt(
        self, now: int, *, kv_used_ratio: float | None = None, slo_met_ratio: float | None = None
    ) -> list[LevelChange]:
        """Let the ladder follow the load; call it a few times a second.

        `kv_used_ratio` is an own engine's (the fleet's is known), `slo_met_ratio` of the requests that ended lately.
        """
        known = [ratio for ratio in (kv_used_ratio, self.fleet.kv_used_ratio(now)) if ratio is not None]
        kv_used_ratio = max(known, default=None)
        changes = self.overload.adapt(self.admission, now, kv_used_ratio=kv_used_ratio, slo_met_ratio=slo_met_ratio)
        if self.remote:
            self.overload.resize(self.fleet, now)
        return changes

    def set_levels(self, modes: Mapping[Level, Mode], now: int) -> list[LevelChange]:
        """Pin levels on or off, or leave them to the load again."""
        return self.overload.set_levels(modes, now)

    @property
    def ladder(self) -> Ladder:
        return self.overload.ladder

    # -- leaving ---------------------------------------------------------------------------------------------------

    def cancel(self, request_id: RequestId, now: int) -> bool:
        """Take a waiting request out. False when it does not wait here: its engine must be told instead."""
        if self._gave_way.pop(request_id, None) is not None:
            return True
        reservation = self._reservations.get(request_id)
        if reservation is None or not reservation.waiting:
            return False
        self._leave_waiting(reservation.request, State.CANCELLED, now)
        self._decided(now, "cancel", request_id, "waiting")
        return True

    def fail_waiting(self, now: int) -> list[Request]:
        """No engine will ever take those who wait. Returns them; they are out of the waiting room, and settled."""
        failed = list(self.lanes)
        for request in failed:
            self._leave_waiting(request, State.FAILED, now)
            self._decided(now, "end", request.id, "failed")
        return failed

    def settle(
        self, request_id: RequestId, usage: Usage, now: int, *, end: State | None = None, failed: bool = False
    ) -> None:
        """A started request ended, however it ended, at this cost. Exactly once per started request, else KeyError.

        `end` is the state it ended in, where no scheduler has moved it there; `failed`: by its worker's fault.
        """
        reservation = self._reservations.pop(request_id)
        request = reservation.request
        self._decided(now, "settle", request_id, output_tokens=usage.output_tokens)
        self.fleet.land(request, now, output_tokens=usage.output_tokens, failed=failed)
        if end is not None:
            request.state = move(request.state, end)
        self.fairness.correct(request.tenant, usage.computed_tokens - reservation.charged_tokens)
        self.fairness.learn(request.tenant, usage.output_tokens)
        self.admission.settle(reservation, usage.computed_tokens, now)
        self.lanes.give_back(request)

    def holds(self, request_id: RequestId) -> bool:
        """Is it inside, waiting or started?"""
        return request_id in self._reservations

    def expires(self, now: int) -> bool:
        """May `expire` have somebody to turn away at `now`? Cheap, and wrong at most about those who left already."""
        return bool(self._gave_way) or self.give_up.may_be_due(now)

    def expire(self, now: int) -> list[Expire]:
        """Those who gave way, or have waited too long by `now`. They are out of the waiting room when this returns."""
        gave_way, self._gave_way = self._gave_way, {}
        return [*gave_way.values(), *(self._expire(request_id, now) for request_id in self.give_up.due(now))]

    def predicted_ttft_ns(self, request: Request, now: int) -> float:
        """How long until a first token of `request`, if it came now."""
        ahead_tokens = self.lanes.tokens_before(request, now)
        return self._promises.predicted_ttft_ns(request, ahead_tokens, self.admission.drain_tokens_per_ns)

    @property
    def not_ready_reason(self) -> str:
        """Why nobody is let in; empty when somebody would be."""
        return self.closed or ("The server is shutting down and takes no new requests." if self.draining else "")

    def _check_open(self) -> None:
        if self.not_ready_reason:
            raise Draining(self.not_ready_reason, retry_after_s=RETRY_WHEN_CLOSED_S)

    def _check(self, request: Request, now: int) -> None:
        self._check_open()
        if self.remote:
            self.fleet.check_up(request, now)
        if request.id in self._reservations:
            raise InvalidRequest(f"A request with the id {request.id!r} is already in the service.", param="request_id")
        if request.prompt_tokens < 1:
            raise InvalidRequest("The prompt is empty; at least one token is needed.", param="prompt")
        if request.max_tokens < 1:
            raise InvalidRequest(f"max_tokens is {request.max_tokens}; at least 1 is needed.", param="max_tokens")
        if (limits := self.tenants.of(request.tenant)).lanes:
            limits.check_lane(self.lanes.lane_of(request))

    def _check_ttft(self, request: Request, now: int) -> None:
        limit_ns = request.slo.ttft_limit_ns
        if limit_ns and (predicted_ns := self.predicted_ttft_ns(request, now)) > limit_ns:
            raise unreachable(predicted_ns, limit_ns, self.admission.retry_after_s())

    def _wait(self, request: Request) -> None:
        """It waits from now on, until it is started, leaves, or gives up."""
        if (at_ns := self._promises.gives_up_at_ns(request)) is not None:
            self.give_up.set(request.id, at_ns)

    def _expire(self, request_id: RequestId, now: int) -> Expire:
        request = self._reservations[request_id].request
        self._leave_waiting(request, State.EXPIRED, now)
        waited_ns = now - request.arrival_ns
        self._decided(now, "expire", request.id, waited_ns=waited_ns)
        return Expire(request, expired(waited_ns, self.admission.retry_after_s()))

    def _leave_waiting(self, request: Request, to: State, now: int) -> None:
        self.lanes.remove(request.id)
        request.state = move(request.state, to)
        self.ended[to.value] = self.ended.get(to.value, 0) + 1
        self.give_up.drop(request.id)
        self.admission.settle(self._reservations.pop(request.id), 0, now)

    def _count_refusal(self, refusal: HeadwayError, request_id: RequestId, now: int, prompt_tokens: int | None) -> None:
        code = refusal.code or refusal.type
        self.refused[code] = self.refused.get(code, 0) + 1
        if isinstance(refusal, Refused):
            self.overload.demand.offered(1, prompt_tokens)
        self._decided(now, "refuse", request_id, code)

    def _decided(self, now: int, kind: Kind, request_id: RequestId, why: str = "", **numbers: float) -> None:
        """Nothing is built where nobody listens."""
        if self._listener is not None:
            self._listener(Decision(now, kind, request_id, why, numbers))
