"""`--shadow`: what this gateway would do is decided and written down, and nothing of it is done.

Two fronts are told the same. One carries the traffic: it chooses a worker for each request, at once, and has no limit.
The other has the limits, the lanes, the windows and the ladder, and decides about a `_Double` of each request: refused,
made less of, kept waiting, turned away. A double that is sent to a worker takes there as long as its original did: so
what the limits would have held up ends that much later, and holds its place, its quota and its window until then.

What cannot be known stays out: in an overload the originals slow each other down, where the limits would have kept them
apart, so doubles stay longer at their workers than they would have.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace

from headway.core.decisions import Decision
from headway.core.errors import HeadwayError
from headway.core.fleet.fleet import Dispatch
from headway.core.fleet.unbounded import UnboundedFleet
from headway.core.fleet.worker import WorkerLoad, WorkerSpec
from headway.core.front.admission import AdmissionLimits
from headway.core.front.front import NOTHING, Front, FrontLimits
from headway.core.front.ladder import Level, Mode
from headway.core.front.tenants import TenantLimits
from headway.core.front.treatment import Asked, Degradation, Treatment
from headway.core.request import Request, RequestId, State, Usage
from headway.engine.journal import Journal
from headway.gateway.fleet.config import MAX_MODEL_LEN
from headway.gateway.fleet.driver import NS_PER_S, FleetDriver, Place

NO_LIMIT = 1 << 60
# So many calls may be between what is decided of them at the door and their being let in.
MOST_TREATED = 4096


def open_front(limits: FrontLimits) -> Front:
    """One that lets everybody in, sends everybody on at once, and knows no tenants. Lanes only have names."""
    lanes = tuple(replace(lane, slots=NO_LIMIT, tokens=NO_LIMIT) for lane in limits.lanes)
    admission = AdmissionLimits(MAX_MODEL_LEN, NO_LIMIT, max_waiting=NO_LIMIT, max_waiting_tokens=NO_LIMIT)
    front = Front(admission, FrontLimits(age_bound_ns=0, lanes=lanes), remote=True)
    front.fleet = UnboundedFleet()
    front.set_levels(dict.fromkeys(Level, Mode.OFF), 0)
    return front


class Would:
    """Counts what would have been done: by decision, and by what for."""

    def __init__(self) -> None:
        self.counts: dict[tuple[str, str], int] = {}

    def hear(self, decision: Decision) -> None:
        """A listener of the front that only decides."""
        kind, why = decision.kind, decision.why
        if kind in {"refuse", "degrade"}:
            self._count(kind, why)
        elif kind in {"expire", "displace"}:
            self._count(kind, "")
        elif kind == "dispatch" and decision.numbers["waited_ns"] > 0:
            self._count("queue", "")

    def _count(self, kind: str, why: str) -> None:
        self.counts[kind, why] = self.counts.get((kind, why), 0) + 1


class _Double(Place):
    """A request as the limits would have it. What became of its original is told to it when it has come so far."""

    __slots__ = ("began_after_ns", "end", "shadow")

    def __init__(self, driver: FleetDriver, request: Request) -> None:
        super().__init__(driver, request)
        self.shadow: Shadow | None = None
        self.began_after_ns: int | None = None  # its original was sent
        self.end: tuple[int, Usage, State, bool] | None = None

    def send(self, dispatch: Dispatch, now: int) -> None:
        super().send(dispatch, now)
        if self.shadow is not None:
            self.shadow.sent(self)

    @property
    def waits(self) -> bool:
        return self.dispatch is None

    @property
    def over(self) -> bool:
        return self._over


class _Decider(FleetDriver):
    """Drives the front that only decides."""

    PLACE = _Double
    LEVEL_IS = "shadow: degradation level %d (%s) would be %s"


class Shadow:
    """The doubles, and the clock that lets each of them take as long as its original."""

    def __init__(self, decider: FleetDriver, would: Would) -> None:
        self.decider = decider
        self.would = would
        self._doubles: dict[RequestId, _Double] = {}  # by their originals, while those are inside
        self._treated: OrderedDict[str, Treatment | None] = OrderedDict()  # None: refused
        self._timers: set[asyncio.TimerHandle] = set()

    @classmethod
    def of(cls, front: Front, would: Would, decisions: Journal | None = None) -> Shadow:
        """Before the front that has the limits, whose decisions `would` hears."""
        return cls(_Decider(front, decisions=decisions), would)

    # -- what the originals do ---------------------------------------------------------------------------------------

    def treat(self, asked: Asked, *, again: bool) -> None:
        if again and self._treated.get(asked.id, "") is None:
            return
        treatment: Treatment | None = None
        with suppress(HeadwayError):
            treatment = self.decider.treat(asked, again=again)
            if treatment.divert:
                self.decider.diverted(asked.id)
                treatment = None
        self._treated[asked.id] = treatment
        self._treated.move_to_end(asked.id)
        if len(self._treated) > MOST_TREATED:
            self._treated.popitem(last=False)

    def enter(self, request: Request) -> None:
        call = request.id.rpartition("#")[0]
        asked = replace(request)
        if call in self._treated:
            treatment = self._treated.pop(call)
            if treatment is None:
                return
            asked = replace(
                asked,
                prompt=request.prompt if treatment.trim_to_tokens is None else range(treatment.trim_to_tokens),
                max_tokens=treatment.max_tokens,
                priority=max(treatment.priority, request.priority),
            )
        with suppress(HeadwayError):
            double = self.decider.enter(asked)
            assert isinstance(double, _Double)
            self._doubles[request.id] = double
            double.shadow = self
            self.sent(double)

    def began(self, request_id: RequestId, after_ns: int) -> None:
        if (double := self._doubles.get(request_id)) is not None:
            double.began_after_ns = after_ns
            self.sent(double)

    def ended(self, request_id: RequestId, after_ns: int, usage: Usage, end: State, *, failed: bool) -> None:
        if (double := self._doubles.pop(request_id, None)) is not None:
            double.end = (after_ns, usage, end, failed)
            self.sent(double)

    def left(self, request_id: RequestId, usage: Usage) -> None:
        """Its client has gone, whatever its double is doing."""
        if (double := self._doubles.pop(request_id, None)) is not None:
            double.leave(NOTHING if double.waits else usage)

    def promised(self, request_id: RequestId, *, kept: bool) -> None:
        double = self._doubles.get(request_id)
        if double is not None and not double.waits:
            self.decider.promised(double, kept=kept)

    # -- what the doubles do -----------------------------------------------------------------------------------------

    def sent(self, double: _Double) -> None:
        """What is known of its original, at the time when the double has come so far."""
        if double.waits or double.over:
            return
        if double.began_after_ns is not None:
            after_ns, double.began_after_ns = double.began_after_ns, None
            self.at(double.sent_ns + after_ns, lambda: None if double.over else double.began())
        if double.end is not None:
            (after_ns, usage, end, failed), double.end = double.end, None
            self.at(
                double.sent_ns + after_ns, lambda: None if double.over else double.end_as(usage, end, failed=failed)
            )

    def at(self, at_ns: int, do: Callable[[], None]) -> None:
        """When it is time."""
        wait_ns = at_ns - self.decider.clock()
        if wait_ns <= 0:
            do()
            return

        def due() -> None:
            self._timers.discard(timer)
            do()

        timer = asyncio.get_running_loop().call_later(wait_ns / NS_PER_S, due)
        self._timers.add(timer)

    async def close(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        await self.decider.close()


class ShadowingDriver(FleetDriver):
    """Carries the traffic without a limit, and lets `shadow` know."""

    def __init__(self, front: Front, shadow: Shadow) -> None:
        super().__init__(front, clock=shadow.decider.clock)
        self.shadow = shadow

    @property
    def decider(self) -> Front:
        return self.shadow.decider.front

    def check_door(self, tenant: str) -> None:
        """Only whether it serves at all: what else the door would say is decided when the call has been read."""
        if self.front.draining or self.front.closed:
            super().check_door(tenant)

    def treat(self, asked: Asked, *, again: bool = False) -> Treatment:
        self.shadow.treat(asked, again=again)
        return super().treat(asked, again=again)

    def enter(self, request: Request) -> Place:
        self.shadow.enter(request)
        try:
            return super().enter(request)
        except HeadwayError:
            self.shadow.left(request.id, NOTHING)
            raise

    def began(self, request_id: RequestId, now: int) -> None:
        self.shadow.began(request_id, now - self.places[request_id].sent_ns)
        super().began(request_id, now)

    def ended(self, request_id: RequestId, usage: Usage, end: State, *, failed: bool) -> None:
        if end is State.CANCELLED:
            self.shadow.left(request_id, usage)
        else:
            after_ns = self.clock() - self.places[request_id].sent_ns
            self.shadow.ended(request_id, after_ns, usage, end, failed=failed)
        super().ended(request_id, usage, end, failed=failed)

    def lost(self, request_id: RequestId, usage: Usage, *, began: bool) -> HeadwayError | None:
        after_ns = self.clock() - self.places[request_id].sent_ns
        error = super().lost(request_id, usage, began=began)
        if error is not None:
            self.shadow.ended(request_id, after_ns, usage, State.FAILED, failed=True)
        return error

    def left(self, place: Place, usage: Usage) -> None:
        super().left(place, usage)
        self.shadow.left(place.request.id, usage)

    def promised(self, place: Place, *, kept: bool) -> None:
        self.shadow.promised(place.request.id, kept=kept)

    # -- both --------------------------------------------------------------------------------------------------------

    def add_worker(self, spec: WorkerSpec) -> None:
        self.shadow.decider.add_worker(spec)
        super().add_worker(spec)

    def remove_worker(self, worker_id: str) -> None:
        self.shadow.decider.remove_worker(worker_id)
        super().remove_worker(worker_id)

    def drain_worker(self, worker_id: str, *, draining: bool) -> None:
        super().drain_worker(worker_id, draining=draining)
        self.shadow.decider.drain_worker(worker_id, draining=draining)

    def loaded(self, worker_id: str, load: WorkerLoad) -> None:
        self.shadow.decider.loaded(worker_id, load)
        super().loaded(worker_id, load)

    def checked(self, worker_id: str, *, well: bool) -> None:
        self.shadow.decider.checked(worker_id, well=well)
        super().checked(worker_id, well=well)

    def serves(self, worker_id: str, models: frozenset[str]) -> None:
        self.shadow.decider.serves(worker_id, models)
        super().serves(worker_id, models)

    # -- the limits, which are the shadow's alone ----------------------------------------------------------------------

    def reconfigure(self, admission: AdmissionLimits, limits: FrontLimits, degradation: Degradation) -> None:
        self.shadow.decider.reconfigure(admission, limits, degradation)

    def set_tenants(self, default: TenantLimits, overrides: Mapping[str, TenantLimits]) -> None:
        self.shadow.decider.set_tenants(default, overrides)

    def set_levels(self, modes: Mapping[Level, Mode]) -> None:
        self.shadow.decider.set_levels(modes)

    def start(self) -> None:
        self.shadow.decider.start()
        super().start()

    async def close(self) -> None:
        await super().close()
        await self.shadow.close()
