"""`FleetDriver`: the other body of a `Front`, whose workers are elsewhere. It has the clock, and does what is decided.

There is no task per request: whoever answers a client waits at its `Place` until the front has a worker for it, speaks
to that worker itself, and says here how it went. A place is left exactly once, whatever happens to whoever holds it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from headway.core.errors import HeadwayError, NoWorker
from headway.core.fleet.fleet import Dispatch
from headway.core.fleet.worker import WorkerLoad, WorkerSpec
from headway.core.front.admission import AdmissionLimits
from headway.core.front.front import NOTHING, Front, FrontLimits
from headway.core.front.ladder import Level, LevelChange, Mode
from headway.core.front.overload import PromisesKept
from headway.core.front.tenants import TenantLimits
from headway.core.front.treatment import Asked, Degradation, Treatment
from headway.core.request import Request, RequestId, State, Usage
from headway.engine.journal import Journal
from headway.gateway.fleet.stimuli import submitted, treated
from headway.workers.quota import SharedQuotas

log = logging.getLogger("headway.gateway")

NS_PER_S = 1_000_000_000
PLAN_EVERY_S = 0.05
ADAPT_EVERY_S = 0.25
KEEP_HOUSE_EVERY_S = 1.0
# So long may nobody be up that could serve those who wait, before they are told: a worker may come back.
ALL_DOWN_NS = 2 * NS_PER_S
STOPPED = "The server is stopped."


class Place:
    """One request inside: it waits, is at a worker, or is over. Its owner must `leave` it on every way out."""

    __slots__ = ("_driver", "_over", "_waiter", "dispatch", "error", "request", "sent_ns")

    def __init__(self, driver: FleetDriver, request: Request) -> None:
        self._driver = driver
        self._waiter: asyncio.Future[None] | None = None
        self._over = False
        self.request = request
        self.dispatch: Dispatch | None = None
        self.error: HeadwayError | None = None
        self.sent_ns = 0

    async def placed(self) -> Dispatch:
        """Where to send it, as soon as that is decided. Raises why it will not be."""
        while self.dispatch is None:
            if self.error is not None:
                raise self.error
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return self.dispatch

    def began(self) -> None:
        """The first byte came."""
        self._driver.began(self.request.id, self._driver.clock())

    def told_at_once(self, output_tokens: int) -> None:
        """A whole answer came, and nobody knows when its first token was made: as if they had come evenly.

        What is taken is at most what counts as no wait at all: of a worker's queue these answers say nothing.
        """
        stay_ns = self._driver.clock() - self.sent_ns
        self._driver.began(self.request.id, self.sent_ns + int(stay_ns * min(0.25, 1 / (output_tokens + 1))))

    def finished(self, usage: Usage) -> None:
        self.end_as(usage, State.FINISHED, failed=False)

    def failed(self, usage: Usage, *, by_worker: bool) -> None:
        """It ended without a good answer, by the worker's fault or by its own."""
        self.end_as(usage, State.FAILED, failed=by_worker)

    def lost(self, usage: Usage, *, began: bool) -> None:
        """The worker failed it. Returns when it waits for another; raises what its owner is to hear otherwise."""
        self.dispatch = None
        error = self._driver.lost(self.request.id, usage, began=began)
        if error is not None:
            self._over = True
            raise error

    def leave(self, usage: Usage = NOTHING) -> None:
        """Its owner is gone, or done. Idempotent."""
        if not self._over:
            self._over = True
            self._driver.left(self, usage)

    def end_as(self, usage: Usage, end: State, *, failed: bool) -> None:
        """It ended in such a state; `failed`: by its worker's fault."""
        assert not self._over, "a place is left once"
        self._over = True
        self._driver.ended(self.request.id, usage, end, failed=failed)

    # The driver's side.

    def send(self, dispatch: Dispatch, now: int) -> None:
        self.dispatch = dispatch
        self.sent_ns = now
        self._wake()

    def refuse(self, error: HeadwayError) -> None:
        """It is out of the front already."""
        self._over = True
        self.error = error
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class FleetDriver:
    """Everything runs on one event loop. `chores` are called about once a second."""

    PLACE: type[Place] = Place
    LEVEL_IS = "degradation level %d (%s) is %s"

    def __init__(
        self,
        front: Front,
        *,
        decisions: Journal | None = None,
        clock: Callable[[], int] = time.monotonic_ns,
        chores: Sequence[Callable[[], object]] = (),
        quotas: SharedQuotas | None = None,
    ) -> None:
        assert front.remote, "a fleet's front sends; it is not pulled from"
        self.front = front
        self.clock = clock
        self.places: dict[RequestId, Place] = {}
        self.chores = list(chores)
        self.quotas = quotas
        self._decisions = decisions
        self._kept = PromisesKept()
        self._down_since_ns: int | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._idle = asyncio.Event()

    @property
    def decider(self) -> Front:
        """Whose limits, lanes and ladder are those that were asked for."""
        return self.front

    # -- the requests ----------------------------------------------------------------------------------------------

    def check_door(self, tenant: str) -> None:
        """Raise what `enter` would raise for any request of a tenant's, before its body is read."""
        front = self.front
        if not (front.admission.waiting or front.closed or front.draining):
            return  # there is nothing to refuse it for
        now = self.clock()
        try:
            front.check_door(now, tenant)
        except HeadwayError:
            self._told("door", now, tenant=tenant)
            raise

    def treat(self, asked: Asked, *, again: bool = False) -> Treatment:
        """What becomes of a call before it is let in; `again`: of what is left of it. Raises why it is refused."""
        now = self.clock()
        if self._decisions is not None:
            self._told("treat", now, request=asked.id, again=again, **treated(asked))
        return self.front.treat(asked, now)

    def diverted(self, request_id: str) -> None:
        """A call that was treated is kept for later."""
        self._told("divert", self.clock(), request=request_id)

    def enter(self, request: Request) -> Place:
        """Let it in, and perhaps on to a worker at once. Raises the `HeadwayError` with which it is refused."""
        now = self.clock()
        if self._decisions is not None:
            self._told("submit", now, requests=[submitted(request)])
        self.front.submit(request, now)
        place = self.places[request.id] = self.PLACE(self, request)
        self.plan()
        return place

    def began(self, request_id: RequestId, now: int) -> None:
        if self._decisions is not None:
            self._told("began", now, request=request_id)
        self.front.began(request_id, now)

    def ended(self, request_id: RequestId, usage: Usage, end: State, *, failed: bool) -> None:
        now = self.clock()
        if self._decisions is not None:
            self._told("settle", now, request=request_id, usage=asdict(usage), end=end.value, failed=failed)
        self._forget(request_id)
        self.front.settle(request_id, usage, now, end=end, failed=failed)
        self.plan()

    def lost(self, request_id: RequestId, usage: Usage, *, began: bool) -> HeadwayError | None:
        now = self.clock()
        if self._decisions is not None:
            self._told("lost", now, request=request_id, began=began, usage=asdict(usage))
        error = self.front.lost(request_id, now, began=began, usage=usage)
        if error is not None:
            self._forget(request_id)
        self.plan()
        return error

    def left(self, place: Place, usage: Usage) -> None:
        request_id, now = place.request.id, self.clock()
        if self._decisions is not None:
            self._told("cancel", now, request=request_id)
        if self.front.cancel(request_id, now):
            self._forget(request_id)
            self.plan()
        else:
            self.ended(request_id, usage, State.CANCELLED, failed=False)

    def promised(self, place: Place, *, kept: bool) -> None:
        """A request that was promised something has ended: what the ladder sees of it."""
        self._kept.ended(place.request, place.sent_ns, kept=kept)

    def _forget(self, request_id: RequestId) -> None:
        del self.places[request_id]
        if not self.places:
            self._idle.set()

    # -- what is decided, done -------------------------------------------------------------------------------------

    def plan(self) -> None:
        """Ask who goes where, and tell them."""
        front, now = self.front, self.clock()
        if not len(front.lanes):
            return  # the usual case: whoever came was sent at once
        if self._decisions is not None:
            self._told("plan", now)
        for one in front.plan(now):
            if isinstance(one, Dispatch):
                self.places[one.request.id].send(one, now)
            else:
                place = self.places[one.request.id]
                self._forget(one.request.id)
                place.refuse(one.error)

    def refuse_hopeless(self) -> None:
        """Nobody has been up for a while who could serve those who wait: they are told, rather than kept."""
        front, now = self.front, self.clock()
        if not len(front.lanes):
            self._down_since_ns = None
            return
        hopeless: list[tuple[Request, HeadwayError]] = []
        up: dict[tuple[str, str], HeadwayError | None] = {}
        for request in front.lanes:
            kind = (request.model, request.pool)
            if kind not in up:
                up[kind] = _why_nobody(front, request, now)
            if (error := up[kind]) is not None:
                hopeless.append((request, error))
        if not hopeless:
            self._down_since_ns = None
        elif self._down_since_ns is None:
            self._down_since_ns = now
        elif now - self._down_since_ns >= ALL_DOWN_NS:
            for request, error in hopeless:
                self._turn_away(request, error, now)

    def _turn_away(self, request: Request, error: HeadwayError, now: int) -> None:
        self._told("turn_away", now, request=request.id)
        self.front.cancel(request.id, now)
        place = self.places[request.id]
        self._forget(request.id)
        place.refuse(error)

    # -- the workers -------------------------------------------------------------------------------------------------

    def add_worker(self, spec: WorkerSpec) -> None:
        now = self.clock()
        self._told("add_worker", now, spec={**asdict(spec), "models": sorted(spec.models)})
        self.front.add_worker(spec, now)
        self.plan()

    def remove_worker(self, worker_id: str) -> None:
        """It gets nothing more; who is there ends there."""
        now = self.clock()
        self._told("remove_worker", now, worker=worker_id)
        self.front.remove_worker(worker_id, now)

    def drain_worker(self, worker_id: str, *, draining: bool) -> None:
        now = self.clock()
        self._told("drain_worker", now, worker=worker_id, draining=draining)
        self.front.fleet.drain(worker_id, now, draining=draining)
        self.plan()

    def loaded(self, worker_id: str, load: WorkerLoad) -> None:
        if worker_id not in self.front.fleet.workers:
            return  # it was removed a moment ago
        now = self.clock()
        self._told("observe", now, worker=worker_id, load=asdict(load))
        self.front.observe(worker_id, load, now)
        self.plan()

    def checked(self, worker_id: str, *, well: bool) -> None:
        if worker_id not in self.front.fleet.workers:
            return
        now = self.clock()
        self._told("health", now, worker=worker_id, well=well)
        self.front.fleet.health(worker_id, now, well=well)
        self.plan()

    def serves(self, worker_id: str, models: frozenset[str]) -> None:
        """It serves other models than were known."""
        worker = self.front.fleet.workers.get(worker_id)
        if worker is None:
            return
        self._told("serves", self.clock(), worker=worker_id, models=sorted(models))
        worker.spec = replace(worker.spec, models=models)
        self.plan()

    def reconfigure(self, admission: AdmissionLimits, limits: FrontLimits, degradation: Degradation) -> None:
        """Other limits from now on; the lanes keep their classes."""
        self._told(
            "reconfigure",
            self.clock(),
            admission=asdict(admission),
            limits=asdict(limits),
            degradation=asdict(degradation),
        )
        self.front.reconfigure(admission, limits, degradation)
        self.plan()

    def set_tenants(self, default: TenantLimits, overrides: Mapping[str, TenantLimits]) -> None:
        """Other limits for tenants from now on."""
        told = {name: asdict(limits) for name, limits in overrides.items()}
        self._told("tenants_changed", self.clock(), default_limits=asdict(default), tenants=told)
        self.front.tenants.set(default, overrides)

    # -- the ladder ------------------------------------------------------------------------------------------------

    def set_levels(self, modes: Mapping[Level, Mode]) -> None:
        now = self.clock()
        self._told("levels", now, modes={level.name.lower(): mode.value for level, mode in modes.items()})
        self._tell(self.front.set_levels(modes, now))

    def adapt(self) -> None:
        now = self.clock()
        kept_ratio = self._kept.ratio(self.front.lanes.relegations)
        self._told("adapt", now, slo_met_ratio=kept_ratio)
        self._tell(self.front.adapt(now, slo_met_ratio=kept_ratio))

    def _tell(self, changes: Sequence[LevelChange]) -> None:
        for change in changes:
            word = "entered" if change.active else "left"
            log.warning(self.LEVEL_IS, change.level, change.level.name.lower(), word)

    # -- its own life ----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to plan by the clock, on the running event loop."""
        every = ((PLAN_EVERY_S, self.plan), (ADAPT_EVERY_S, self.adapt), (KEEP_HOUSE_EVERY_S, self._keep_house))
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(_repeat(wait_s, do)) for wait_s, do in every]

    async def drain(self) -> None:
        """Take nothing new, and return when everything inside has ended."""
        self._told("drain", self.clock())
        self.front.draining = True
        while self.places:
            self._idle.clear()
            await self._idle.wait()

    async def close(self) -> None:
        """Stop. Who waits is told so; who is at a worker ends when its owner leaves."""
        self._told("closed", self.clock(), reason=STOPPED)
        self.front.draining = True
        self.front.closed = STOPPED
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        now = self.clock()
        for request in list(self.front.lanes):
            error = NoWorker("The server was stopped while the request waited.", retry_after_s=1.0)
            self._turn_away(request, error, now)

    def _keep_house(self) -> None:
        self.refuse_hopeless()
        for chore in self.chores:
            chore()

    def _told(self, kind: str, now: int, **fields: Any) -> None:
        """Write down what the core is about to be told, so that its decisions can be replayed."""
        if self._decisions is not None:
            self._decisions.write({"stimulus": kind, "now_ns": now, **fields})


async def _repeat(wait_s: float, do: Callable[[], object]) -> None:
    while True:
        await asyncio.sleep(wait_s)
        try:
            do()
        except Exception:  # one defect must not stop the clock for everybody
            log.exception("a defect in %s", getattr(do, "__name__", do))


def _why_nobody(front: Front, request: Request, now: int) -> HeadwayError | None:
    try:
        front.fleet.check_up(request, now)
    except HeadwayError as error:
        return error
    return None
