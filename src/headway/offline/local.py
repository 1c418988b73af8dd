"""`EngineWorker`: the engine in this process runs the items. One that is down for good is built again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from typing import Protocol

from headway.core.batch.climb import Climb
from headway.core.batch.dispatch import Fault
from headway.core.errors import Draining, EngineFailed, HeadwayError, InvalidRequest, KvExhausted, Refused
from headway.core.request import Request, State, Times, Usage
from headway.core.scheduler.static import BatchLimits, StaticScheduler
from headway.engine import Delta, Engine, Stream
from headway.offline.items import Item, Sketch, sketch
from headway.offline.worker import Answered, Failed, is_out_of_memory

log = logging.getLogger(__name__)

NS_PER_S = 1_000_000_000
# All of a static batch are submitted at once; the last one is smaller than the scheduler could take.
BATCH_WAIT_NS = 20_000_000


class Telling(Protocol):
    """An answer in the making: one output for each of the call's requests."""

    def keep(self, index: int, delta: Delta) -> None: ...
    def cut(self) -> None:
        """The outputs that have not ended end here, as if their length had been up."""

    def body(self) -> bytes: ...
    def usage(self) -> Usage: ...


class Prepared(Protocol):
    """A body that was read, checked and tokenised."""

    @property
    def requests(self) -> Sequence[Request]: ...
    @property
    def prompt_tokens(self) -> int: ...
    def begin(self) -> Telling: ...


# From a url and a body. Raises `HeadwayError`; is called from threads.
Prepare = Callable[[str, bytes], Prepared]


