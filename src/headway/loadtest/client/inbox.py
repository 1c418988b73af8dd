"""`Inbox`: bytes are stamped when they arrive and read a little later.

When many streams speak at once, the last is not stamped after all others were parsed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from time import monotonic_ns

from headway.wire.http_connection import Connection

# So long is read before sockets are looked at again, and sends that became due get their turn: what arrives meanwhile
# is stamped so much late. A look costs some µs.
SLICE_NS = 100_000


class Inbox:
    """What has arrived, in order, each with its time. Read in slices, so that a flood does not hold up the loop."""

    __slots__ = ("_loop", "_reading", "_waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[tuple[Connection, int, bytes]] = deque()
        self._reading = False

    def put(self, connection: Connection, data: bytes, at_ns: int) -> None:
        self._waiting.append((connection, at_ns, data))
        if not self._reading:
            self._reading = True
            self._loop.call_soon(self._read)

    def _read(self) -> None:
        until_ns = monotonic_ns() + SLICE_NS
        waiting = self._waiting
        while waiting:
            connection, at_ns, data = waiting.popleft()
            try:
                connection.read(data, at_ns)
            except BaseException:
                self._loop.call_soon(self._read)  # a defect in one call must not leave the others unread
                raise
            if monotonic_ns() > until_ns:
                self._loop.call_soon(self._read)
                return
        self._reading = False
