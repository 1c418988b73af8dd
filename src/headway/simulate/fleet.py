"""`Sending`: a gateway on virtual time. A `Front` sends to workers, each of which is a server with a queue of its own.

It does what `gateway/fleet/driver.py` does: plans when somebody comes, a request ends or a signal is heard, and every
`PLAN_EVERY_NS` while somebody waits; lets the ladder look every `ADAPT_EVERY_NS`. A worker (`server.py`) is what our
own server is, or with vLLM's policy what vLLM is. What the gateway knows of it is what it sent there, the first tokens
and ends that come back, and a signal now and then.
"""

from __future__ import annotations

from dataclasses import replace
from heapq import heappop, heappush

from headway.core.errors import HeadwayError
from headway.core.fleet.fleet import Dispatch, Fleet
from headway.core.fleet.routing import Choice
from headway.core.fleet.worker import WorkerLoad, WorkerSpec
from headway.core.front.front import NOTHING, Front
from headway.core.front.ladder import Level, Mode
from headway.core.front.overload import PromisesKept
from headway.core.front.tenants import Tenants
from headway.core.front.treatment import Asked
from headway.core.lanes import Fit
from headway.core.request import Request, Slo, State, Times, Usage
from headway.core.scheduler.policies import VLLM
from headway.core.scheduler.sequence import Ended
from headway.simulate.engine import VirtualEngine
from headway.simulate.run import Record, Run, Sample, Shift
from headway.simulate.server import VirtualServer
from headway.simulate.settings import NS_PER_S, Route, VirtualFleet, VirtualRequest, VirtualSettings
from headway.simulate.timeline import FOR_EVER, Stuck, Timeline

PLAN_EVERY_NS = 50_000_000
ADAPT_EVERY_NS = 250_000_000
# So long may everybody be idle while requests wait, beyond the times after which they give up.
STUCK_NS = 60 * NS_PER_S
# What a plain router has.
NO_LADDER = dict.fromkeys(Level, Mode.OFF)


class RoutedFleet(Fleet):
    """Workers that get whatever somebody else's `route` says, at once and without bound."""

    def __init__(self, route: Route) -> None:
        super().__init__()
        self._route = route

    def has_room(self, now: int) -> bool:  # noqa: ARG002 - as `Fleet`
        """Always."""
        return True

    def choose(self, request: Request, tried: tuple[str, ...], now: int) -> Choice | Fit:  # noqa: ARG002 - as `Fleet`
        """Where the route says."""
        in_flight = {worker_id: len(worker.flights) for worker_id, worker in self.workers.items()}
        return Choice(self._route(request, in_flight), {}, {})


