"""Plain blocking HTTP connections that end in time, whatever a server does: it may send a byte a second for ever."""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
import threading
from collections.abc import Iterator


class _FinalResponse(http.client.HTTPResponse):
    """The standard library takes any 1xx but 100 for the answer; the answer is what follows it."""

    def _read_status(self) -> tuple[str, int, str]:
        while True:
            version, status, reason = super()._read_status()  # type: ignore[misc] # not in its stub
            if not 101 < status < 200:
                return version, status, reason
            http.client.parse_headers(self.fp)


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
