"""`SideChannel`: plain blocking HTTP beside the load, for questions that no figure depends on. Not thread-safe."""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urljoin, urlsplit

import msgspec

from headway.loadtest.client.address import Address, Tls
from headway.loadtest.client.request import RequestTemplate
from headway.wire.blocking import connection_to, hang_up, within

MAX_BODY_BYTES = 32 * 1024 * 1024
LINGER_S = 0.5
# The last two are of `http.client`, where another thread has closed what it was reading.
_BROKEN = (OSError, http.client.HTTPException, AttributeError, ValueError)
_REDIRECTS = (301, 302, 307, 308)


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    status: int
    headers: Mapping[str, str]  # names in lower case
    body: bytes

    @property
    def json(self) -> Any:
        """None where it is no JSON."""
        try:
            return msgspec.json.decode(self.body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None


class SideChannel:
    """One kept connection. Every failure is an `OSError`."""

    def __init__(
        self, address: Address, headers: Mapping[str, str], tls: ssl.SSLContext | None, timeout_s: float
    ) -> None:
        self._address = address
        self._headers = {name: value for name, value in headers.items() if name != "host"}
        self._tls = tls
        self._timeout_s = timeout_s
        self._connection: http.client.HTTPConnection | None = None

    @classmethod
    def of(cls, template: RequestTemplate, tls: Tls, timeout_s: float) -> SideChannel:
        """To the tested server, with what the load itself is let in by: where only tenants have keys, the first one's.

        Raises InvalidPlan when `tls` names certificates that cannot be used.
        """
        headers = template.common_headers()
        if "authorization" not in headers:
            first = next(iter(template.tenant_headers.values()), {})
            headers |= {name.lower(): value for name, value in first.items()}
        return cls(template.address, headers, tls.context_for(template.address), timeout_s)

    def get(self, path: str) -> HttpAnswer:
        """One redirect on the same server is followed."""
        answer = self._ask("GET", path, None, {})
        if answer.status in _REDIRECTS:
            to = urlsplit(urljoin(path, answer.headers.get("location", "")))
            if to.netloc in ("", self._address.authority):
                answer = self._ask("GET", to.path + (f"?{to.query}" if to.query else ""), None, {})
        return answer

    def with_headers(self, headers: Mapping[str, str], timeout_s: float) -> SideChannel:
        """Another channel to the same server."""
        return SideChannel(self._address, headers, self._tls, timeout_s)

    def json(self, path: str) -> Any:
        """What a GET answers as JSON; None whatever goes wrong."""
        with contextlib.suppress(OSError):
            answer = self.get(path)
            return answer.json if answer.status == 200 else None
        return None

    def post(
        self, path: str, body: bytes, headers: Mapping[str, str], finished: Callable[[bytes], bool] | None = None
    ) -> HttpAnswer:
        """`finished` says of what came so far whether anything that matters can still come."""
        return self._ask("POST", path, body, headers, finished)

    def close(self) -> None:
        """From any thread."""
        connection, self._connection = self._connection, None
        if connection is not None:
            hang_up(connection)

    def _ask(
        self,
        method: str,
        path: str,
        body: bytes | None,
        headers: Mapping[str, str],
        finished: Callable[[bytes], bool] | None = None,
    ) -> HttpAnswer:
        kept = self._connection is not None
        try:
            return self._ask_once(method, path, body, headers, finished)
        except _BROKEN as error:
            self.close()
            if not kept or isinstance(error, TimeoutError):
                raise _as_os_error(error) from None
        try:
            return self._ask_once(method, path, body, headers, finished)  # the kept connection was closed meanwhile
        except _BROKEN as error:
            self.close()
            raise _as_os_error(error) from None

    def _ask_once(
        self,
        method: str,
        path: str,
        body: bytes | None,
        headers: Mapping[str, str],
        finished: Callable[[bytes], bool] | None,
    ) -> HttpAnswer:
        connection = self._connection
        if connection is None:
            connection = connection_to(self._address.host, self._address.port, self._tls, self._timeout_s)
            self._connection = connection
            connection.connect()
        sock = connection.sock
        with within(connection, self._timeout_s):
            connection.request(method, path, body, {**self._headers, **headers})
            response = connection.getresponse()
            data = response.read(MAX_BODY_BYTES) if finished is None else _read_until(finished, response, sock)
        told = {name.lower(): value for name, value in response.getheaders()}
        if not response.isclosed():
            self.close()  # there is more than anybody wants
        return HttpAnswer(response.status, told, data)


def _read_until(finished: Callable[[bytes], bool], response: http.client.HTTPResponse, sock: socket.socket) -> bytes:
    """A finished answer's end is not waited for long."""
    data = b""
    over = False
    try:
        while len(data) < MAX_BODY_BYTES and (piece := response.read1(MAX_BODY_BYTES)):
            data += piece
            if not over and finished(data):
                over = True
                sock.settimeout(LINGER_S)
    except TimeoutError:
        if not over:
            raise
    return data


def _as_os_error(error: Exception) -> OSError:
    return error if isinstance(error, OSError) else OSError(f"no HTTP answer: {type(error).__name__}")
