"""Several outputs read as one: `Merged` hands over everything that is ready, in batches.

A batch becomes one write to the client, so 16 samples that a step advanced together cost one system call, not 16.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from types import TracebackType
from typing import Self

from headway.engine.stream import Delta
from headway.gateway.backend import TokenStream

Batch = list[tuple[int, Delta]]  # (which stream, what is new in it)


class Merged:
    """Read with `await next()`: a batch that is never empty, or an empty one when every stream has ended.

    Raises what a stream raises. It holds no more than the streams themselves would: each is bounded by its
    `max_tokens`. Leaving the context stops the reading; closing the streams is their owner's affair.
    """

    def __init__(self, streams: Sequence[TokenStream]) -> None:
        self._streams = streams
        # One stream needs no tasks: it is read directly, which saves two task switches per token.
        self._single: AsyncIterator[Delta] | None = aiter(streams[0]) if len(streams) == 1 else None
        self._ready: Batch = []
        self._error: BaseException | None = None
        self._wake = asyncio.Event()
        self._open = 0
        self._pumps: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        if self._single is None:
            self._open = len(self._streams)
            self._pumps = [asyncio.create_task(self._pump(i, stream)) for i, stream in enumerate(self._streams)]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        for pump in self._pumps:
            pump.cancel()

    async def next(self) -> Batch:
        if self._single is not None:
            delta = await anext(self._single, None)
            return [] if delta is None else [(0, delta)]
        while not self._ready and self._open and self._error is None:
            self._wake.clear()
            await self._wake.wait()
        if self._ready:
            batch, self._ready = self._ready, []
            return batch
        if self._error is not None:
            raise self._error
        return []

    async def _pump(self, index: int, stream: TokenStream) -> None:
        try:
            async for delta in stream:
                self._ready.append((index, delta))
                self._wake.set()
        except Exception as error:  # carried to the reader, whoever it is
            self._error = self._error or error
        finally:
            self._open -= 1
            self._wake.set()
