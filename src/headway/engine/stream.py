"""`Stream`: the output of one request as it appears, from the driver's hands into one consumer's."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from headway.core.errors import HeadwayError
from headway.core.request import Request, Times, Usage
from headway.core.scheduler.step import TokenLogprob


@dataclass(slots=True)
class Delta:
    """What is new since the last delta. The last one of a stream carries `finish_reason`, `usage` and `times`.

    `tokens` are those whose text is in `text` or was complete before; an end-of-sequence token is counted in `usage`
    and shown nowhere.
    """

    text: str
    tokens: list[int]
    logprobs: list[TokenLogprob] | None = None
    finish_reason: str | None = None
    usage: Usage | None = None
    times: Times | None = None


class Stream:
    """An async iterator of `Delta`. Ends after the last delta, or raises the `HeadwayError` that ended the request.

    It holds at most `max_tokens` deltas, so a consumer that never reads costs a bounded amount of memory.
    """

    def __init__(self, request: Request, cancel: Callable[[Stream], None]) -> None:
        self.request = request
        self._cancel = cancel
        self._deltas: deque[Delta] = deque()
        self._error: HeadwayError | None = None
        self._over = False  # nothing more will be pushed
        self._waiter: asyncio.Future[None] | None = None

    def __aiter__(self) -> Stream:
        return self

    async def __anext__(self) -> Delta:
        while not self._deltas:
            if self._error is not None:
                error, self._error = self._error, None
                raise error
            if self._over:
                raise StopAsyncIteration
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return self._deltas.popleft()

    def close(self) -> None:
        """Stop caring. A request still alive is cancelled: what it held is free within one step. Idempotent."""
        if not self._over:
            self._cancel(self)
            self.end()
        self._deltas.clear()

    # The driver's side.

    @property
    def over(self) -> bool:
        return self._over

    def push(self, delta: Delta) -> None:
        if not self._over:
            self._deltas.append(delta)
            self._wake()

    def end(self, error: HeadwayError | None = None) -> None:
        """The request is over. Deltas already pushed are delivered first, then `error` is raised, if any."""
        if not self._over:
            self._over = True
            self._error = error
            self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
