"""`Connection`: HTTP/1.1 over a socket that is kept open, one call at a time.

No timers, no retries and no buffers here: a `Receiver` hears of an answer as it is parsed. What was not asked for is
never handed to anybody: a byte after the end of an answer, or on a connection that nobody uses, closes it.
"""

from __future__ import annotations

import asyncio
from time import monotonic_ns
from typing import TYPE_CHECKING, Protocol, cast

import httptools

if TYPE_CHECKING:
    from headway.wire.http_pool import Pool

MAX_FRAMING_BYTES = 64 * 1024  # of a head, or of anything else between two pieces of a body
JOINED_BYTES = 32 * 1024  # a head and a body that are sent as one
NS_PER_S = 1_000_000_000

Headers = list[tuple[bytes, bytes]]


class HttpFault(Exception):
    """A call got no answer, or not all of one."""


class NoConnection(HttpFault):
    """There was none to be had. Nothing was sent."""


class Cut(HttpFault):
    """The connection ended before the answer did."""


class NotHttp(HttpFault):
    """The server's bytes are no HTTP/1.1 response, or one larger than anybody sends."""


class TooSlow(HttpFault):
    """A limit of time has passed."""


class Receiver(Protocol):
    """Who is told what happens to a call. Times are of `time.monotonic_ns`: when the bytes arrived."""

    reused: bool  # the connection had served before

    def on_head(self, status: int, headers: Headers, now_ns: int) -> None:
        """Names in lower case, in order, as often as they came."""

    def on_body(self, data: bytes, now_ns: int) -> None: ...
    def on_complete(self, now_ns: int) -> None: ...
    def on_broken(self, fault: HttpFault, now_ns: int, *, answered: bool) -> None:
        """No more will come. `answered`: at least a byte of an answer did."""


class Transport(Protocol):
    """What a connection needs of its socket; asyncio's transports have it."""

    def write(self, data: bytes) -> None: ...
    def get_write_buffer_size(self) -> int: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def abort(self) -> None: ...


class Inbox(Protocol):
    """Takes what arrives and has it `read` later: for those who stamp first and parse when there is time."""

    def put(self, connection: Connection, data: bytes, at_ns: int) -> None:
        """What arrived at `at_ns`. An empty read is the end of the connection."""


