"""`RemoteAnswer`: the `Answer` of a server elsewhere, over one HTTP exchange."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

from headway.wire.http_client import Exchange, ResponseHead
from headway.wire.http_connection import HttpFault, NoConnection, NotHttp, TooSlow
from headway.workers.reading import Reading, read_whole
from headway.workers.worker import Head, Told, WorkerFailed

# Of an answer that is read as a whole.
MAX_WHOLE_BYTES = 64 * 1024 * 1024

# What belongs to a connection, or is said anew by whoever hands the answer on.
NOT_HANDED_ON = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"content-length",
        b"date",
        b"server",
    )
)


class RemoteAnswer:
    """`known`: it answers a completion, so its shape is checked; else it is passed on as it comes."""

    __slots__ = ("_exchange", "_failed", "_head", "_known", "_name", "_on_failure", "_over", "_reading", "_streams")

    def __init__(
        self,
        exchange: Exchange,
        *,
        name: str,
        known: bool,
        streams: bool,
        choices: int,
        usage_added: bool,
        on_failure: Callable[[WorkerFailed], None],
    ) -> None:
        self._exchange = exchange
        self._name = name
        self._known = known
        self._streams = streams
        self._on_failure = on_failure
        self._reading = Reading(choices=choices, usage_added=usage_added)
        self._head: Head | None = None
        self._failed: WorkerFailed | None = None
        self._over = False

    @property
    def told(self) -> Told:
        return self._reading.told

    async def head(self) -> Head:
        if self._head is None:
            try:
                came = await self._exchange.head()
            except HttpFault as fault:
                raise self._fail(failure_of(fault)) from fault
            self._head = Head(came.status, tuple(_handed_on(came)))
            if wrong := self._wrong(self._head):
                raise self._fail(WorkerFailed(f"its answer is of no use: {wrong}.", code="worker_garbage"))
        if self._failed is not None:
            raise self._failed
        return self._head

    def _wrong(self, head: Head) -> str:
        """What is wrong with a head, in words that follow a colon; empty when nothing is."""
        if not self._known or head.status >= 400:
            return ""
        if not 200 <= head.status < 300:
            to = head.header(b"location")[:200].decode("latin-1") or "nowhere"
            return f"it redirects to {to}; give that URL" if head.status >= 300 else f"its status is {head.status}"
        encoding = head.header(b"content-encoding").lower()
        if encoding not in (b"", b"identity"):
            return f"it is compressed ({encoding[:40].decode('latin-1')}), which was not asked for"
        content = head.header(b"content-type").partition(b";")[0].strip().lower()
        wanted = b"text/event-stream" if self._streams else b"application/json"
        if content != wanted:
            got = content[:80].decode("latin-1") or "none"
            return f"its content type is {got} where {wanted.decode()} was asked for"
        return ""

    # -- in pieces -----------------------------------------------------------------------------------------------------

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        head = self._head or await self.head()
        read = self._known and self._streams and head.status < 300
        while True:
            if self._failed is not None:
                raise self._failed
            if self._over:
                raise StopAsyncIteration
            try:
                data = await self._exchange.read()
            except HttpFault as fault:
                data = self._broken_off() if read else b""
                if not self._over:
                    raise self._fail(failure_of(fault)) from fault
            else:
                data = self._read(data) if read else self._passed(data)
            if data:
                return data

    def _passed(self, data: bytes) -> bytes:
        if not data:
            self._over = self._reading.told.complete = True
        return data

    def _read(self, data: bytes) -> bytes:
        reading = self._reading
        data = reading.feed(data) if data else reading.end()
        if reading.failure is not None:
            self._fail(reading.failure)
        elif reading.told.complete:
            self._over = True
            self._exchange.release()
        return data

    def _broken_off(self) -> bytes:
        """A stream that had given its finish reasons is whole, however the connection ended."""
        last = self._reading.end()
        if self._reading.told.complete:
            self._over = True
            self._exchange.close()
        return last

    # -- in one piece --------------------------------------------------------------------------------------------------

    async def whole(self) -> bytes:
        head = self._head or await self.head()
        if self._failed is not None:
            raise self._failed
        try:
            body = await self._exchange.read_all(MAX_WHOLE_BYTES)
        except HttpFault as fault:
            raise self._fail(failure_of(fault)) from fault
        self._over = True
        if self._known and not self._streams and 200 <= head.status < 300:
            failure = read_whole(self._reading.told, body)
            if failure is not None:
                raise self._fail(failure)
        self._reading.told.complete = True
        return body

    # -- ends ----------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        if self._reading.told.complete and self._failed is None:
            self._exchange.release()
        else:
            self._exchange.close()
            if self._failed is None and not self._over:
                self._failed = WorkerFailed("the answer was closed before its end.", code="worker_closed")

    def _fail(self, failure: WorkerFailed) -> WorkerFailed:
        """Raised from now on, also by what was already waiting. The connection is of no use any more."""
        if self._failed is None:
            failure.message = f"Worker {self._name}: {failure.message}"
            failure.args = (failure.message,)
            self._failed = failure
            self._exchange.close()
            self._on_failure(failure)
        return self._failed


def failure_of(fault: HttpFault) -> WorkerFailed:
    if isinstance(fault, NoConnection):
        return WorkerFailed(f"there is no connection to it: {fault}.", code="worker_unreachable")
    if isinstance(fault, TooSlow):
        return WorkerFailed(f"it was silent too long: {fault}.", code="worker_timeout")
    if isinstance(fault, NotHttp):
        return WorkerFailed(f"its answer cannot be understood: {fault}.", code="worker_garbage")
    return WorkerFailed(f"it broke off: {fault}.", code="worker_closed")


def _handed_on(head: ResponseHead) -> list[tuple[bytes, bytes]]:
    kept = [pair for pair in head.headers if pair[0] not in NOT_HANDED_ON]
    if connection := head.header(b"connection"):  # it names headers that were meant for one hop
        named = {name.strip().lower() for name in connection.split(b",")}
        kept = [pair for pair in kept if pair[0] not in named]
    return kept
