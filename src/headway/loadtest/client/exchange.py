"""`Exchange`: one request from its sending to its one end, with the attempts that took.

A kept connection that turns out to be closed is replaced once, as every HTTP client does, and the record counts it; a
refusal that says when to come again is obeyed if the run wants that. All else ends it.

A streamed answer ends with the last that it says: its [DONE], or what came last where there is none. How long the
server holds the connection after that is no time of the answer: its slot is free `GRACE_S` later at the latest, which
gives the end of the body a chance to come first, so that the next request can go the same way.
"""

from __future__ import annotations

import asyncio
import errno
import resource
from collections.abc import Callable
from time import monotonic_ns
from typing import TYPE_CHECKING

from headway.loadtest.client.limits import NS_PER_S
from headway.loadtest.client.reading import Reading, read_whole
from headway.loadtest.client.refusal import fate_of_status, least_wait_s, retry_after_s
from headway.loadtest.record import CLIENT_ERROR, IN_ONE_PIECE, Fate, Record
from headway.wire.errors import error_text
from headway.wire.http_client import STALE_NS
from headway.wire.http_connection import Connection, Cut, Headers, HttpFault, NotHttp
from headway.wire.http_pool import words_of

if TYPE_CHECKING:
    from headway.loadtest.client.client import Client

_OWN_LIMITS = {errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.ENOBUFS, errno.ENOMEM}
MAX_ERROR_BODY_BYTES = 64 * 1024
MAX_BODY_BYTES = 16 * 1024 * 1024  # of an answer in one piece
GRACE_S = 0.01


# Called with the record and the time at which the next one may follow, in ns after the start of the run.
OnEnd = Callable[[Record, int], None]


