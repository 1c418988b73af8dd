"""`Driver`: the loop that makes one engine go. Plan, run, post-process, commit, tell; again.

It owns what the core must not have: the real clock, the executor's thread, the streams, and text. Everything it
decides, it asks the core: the `Front` for who may enter, the `Scheduler` for what a step carries.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from headway.core.errors import Draining, EngineFailed, HeadwayError, ModelError
from headway.core.front import Front
from headway.core.request import Reason, Request, RequestId, State
from headway.core.scheduler import BrokenOutcome, Event, Produced, Scheduler
from headway.core.step import Outcome, Step
from headway.engine.stream import Delta, Stream
from headway.engine.supervisor import ExecutorLost
from headway.engine.text import Detokenizer, Piece, TextStage

log = logging.getLogger(__name__)


class DrivenExecutor(Protocol):
    """What the driver needs of its executor: the seam itself, a way back after a loss, a way out of a running step."""

    def run(self, step: Step) -> Outcome: ...
    def restart(self) -> object: ...
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
        scheduler: Scheduler,
        executor: DrivenExecutor,
        detokenizer: Callable[[], Detokenizer],
        *,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.front = front
        self.scheduler = scheduler
        self.executor = executor
        self.clock = clock
        self.not_ready_reason = "The engine has not been started."
        self.step_in_flight: Step | None = None
        self._detokenizer = detokenizer
        self._live: dict[RequestId, _Live] = {}
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()  # set each time the last request inside has ended
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="headway-executor")
        self._task: asyncio.Task[None] | None = None

    @property
    def ready(self) -> bool:
        return not self.not_ready_reason

    # -- what the engine's users call ----------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to drive, on the running event loop. The executor must be up."""
        self.not_ready_reason = ""
        self._task = asyncio.get_running_loop().create_task(self._drive(), name="headway-driver")

    def submit(self, request: Request) -> Stream:
        """Let a request in and return its output. Raises the `HeadwayError` with which the front refuses it."""
        if not self.ready:
            raise Draining(self.not_ready_reason, retry_after_s=5.0)
        self.front.submit(request, self.clock())
        stream = Stream(request, self._cancel)
        text = TextStage(self._detokenizer(), request.params.stop, request.params.min_tokens)
        self._live[request.id] = _Live(stream, text)
        self._wake.set()
        return stream

    def check_door(self) -> None:
        """Raise what `submit` would raise for any request at all, before any work is done for one."""
        if not self.ready:
            raise Draining(self.not_ready_reason, retry_after_s=5.0)
        self.front.check_door(self.clock())

    async def drain(self) -> None:
        """Take nothing new and return when everything inside has ended."""
        self.front.draining = True
        while self._live and self.ready:
            self._idle.clear()
            await self._idle.wait()

    async def close(self) -> None:
        """Stop driving. Requests still alive end with an error."""
        self.not_ready_reason = "The engine is stopped."
        self.front.draining = True
        if self._task is not None:
            if self.step_in_flight is not None:
                self.executor.interrupt()
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        self._fail_everything("The server was stopped while the request was inside.")
        self._thread.shutdown(wait=True)

    def _cancel(self, stream: Stream) -> None:
        request = stream.request
        if self.front.cancel(request.id):
            self._forget(request.id)
        else:
            self._tell(self.scheduler.cancel(request.id, self.clock()))
        self._wake.set()

    # -- the loop ------------------------------------------------------------------------------------------------

    async def _drive(self) -> None:
        while self.ready:
            try:
                step = self._plan()
                if step is None:
                    await self._wait_for_work()
                else:
                    outcome = await self._run(step)
                    self._write_text(step, outcome)
                    self._tell(self.scheduler.commit(step, outcome, self.clock()))
            except ExecutorLost as lost:
                await self._recover(lost)
            except BrokenOutcome as broken:
                await self._recover(ExecutorLost(f"The executor's outcome is broken: {broken}"))
            except Exception as error:
                log.exception("the engine loop failed")
                self._stay_down(f"The engine loop failed: {type(error).__name__}: {error}")

    def _plan(self) -> Step | None:
        self._wake.clear()
        now = self.clock()
        for expire in self.front.plan(now):
            self._forget(expire.request.id, expire.error)
        return self.scheduler.plan(now)

    async def _wait_for_work(self) -> None:
        """Until a submission or a cancellation, or until somebody's wait may have expired."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._wake.wait(), timeout=1.0 if len(self.front.lanes) else None)

    async def _run(self, step: Step) -> Outcome:
        self.step_in_flight = step
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, self.executor.run, step)
        finally:
            self.step_in_flight = None

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

    def _tell(self, events: list[Event], failure: str = "") -> None:
        """Pass events on to the streams, and settle with the front what has ended."""
        for event in events:
            request = event.request
            live = self._live[request.id]
            if isinstance(event, Produced):
                piece = live.piece
                if piece is not None and (piece.text or piece.tokens):
                    live.stream.push(Delta(piece.text, piece.tokens, piece.logprobs))
                continue
            self.front.settle(request.id)
            self._pop(request.id)
            if event.state is State.FINISHED:
                assert event.reason is not None
                rest = live.text.finish(with_logprobs=request.params.logprobs is not None)
                reason = event.reason.value
                live.stream.push(Delta(rest.text, rest.tokens, rest.logprobs, reason, event.usage, event.times))
            live.stream.end(EngineFailed(failure) if event.state is State.FAILED else None)

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
        self.not_ready_reason = "The engine is restarting after a failure; try again shortly."
        self._tell(self.scheduler.abort(self.clock()), lost.message)
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, self.executor.restart)
        except ModelError as error:
            self._stay_down(error.message)
        else:
            log.warning("the executor was restarted")
            self.not_ready_reason = ""

    def _stay_down(self, reason: str) -> None:
        log.critical("the engine stays down: %s", reason)
        self.not_ready_reason = reason
        self._fail_everything(reason)
        self._idle.set()

    def _fail_everything(self, reason: str) -> None:
        self._tell(self.scheduler.abort(self.clock()), reason)
        for request in list(self.front.lanes):
            self.front.cancel(request.id)
            self._forget(request.id, EngineFailed(reason))
