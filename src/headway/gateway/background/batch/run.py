"""`BatchRun`: one batch on its way: lines checked, handed out a few at a time, their results kept, files written.

Every step can be repeated: after a kill a new run goes on from what the store says.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing

from headway.core.errors import HeadwayError
from headway.gateway.background.batch.finish import finish
from headway.gateway.background.batch.item import Ended, ItemWork
from headway.gateway.background.batch.lines import Line, WrongLine, parse_line, read_lines
from headway.gateway.background.batch.spool import BAD, GOOD, Spool
from headway.gateway.background.batch.validate import validate
from headway.gateway.background.insist import RETRY_S, insist
from headway.gateway.background.runner import log
from headway.gateway.background.tenants import tenant_of
from headway.gateway.background.work import Kept, whole_body
from headway.store import AsyncStore, Batch, BatchState, Item, ItemState, StoreError
from headway.wire.errors import error_body

READY_ITEMS, READY_BYTES = 64, 8 * 1024 * 1024  # that are held to be handed out
FLUSH_EVERY_S = 0.2


class BatchRun:
    """`turn` bounds how many of one owner's batches hand out lines at a time. `stop(id)` stops what is computed."""

    def __init__(
        self,
        store: AsyncStore,
        batch: Batch,
        spool: Spool,
        *,
        clock_s: Callable[[], float],
        keep_s: float,
        turn: asyncio.Semaphore,
        wake: Callable[[], None],
        stop: Callable[[str], None],
    ) -> None:
        self.id, self.owner = batch.id, batch.tenant
        self._batch = batch
        self._store = store
        self._spool = spool
        self._clock_s = clock_s
        self._keep_s = keep_s
        self._turn = turn
        self._wake = wake
        self._stop = stop
        self._ready: deque[ItemWork] = deque()
        self._resting: list[tuple[float, ItemWork]] = []
        self._out: dict[str, ItemWork] = {}  # that somebody computes
        self._ended: list[Ended] = []  # and not on the disk yet
        self._known: set[int] = set()  # numbers of the lines in any of these
        self._changed = asyncio.Event()
        self._cancelled = False

    # -- what the runner sees --------------------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        return bool(self._ready)

    def take(self) -> ItemWork:
        work = self._ready.popleft()
        self._out[work.kept.id] = work
        if len(self._ready) < READY_ITEMS // 2:
            self._changed.set()
        return work

    def ended(self, work: ItemWork, ended: Ended) -> None:
        self._out.pop(work.kept.id, None)
        self._ended.append(ended)
        self._changed.set()

    def returned(self, work: ItemWork, after_s: float) -> None:
        self._out.pop(work.kept.id, None)
        self._resting.append((time.monotonic() + after_s, work))
        self._changed.set()

    async def suspect(self, number: int) -> None:
        await insist(self._store, lambda store: store.items.begin(self.id, [number]))

    def cancel(self) -> None:
        """The store knows already."""
        self._cancelled = True
        self._changed.set()

    # -- its life --------------------------------------------------------------------------------------------------

    async def run(self) -> Batch:
        """To its end. What the disk does not take is tried again."""
        said = False
        while True:
            try:
                return await self._run()
            except StoreError as error:
                if not said:
                    log.error("the batch %s cannot go on yet, and is tried again: %s", self.id, error.message)
                    said = True
                await asyncio.sleep(RETRY_S)

    async def _run(self) -> Batch:
        batch = await self._now()
        if batch.state is BatchState.VALIDATING and not self._overdue:
            batch = await validate(self._store, batch, self._clock_s)
        if batch.state is BatchState.IN_PROGRESS and batch.missing:
            await self._handed_out(batch)
        return await finish(self._store, self.id, self._spool, self._clock_s, keep_s=self._keep_s)

    async def flush(self) -> None:
        """What has ended is not to be done again after a restart. For one that does not run any more."""
        with contextlib.suppress(StoreError):
            await self._kept()

    async def _now(self) -> Batch:
        return await self._store.run(lambda store: store.batches.find(self.id))

    @property
    def _overdue(self) -> bool:
        return self._clock_s() >= self._batch.expires_at_s

    @property
    def _over(self) -> bool:
        return self._cancelled or self._overdue

    async def _handed_out(self, batch: Batch) -> None:
        """Until every line has its end, or the batch has to end without."""
        if not await self._has_turn():
            return
        try:
            async with aclosing(self._missing(batch)) as missing:  # type: ignore[type-var] # an async generator is one
                more = True
                while not self._over:
                    more = more and await self._refilled(missing)
                    self._rested()
                    await self._kept()
                    if not (more or self._ready or self._resting or self._out or self._ended):
                        return
                    await self._something()
            await self._recalled()
        finally:
            self._turn.release()

    async def _has_turn(self) -> bool:
        """False when the batch ended while it waited."""
        while not self._over:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FLUSH_EVERY_S):
                    await self._turn.acquire()
                    return True
        return False

    async def _something(self) -> None:
        """Wait until something has happened, and not for long: time passes as well."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_EVERY_S):
                await self._changed.wait()
        self._changed.clear()

    async def _missing(self, batch: Batch) -> AsyncIterator[tuple[Item, bytes]]:
        """What has no end yet, with its line, in the order of the input."""
        pending = self._store.items(batch.id, state=ItemState.PENDING, page_items=256)
        async with aclosing(read_lines(self._store, batch.input_file_id, batch.tenant)) as pieces:  # type: ignore[type-var]
            item = await anext(pending, None)
            async for piece in pieces:
                for number, text in piece:
                    if item is None:
                        return
                    if number == item.line:
                        if number not in self._known:  # else it was read before the disk was full
                            yield item, text
                        item = await anext(pending, None)

    async def _refilled(self, missing: AsyncIterator[tuple[Item, bytes]]) -> bool:
        """False when there is nothing more to read."""
        before, more = len(self._ready), True
        held_bytes = sum(len(work.kept.body) for work in self._ready)
        while more and len(self._ready) < READY_ITEMS and len(self._ended) < READY_ITEMS and held_bytes < READY_BYTES:
            found = await anext(missing, None)
            more = found is not None
            if found is not None:
                self._offer(*found)
                held_bytes += len(found[1])
        if len(self._ready) > before:
            self._wake()
        return more

    def _offer(self, item: Item, text: bytes) -> None:
        name = f"{self.id}-{item.line}"
        self._known.add(item.line)
        try:
            line = parse_line(item.line, text, self._batch.endpoint)
            body = whole_body(line.body, streams_refused=True)
        except (HeadwayError, WrongLine) as error:
            told = error if isinstance(error, HeadwayError) else HeadwayError(str(error))
            line = Line(item.line, item.custom_id, b"", "")
            work = ItemWork(self, self.owner, Kept(name, "", self._batch.endpoint, b""), line, item.tries)
            work.fail_now(400, error_body(told), told.code or "invalid_request")
            return
        kept = Kept(name, tenant_of(self.owner), self._batch.endpoint, body)
        self._ready.append(ItemWork(self, self.owner, kept, line, item.tries))

    def _rested(self) -> None:
        now_s = time.monotonic()
        due = [work for at_s, work in self._resting if at_s <= now_s]
        if due:
            self._resting = [(at_s, work) for at_s, work in self._resting if at_s > now_s]
            self._ready.extendleft(reversed(due))
            self._wake()

    async def _kept(self) -> None:
        """Put what has ended on the disk: first the texts, then the results that name their places."""
        ended, self._ended = self._ended, []
        if not ended:
            return
        try:
            results = []
            for which in (GOOD, BAD):
                chosen = [one for one in ended if one.which == which]
                texts = [one.text for one in chosen]
                places = await asyncio.to_thread(self._spool.append, which, texts)
                results += [one.at(place) for one, place in zip(chosen, places, strict=True)]
            await self._store.run(lambda store: store.items.record(self.id, results, self._clock_s()))
            self._known.difference_update(result.line for result in results)
        except BaseException:
            self._ended = ended + self._ended
            raise

    async def _recalled(self) -> None:
        """What is still computed is stopped; what has ended counts."""
        self._ready.clear()
        self._resting.clear()
        for name in tuple(self._out):
            self._stop(name)
        while self._out:
            await self._something()
        await self._kept()
