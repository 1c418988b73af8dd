"""`simulate`: from one instant at which something happens to the next.

Time is an integer, and nothing depends on the order in which equal times are found. At one instant come

1. arrivals, then cancellations, each in the order in which the requests were given;
2. the ends of steps, by number of the worker: they are committed;
3. what the front decides of those who wait, when somebody is about to pull;
4. plans of the workers that are free, by number.

So an arrival is seen by the first plan at or after it, and a cancellation by the first commit, as with the real driver,
which hears what comes while a step is computed, and goes from commit to plan without a pause.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush
from typing import NamedTuple

from headway.core.errors import ConfigError, HeadwayError
from headway.core.front import Front
from headway.core.pace import StepTimeModel
from headway.core.request import Request, RequestId
from headway.core.sequence import Ended, Event
from headway.core.static import StaticScheduler
from headway.simulate.engine import VirtualEngine
from headway.simulate.run import Record, Run, StepRecord
from headway.simulate.settings import VirtualRequest, VirtualSettings

_FOR_EVER = 1 << 62


class Stuck(RuntimeError):
    """Requests wait, everybody is idle, and nothing more will happen: the limits let nobody start them."""


def simulate(requests: Iterable[VirtualRequest], settings: VirtualSettings) -> Run:
    """Let `requests` arrive at the service `settings` describes, until every one has ended.

    Raises `ConfigError` for requests that mean nothing, and `Stuck`.
    """
    return _Drive(list(requests), settings).run()


class _Happening(NamedTuple):
    """What comes from outside; they sort by when, and at one time arrivals before cancellations."""

    at_ns: int
    cancels: bool
    number: int  # of the request


class _Drive:
    def __init__(self, requests: list[VirtualRequest], settings: VirtualSettings) -> None:
        outputs = {request.id: request.output_tokens for request in requests}
        if len(outputs) != len(requests):
            raise ConfigError("two requests of a simulation have the same id")
        for request in requests:
            request.check()
        first = settings.workers[0]
        self.front = Front(
            settings.admits, settings.front, model=StepTimeModel(first.step_time, frozen=True), policy=first.policy
        )
        self.engines = [
            VirtualEngine(number, worker, self.front, outputs, keeps_kv=settings.keeps_kv)
            for number, worker in enumerate(settings.workers)
        ]
        self._requests = requests
        self._leaps = settings.leaps
        self._log: list[StepRecord] | None = [] if settings.log_steps else None
        self._records: dict[RequestId, Record] = {}
        self._alarms: list[tuple[int, int]] = []  # a heap of (when, worker): a step ends, or a wait does
        self._happenings = sorted(_happenings(requests), reverse=True)  # the next one last
        self._arrivals_left = len(requests)
        self._now = 0

    def run(self) -> Run:
        self._expect_nobody()
        while (now := self._next_instant()) is not None:
            self._now = now
            while self._happenings and self._happenings[-1].at_ns == now:
                self._happen(self._happenings.pop())
            self._end_steps(now)
            self._begin_steps(now)
        if len(self.front.lanes):
            raise Stuck(f"{len(self.front.lanes)} requests wait at {self._now} ns, and nothing will start them")
        return Run(
            list(self._records.values()),
            self._log or [],
            max((record.ended_ns for record in self._records.values()), default=0),
            tuple(engine.scheduler.counters for engine in self.engines),
            tuple(engine.scheduler.pool.counters for engine in self.engines),
        )

    def _next_instant(self) -> int | None:
        alarm = self._alarms[0][0] if self._alarms else _FOR_EVER
        happening = self._happenings[-1].at_ns if self._happenings else _FOR_EVER
        at_ns = min(alarm, happening)
        return at_ns if at_ns < _FOR_EVER else None

    # -- steps ---------------------------------------------------------------------------------------------------

    def _end_steps(self, now: int) -> None:
        while self._alarms and self._alarms[0][0] == now:
            engine = self.engines[heappop(self._alarms)[1]]
            if engine.ends_ns == now:  # otherwise it was to be woken
                self._tell(engine.end_step(self._log), engine.number)

    def _begin_steps(self, now: int) -> None:
        idle = [engine for engine in self.engines if engine.ends_ns is None]
        if not idle:
            return
        for expire in self.front.expire(now):
            self._leave(expire.request, "expired", expire.error)
        for engine in idle:
            if not engine.scheduler.busy and not len(self.front.lanes):
                continue
            if engine.begin_step(now, self._most_steps(engine, now)):
                assert engine.ends_ns is not None
                heappush(self._alarms, (engine.ends_ns, engine.number))
            elif (wake_ns := engine.scheduler.wake_ns) is not None:
                heappush(self._alarms, (wake_ns, engine.number))

    def _most_steps(self, engine: VirtualEngine, now: int) -> int:
        """A leap is possible when nobody waits, and ends before anything comes from outside.

        The step into which an arrival or a cancellation falls is taken alone, so that both are met as they would be.
        """
        if not self._leaps or len(self.front.lanes):
            return 1
        next_ns = self._happenings[-1].at_ns if self._happenings else _FOR_EVER
        return engine.certain_steps(next_ns - now - 1)

    # -- from outside --------------------------------------------------------------------------------------------

    def _happen(self, happening: _Happening) -> None:
        asked = self._requests[happening.number]
        if happening.cancels:
            self._cancel(asked.id)
            return
        request = asked.request(happening.number + 1)
        lane = self.front.lanes.lane_of(request)
        record = Record(request.id, self._now, request.prompt_tokens, lane)
        self._records[request.id] = record
        try:
            self.front.submit(request, self._now)
        except HeadwayError as refusal:
            record.end, record.error, record.ended_ns = "refused", refusal, self._now
        self._arrivals_left -= 1
        self._expect_nobody()

    def _cancel(self, request_id: RequestId) -> None:
        record = self._records[request_id]
        if record.end:
            return
        if self.front.cancel(request_id, self._now):
            record.end, record.ended_ns = "cancelled", self._now
            return
        for engine in self.engines:
            self._tell(engine.scheduler.cancel(request_id, self._now), engine.number)

    def _expect_nobody(self) -> None:
        """A batch need not wait for more when no more will come."""
        if not self._arrivals_left:
            for engine in self.engines:
                if isinstance(engine.scheduler, StaticScheduler):
                    engine.scheduler.expects_more = False

    # -- what became of them -------------------------------------------------------------------------------------

    def _tell(self, events: list[Event], worker: int) -> None:
        for event in events:
            if isinstance(event, Ended):
                self.front.settle(event.request.id, event.usage, self._now)
                record = self._records[event.request.id]
                record.worker = worker
                record.started_ns = event.times.started_ns
                record.first_token_ns = event.times.first_token_ns
                record.ended_ns = event.times.ended_ns
                record.output_tokens = event.usage.output_tokens
                record.cached_tokens = event.usage.cached_tokens
                record.end = event.state.value if event.reason is None else event.reason.value
                record.error = event.error

    def _leave(self, request: Request, end: str, error: HeadwayError) -> None:
        record = self._records[request.id]
        record.end, record.error, record.ended_ns = end, error, self._now


def _happenings(requests: list[VirtualRequest]) -> list[_Happening]:
    found = []
    for number, request in enumerate(requests):
        found.append(_Happening(request.arrival_ns, False, number))
        if request.cancel_ns is not None:
            found.append(_Happening(max(request.cancel_ns, request.arrival_ns), True, number))
    return found
