"""`Job`: runs one batch to its end. It asks the `Dispatcher` what to do, does it, and tells it what came of it.

It owns what the core must not have: the clock, the tasks, the files. An item is finished when its line was handed to
the journal; whatever ends a job, what is finished stays, and the rest can be gone on with.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from headway.core.batch.allowance import Allowance
from headway.core.batch.dispatch import Dispatcher, ErrorClass, Fault, GiveUp, RetryLimits, Start
from headway.core.batch.hours import Hours
from headway.core.batch.lookahead import Lookahead, Order, Place
from headway.core.batch.stragglers import Stragglers
from headway.core.errors import HeadwayError
from headway.offline.errors import BatchError, NothingWorks
from headway.offline.intake import Intake, Taken
from headway.offline.items import BadLine, Item
from headway.offline.journal import Journal
from headway.offline.progress import Pace, Progress
from headway.offline.record import ErrorBody, Record, answer_line, bad_item, error_line, hex_of
from headway.offline.tally import Tally
from headway.offline.worker import Answered, Failed, Worker

log = logging.getLogger(__name__)

NS_PER_S = 1_000_000_000
TICK_S = 0.5
STRAIN_EVERY_S = 1.0
PIECE = 256  # lines at a time
# Of lines that the disk has not taken yet: then nothing new begins.
MOST_WAITING_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLimits:
    """`lookahead` items are read ahead and put in `order`. They begin in `hours` of this machine's clock."""

    order: Order = "grouped"
    lookahead: int = 4096
    retry: RetryLimits = field(default_factory=RetryLimits)
    straggler_factor: float = 0.0
    hours: Hours = field(default_factory=Hours)
    tokens_per_minute: int | None = None


@dataclass(slots=True)
class _Running:
    item: Item
    place: Place
    worker: Worker
    began_ns: int
    cut: asyncio.Event


def _clock() -> tuple[int, int, int]:
    """On the wall: hour, minute, second."""
    local = time.localtime()
    return local.tm_hour, local.tm_min, local.tm_sec


