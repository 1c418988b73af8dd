"""`Driver`: the loop that makes one engine go. Plan, run, post-process, commit, tell; again.

It owns what the core must not have: the real clock, the executor's thread, the streams, and text. Everything it
decides, it asks the core: the `Front` for who may enter, the `Scheduler` for what a step carries.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Protocol

from headway.core.errors import EngineFailed, HeadwayError
from headway.core.front.front import Front
from headway.core.lanes import LaneLimits
from headway.core.request import Reason, Request, RequestId, State, Usage
from headway.core.scheduler.base import SchedulerBase
from headway.core.scheduler.limits import SchedulerLimits
from headway.core.scheduler.sequence import Event, Produced
from headway.core.scheduler.step import BrokenOutcome, Outcome, Step
from headway.engine.journal import Journals
from headway.engine.stream import Delta, Stream
from headway.engine.supervisor import ExecutorLost
from headway.engine.text import Detokenizer, Piece, TextStage
from headway.metrics.snapshot import RecentStep

log = logging.getLogger(__name__)

# How late an expired request may hear of it while a step is being computed.
EXPIRE_EVERY_S = 0.1
# How long an idle executor may be dead before that is noticed: the next request should find a new one.
LOOK_EVERY_S = 0.5
# How many of the last steps are remembered, for people to look at.
RECENT_STEPS = 64


class DrivenExecutor(Protocol):
    """What the driver needs of its executor: the seam itself, a way back after a loss, a way out of a running step."""

    def run(self, step: Step) -> Outcome: ...
    def restart(self) -> object: ...
    @property
    def alive(self) -> bool: ...
    def interrupt(self) -> None: ...


class _Live:
    """A request in the driver's hands: its stream, its text so far, and what this step adds to it."""

    __slots__ = ("piece", "stream", "text")

    def __init__(self, stream: Stream, text: TextStage) -> None:
        self.stream = stream
        self.text = text
        self.piece: Piece | None = None