class Connection(asyncio.Protocol):
    """One socket, one call at a time."""

    __slots__ = (
        "_answered",
        "_bodiless",
        "_carried_ns",
        "_complete",
        "_framing_bytes",
        "_headers",
        "_in_body",
        "_keep",
        "_lost",
        "_now_ns",
        "_parser",
        "_paused",
        "_pool",
        "_receiver",
        "_status",
        "_surplus",
        "_transport",
        "_until_closed",
        "alive",
        "idle_since_ns",
        "served",
    )

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._transport: Transport | None = None
        self._receiver: Receiver | None = None
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)
        self._lost: Exception | None = None
        self._headers: Headers = []
        self._status = 0
        self._now_ns = 0
        self._carried_ns = 0  # when the present call was sent
        self._framing_bytes = 0  # fed since the last piece of a body
        self._answered = False  # a byte of the answer to the present call came
        self._in_body = False  # its head did
        self._bodiless = False  # it has no body, whatever its head says: the answer to a HEAD
        self._until_closed = False  # its body ends where the connection does
        self._complete = self._keep = self._surplus = self._paused = False
        self.alive = True
        self.served = 0
        self.idle_since_ns = 0

    # -- asyncio's side ------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport | Transport) -> None:
        self._transport = cast("Transport", transport)
        if self.alive:
            self._pool.connections.add(self)
        else:  # given up while it was being made
            self.close()

    def data_received(self, data: bytes) -> None:
        inbox = self._pool.inbox
        if inbox is None:
            self.read(data, monotonic_ns())
        else:
            inbox.put(self, data, monotonic_ns())

    def connection_lost(self, exc: Exception | None) -> None:
        self.alive = False
        self._lost = exc
        self._pool.connections.discard(self)
        self.data_received(b"")

    # -- ours ----------------------------------------------------------------------------------------------------------

    def carry(self, receiver: Receiver, head: bytes, body: bytes = b"", *, bodiless: bool = False) -> None:
        """Send a request; `receiver` hears of the answer."""
        assert self._receiver is None, "one call at a time"
        assert self._transport is not None, "not connected"
        receiver.reused = self.served > 0
        self._receiver = receiver
        self._bodiless = bodiless
        self._answered = self._in_body = self._until_closed = self._complete = False
        self._framing_bytes = 0
        self._carried_ns = monotonic_ns()
        self.served += 1
        if len(body) <= JOINED_BYTES:
            self._transport.write(head + body)
        else:  # not copied
            self._transport.write(head)
            self._transport.write(body)

    def hand_over(self, receiver: Receiver) -> None:
        """Whoever asked has all it wants: this one hears the rest of the answer."""
        self._receiver = receiver

    def pause(self) -> None:
        """Read nothing more, so that the server has to wait."""
        if self.alive and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        if self.alive and self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()

    def close(self) -> None:
        """Forget the call and close at once: whatever is on its way is nobody's."""
        self.alive = False
        self._pool.connections.discard(self)  # a transport that was never finished does not tell of its end
        self._receiver = None
        self._parser = None  # it refers to us: no cycle is left behind
        if self._transport is not None:
            self._transport.abort()
            self._transport = None

    def give_up(self, fault: HttpFault) -> None:
        """Close, and tell whoever is waiting."""
        receiver = self._receiver
        self.close()
        if receiver is not None:
            receiver.on_broken(fault, monotonic_ns(), answered=self._answered)

    def read(self, data: bytes, at_ns: int) -> None:
        """What arrived at `at_ns`, in order."""
        self._now_ns = at_ns
        if not data:
            self._ended()
        elif self._receiver is None:
            self.close()  # nobody asked
        elif at_ns < self._carried_ns:  # it lay in the inbox when this call was sent
            self.give_up(NotHttp("the server sent more than it had been asked for"))
        elif self._parser is not None:
            self._answered = True
            self._framing_bytes += len(data)
            fault = self._feed(self._parser, data)
            if self._complete:
                self._finish(sound=fault is None and not self._surplus)
            elif fault is not None:
                self.give_up(fault)
            elif self._framing_bytes > MAX_FRAMING_BYTES and self._receiver is not None:
                part = "chunk's head or trailer" if self._in_body else "head"
                self.give_up(NotHttp(f"the answer's {part} is larger than {MAX_FRAMING_BYTES} bytes"))

    @staticmethod
    def _feed(parser: httptools.HttpResponseParser, data: bytes) -> HttpFault | None:
        try:
            parser.feed_data(data)
        except httptools.HttpParserCallbackError as error:
            raise (error.__context__ or error) from None  # a defect of ours, not of the server
        except httptools.HttpParserUpgrade:
            return NotHttp("the server wants another protocol")
        except httptools.HttpParserError as error:
            return NotHttp(f"the answer is not HTTP/1.1: {error}")
        return None

    def _finish(self, *, sound: bool) -> None:
        receiver, self._receiver = self._receiver, None
        if receiver is None:
            return  # closed meanwhile
        if sound and self._keep and self._all_sent():
            self.resume()
            self._pool.release(self, self._now_ns)  # before the call ends, so that what it starts can go this way
        else:
            self.close()
        receiver.on_complete(self._now_ns)

    def _all_sent(self) -> bool:
        return self.alive and self._transport is not None and not self._transport.get_write_buffer_size()

    def _ended(self) -> None:
        receiver = self._receiver
        self.close()
        if receiver is None:
            return
        if self._until_closed and self._lost is None:
            receiver.on_complete(self._now_ns)
            return
        fault = Cut("connection closed" if self._lost is None else f"connection lost: {self._lost}")
        fault.__cause__ = self._lost
        receiver.on_broken(fault, self._now_ns, answered=self._answered)

    # -- httptools' side -----------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._complete:
            self._surplus = True  # a second answer to one question
        else:
            self._headers = []

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_body:  # else it is a trailer
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        if self._surplus or self._parser is None or self._receiver is None:
            return
        status = self._parser.get_status_code()
        if 100 <= status < 200:
            return  # 100 Continue, 103 Early Hints: the answer is still to come
        self._status, self._in_body = status, True
        self._framing_bytes = 0
        names = {name: value for name, value in self._headers if name in _FRAMING}
        chunked = b"chunked" in names.get(b"transfer-encoding", b"").lower()
        self._until_closed = not (b"content-length" in names or chunked or status in (204, 304))
        self._receiver.on_head(status, self._headers, self._now_ns)
        if self._bodiless:
            self._complete, self._keep = True, False

    def on_body(self, data: bytes) -> None:
        self._framing_bytes = 0
        if self._receiver is not None and not self._complete:
            self._receiver.on_body(data, self._now_ns)

    def on_message_complete(self) -> None:
        if self._in_body and not self._complete and self._parser is not None:
            self._complete, self._keep = True, self._parser.should_keep_alive()


_FRAMING = frozenset((b"content-length", b"transfer-encoding"))
