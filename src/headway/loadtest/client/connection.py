"""`Connection` and `Pool`: HTTP/1.1 over sockets that are kept open, at a cost that leaves the clock alone.

Bytes are stamped when they arrive and read a little later: when many streams speak at once, the last is not stamped
after all others were parsed. `Inbox` holds what is stamped and not read.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable
from time import monotonic_ns
from typing import Protocol

import httptools

SLICE_NS = 500_000  # so long is read before sends that became due get their turn
MAX_HEAD_BYTES = 256 * 1024


class Call(Protocol):
    """Who is told what happens on a connection. Times are of `time.monotonic_ns`."""

    reused: bool  # the connection had served before

    def head(self, status: int, headers: dict[bytes, bytes], now_ns: int) -> None: ...
    def body(self, data: bytes, now_ns: int) -> None: ...
    def complete(self, now_ns: int) -> None: ...
    def broken(self, reason: Exception | None, now_ns: int, *, answered: bool) -> None: ...


class NotHttp(Exception):
    """The server's bytes are no HTTP/1.1 response."""


class Inbox:
    """What has arrived, in order, each with its time. Read in slices, so that a flood does not hold up the loop."""

    __slots__ = ("_loop", "_reading", "_waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[tuple[Connection, int, bytes]] = deque()
        self._reading = False

    def put(self, connection: Connection, data: bytes) -> None:
        self._waiting.append((connection, monotonic_ns(), data))
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


class Connection(asyncio.Protocol):
    """One socket, one call at a time. An empty read in the inbox is its end."""

    __slots__ = (
        "_answered",
        "_call",
        "_head_bytes",
        "_headers",
        "_inbox",
        "_lost",
        "_now_ns",
        "_parser",
        "_pool",
        "_status",
        "_transport",
        "_until_closed",
        "alive",
        "served",
    )

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._inbox = pool.inbox
        self._transport: asyncio.WriteTransport | None = None
        self._call: Call | None = None
        self._lost: Exception | None = None
        self._now_ns = 0
        self._status = 0
        self._headers: dict[bytes, bytes] = {}
        self._head_bytes = 0
        self._answered = False  # a byte of the answer to the present call came
        self._until_closed = False  # the body ends where the connection does
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)
        self.alive = True
        self.served = 0

    # -- asyncio's side ------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment] # a stream's transport can be written to
        self._pool.connections.add(self)

    def data_received(self, data: bytes) -> None:
        self._inbox.put(self, data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.alive = False
        self._lost = exc
        self._pool.connections.discard(self)
        self._inbox.put(self, b"")

    # -- ours ----------------------------------------------------------------------------------------------------------

    def carry(self, call: Call, request: bytes) -> None:
        """Send a request; `call` hears of the answer."""
        assert self._call is None, "one call at a time"
        assert self._transport is not None, "not connected"
        self._call = call
        call.reused = self.served > 0
        self.served += 1
        self._answered = self._until_closed = False
        self._transport.write(request)

    def leave(self) -> Leftover:
        """Forget the call, which has all it wants; serve again when the body has ended."""
        leftover = self._call = Leftover(self)
        return leftover

    def close_left(self, leftover: Leftover) -> None:
        """Unless the body has ended, and another call perhaps goes this way."""
        if self._call is leftover:
            self.close()

    def close(self) -> None:
        """Forget the call and close at once: whatever is on its way is nobody's."""
        self.alive = False
        self._call = None
        self._parser = None  # it refers to us: no cycle is left behind
        if self._transport is not None:
            self._transport.abort()

    def read(self, data: bytes, at_ns: int) -> None:
        """From the inbox."""
        self._now_ns = at_ns
        if not data:
            self._ended()
        elif self._call is None:
            self.close()  # nobody asked
        elif self._parser is not None:
            self._answered = True
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserCallbackError as error:
                raise (error.__context__ or error) from None  # a defect of ours, not of the server
            except httptools.HttpParserError as error:
                self._break(NotHttp(f"the answer is not HTTP/1.1: {error}"))
            except httptools.HttpParserUpgrade:
                self._break(NotHttp("the server wants another protocol"))

    def _ended(self) -> None:
        call, self._call, self._parser = self._call, None, None
        if call is None:
            return
        if self._until_closed and self._lost is None:
            call.complete(self._now_ns)
        else:
            call.broken(self._lost, self._now_ns, answered=self._answered)

    def _break(self, reason: Exception) -> None:
        call = self._call
        self.close()
        if call is not None:
            call.broken(reason, self._now_ns, answered=True)

    # -- httptools' side -----------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._headers = {}
        self._head_bytes = 0
        self._status = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_bytes += len(name) + len(value)
        if self._head_bytes <= MAX_HEAD_BYTES:
            self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        if self._parser is None or self._call is None:
            return
        status = self._parser.get_status_code()
        if 100 <= status < 200:
            return  # 100 Continue, 103 Early Hints: the answer is still to come
        self._status = status
        headers = self._headers
        self._until_closed = (
            b"content-length" not in headers
            and b"chunked" not in headers.get(b"transfer-encoding", b"").lower()
            and status not in (204, 304)
        )
        self._call.head(status, headers, self._now_ns)

    def on_body(self, data: bytes) -> None:
        if self._call is not None:
            self._call.body(data, self._now_ns)

    def on_message_complete(self) -> None:
        call = self._call
        if self._status == 0 or call is None or self._parser is None:
            return
        self._call = None
        if self.alive and self._parser.should_keep_alive():
            self._pool.idle.append(self)  # before the call ends, so that what it starts can go this way
        else:
            self.close()
        call.complete(self._now_ns)


class Leftover:
    """The `Call` of an answer that nobody reads to its end."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.reused = False

    def head(self, status: int, headers: dict[bytes, bytes], now_ns: int) -> None: ...

    def body(self, data: bytes, now_ns: int) -> None: ...

    def complete(self, now_ns: int) -> None: ...

    def broken(self, reason: Exception | None, now_ns: int, *, answered: bool) -> None: ...

    def close(self) -> None:
        self._connection.close_left(self)


class Pool:
    """Connections to one server: as many as there are calls at once, no fewer. The last used is used again first."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        address: tuple[str, int],
        tls: ssl.SSLContext | None,
        server_name: str,
        connect_timeout_s: float,
    ) -> None:
        self._loop = loop
        self._host, self._port = address  # resolved already: no look-up may delay a request
        self._tls = tls
        self._server_name = server_name
        self._connect_timeout_s = connect_timeout_s
        self._opening: set[asyncio.Task[None]] = set()
        self.inbox = Inbox(loop)
        self.idle: list[Connection] = []
        self.connections: set[Connection] = set()
        self.opened = 0

    def take(self) -> Connection | None:
        """An idle connection, or None."""
        while self.idle:
            connection = self.idle.pop()
            if connection.alive:
                return connection
        return None

    def open(self, ready: Callable[[Connection | Exception], None]) -> asyncio.Task[None]:
        """Connect; `ready` gets the connection or what went wrong. Cancel the task to give up."""
        task = self._loop.create_task(self._open(ready))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)
        return task

    async def _open(self, ready: Callable[[Connection | Exception], None]) -> None:
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                _, connection = await self._loop.create_connection(
                    lambda: Connection(self),
                    self._host,
                    self._port,
                    ssl=self._tls,
                    server_hostname=self._server_name if self._tls is not None else None,
                )
        except TimeoutError:
            ready(TimeoutError(f"no connection within {self._connect_timeout_s:g} s"))
        except (OSError, ssl.SSLError) as error:
            ready(error)
        else:
            self.opened += 1
            ready(connection)

    async def close(self) -> None:
        for task in self._opening:
            task.cancel()
        for connection in tuple(self.connections):
            connection.close()
        await asyncio.sleep(0)
        self.idle.clear()
