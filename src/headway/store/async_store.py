"""The store for an event loop: its calls run on a thread of their own, in the order they were made.

There are two threads, one each for the database and for contents, so that a heartbeat never waits behind the bytes of
an upload. A call that is cancelled while it runs is carried out all the same, since a transaction cannot be left in
the middle; only its result is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Self, TypeVar

from headway.store.contents import CHUNK_BYTES, Incoming, Received
from headway.store.items import Item
from headway.store.lifecycle import ItemState
from headway.store.store import Store

T = TypeVar("T")


class AsyncIncoming:
    """An upload under way. Add it inside the context: leaving that discards what was not added."""

    def __init__(self, thread: ThreadPoolExecutor, incoming: Incoming) -> None:
        self._thread = thread
        self._incoming = incoming

    async def write(self, chunk: bytes) -> None:
        """Raises `TooLarge`. Waiting for it before reading on is what slows a client down to the disk's pace."""
        await _call(self._thread, lambda: self._incoming.write(chunk))

    async def finish(self) -> Received:
        """To be given to `Files.add`."""
        return await _call(self._thread, self._incoming.finish)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._thread.submit(self._incoming.discard)  # not awaited: it happens also when this task is being cancelled


class AsyncStore:
    """`await AsyncStore.open(lambda: Store.open(…))`, then `await store.run(lambda s: s.jobs.get(id, tenant))`."""

    def __init__(self, store: Store, rows: ThreadPoolExecutor) -> None:
        self._store = store
        self._rows = rows
        self._contents = ThreadPoolExecutor(1, thread_name_prefix="store-contents")

    @classmethod
    async def open(cls, opening: Callable[[], Store]) -> AsyncStore:
        """The thread that opens a store is the one that uses it, so it is opened here. Raises what `opening` raises."""
        rows = ThreadPoolExecutor(1, thread_name_prefix="store-rows")
        try:
            return cls(await _call(rows, opening, undo=Store.close), rows)
        except BaseException:
            rows.submit(rows.shutdown, wait=False)  # after an `undo` that may be on its way
            raise

    async def run(self, work: Callable[[Store], T]) -> T:
        """`work(store)` on the store's thread. Keep it short: others wait for the same thread."""
        return await _call(self._rows, lambda: work(self._store))

    async def receive(self, id: str, *, max_bytes: int | None = None) -> AsyncIncoming:
        """Begin an upload. Raises as `Contents.receive`."""
        begin = partial(self._store.contents.receive, id, max_bytes=max_bytes)
        return AsyncIncoming(self._contents, await _call(self._contents, begin, undo=Incoming.discard))

    async def measure(self, path: Path) -> Received:
        """`Contents.measure`, which reads the whole file, away from the thread of the rows."""
        return await _call(self._contents, lambda: self._store.contents.measure(path))

    async def read(self, id: str, tenant: str, *, chunk_bytes: int = CHUNK_BYTES) -> AsyncIterator[bytes]:
        """The content of a file. Raises as `Files.open`, before the first chunk."""
        stream = await _call(self._rows, lambda: self._store.files.open(id, tenant), undo=lambda opened: opened.close())
        try:
            while chunk := await _call(self._contents, lambda: stream.read(chunk_bytes)):
                yield chunk
        finally:
            self._contents.submit(stream.close)  # after a read that was cancelled and still runs

    async def items(
        self, batch_id: str, *, state: ItemState | None = None, page_items: int = 1000
    ) -> AsyncIterator[Item]:
        """As `Items.each`; other calls get their turn between its pages."""
        last = 0
        while found := await self.run(
            partial(_page, batch_id=batch_id, after_line=last, limit=page_items, state=state)
        ):
            for item in found:
                yield item
            last = found[-1].line

    async def close(self) -> None:
        """After everything that was asked for before. Nothing may be asked for afterwards."""
        await _call(self._contents, lambda: None)
        self._contents.shutdown(wait=False)
        await _call(self._rows, self._store.close)
        self._rows.shutdown(wait=False)


def _page(store: Store, *, batch_id: str, after_line: int, limit: int, state: ItemState | None) -> list[Item]:
    return store.items.page(batch_id, after_line=after_line, limit=limit, state=state)


async def _call(thread: ThreadPoolExecutor, work: Callable[[], T], *, undo: Callable[[T], object] | None = None) -> T:
    """`work()` on the thread. A cancelled call that has begun is carried out; `undo` then gets what nobody awaits."""
    future = thread.submit(work)
    try:
        return await asyncio.wrap_future(future)
    except asyncio.CancelledError:
        if undo is not None and not future.cancelled():
            thread.submit(_undo, future, undo)
        raise


def _undo(future: Future[T], undo: Callable[[T], object]) -> None:
    """On the same thread, and so after the call itself."""
    if future.exception() is None:
        undo(future.result())