class Exchange:
    """The `Receiver` of a connection. `on_end` is called exactly once, when the record is complete."""

    __slots__ = (
        "_body",
        "_client",
        "_connection",
        "_grace",
        "_on_end",
        "_request",
        "_sent_ns",
        "_task",
        "_timer",
        "ended",
        "reading",
        "record",
        "reused",
    )

    def __init__(self, client: Client, record: Record, request: bytes, on_end: OnEnd) -> None:
        self._client = client
        self._on_end = on_end
        self._request = request
        self._connection: Connection | None = None
        self._task: asyncio.Task[None] | None = None  # that connects
        self._timer: asyncio.TimerHandle | None = None  # that waits to send again
        self._grace: asyncio.TimerHandle | None = None  # that waits for the end of the body after the last word
        self._body = bytearray()
        self._sent_ns = 0  # this attempt
        self.record = record
        self.reading: Reading | None = None
        self.reused = False
        self.ended = False

    # -- sending -------------------------------------------------------------------------------------------------------

    def send(self) -> None:
        """An attempt; what the one before it was answered is forgotten now, not while this one is waited for."""
        self._timer = None
        self.record.headers_ns, self.record.status = -1, 0
        connection = self._client.pool.take()
        if connection is None:
            self._connect()
        else:
            self._carried_by(connection)

    def _connect(self) -> None:
        self._task = self._client.pool.open(self._connected)

    def _connected(self, got: Connection | HttpFault) -> None:
        self._task = None
        if isinstance(got, HttpFault):
            if isinstance(got.__cause__, TimeoutError):
                self._end(Fate.TIMEOUT, str(got))
            else:
                self._end(Fate.CONNECTION, _words_of(got))
        elif self.ended:
            got.close()
        else:
            self._carried_by(got)

    def _carried_by(self, connection: Connection) -> None:
        self._connection = connection
        self._sent_ns = monotonic_ns()
        connection.carry(self, self._request)

    # -- what the connection tells -------------------------------------------------------------------------------------

    def on_head(self, status: int, headers: Headers, now_ns: int) -> None:
        record, template, told = self.record, self._client.template, dict(headers)
        record.headers_ns = now_ns - self._client.zero_ns
        record.status = status
        record.server_timing = told.get(b"server-timing", b"").decode("latin-1")
        self._body = bytearray()
        if not 200 <= status < 300:
            record.retry_after_s = retry_after_s(told)
            if 300 <= status < 400:
                self._body += b"redirected to " + told.get(b"location", b"nowhere")
            return
        self._request = b""  # it will not be sent again
        encoding = told.get(b"content-encoding", b"identity")
        if encoding.lower() != b"identity":
            words = f"the answer is compressed ({encoding.decode('latin-1')}), which was not asked for"
            self._end(Fate.SERVER_ERROR, words, now_ns)
        elif template.stream and b"application/json" not in told.get(b"content-type", b"").lower():
            self.reading = Reading(record, choices=template.choices, keep_text=self._client.recount is not None)

    def on_body(self, data: bytes, now_ns: int) -> None:
        reading = self.reading
        if reading is None:
            status = self.record.status
            if 200 <= status < 300 or (status >= 400 and len(self._body) < MAX_ERROR_BODY_BYTES):
                self._body += data
                if len(self._body) > MAX_BODY_BYTES:
                    words = f"the answer is longer than {MAX_BODY_BYTES // 2**20} MB"
                    self._end(Fate.TOO_LONG, words, now_ns)
            return
        reading.feed(data, now_ns - self._client.zero_ns)
        if reading.failed or reading.done:
            self._client.hears_done |= reading.done
            if self._grace is None:
                self._grace = self._client.loop.call_later(GRACE_S, self._grace_over, now_ns)
        elif reading.finished:
            self._client.linger(self, reading.heard_ns + self._client.zero_ns)

    def on_complete(self, now_ns: int) -> None:
        self._connection = None  # it is in the pool again, or closed
        if self.reading is not None:
            self._judge(now_ns)
        elif 200 <= self.record.status < 300:
            self._whole(now_ns)
        else:
            self._refused(now_ns)

    def on_broken(self, fault: HttpFault, now_ns: int, *, answered: bool) -> None:
        self._connection = None
        # One that breaks later had been read: the server has worked on it, and a second time would hide that it failed.
        if self.reused and not answered and now_ns - self._sent_ns < STALE_NS:
            self.record.replaced += 1
            self._connect()  # no kept one, so this happens once
            return
        if isinstance(fault, NotHttp):
            self._end(Fate.SERVER_ERROR, str(fault), now_ns)
        elif self.record.headers_ns < 0 or self.record.status == 0:
            self._end(Fate.CONNECTION, f"{_words_of(fault)} before an answer", now_ns)
        elif self.reading is not None:
            if not self.reading.finished:
                self.reading.fail(f"stream ended early: {_words_of(fault)}")
            self._judge(now_ns)
        elif 200 <= self.record.status < 300:
            self._end(Fate.SERVER_ERROR, f"the answer was cut off: {_words_of(fault)}", now_ns)
        else:
            self._refused(now_ns)

    # -- ends ----------------------------------------------------------------------------------------------------------

    def _grace_over(self, since_ns: int) -> None:
        """The body's end is for the connection to wait for."""
        assert self.reading is not None
        if self.reading.done and self._connection is not None:
            self._client.leave(self._connection)
            self._connection = None
        self._judge(monotonic_ns(), since_ns)

    def linger_over(self, since_ns: int) -> None:
        """It has said all it has to say, at `since_ns`, and keeps the connection open."""
        self._judge(monotonic_ns(), since_ns)

    def expire(self, now_ns: int) -> None:
        if self._timer is not None:
            self._end(Fate.LIMITED, self.record.error, now_ns)
            return
        stage = "no connection" if self._task is not None else "no end of the answer"
        if self._task is None and self.record.status == 0:
            stage = "no answer"
        self._end(Fate.TIMEOUT, f"{stage} within {self._client.limits.timeout_s:g} s", now_ns)

    def cancel(self, now_ns: int) -> None:
        """The run is over."""
        if self._timer is not None:
            self._end(Fate.LIMITED, self.record.error, now_ns)
        else:
            self._end(Fate.CANCELLED, "", now_ns)

    def _judge(self, now_ns: int, failed_ns: int | None = None) -> None:
        assert self.reading is not None
        self.reading.judge()
        if self.reading.failed:
            self._end(self.reading.fate, self.reading.error, failed_ns or now_ns)
        else:
            ended_ns = self.reading.heard_ns + self._client.zero_ns
            held = now_ns - ended_ns > GRACE_S * NS_PER_S
            self._end(Fate.OK, self.reading.error, ended_ns, free_ns=now_ns if held else None)

    def _whole(self, now_ns: int) -> None:
        wrong, text = read_whole(self.record, bytes(self._body))
        if not wrong and self._client.template.stream:
            self._end(Fate.OK, IN_ONE_PIECE, now_ns, text)
        else:
            self._end(Fate.SERVER_ERROR if wrong else Fate.OK, wrong, now_ns, text)

    def _refused(self, now_ns: int) -> None:
        record, limits = self.record, self._client.limits
        fate = fate_of_status(record.status, record.retry_after_s)
        words = f"HTTP {record.status}: {error_text(bytes(self._body)) or 'no words'}"
        wait_s = record.retry_after_s
        if fate is Fate.LIMITED and limits.respect_retry_after and wait_s >= 0 and not self._client.closing:
            used_s = (now_ns - self._client.zero_ns - record.sent_ns) / NS_PER_S
            wait_s = max(wait_s, least_wait_s(record.retries))
            if used_s + wait_s < limits.timeout_s:
                record.error = self._client.redact(words)
                record.retries += 1
                self._timer = self._client.loop.call_later(wait_s, self.send)
                return
        self._end(fate, words, now_ns)

    def _end(
        self, fate: Fate, words: str, now_ns: int | None = None, text: str = "", *, free_ns: int | None = None
    ) -> None:
        """`free_ns`: when the next request may take its place, if that is later than the end."""
        if self.ended:
            return
        self.ended = True
        client, record = self._client, self.record
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._task is not None:
            self._task.cancel()
            self._task = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._grace is not None:
            self._grace.cancel()
            self._grace = None
        if self.reading is not None:
            self.reading.settle()
            words = "; ".join(filter(None, (words, self.reading.note)))
        record.fate = fate
        record.error = client.redact(words) if words else ""
        record.ended_ns = client.now_ns() if now_ns is None else now_ns - client.zero_ns
        if client.recount is not None and (self.reading is not None or text):
            client.recount.put(record, self.reading, text or (self.reading and self.reading.text) or "")
        self._request, self._body = b"", bytearray()
        client.forget(self)
        self._on_end(record, record.ended_ns if free_ns is None else free_ns - client.zero_ns)


def _words_of(fault: HttpFault) -> str:
    """The system's own error, where there is one."""
    cause = fault.__cause__
    return describe(cause) if isinstance(cause, Exception) else describe(None if isinstance(fault, Cut) else fault)


def describe(reason: Exception | None) -> str:
    """A connection's failure in few words; this machine's own limits begin with `CLIENT_ERROR`."""
    if reason is None:
        return "connection closed"
    if isinstance(reason, ConnectionResetError | BrokenPipeError):
        return "connection reset"
    if isinstance(reason, OSError) and reason.errno in _OWN_LIMITS:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return f"{CLIENT_ERROR}{reason.strerror} (this process may open {limit} files; see ulimit -n)"
    return words_of(reason)