class Sending(Timeline):
    """One front, and servers that it sends to."""

    def __init__(self, requests: list[VirtualRequest], settings: VirtualSettings) -> None:
        super().__init__(requests, settings)
        assert settings.fleet is not None
        self._fleet = fleet = settings.fleet
        self.front = _front(settings, fleet)
        self.servers = [
            VirtualServer(number, worker, self.outputs, keeps_kv=settings.keeps_kv)
            for number, worker in enumerate(settings.workers)
        ]
        self.engines = [server.engine for server in self.servers]
        specs = fleet.specs or tuple(WorkerSpec(f"w{number}") for number in range(len(self.servers)))
        self._names = [spec.id for spec in specs]
        self._numbers = {name: number for number, name in enumerate(self._names)}
        for spec in specs:
            self.front.add_worker(spec, 0)
        self.front.set_levels(NO_LADDER if fleet.route is not None else fleet.levels, 0)
        self._leaps = settings.leaps
        self._requests_inside: dict[str, Request] = {}  # as the front knows them
        self._kept = PromisesKept()
        self._samples: list[Sample] = []
        self._shifts: list[Shift] = []
        self._next_adapt_ns = 0
        # When each worker is asked next: in turns, so that not all of them are known best at one time.
        step_ns = fleet.scrape_every_ns // len(self.servers)
        self._next_scrape_ns = [number * step_ns for number in range(len(self.servers))]
        self._heard: list[tuple[int, int, WorkerLoad]] = []  # a heap of (when it is heard, whose, what)
        limits_ns = (request.slo.ttft_limit_ns for request in requests)
        self._patience_ns = STUCK_NS + settings.front.queue_timeout_ns + max(limits_ns, default=0)
        self._idle_since_ns: int | None = None

    def run(self) -> Run:
        """See `Timeline`."""
        return replace(super().run(), samples=tuple(self._samples), shifts=tuple(self._shifts))

    # -- instants ----------------------------------------------------------------------------------------------------

    def next_instant(self) -> int | None:
        """The clock goes on while anybody is inside or to come; then nothing it could show would change."""
        at_ns = super().next_instant()
        if at_ns is None and not self._requests_inside:
            return None
        at_ns = FOR_EVER if at_ns is None else at_ns
        if len(self.front.lanes):
            at_ns = min(at_ns, self.now - self.now % PLAN_EVERY_NS + PLAN_EVERY_NS)
        if self._heard:
            at_ns = min(at_ns, self._heard[0][0])
        return min(at_ns, self._next_adapt_ns, *self._next_scrape_ns)

    def decide(self, now: int) -> None:
        """Hear the signals that are due, ask who goes where, and let the ladder look."""
        for number, at_ns in enumerate(self._next_scrape_ns):
            if at_ns == now:
                self._next_scrape_ns[number] += self._fleet.scrape_every_ns
                heappush(self._heard, (now + self._fleet.scrape_late_ns, number, self.servers[number].load(now)))
        while self._heard and self._heard[0][0] == now:
            _, number, load = heappop(self._heard)
            self.front.observe(self._names[number], load, now)
        self._plan()
        if self._next_adapt_ns == now:
            self._next_adapt_ns += ADAPT_EVERY_NS
            self._adapt(now)
        self._check_moving(now)

    def _adapt(self, now: int) -> None:
        changes = self.front.adapt(now, slo_met_ratio=self._kept.ratio(self.front.lanes.relegations))
        self._shifts += (Shift(now, change.level, change.active, change.height) for change in changes)
        admission = self.front.admission
        running = tuple(len(server.engine.scheduler.running) for server in self.servers)
        queued = tuple(server.queued for server in self.servers)
        height = self.front.ladder.height
        self._samples.append(Sample(now, admission.waiting, admission.waiting_tokens, height, running, queued))

    def _check_moving(self, now: int) -> None:
        idle = not self.computing and self.next_from_outside == FOR_EVER
        if not idle or not self._requests_inside:
            self._idle_since_ns = None
        elif self._idle_since_ns is None:
            self._idle_since_ns = now
        elif now - self._idle_since_ns > self._patience_ns:
            raise Stuck(f"{len(self._requests_inside)} requests wait at {now} ns, and nothing will start them")

    def begin_steps(self, now: int) -> None:
        """See `Timeline`."""
        for server in self.servers:
            engine = server.engine
            if engine.ends_ns is None and (engine.scheduler.busy or server.waiting):
                self.begin_step(engine, now, self._most_steps(server, now))

    def _most_steps(self, server: VirtualServer, now: int) -> int:
        """A leap is possible when nobody waits to be sent, and ends before anybody could come or ask how it is.

        Whoever ends elsewhere meanwhile makes room for nobody.
        """
        if not self._leaps or len(self.front.lanes):
            return 1
        if self.follow is not None and len(self.servers) > 1:
            return 1  # whoever ends on another makes room for somebody who comes
        next_ns = min(self.next_from_outside, self._next_scrape_ns[server.engine.number], self._next_adapt_ns)
        return server.engine.certain_steps(now, min(next_ns, server.stands_until_ns))

    # -- requests ----------------------------------------------------------------------------------------------------

    def admit(self, asked: VirtualRequest, request: Request, record: Record) -> None:
        """As `gateway/fleet/admit.py` does it: the ladder's word first."""
        treatment = self.front.treat(
            Asked(
                id=request.id,
                tenant=request.tenant,
                prompt_tokens=request.prompt_tokens,
                max_tokens=request.max_tokens,
                priority=request.priority,
                batch=asked.background,
            ),
            self.now,
        )
        record.degraded = treatment.header
        if treatment.divert:
            self.leave(record, "diverted")
            return
        trim, limits = treatment.trim_to_tokens, (treatment.max_tokens, treatment.priority)
        if trim is not None or limits != (request.max_tokens, request.priority):
            prompt = request.prompt if trim is None else request.prompt[-trim:]
            request = replace(request, prompt=prompt, max_tokens=limits[0], priority=limits[1])
            record.prompt_tokens = request.prompt_tokens
        record.lane = self.front.lanes.lane_of(request)
        self.front.submit(request, self.now)
        self._requests_inside[request.id] = request
        self._plan()

    def _plan(self) -> None:
        if not len(self.front.lanes):
            return
        for one in self.front.plan(self.now):
            record = self.records[one.request.id]
            if isinstance(one, Dispatch):
                self._send(one, record)
            else:
                del self._requests_inside[record.id]
                self.leave(record, "expired", one.error)

    def _send(self, dispatch: Dispatch, record: Record) -> None:
        record.sent_ns = self.now
        record.worker = self._numbers[dispatch.worker]
        try:
            self.servers[record.worker].take(dispatch.request, self.now)
        except HeadwayError as refusal:
            self._settle(record, NOTHING, State.FAILED)
            self.leave(record, "failed", refusal)

    def began(self, record: Record, engine: VirtualEngine) -> None:
        """The first byte is back."""
        super().began(record, engine)
        self.servers[engine.number].began(record.id, self.now)
        self.front.began(record.id, self.now)

    def ended(self, record: Record, event: Ended, engine: VirtualEngine) -> None:
        """The answer is whole, or the worker failed it."""
        self.servers[engine.number].settle(event, self.now)
        if record.end:
            return  # its client had left, and was settled then
        request = self._requests_inside[record.id]
        slo = request.slo
        self._settle(record, event.usage, event.state)
        if event.state is State.FINISHED and (slo.ttft_ns or slo.itl_ns):
            self._kept.ended(request, record.sent_ns, kept=_kept(record, slo, event.times, event.usage))

    def cancel(self, record: Record) -> None:
        """Its client has gone: it is settled at once, and its worker drops it with the step in flight."""
        if self.front.cancel(record.id, self.now):
            del self._requests_inside[record.id]
            self.leave(record, "cancelled")
            self._plan()
            return
        assert record.worker is not None
        server = self.servers[record.worker]
        record.output_tokens = server.output_tokens(record.id)
        prompt_tokens = record.prompt_tokens if record.first_token_ns else 0
        self._settle(record, Usage(prompt_tokens, record.output_tokens), State.CANCELLED)
        self.leave(record, "cancelled")
        self.tell(server.cancel(record.id, self.now), server.engine)
        self._plan()

    def _settle(self, record: Record, usage: Usage, end: State) -> None:
        del self._requests_inside[record.id]
        self.front.settle(record.id, usage, self.now, end=end, failed=end is State.FAILED)


def _front(settings: VirtualSettings, fleet: VirtualFleet) -> Front:
    tenants = Tenants(settings.default_limits, settings.tenants)
    if fleet.route is None:
        return Front(settings.admits, settings.front, tenants=tenants, degradation=fleet.degradation, remote=True)
    front = Front(
        settings.admits, settings.front, tenants=tenants, remote=True, policy=VLLM
    )  # first come, first served
    front.fleet = RoutedFleet(fleet.route)
    return front


def _kept(record: Record, slo: Slo, times: Times, usage: Usage) -> bool:
    """As the gateway sees it: from its own arrival on, and the gaps on average."""
    if slo.ttft_ns and times.first_token_ns - record.arrival_ns > slo.ttft_ns:
        return False
    gaps = usage.output_tokens - 1
    return not (slo.itl_ns and gaps > 0 and (times.ended_ns - times.first_token_ns) / gaps > slo.itl_ns)
