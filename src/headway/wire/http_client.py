"""`HttpClient`: asks one server, and `Exchange`: a request and its answer, read as it arrives.

Whoever reads too slowly makes the server wait; a server that is silent for too long is given up; whoever stops caring
closes the exchange, and with it the connection, so that the server stops as well.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from time import monotonic_ns

from headway.core.errors import ConfigError
from headway.wire.http_connection import NS_PER_S, Connection, Headers, HttpFault, NotHttp, TooSlow
from headway.wire.http_pool import Pool, Server

# Of an answer that nobody has fetched yet: more than HIGH makes the server wait until there is less.
HIGH_BYTES = 64 * 1024
# A connection that was kept open and ends so soon after a request was sent on it had been closed before.
STALE_NS = NS_PER_S
# What may follow an answer that has said everything, until its connection is free.
LINGER_S, LINGER_BYTES = 1.0, 64 * 1024

_TARGET = re.compile(r"/[!-~]*")
_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
# Methods that ask for nothing to be done: they may be repeated.
SAFE = frozenset(("GET", "HEAD", "OPTIONS"))


@dataclass(frozen=True, slots=True)
class Timeouts:
    """In seconds; 0 is no limit. Where a reader is slow, the server is not blamed."""

    connect_s: float = 5.0
    first_byte_s: float = 0.0  # of the body, since the request was sent
    between_bytes_s: float = 0.0
    total_s: float = 0.0
    shortest_s: float = field(init=False)  # before that nothing can be too late

    def __post_init__(self) -> None:
        limits = [limit for limit in (self.first_byte_s, self.between_bytes_s, self.total_s) if limit]
        object.__setattr__(self, "shortest_s", min(limits, default=0.0))


@dataclass(slots=True)
class ResponseHead:
    status: int
    headers: Headers  # names in lower case

    def header(self, name: bytes) -> bytes:
        for known, value in self.headers:
            if known == name:
                return value
        return b""


class Exchange:
    """One request and its one answer, for one reader.

    A kept connection that turns out to be closed is replaced once, and only if the request is `repeatable`, no byte of
    an answer came, and the close came at once: then the server had closed before it could read the request, or threw
    it away unanswered. A request that is not repeatable never goes over a kept connection.
    """

    __slots__ = (
        "_bodiless",
        "_buffered_bytes",
        "_connection",
        "_fault",
        "_head",
        "_last_ns",
        "_limits",
        "_lingering",
        "_over",
        "_overdue",
        "_paused",
        "_pieces",
        "_pool",
        "_repeatable",
        "_request",
        "_sent_ns",
        "_started_ns",
        "_task",
        "_timer",
        "_waiter",
        "first_byte_ns",
        "reused",
    )

    def __init__(
        self, pool: Pool, head: bytes, body: bytes, limits: Timeouts, *, repeatable: bool, bodiless: bool = False
    ) -> None:
        self._pool = pool
        self._request: tuple[bytes, bytes] = (head, body)
        self._limits = limits
        self._repeatable = repeatable
        self._bodiless = bodiless
        self._connection: Connection | None = None
        self._task: asyncio.Task[None] | None = None  # that connects
        self._timer: asyncio.TimerHandle | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._head: ResponseHead | None = None
        self._pieces: list[bytes] = []
        self._buffered_bytes = 0
        self._fault: HttpFault | None = None
        self._over = self._paused = self._lingering = False
        self._overdue = False  # at the last check
        self._started_ns = self._last_ns = monotonic_ns()
        self._sent_ns = 0
        self.first_byte_ns = 0  # of the body; 0 before it came
        self.reused = False

    def start(self) -> None:
        connection = self._pool.take() if self._repeatable else None
        if connection is not None:
            self._carry(connection)
        else:
            self._task = self._pool.open(self._connected)
        if shortest_s := self._limits.shortest_s:
            self._timer = asyncio.get_running_loop().call_later(shortest_s, self._check)

    # -- the reader's side ---------------------------------------------------------------------------------------------

    async def head(self) -> ResponseHead:
        """Raises `HttpFault`."""
        while self._head is None:
            if self._fault is not None:
                raise self._fault
            await self._news()
        return self._head

    async def read(self) -> bytes:
        """What has arrived of the body since; empty at its end. Raises `HttpFault` where it breaks off."""
        while not self._pieces:
            if self._fault is not None:
                raise self._fault
            if self._over:
                return b""
            await self._news()
        pieces = self._pieces
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        self._pieces = []
        self._buffered_bytes = 0
        if self._paused:
            self._paused = False
            self._last_ns = monotonic_ns()
            if self._connection is not None:
                self._connection.resume()
        return data

    async def read_all(self, most_bytes: int) -> bytes:
        """The rest of the body. Raises `HttpFault`, also when it is larger than that."""
        pieces, size = [], 0
        while data := await self.read():
            size += len(data)
            if size > most_bytes:
                self.close()
                raise NotHttp(f"the answer is larger than {most_bytes:,} bytes")
            pieces.append(data)
        return b"".join(pieces)

    async def _news(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def close(self) -> None:
        """Nobody cares any more. What is still to come closes the connection. Idempotent; never waits."""
        self._fault = self._fault or HttpFault("the exchange was closed")
        self._pieces = []
        self._end()
        self._hang_up()

    def release(self) -> None:
        """The answer has said everything that matters: keep its connection if its end follows soon."""
        if self._lingering and not self._over:
            return
        if self._connection is None or self._over:
            self.close()
            return
        self._lingering = True
        self._pieces = []
        self._buffered_bytes = 0
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(LINGER_S, self.close)
        self._connection.resume()

    # -- the connection's side -----------------------------------------------------------------------------------------

    def _connected(self, got: Connection | HttpFault) -> None:
        self._task = None
        if isinstance(got, HttpFault):
            self._fail(got)
        elif self._over:
            got.close()
        else:
            self._carry(got)

    def _carry(self, connection: Connection) -> None:
        self._connection = connection
        self._sent_ns = self._last_ns = monotonic_ns()
        connection.carry(self, *self._request, bodiless=self._bodiless)

    def on_head(self, status: int, headers: Headers, now_ns: int) -> None:
        self._head = ResponseHead(status, headers)
        self._last_ns = now_ns
        self._request = (b"", b"")  # it will not be sent again
        self._wake()

    def on_body(self, data: bytes, now_ns: int) -> None:
        self._last_ns = now_ns
        if not self.first_byte_ns:
            self.first_byte_ns = now_ns
        self._buffered_bytes += len(data)
        if self._lingering:
            if self._buffered_bytes > LINGER_BYTES:
                self.close()
            return
        self._pieces.append(data)
        if self._buffered_bytes > HIGH_BYTES and not self._paused and self._connection is not None:
            self._paused = True
            self._connection.pause()
        self._wake()

    def on_complete(self, now_ns: int) -> None:
        del now_ns
        self._connection = None  # it is in the pool again, or closed
        self._end()

    def on_broken(self, fault: HttpFault, now_ns: int, *, answered: bool) -> None:
        self._connection = None
        stale = self.reused and not answered and now_ns - self._sent_ns < STALE_NS
        if stale and self._repeatable and not self._over:
            self._task = self._pool.open(self._connected)  # which is not a kept one, so this happens once
        else:
            self._fail(fault)

    def _fail(self, fault: HttpFault) -> None:
        self._fault = self._fault or fault
        self._end()

    def _end(self) -> None:
        self._over = True
        self._request = (b"", b"")
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # -- time ----------------------------------------------------------------------------------------------------------

    def _check(self) -> None:
        """One timer a request, set again only when it fires: a byte does not cost one."""
        self._timer = None
        if self._over:
            return
        now_ns, limits = monotonic_ns(), self._limits
        dues: list[tuple[int, str]] = []
        if limits.total_s:
            dues.append((self._started_ns + int(limits.total_s * NS_PER_S), f"no end within {limits.total_s:g} s"))
        if self._connection is None or self._paused:
            pass  # connecting has a limit of its own, and a slow reader is not the server's fault
        elif self.first_byte_ns:
            if limits.between_bytes_s:
                due_ns = self._last_ns + int(limits.between_bytes_s * NS_PER_S)
                dues.append((due_ns, f"nothing more within {limits.between_bytes_s:g} s"))
        elif limits.first_byte_s:
            due_ns = self._sent_ns + int(limits.first_byte_s * NS_PER_S)
            dues.append((due_ns, f"no answer within {limits.first_byte_s:g} s"))
        due_ns, words = min(dues, default=(0, ""))
        if words and due_ns <= now_ns and self._overdue:
            self._give_up(TooSlow(words))
            return
        # If this process stood still, what came meanwhile is not read yet: some loops look at their timers first.
        self._overdue = bool(words) and due_ns <= now_ns
        wait_s = limits.shortest_s
        if words:
            wait_s = max(0.0, min(wait_s, (due_ns - now_ns) / NS_PER_S))
        self._timer = asyncio.get_running_loop().call_later(wait_s + 0.001, self._check)

    def _give_up(self, fault: TooSlow) -> None:
        self._fail(fault)
        self._hang_up()

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._task is not None:
            self._task.cancel()
            self._task = None


class HttpClient:
    """Asks one server. Bytes that every request begins with are made once."""

    def __init__(self, pool: Pool, authority: str, headers: Headers, timeouts: Timeouts) -> None:
        self.pool = pool
        self.timeouts = timeouts
        self._lines = _lines(headers)
        self._common = self._named(authority)

    def _named(self, authority: str) -> bytes:
        return b"host: %b\r\n%b" % (authority.encode("ascii"), self._lines)

    def move(self, server: Server, authority: str) -> None:
        """The server is elsewhere from now on. Calls in flight end where they are."""
        self._common = self._named(authority)
        self.pool.move(server)

    def ask(
        self,
        method: str,
        target: str,
        *,
        headers: Iterable[tuple[bytes, bytes]] = (),
        body: bytes = b"",
        timeouts: Timeouts | None = None,
        repeatable: bool | None = None,
    ) -> Exchange:
        """Send a request. By itself only a safe method is `repeatable`. Raises `ValueError` for a head that is none."""
        length = b"content-length: %d\r\n" % len(body) if body or method not in SAFE else b""
        lines = _lines(headers) if headers else b""
        head = b"%b%b%b%b\r\n" % (_request_line(method, target), self._common, lines, length)
        exchange = Exchange(
            self.pool,
            head,
            body,
            timeouts or self.timeouts,
            repeatable=method in SAFE if repeatable is None else repeatable,
            bodiless=method == "HEAD",
        )
        exchange.start()
        return exchange

    async def get(self, target: str, *, most_bytes: int, timeout_s: float) -> tuple[ResponseHead, bytes]:
        """A small question and its whole answer. Raises `HttpFault`."""
        exchange = self.ask("GET", target, timeouts=Timeouts(total_s=timeout_s))
        try:
            head = await exchange.head()
            return head, await exchange.read_all(most_bytes)
        finally:
            exchange.close()

    async def close(self) -> None:
        await self.pool.close()


def client_of(
    server: Server, authority: str, *, headers: Headers | None = None, timeouts: Timeouts = Timeouts()
) -> HttpClient:
    """A client with a pool of its own."""
    return HttpClient(Pool(server, connect_timeout_s=timeouts.connect_s), authority, headers or [], timeouts)


def own_headers(api_key: str, whose: str = "The API key") -> list[tuple[bytes, bytes]]:
    """What we say of ourselves in every request to an API. Raises `ConfigError` for a key that no header can hold."""
    headers = [(b"user-agent", b"headway"), (b"accept-encoding", b"identity")]
    if not api_key:
        return headers
    if not api_key.isascii() or not api_key.isprintable():
        raise ConfigError(f"{whose} has characters that no header can hold.", param="api_key")
    return [*headers, (b"authorization", b"Bearer " + api_key.encode())]


def _lines(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Raises `ValueError` for a header that would become two."""
    lines = [b"%b: %b\r\n" % (_checked(name), value) for name, value in headers]
    block = b"".join(lines)
    if not (block.count(b"\n") == block.count(b"\r") == len(lines)) or b"\0" in block:
        raise ValueError("a header with a line end or a zero byte in its value cannot be sent")
    return block


@lru_cache(maxsize=256)
def _request_line(method: str, target: str) -> bytes:
    if not _TARGET.fullmatch(target) or not method.isalpha():
        raise ValueError(f"{method} {target!r} is no request line")
    return f"{method} {target} HTTP/1.1\r\n".encode()


@lru_cache(maxsize=256)
def _checked(name: bytes) -> bytes:
    if not _NAME.fullmatch(name):
        raise ValueError(f"the header {name[:80]!r} cannot be sent: that is no name")
    return name
