"""Plain blocking HTTP that ends in time, whatever a server does: it may send a byte a second for ever."""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urljoin, urlsplit

import msgspec

from headway.wire.http_address import HttpAddress

MAX_BODY_BYTES = 64 * 1024 * 1024
LINGER_S = 0.5
# The last two are of `http.client`, where another thread has closed what it was reading.
_BROKEN = (OSError, http.client.HTTPException, AttributeError, ValueError)
_REDIRECTS = (301, 302, 307, 308)

Finished = Callable[[bytes], bool]
_Request = tuple[str, str, bytes | None, Mapping[str, str]]  # method, target, body, headers


class _FinalResponse(http.client.HTTPResponse):
    """The standard library takes any 1xx but 100 for the answer; the answer is what follows it."""

    def _read_status(self) -> tuple[str, int, str]:
        while True:
            version, status, reason = super()._read_status()  # type: ignore[misc] # not in its stub
            if not 101 < status < 200:
                return version, status, reason
            http.client.parse_headers(self.fp)


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: Mapping[str, str]  # names in lower case
    body: bytes
    took_s: float  # without connecting

    @property
    def text(self) -> str:
        return self.body.decode("utf-8", "replace")

    @property
    def json(self) -> Any:
        """None where it is no JSON."""
        try:
            return msgspec.json.decode(self.body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None

    @property
    def kind(self) -> str:
        """Of content, as told."""
        return self.headers.get("content-type", "")


class Channel:
    """One kept connection to one server. Every failure is an `OSError`. Not thread-safe, but for `close`.

    No answer is trusted to be small, fast or well-formed.
    """

    def __init__(
        self, address: HttpAddress, headers: Mapping[str, str], tls: ssl.SSLContext | None, timeout_s: float
    ) -> None:
        self._address = address
        self._headers = {name: value for name, value in headers.items() if name != "host"}
        self._tls = tls
        self._timeout_s = timeout_s
        self._connection: http.client.HTTPConnection | None = None

    def with_headers(self, headers: Mapping[str, str], timeout_s: float) -> Channel:
        """Another channel to the same server."""
        return Channel(self._address, headers, self._tls, timeout_s)

    def get(self, target: str) -> Answer:
        """One redirect on the same server is followed."""
        answer = self.ask("GET", target)
        if answer.status in _REDIRECTS:
            to = urlsplit(urljoin(target, answer.headers.get("location", "")))
            if to.netloc in ("", self._address.authority):
                answer = self.ask("GET", to.path + (f"?{to.query}" if to.query else ""))
        return answer

    def json(self, target: str) -> dict[str, Any]:
        """The object that a GET answers; nothing whatever goes wrong."""
        with contextlib.suppress(OSError):
            answer = self.get(target)
            if answer.status == 200 and isinstance(told := answer.json, dict):
                return told
        return {}

    def ask(
        self,
        method: str,
        target: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        most_bytes: int = MAX_BODY_BYTES,
        finished: Finished | None = None,
    ) -> Answer:
        """A kept connection that is closed is opened again once. A body is JSON, unless `headers` say otherwise.

        More than `most_bytes` of an answer is not waited for; `finished` says of what came so far whether anything that
        matters can still come.
        """
        own = {} if body is None else {"content-type": "application/json"}
        request = method, target, body, {**self._headers, **own, **(headers or {})}
        for is_kept in (self._connection is not None, False):
            try:
                return self._ask_once(request, most_bytes, finished)
            except _BROKEN as error:
                self.close()
                if not is_kept or isinstance(error, TimeoutError):
                    if isinstance(error, OSError):
                        raise error from None
                    raise OSError(f"no HTTP answer: {type(error).__name__}") from error
        raise AssertionError("the loop returns or raises")

    def close(self) -> None:
        """From any thread."""
        connection, self._connection = self._connection, None
        if connection is not None:
            hang_up(connection)

    def _ask_once(self, request: _Request, most_bytes: int, finished: Finished | None) -> Answer:
        connection = self._connection
        if connection is None:
            connection = connection_to(self._address.host, self._address.port, self._tls, self._timeout_s)
            self._connection = connection
            connection.connect()  # so that what a request takes is a request's time
        sock, began_s = connection.sock, time.monotonic()
        with within(connection, self._timeout_s):
            connection.request(*request)
            response = connection.getresponse()
            data = response.read(most_bytes) if finished is None else _read_until(finished, response, sock, most_bytes)
        took_s = time.monotonic() - began_s
        told = {name.lower(): value for name, value in response.getheaders()}
        if not response.isclosed():
            self.close()  # there is more than anybody wants
        return Answer(response.status, told, data, took_s)


def _read_until(finished: Finished, response: http.client.HTTPResponse, sock: socket.socket, most_bytes: int) -> bytes:
    """A finished answer's end is not waited for long."""
    data = b""
    over = False
    try:
        while len(data) < most_bytes and (piece := response.read1(most_bytes)):
            data += piece
            if not over and finished(data):
                over = True
                sock.settimeout(LINGER_S)
    except TimeoutError:
        if not over:
            raise
    return data


def connection_to(host: str, port: int, tls: ssl.SSLContext | None, timeout_s: float) -> http.client.HTTPConnection:
    """`timeout_s` is for connecting and for each read; see `within` for all of an answer."""
    if tls is None:
        connection = http.client.HTTPConnection(host, port, timeout=timeout_s)
    else:
        connection = http.client.HTTPSConnection(host, port, timeout=timeout_s, context=tls)
    connection.response_class = _FinalResponse
    return connection


def hang_up(connection: http.client.HTTPConnection) -> None:
    """From any thread: whoever reads there is told at once."""
    if connection.sock is not None:
        with contextlib.suppress(OSError):
            connection.sock.shutdown(socket.SHUT_RDWR)
    connection.close()


@contextlib.contextmanager
def within(connection: http.client.HTTPConnection, seconds: float) -> Iterator[None]:
    """What is done on a connected one takes no longer. Raises TimeoutError."""
    sock, late = connection.sock, threading.Event()

    def cut() -> None:
        late.set()
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(seconds, cut)
    timer.daemon = True
    timer.start()
    try:
        yield
    except Exception:
        if late.is_set():
            raise TimeoutError(f"no whole answer within {seconds:g} s") from None
        raise
    finally:
        timer.cancel()
    if late.is_set():
        raise TimeoutError(f"no whole answer within {seconds:g} s")