class EngineWorker:
    """`engine_of` makes an engine that has not been started; `prepare_of` what reads bodies for one that has, and the
    names its model may be asked for by: `names`, and its own.
    """

    def __init__(
        self,
        engine_of: Callable[[], Engine],
        prepare_of: Callable[[Engine, Sequence[str]], Prepare],
        *,
        names: Sequence[str] = (),
    ) -> None:
        self.id = "engine"
        self._engine_of = engine_of
        self._prepare_of = prepare_of
        self._names = names
        self._engine = engine_of()
        self._prepare: Prepare | None = None
        self._ids = count(1)
        self._building = asyncio.Lock()

    @property
    def engine(self) -> Engine:
        return self._engine

    @property
    def models(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys([*self._names, self._engine.model.name]))

    @property
    def batch(self) -> int:
        return self._engine.config.max_num_seqs if self._engine.config.batching == "static" else 0

    @property
    def shared(self) -> bool:
        return False

    async def strain(self) -> float:
        return 0.0

    def climb(self) -> Climb:
        """As many as there are slots, and some to fill them the moment that they are free."""
        slots = self._engine.config.max_num_seqs
        most = slots if self.batch else slots + max(2, slots // 4)
        return Climb(most, most)

    def prepare(self, item: Item) -> Sketch:
        assert self._prepare is not None, "start() first"
        prepared = self._prepare(item.url, item.body)
        item.prepared = prepared
        output_tokens = sum(request.max_tokens for request in prepared.requests)
        return replace(sketch(item), input_tokens=prepared.prompt_tokens, output_tokens=output_tokens)

    async def start(self) -> None:
        await self._engine.start()
        self._set_up()
        if self._prepare is None:
            self._prepare = self._prepare_of(self._engine, self.models)

    def _set_up(self) -> None:
        """Batches come composed: the scheduler takes them as they are."""
        if isinstance(self._engine.scheduler, StaticScheduler):
            self._engine.scheduler.batching = BatchLimits(BATCH_WAIT_NS, bucketed=False)

    @property
    def padding_efficiency_ratio(self) -> float | None:
        """Of static batching: the part of what was computed that was no padding."""
        scheduler = self._engine.scheduler
        return scheduler.padding_efficiency_ratio if isinstance(scheduler, StaticScheduler) else None

    async def close(self) -> None:
        await self._engine.close()

    async def run(self, item: Item, cut: asyncio.Event) -> Answered | Failed:
        try:
            if self._engine.dead:
                await self._build_again()
            return await self._answer(item, cut)
        except HeadwayError as error:
            return _failed(error)

    async def _build_again(self) -> None:
        """Raises `Draining` when it cannot be built now."""
        async with self._building:
            if not self._engine.dead:
                return
            log.warning("the engine is down for good and is built again: %s", self._engine.not_ready_reason)
            await self._engine.close()
            engine = self._engine_of()
            try:
                await engine.start()
            except HeadwayError as error:
                raise Draining(f"The engine cannot be started again: {error.message}", retry_after_s=1.0) from error
            self._engine = engine
            self._set_up()

    async def _answer(self, item: Item, cut: asyncio.Event) -> Answered:
        prepared: Prepared = item.prepared
        number = next(self._ids)
        requests = [
            replace(request, id=f"batch-{item.line}-{number}-{index}", arrival_ns=0, state=State.WAITING)
            for index, request in enumerate(prepared.requests)
        ]
        telling = prepared.begin()
        streams = self._engine.submit_all(requests)
        times: list[Times | None] = [None] * len(streams)
        try:
            was_cut = await _collected(streams, telling, times, cut)
        finally:
            for stream in streams:
                stream.close()
        usage = telling.usage()
        return Answered(
            body=telling.body(),
            request_id=requests[0].id,
            input_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens,
            output_tokens=usage.output_tokens,
            cut=was_cut,
            **_parts(times),
        )


async def _collected(
    streams: Sequence[Stream], telling: Telling, times: list[Times | None], cut: asyncio.Event
) -> bool:
    """Reads to the end, or until it is cut off: then True."""

    async def read(index: int, stream: Stream) -> None:
        async for delta in stream:
            telling.keep(index, delta)
            if delta.times is not None:
                times[index] = delta.times

    async def read_all() -> None:
        if len(streams) == 1:
            await read(0, streams[0])
            return
        async with asyncio.TaskGroup() as group:
            for index, stream in enumerate(streams):
                group.create_task(read(index, stream))

    reading = asyncio.ensure_future(read_all())
    cutting = asyncio.ensure_future(cut.wait())
    try:
        await asyncio.wait({reading, cutting}, return_when=asyncio.FIRST_COMPLETED)
        if reading.done():
            await _first_error(reading)
            return False
        telling.cut()
        return True
    finally:
        reading.cancel()
        cutting.cancel()


async def _first_error(reading: asyncio.Future[None]) -> None:
    try:
        await reading
    except* HeadwayError as errors:
        error = errors.exceptions[0]
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise error from None


def _parts(times: Sequence[Times | None]) -> dict[str, float]:
    """Of the output that ended last."""
    reached = [one for one in times if one is not None and one.first_token_ns]
    if not reached:
        return {}
    last = max(reached, key=lambda one: one.ended_ns)
    return {
        "queue_s": (last.started_ns - last.arrival_ns) / NS_PER_S,
        "prefill_s": (last.first_token_ns - last.started_ns) / NS_PER_S,
        "decode_s": (last.ended_ns - last.first_token_ns) / NS_PER_S,
    }


def _failed(error: HeadwayError) -> Failed:
    code, message = error.code or error.type, error.message
    if isinstance(error, InvalidRequest) or error.status in (400, 404):
        return Failed(fault=Fault.BAD, code=code, message=message)
    if isinstance(error, Draining):
        return Failed(fault=Fault.UNREACHABLE, code=code, message=message, retry_after_s=error.retry_after_s)
    if isinstance(error, KvExhausted):
        return Failed(fault=Fault.SERVER, code=code, message=message)
    if isinstance(error, Refused):
        return Failed(fault=Fault.REFUSED, code=code, message=message, retry_after_s=error.retry_after_s)
    if is_out_of_memory(message):
        return Failed(fault=Fault.OUT_OF_MEMORY, code=code, message=message)
    fault = Fault.LOST if isinstance(error, EngineFailed) else Fault.SERVER
    return Failed(fault=fault, code=code, message=message)