class Job:
    """`output` and `errors` are told every item once. Everything else is the caller's: what was before, and after."""

    def __init__(
        self,
        intake: Intake,
        workers: Sequence[Worker],
        *,
        output: Journal,
        errors: Journal,
        tally: Tally,
        limits: JobLimits,
        on_progress: Callable[[Progress], None] | None = None,
        total_bytes: int = 0,
    ) -> None:
        self.intake = intake
        self.tally = tally
        self._workers = {worker.id: worker for worker in workers}
        self._output = output
        self._errors = errors
        self._limits = limits
        self._on_progress = on_progress
        self._total_bytes = total_bytes
        self._dispatcher = Dispatcher(
            Lookahead(limits.order, limits.lookahead), limits.retry, Allowance(limits.tokens_per_minute)
        )
        for worker in workers:
            self._dispatcher.add_worker(worker.id, worker.climb(), batch=worker.batch)
        self._items: dict[int, Item] = {}  # that were taken in and have not ended
        self._running: dict[asyncio.Task[None], _Running] = {}
        self._wake = asyncio.Event()
        self._room = asyncio.Event()  # for more items to be read
        self._stopped: HeadwayError | None = None
        self._stragglers = Stragglers(limits.straggler_factor)
        self._pace = Pace()
        self._waiting_tokens = 0  # guessed, of `_items`
        self._words = ""
        self.first_start_ns = 0

    async def run(self) -> None:
        """Returns when every item has ended. Raises the `HeadwayError` that stops it; can be cancelled."""
        helpers = [asyncio.create_task(self._take_in()), asyncio.create_task(self._tick())]
        helpers += [asyncio.create_task(self._heed(worker)) for worker in self._workers.values() if worker.shared]
        try:
            await self._pump()
        finally:
            tasks = [*helpers, *self._running]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def stop(self, error: HeadwayError) -> None:
        """End it, for that reason. The first one counts."""
        self._stopped = self._stopped or error
        self._wake.set()

    # -- reading -------------------------------------------------------------------------------------------------------

    async def _take_in(self) -> None:
        try:
            while not self.intake.ended:
                await self._room_for_more()
                room = self._limits.lookahead - len(self._dispatcher.lookahead)
                for one in await asyncio.to_thread(self.intake.piece, min(PIECE, room)):
                    self._take(one)
                self._dispatcher.closed = self.intake.ended
                self._wake.set()
        except HeadwayError as error:
            self.stop(error)
        except Exception as error:
            log.exception("reading the input failed")
            self.stop(BatchError(f"Reading the input failed: {type(error).__name__}: {error}. Please report it."))

    async def _room_for_more(self) -> None:
        while self._dispatcher.lookahead.full:
            self._room.clear()
            await self._room.wait()

    def _take(self, one: Taken | BadLine) -> None:
        if isinstance(one, BadLine):
            record = bad_item(one.line, one.body_hash, time.time())
            self._errors.append(error_line(one.custom_id, record, ErrorBody(code=one.code, message=one.message)))
            self.tally.add(record)
            return
        sketch = one.sketch
        place = Place(one.item.line, sketch.group, sketch.input_tokens, sketch.output_tokens)
        self._items[one.item.line] = one.item
        self._waiting_tokens += place.tokens
        self._dispatcher.add(place)

    # -- running -------------------------------------------------------------------------------------------------------

    async def _pump(self) -> None:
        dispatcher = self._dispatcher
        while True:
            self._wake.clear()
            if self._stopped is not None:
                raise self._stopped
            now = time.monotonic_ns()
            self._mind_the_hours(now)
            if self._output.waiting_bytes + self._errors.waiting_bytes < MOST_WAITING_BYTES:
                for start in dispatcher.plan(now):
                    self._begin(start, now)
            if not dispatcher.lookahead.full:
                self._room.set()
            if self.intake.ended and not dispatcher.left:
                return
            if dispatcher.stuck:
                raise NothingWorks(f"No worker takes anything any more. {dispatcher.stuck}.")
            wake_ns = dispatcher.wake_ns(now)
            timeout_s = TICK_S if wake_ns is None else min(TICK_S, max(0.0, (wake_ns - now) / NS_PER_S))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._wake.wait()

    def _begin(self, start: Start, now: int) -> None:
        self.first_start_ns = self.first_start_ns or now
        item, worker = self._items[start.place.number], self._workers[start.worker]
        running = _Running(item, start.place, worker, now, asyncio.Event())
        task = asyncio.create_task(self._run(running))
        self._running[task] = running
        task.add_done_callback(self._running.pop)

    async def _run(self, running: _Running) -> None:
        try:
            outcome = await running.worker.run(running.item, running.cut)
        except Exception as error:  # a defect must not leave the item in the air
            log.exception("item %s failed by a defect", running.item.custom_id)
            words = f"{type(error).__name__}: {error}. Please report it."
            outcome = Failed(fault=Fault.SERVER, code="internal_error", message=words)
        now = time.monotonic_ns()
        if isinstance(outcome, Answered):
            self._answered(running, outcome, now)
        else:
            self._failed(running, outcome, now)
        self._wake.set()

    def _answered(self, running: _Running, answer: Answered, now: int) -> None:
        item, place = running.item, running.place
        tokens = (answer.input_tokens or place.input_tokens) + (answer.output_tokens or 0)
        tries = self._dispatcher.finished(item.line, running.worker.id, tokens, now)
        record = self._record(running, now, tries)
        record.input_tokens, record.cached_tokens = answer.input_tokens, answer.cached_tokens
        record.output_tokens, record.cut = answer.output_tokens, answer.cut
        record.queue_s, record.prefill_s, record.decode_s = answer.queue_s, answer.prefill_s, answer.decode_s
        self._output.append(answer_line(item.custom_id, record, answer.body, answer.request_id))
        self._stragglers.ended(now - running.began_ns)
        self._pace.ended(place.tokens, tokens)
        self._words = ""
        self._forget(running, record)

    def _failed(self, running: _Running, failed: Failed, now: int) -> None:
        item = running.item
        verdict = self._dispatcher.failed(
            item.line,
            running.worker.id,
            failed.fault,
            now,
            retry_after_ns=int(failed.retry_after_s * NS_PER_S),
            final=failed.final,
            why=failed.message.rstrip("."),
        )
        if not isinstance(verdict, GiveUp):
            self._words = failed.message
            return
        record = self._record(running, now, verdict.tries)
        record.error_class = verdict.error_class.value
        told = ErrorBody(code=failed.code, message=_told(failed, verdict))
        self._errors.append(error_line(item.custom_id, record, told, status=failed.status, body=failed.body))
        self._pace.ended(running.place.tokens, 0)
        self._forget(running, record)

    def _record(self, running: _Running, now: int, tries: int) -> Record:
        return Record(
            line=running.item.line,
            hash=hex_of(running.item.body_hash),
            tries=tries,
            worker=running.worker.id,
            wall_s=(now - running.began_ns) / NS_PER_S,
            ended_at=time.time(),
        )

    def _forget(self, running: _Running, record: Record) -> None:
        del self._items[running.item.line]
        self._waiting_tokens -= running.place.tokens
        self.tally.add(record)

    # -- leaving others their due ------------------------------------------------------------------------------------

    def _mind_the_hours(self, now: int) -> None:
        """Asked again and again, since clocks are put forward and back."""
        closed_s = self._limits.hours.opens_in_s(*_clock())
        self._dispatcher.not_before_ns = now + int(closed_s * NS_PER_S) if closed_s else 0

    async def _heed(self, worker: Worker) -> None:
        while True:
            strain = await worker.strain()
            self._dispatcher.strained(worker.id, strain, time.monotonic_ns())
            await asyncio.sleep(STRAIN_EVERY_S)

    # -- from time to time ---------------------------------------------------------------------------------------------

    async def _tick(self) -> None:
        while True:
            if self._on_progress is not None:
                self._on_progress(self.progress())
            await asyncio.sleep(TICK_S)
            self._cut_stragglers()

    def _cut_stragglers(self) -> None:
        """Only when nothing waits that could use their place."""
        limit_ns = self._stragglers.limit_ns
        if limit_ns is None or not self.intake.ended or len(self._dispatcher.lookahead):
            return
        now = time.monotonic_ns()
        for running in self._running.values():
            if now - running.began_ns > limit_ns:
                running.cut.set()

    def progress(self) -> Progress:
        intake, scale = self.intake, self._pace.scale
        unread = max(0, self._total_bytes - intake.position)
        per_byte = intake.sketched_tokens / intake.sketched_bytes if intake.sketched_bytes else 0.0
        left = scale * (self._waiting_tokens + (0 if intake.ended else unread * per_byte))
        rate = self._pace.rate(time.monotonic())
        done = self.tally.tokens
        return Progress(
            done=self.tally.done,
            failed=self.tally.failed,
            in_flight=self._dispatcher.in_flight,
            limit=sum(map(self._dispatcher.limit_of, self._workers)),
            ratio=done / (done + left) if done + left else 0.0,
            tokens_per_s=rate,
            eta_s=left / rate if rate else None,
            reading=not intake.ended,
            words=self._words or self._closed_words(),
        )

    def _closed_words(self) -> str:
        closed_s = self._limits.hours.opens_in_s(*_clock())
        return f"outside of --window: goes on in {closed_s / 3600:.1f} h" if closed_s else ""


def _told(failed: Failed, verdict: GiveUp) -> str:
    """Why there is no answer, in words that say what was done about it."""
    message = failed.message.rstrip(".") + "."
    if failed.fault in (Fault.LOST, Fault.OUT_OF_MEMORY):
        what = "ran out of memory" if verdict.error_class is ErrorClass.OOM else "was lost"
        return f"{message} The worker {what} with this item running alone; it is set aside."
    return message if verdict.tries < 2 else f"{message} Tried {verdict.tries} times."
