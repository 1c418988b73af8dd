"""`Timeline`: from one instant at which something happens to the next, whoever the bodies are that live on it.

Time is an integer, and nothing depends on the order in which equal times are found. At one instant come

1. arrivals, then cancellations, each in the order in which the requests were given;
2. the ends of steps, by number of the worker: they are committed;
3. what the front decides of those who wait;
4. plans of the workers that are free, by number.

So an arrival is seen by the first plan at or after it, and a cancellation by the first commit, as with the real driver,
which hears what comes while a step is computed, and goes from commit to plan without a pause.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable
from collections.abc import Sequence as ReadOnlySequence
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from headway.core.errors import ConfigError, HeadwayError, Refused
from headway.core.pace import Shape
from headway.core.request import Request, RequestId
from headway.core.scheduler.sequence import Ended, Event, Produced
from headway.core.scheduler.static import StaticScheduler
from headway.simulate.engine import VirtualEngine
from headway.simulate.run import Reach, Record, Run, StepRecord
from headway.simulate.settings import VirtualRequest, VirtualSettings

FOR_EVER = 1 << 62
# So many instants pass between two words to whoever watches.
WATCHED_EVERY = 256

# Who comes when a request has ended, at a time; None: nobody.
Follow = Callable[[Record, int], VirtualRequest | None]
# Told now and then how late it is, and how many requests have ended.
Watch = Callable[[int, int], None]


class Stuck(RuntimeError):
    """Requests wait, everybody is idle, and nothing more will happen: the limits let nobody start them."""


class _Happening(NamedTuple):
    """What comes from outside; they sort by when, and at one time arrivals before cancellations."""

    at_ns: int
    cancels: bool
    number: int  # of the request


class Timeline(ABC):
    """Requests, engines, and what becomes of both. A body says who decides, and how requests reach the engines."""

    engines: ReadOnlySequence[VirtualEngine]

    def __init__(self, requests: list[VirtualRequest], settings: VirtualSettings) -> None:
        self.outputs = {request.id: request.output_tokens for request in requests}
        if len(self.outputs) != len(requests):
            raise ConfigError("two requests of a simulation have the same id")
        for request in requests:
            request.check()
        self.now = 0
        self.arrivals_left = len(requests)
        self.records: dict[RequestId, Record] = {}
        self._away: set[RequestId] = set()  # refused, and will come again
        self._requests = requests
        self._settings = settings
        self._log: list[StepRecord] | None = [] if settings.log_steps else None
        self._alarms: list[tuple[int, int]] = []  # a heap of (when, worker): a step ends, or a wait does
        self._happenings = _happenings(requests)  # a heap
        self.follow: Follow | None = None
        self.watch: Watch | None = None
        self._ended = self._instants = 0

    def run(self) -> Run:
        """Until every request has ended. Raises `Stuck`."""
        while (at_ns := self.next_instant()) is not None:
            self.now = at_ns
            self._instants += 1
            if self.watch is not None and not self._instants % WATCHED_EVERY:
                self.watch(at_ns, self._ended)
            while self._happenings and self._happenings[0].at_ns == at_ns:
                self._happen(heappop(self._happenings))
            self._end_steps(at_ns)
            self.decide(at_ns)
            self.begin_steps(at_ns)
        return Run(
            list(self.records.values()),
            self._log or [],
            max((record.ended_ns for record in self.records.values()), default=0),
            tuple(engine.scheduler.counters for engine in self.engines),
            tuple(engine.scheduler.pool.counters for engine in self.engines),
            _farthest([engine.reach for engine in self.engines]),
        )

    # -- what a body says --------------------------------------------------------------------------------------------

    @abstractmethod
    def admit(self, asked: VirtualRequest, request: Request, record: Record) -> None:
        """Let a request in. Raises the `HeadwayError` with which it is refused."""

    @abstractmethod
    def cancel(self, record: Record) -> None:
        """A request's user has left."""

    @abstractmethod
    def decide(self, now: int) -> None:
        """Ask the front, if it is due."""

    @abstractmethod
    def begin_steps(self, now: int) -> None:
        """Plan for the engines that are free."""

    def began(self, record: Record, engine: VirtualEngine) -> None:  # noqa: ARG002 - bodies need it
        """A first token came."""
        record.first_token_ns = self.now

    @abstractmethod
    def ended(self, record: Record, event: Ended, engine: VirtualEngine) -> None:
        """A request has ended in an engine. Its record has an end only where it had left before."""

    # -- instants ----------------------------------------------------------------------------------------------------

    def next_instant(self) -> int | None:
        """None when nothing will happen any more."""
        at_ns = min(self._alarms[0][0] if self._alarms else FOR_EVER, self.next_from_outside)
        return at_ns if at_ns < FOR_EVER else None

    @property
    def next_from_outside(self) -> int:
        """When somebody comes or leaves next."""
        return self._happenings[0].at_ns if self._happenings else FOR_EVER

    @property
    def computing(self) -> bool:
        """Is a step in flight, or somebody to be woken?"""
        return bool(self._alarms)

    def begin_step(self, engine: VirtualEngine, now: int, most_steps: int) -> None:
        """Plan and compute, if there is anything; and come back when it has ended, or when it wants to be asked."""
        if engine.begin_step(now, most_steps):
            assert engine.ends_ns is not None
            heappush(self._alarms, (engine.ends_ns, engine.number))
        elif (wake_ns := engine.scheduler.wake_ns) is not None:
            heappush(self._alarms, (wake_ns, engine.number))

    def _end_steps(self, now: int) -> None:
        while self._alarms and self._alarms[0][0] == now:
            engine = self.engines[heappop(self._alarms)[1]]
            if engine.ends_ns == now:  # otherwise it was to be woken
                self.tell(engine.end_step(self._log), engine)

    # -- from outside ------------------------------------------------------------------------------------------------

    def _happen(self, happening: _Happening) -> None:
        asked = self._requests[happening.number]
        record = self.records.get(asked.id)
        if happening.cancels:
            self._cancel(asked, record)
            return
        self._away.discard(asked.id)
        if record is not None and record.end:
            return  # it left while it was to come again
        request = asked.request(happening.number + 1)
        if record is None:
            record = self.records[asked.id] = Record(asked.id, self.now, request.prompt_tokens, "", tenant=asked.tenant)
        record.asked += 1
        try:
            self.admit(asked, request, record)
        except HeadwayError as refusal:
            if self._comes_back(asked, happening.number, record, refusal):
                return
            self.leave(record, "refused", refusal)
        self._one_fewer_comes()

    def _comes_back(self, asked: VirtualRequest, number: int, record: Record, refusal: HeadwayError) -> bool:
        """Does its client try again, when it was told to?"""
        if not isinstance(refusal, Refused) or record.asked > asked.retries:
            return False
        at_ns = self.now + max(1, int(refusal.retry_after_s * 1e9))
        heappush(self._happenings, _Happening(at_ns, False, number))
        self._away.add(asked.id)
        return True

    def _cancel(self, asked: VirtualRequest, record: Record | None) -> None:
        if record is None or record.end:
            return
        if asked.id in self._away:
            self.leave(record, "cancelled")
            self._one_fewer_comes()
        else:
            self.cancel(record)

    def _one_fewer_comes(self) -> None:
        """A batch need not wait for more when no more will come."""
        self.arrivals_left -= 1
        if self.arrivals_left <= 0 and self.follow is None:
            for engine in self.engines:
                if isinstance(engine.scheduler, StaticScheduler):
                    engine.scheduler.expects_more = False

    # -- what became of them -------------------------------------------------------------------------------------------

    def tell(self, events: ReadOnlySequence[Event], engine: VirtualEngine) -> None:
        """What a commit says: to the records, and to the body."""
        times = engine.token_times_ns() if self._settings.log_tokens else None
        for event in events:
            record = self.records[event.request.id]
            if isinstance(event, Produced):
                if (times is not None or not record.first_token_ns) and not record.end:
                    self._produced(record, event, engine, times)
                continue
            self.ended(record, event, engine)
            if not record.end:
                record.worker = engine.number
                record.started_ns = event.times.started_ns
                record.first_token_ns = event.times.first_token_ns
                record.ended_ns = event.times.ended_ns
                record.output_tokens = event.usage.output_tokens
                record.cached_tokens = event.usage.cached_tokens
                record.end = event.state.value if event.reason is None else event.reason.value
                record.error = event.error
                self._gone(record)

    def _produced(self, record: Record, event: Produced, engine: VirtualEngine, times: list[int] | None) -> None:
        if times is not None:
            if record.token_ns is None:
                record.token_ns = array("q")
            record.token_ns.extend(times[: len(event.tokens)])
        if not record.first_token_ns:
            self.began(record, engine)

    def leave(self, record: Record, end: str, error: HeadwayError | None = None) -> None:
        """It ends outside an engine."""
        record.end, record.error, record.ended_ns = end, error, self.now
        self._gone(record)

    def _gone(self, record: Record) -> None:
        """It has ended; perhaps somebody comes in its place."""
        self._ended += 1
        request = self.follow(record, self.now) if self.follow is not None else None
        if request is None:
            return
        request.check()
        if request.id in self.outputs or request.arrival_ns <= self.now:
            raise ConfigError(f"request {request.id!r} follows another: it must come later, and have its own id")
        self.outputs[request.id] = request.output_tokens
        self._requests.append(request)
        self.arrivals_left += 1
        for happening in _happenings([request], len(self._requests) - 1):
            heappush(self._happenings, happening)


def _farthest(reaches: list[Reach]) -> Reach:
    farthest = Reach()
    for one in reaches:
        farthest.met(Shape(one.prefill_tokens, one.decode_seqs, one.context_tokens, one.attention_tokens))
    return farthest


def _happenings(requests: list[VirtualRequest], first: int = 0) -> list[_Happening]:
    """A heap. `first` is the number of the first request."""
    found = []
    for number, request in enumerate(requests, first):
        found.append(_Happening(request.arrival_ns, False, number))
        if request.cancel_ns is not None:
            found.append(_Happening(max(request.cancel_ns, request.arrival_ns), True, number))
    heapify(found)
    return found
