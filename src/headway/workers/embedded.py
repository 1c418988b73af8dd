"""`EmbeddedWorker`: something in this process as a `Worker`: an engine behind its own edge, or a fake.

It is given a function that answers a call as a server would, its head first, and one that tells its load. How a call
becomes prompts and tokens become events is that function's affair.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from time import monotonic_ns

from headway.core.errors import HeadwayError
from headway.core.worker import WorkerLoad
from headway.metrics.snapshot import Snapshot
from headway.wire.errors import error_body, retry_headers
from headway.workers.kinds import HEADWAY
from headway.workers.patch import generates, patched
from headway.workers.reading import Reading, read_whole
from headway.workers.worker import Call, Head, Told, Watcher, WorkerFailed

# A head, then the body in pieces; of a stream one or more whole events each. Closed early, it stops.
Serve = Callable[[Call], AsyncGenerator[Head | bytes, None]]


class EmbeddedWorker:
    """`models`: the names under which `serve` takes calls. `snapshot` tells its numbers, `ailment` why it is not up."""

    kind = HEADWAY.name

    def __init__(
        self,
        worker_id: str,
        serve: Serve,
        *,
        models: frozenset[str],
        snapshot: Callable[[], Snapshot],
        kv_capacity_tokens: int | None = None,
        ailment: Callable[[], str] = lambda: "",
        clock: Callable[[], int] = monotonic_ns,
        interval_s: float = 0.05,
    ) -> None:
        self.id = worker_id
        self.models = models
        self._serve = serve
        self._snapshot = snapshot
        self._kv_capacity_tokens = kv_capacity_tokens
        self._ailment = ailment
        self._clock = clock
        self._interval_s = interval_s
        self._telling: asyncio.Task[None] | None = None
        self._answers: set[EmbeddedAnswer] = set()

    def load(self) -> WorkerLoad:
        now = self._snapshot()
        return WorkerLoad.at(
            self._clock(),
            running=now.running,
            waiting=now.waiting + now.preempted,
            kv_used_ratio=now.kv_usage_ratio,
            kv_capacity_tokens=self._kv_capacity_tokens,
            batch_tokens=now.step_tokens or None,  # 0 is between two steps
        )

    def stream(self, call: Call) -> EmbeddedAnswer:
        body = patched(call, HEADWAY)
        patched_call = Call(call.path, body.body, call.method, call.headers, call.streams, call.choices)
        reading = Reading(choices=call.choices, usage_added=body.usage_added)
        known = generates(call)
        answer = EmbeddedAnswer(self._serve(patched_call), reading, known=known, streams=call.streams)
        self._answers.add(answer)
        answer.on_end = self._answers.discard
        return answer

    async def start(self, watcher: Watcher) -> None:
        watcher.serves(self.id, self.models)
        self._tell(watcher)
        self._telling = asyncio.create_task(self._tell_again(watcher))

    async def _tell_again(self, watcher: Watcher) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            self._tell(watcher)

    def _tell(self, watcher: Watcher) -> None:
        ailment = self._ailment()
        watcher.checked(self.id, well=not ailment, reason=ailment)
        if not ailment:
            watcher.loaded(self.id, self.load())

    async def close(self) -> None:
        if self._telling is not None:
            self._telling.cancel()
            self._telling = None
        for answer in tuple(self._answers):
            answer.fail(WorkerFailed("it is being closed.", code="worker_closed"))
        await asyncio.sleep(0)


class EmbeddedAnswer:
    """Runs the function in a task of its own, one piece ahead of its reader."""

    def __init__(
        self, pieces: AsyncGenerator[Head | bytes, None], reading: Reading, *, known: bool, streams: bool
    ) -> None:
        self._reading = reading
        self._checks = known
        self._streams = streams
        self._queue: asyncio.Queue[Head | bytes | Exception | None] = asyncio.Queue(maxsize=1)
        self._head: Head | None = None
        self._failed: HeadwayError | None = None
        self._over = False
        self._task = asyncio.create_task(self._run(pieces))
        self.on_end: Callable[[EmbeddedAnswer], None] = lambda _: None

    async def _run(self, pieces: AsyncGenerator[Head | bytes, None]) -> None:
        try:
            async for piece in pieces:
                await self._queue.put(piece)
            await self._queue.put(None)
        except Exception as error:
            await self._queue.put(error)
        finally:
            await pieces.aclose()

    @property
    def told(self) -> Told:
        return self._reading.told

    async def head(self) -> Head:
        if self._head is None:
            try:
                got = await self._next()
            except HeadwayError as error:
                if isinstance(error, WorkerFailed):
                    raise
                return self._refused(error)
            if not isinstance(got, Head):
                raise self.fail(WorkerFailed("it began without a head.", code="worker_garbage"))
            self._head = got
        return self._head

    def _refused(self, error: HeadwayError) -> Head:
        """An error before the head is an answer as well, as it would be from a server."""
        headers = [(name.lower().encode(), value.encode()) for name, value in retry_headers(error).items()]
        self._head = Head(error.status, ((b"content-type", b"application/json"), *headers))
        self._failed, self._over = None, False
        self._queue = asyncio.Queue(maxsize=2)
        self._queue.put_nowait(error_body(error))
        self._queue.put_nowait(None)
        return self._head

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        head = await self.head()
        while True:
            if self._over:
                raise StopAsyncIteration
            got = await self._next()
            assert not isinstance(got, Head), "one head an answer"
            data = b"" if got is None else got
            if self._checks and self._streams and head.status < 300:
                data = self._reading.feed(data) if data else self._reading.end()
                if self._reading.failure is not None:
                    self.fail(self._reading.failure)
            if got is None or self.told.complete:
                self._end()
            if data:
                return data

    async def whole(self) -> bytes:
        head = await self.head()
        pieces = []
        while (got := await self._next()) is not None:
            assert not isinstance(got, Head), "one head an answer"
            pieces.append(got)
        body = b"".join(pieces)
        if self._checks and not self._streams and head.status < 300:
            failure = read_whole(self.told, body)
            if failure is not None:
                raise self.fail(failure)
        self._end()
        return body

    async def _next(self) -> Head | bytes | None:
        if self._failed is not None:
            raise self._failed
        got = await self._queue.get()
        if isinstance(got, Exception):
            raise self.fail(got)
        return got

    def _end(self) -> None:
        self._over = self.told.complete = True
        self.on_end(self)

    def fail(self, error: Exception) -> HeadwayError:
        """Raised from now on, also by a reader that waits."""
        if self._failed is None:
            known = isinstance(error, HeadwayError)
            self._failed = error if known else WorkerFailed(f"it failed: {error}", code="worker_error")  # type: ignore[assignment]
            self.close()
        assert self._failed is not None
        return self._failed

    def close(self) -> None:
        self._failed = self._failed or WorkerFailed("the answer was closed before its end.", code="worker_closed")
        self._task.cancel()
        while not self._queue.empty():
            self._queue.get_nowait()
        self._queue.put_nowait(self._failed)  # wakes a reader
        self.on_end(self)