class Driver:
    """Drives `front` and `scheduler` with the real clock. Everything but the executor runs on one event loop."""

    def __init__(
        self,
        front: Front,
        scheduler: SchedulerBase,
        executor: DrivenExecutor,
        detokenizer: Callable[[], Detokenizer],
        *,
        journals: Journals | None = None,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.front = front
        self.scheduler = scheduler
        self.executor = executor
        self.clock = clock
        self.journals = journals or Journals(None, None)
        self._close_door("The engine has not been started.")
        self.dead = False  # down for good
        self._pending: tuple[SchedulerLimits, tuple[LaneLimits, ...]] | None = None  # limits to change to
        self.step_in_flight: Step | None = None
        self.recent_steps: deque[RecentStep] = deque(maxlen=RECENT_STEPS)
        self._detokenizer = detokenizer
        self._live: dict[RequestId, _Live] = {}
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()  # set each time the last request inside has ended
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="headway-executor")
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def ready(self) -> bool:
        return not self.front.not_ready_reason

    # -- what the engine's users call ----------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to drive, on the running event loop. The executor must be up."""
        self._close_door("")
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._drive()), loop.create_task(self._expire())]

    def submit_all(self, requests: Sequence[Request]) -> list[Stream]:
        """Let all of them in, or none. Raises the `HeadwayError` with which the front refuses them."""
        now = self.clock()
        self.journals.submitting(requests, now)
        self.front.submit_all(requests, now)
        streams = []
        for request in requests:
            stream = Stream(request, self._cancel)
            text = TextStage(self._detokenizer(), request.params.stop, request.params.min_tokens)
            self._live[request.id] = _Live(stream, text)
            streams.append(stream)
        self._wake.set()
        return streams

    def check_door(self) -> None:
        """Raise what `submit_all` would raise for any request at all, before any work is done for one."""
        now = self.clock()
        try:
            self.front.check_door(now)
        except HeadwayError:
            self.journals.stimulus("door", now)
            raise

    def reconfigure(self, limits: SchedulerLimits, lanes: tuple[LaneLimits, ...]) -> None:
        """Change limits; they hold from the next step on."""
        self._pending = (limits, lanes)
        self._wake.set()

    async def drain(self) -> None:
        """Take nothing new and return when everything inside has ended, through restarts if there are any."""
        self.journals.stimulus("drain", self.clock())
        self.front.draining = True
        while self._live and not self.dead:
            self._idle.clear()
            await self._idle.wait()

    async def close(self) -> None:
        """Stop driving. Requests still alive end with an error."""
        self._close_door("The engine is stopped.")
        self.journals.stimulus("drain", self.clock())
        self.front.draining = True
        for task in self._tasks:
            task.cancel()
        self.executor.interrupt()  # a step, or a restart: nobody waits for it any more
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._end_everything("The server was stopped while the request was inside.")
        await asyncio.to_thread(self._thread.shutdown, wait=True)

    def _close_door(self, reason: str) -> None:
        """Let nobody in, and say why; an empty reason opens the door again."""
        self.journals.stimulus("closed", self.clock(), reason=reason)
        self.front.closed = reason

    def _cancel(self, stream: Stream) -> None:
        request, now = stream.request, self.clock()
        self.journals.stimulus("cancel", now, request=request.id)
        if self.front.cancel(request.id, now):
            self._forget(request.id)
        else:
            self._tell(self.scheduler.cancel(request.id, now), now)
        self._wake.set()

    # -- the loop ------------------------------------------------------------------------------------------------

    async def _drive(self) -> None:
        while not self.dead:
            try:
                step = self._plan()
                if step is None:
                    await self._wait_for_work()
                else:
                    outcome = await self._run(step)
                    self._write_text(step, outcome)
                    self._commit(step, outcome)
            except ExecutorLost as lost:
                await self._recover(lost)
            except BrokenOutcome as broken:
                await self._recover(ExecutorLost(f"The executor's outcome is broken: {broken}"))
            except Exception as error:
                log.exception("the engine loop failed")
                self._stay_down(f"The engine loop failed: {type(error).__name__}: {error}")

    async def _expire(self) -> None:
        """Turn away those whose time is over, whatever a step or a restart may be waiting for."""
        while not self.dead:
            await asyncio.sleep(EXPIRE_EVERY_S)
            self._turn_away(self.clock())

    def _turn_away(self, now: int) -> None:
        if self.front.expires(now):
            self.journals.stimulus("expire", now)
            for expire in self.front.expire(now):
                self._forget(expire.request.id, expire.error)

    def _plan(self) -> Step | None:
        self._wake.clear()
        now = self.clock()
        if self._pending is not None:
            limits, lanes = self._pending
            self._pending = None
            self.journals.stimulus("reconfigure", now, limits=asdict(limits), lanes=[asdict(lane) for lane in lanes])
            self.scheduler.reconfigure(limits)
            self.front.lanes.set_limits(lanes)
        self._turn_away(now)
        self.journals.stimulus("plan", now)
        return self.scheduler.plan(now)

    async def _wait_for_work(self) -> None:
        """Until somebody comes or leaves, or until the time at which the scheduler wants to be asked again."""
        wake_ns = self.scheduler.wake_ns
        timeout_s = LOOK_EVERY_S if wake_ns is None else max(0.0, (wake_ns - self.clock()) / 1e9)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._wake.wait()
                return
        if not self.executor.alive:
            raise ExecutorLost("The executor process died while it had nothing to do.")

    async def _run(self, step: Step) -> Outcome:
        self.step_in_flight = step
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, self.executor.run, step)
        finally:
            self.step_in_flight = None

    def _commit(self, step: Step, outcome: Outcome) -> None:
        now = self.clock()
        predicted_ns = self.scheduler.model.coefficients.predict_ns(step.shape)
        self.journals.committing(outcome, now)
        events = self.scheduler.commit(step, outcome, now)
        self.journals.committed(step, outcome, now, predicted_ns, self._gauges)
        tokens = (step.prefill_tokens, step.decode_tokens, step.pad_tokens)
        self.recent_steps.append(RecentStep(step.id, *tokens, len(step.rows), (now - step.planned_ns) / 1e9))
        self._tell(events, now)

    def _gauges(self) -> dict[str, int]:
        return {
            "running": len(self.scheduler.running),
            "preempted": len(self.scheduler.preempted),
            "waiting": self.front.admission.waiting,
            "kv_tokens": self.scheduler.kv_tokens,
            "kv_blocks_used": self.scheduler.pool.used_blocks,
        }

    def _write_text(self, step: Step, outcome: Outcome) -> None:
        """Detokenise; what a stop string ends is ended in the outcome, so that the core sees every end."""
        self.scheduler.check(step, outcome)
        for result in outcome.results:
            request = self.scheduler.request(result.seq)
            live = self._live[request.id]
            hidden = 1 if result.ended is Reason.STOP else 0
            live.piece = live.text.add(result.tokens, result.logprobs, hidden=hidden)
            if live.text.stopped:
                result.ended = Reason.STOP

    def _tell(self, events: list[Event], now: int, failure: str = "") -> None:
        """Pass events on to the streams, and settle with the front what has ended."""
        for event in events:
            request = event.request
            live = self._live[request.id]
            if isinstance(event, Produced):
                piece = live.piece
                if piece is not None and (piece.text or piece.tokens):
                    live.stream.push(Delta(piece.text, piece.tokens, piece.logprobs))
                continue
            self.front.settle(request.id, event.usage, now)
            self._pop(request.id)
            try:
                self.journals.ended(event, self.front.lanes.lane_of(request))
                if event.state is State.FINISHED:
                    assert event.reason is not None
                    rest = live.text.finish(with_logprobs=request.params.logprobs is not None)
                    reason = event.reason.value
                    live.stream.push(Delta(rest.text, rest.tokens, rest.logprobs, reason, event.usage, event.times))
                live.stream.end(event.error or EngineFailed(failure) if event.state is State.FAILED else None)
            finally:  # a defect on the way must not leave anybody waiting for the end
                live.stream.end(EngineFailed("The server failed while ending the request. Please report it."))

    def _forget(self, request_id: RequestId, error: HeadwayError | None = None) -> None:
        """A request that ended in the waiting room: the front has settled it."""
        self._pop(request_id).stream.end(error)

    def _pop(self, request_id: RequestId) -> _Live:
        live = self._live.pop(request_id)
        if not self._live:
            self._idle.set()
        return live

    # -- when things break ---------------------------------------------------------------------------------------

    async def _recover(self, lost: ExecutorLost) -> None:
        """Fail what ran, keep what waits, and bring a clean executor up."""
        log.error("the executor was lost: %s", lost.message)
        self._close_door("The engine is restarting after a failure; try again shortly.")
        now = self.clock()
        self.journals.stimulus("abort", now)
        self._tell(self.scheduler.abort(now), now, lost.message)
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, self.executor.restart)
        except HeadwayError as error:
            self._stay_down(error.message)
        else:
            log.warning("the executor was restarted")
            self._close_door("")

    def _stay_down(self, reason: str) -> None:
        log.critical("the engine stays down: %s", reason)
        self.dead = True
        self._close_door(reason)
        self._end_everything(reason)
        self._idle.set()

    def _end_everything(self, reason: str) -> None:
        """Every request inside fails, whatever state a defect may have left it in."""
        now = self.clock()
        self.journals.stimulus("abort", now)
        self._tell(self.scheduler.abort(now), now, reason)
        self.journals.stimulus("fail_waiting", now)
        for request in self.front.fail_waiting(now):
            self._forget(request.id, EngineFailed(reason))
        for request_id in list(self._live):  # known to neither: told half-way when a defect struck
            log.error("request %s was lost by a defect and is ended", request_id)
            if self.front.holds(request_id):
                self.front.settle(request_id, Usage(0, 0), now)
            self._forget(request_id, EngineFailed(reason))
