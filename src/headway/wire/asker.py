"""`Asker`: plain blocking HTTP to one server, with what it takes to be let in. Raises `Unreachable` and `Unauthorised`.

No answer of a server is trusted to be small, fast or well-formed.
"""

from __future__ import annotations

import base64
import http.client
import json
import socket
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headway.core.errors import ConfigError, HeadwayError
from headway.wire.blocking import connection_to, hang_up, within
from headway.wire.http_address import HttpAddress, http_address

MAX_BODY_BYTES = 64 * 1024 * 1024


class Unreachable(HeadwayError):
    """Nobody answers there."""

    status = 502
    code = "unreachable"


class Unauthorised(HeadwayError):
    """It wants to know who asks."""

    status = 401
    code = "unauthorised"


@dataclass(frozen=True, slots=True)
class Login:
    """What to show: a bearer token, or a user and a password; and headers that a proxy may want."""

    token: str = ""
    user: str = ""
    password: str = ""
    headers: Mapping[str, str] | None = None

    def as_headers(self) -> dict[str, str]:
        shown = dict(self.headers or {})
        if self.token:
            shown["Authorization"] = f"Bearer {self.token}"
        elif self.user:
            both = f"{self.user}:{self.password}".encode()
            shown["Authorization"] = "Basic " + base64.b64encode(both).decode()
        return shown


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: bytes
    took_s: float
    kind: str  # of content, as told

    @property
    def text(self) -> str:
        return self.body.decode("utf-8", "replace")

    @property
    def json(self) -> Any:
        """None where it is no JSON."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            return None


class Asker:
    """One kept connection to the server at `url`. Not thread-safe.

    `what` names it in complaints, `advice` ends those about a login. `tls`: how to trust it, if not as the system does.
    """

    def __init__(
        self,
        url: str,
        login: Login | None = None,
        *,
        timeout_s: float = 10.0,
        what: str = "the server",
        advice: str = "",
        tls: ssl.SSLContext | None = None,
    ) -> None:
        try:
            self.address: HttpAddress = http_address(_above(url))
        except ValueError as error:
            raise ConfigError(str(error), param="url") from None
        self._headers = {"user-agent": "headway", **(login or Login()).as_headers()}
        self._timeout_s, self._what, self._advice = timeout_s, what, advice
        self._tls = (tls or ssl.create_default_context()) if self.address.scheme == "https" else None
        self._connection: http.client.HTTPConnection | None = None

    @property
    def url(self) -> str:
        return f"{self.address.scheme}://{self.address.authority}{self.address.root}"

    def get(self, path: str) -> Answer:
        """Of a path below the URL's. Raises `Unreachable`, and `Unauthorised` for 401 and 403."""
        answer = self.try_get(path)
        if answer.status in (401, 403):
            given = "the login that was given is not accepted" if len(self._headers) > 1 else "it wants a login"
            raise Unauthorised(
                f"{self._what} at {self.url} answers {answer.status} to {path}: {given}. {self._advice}".strip()
            )
        return answer

    def try_get(self, path: str) -> Answer:
        """The same, whatever it answers."""
        return self._try("GET", path, None, MAX_BODY_BYTES)

    def try_post(self, path: str, body: object, *, most_bytes: int = MAX_BODY_BYTES) -> Answer:
        """`body` as JSON, whatever it answers; more than `most_bytes` of that is not waited for."""
        return self._try("POST", path, json.dumps(body).encode(), most_bytes)

    def _try(self, method: str, path: str, body: bytes | None, most_bytes: int) -> Answer:
        """A connection that was kept and is closed is opened again once."""
        for attempt in (1, 2):
            kept = self._connection is not None
            try:
                return self._ask(method, path, body, most_bytes)
            except (OSError, http.client.HTTPException) as error:
                self.close()
                if attempt == 2 or not kept or isinstance(error, TimeoutError):
                    raise Unreachable(
                        f"{self._what} at {self.url} cannot be asked: {_words(error, self._timeout_s)}."
                    ) from None
        raise AssertionError("the loop returns or raises")

    def json_of(self, path: str) -> dict[str, Any]:
        """What it tells there; nothing where it has no such page or cannot be asked."""
        try:
            answer = self.try_get(path)
        except Unreachable:
            return {}
        found = answer.json if answer.status == 200 else None
        return found if isinstance(found, dict) else {}

    def close(self) -> None:
        if self._connection is not None:
            hang_up(self._connection)
            self._connection = None

    def _ask(self, method: str, path: str, body: bytes | None, most_bytes: int) -> Answer:
        if self._connection is None:
            self._connection = connection_to(self.address.host, self.address.port, self._tls, self._timeout_s)
            self._connection.connect()  # so that what a request takes is a request's time
        headers = self._headers if body is None else {**self._headers, "content-type": "application/json"}
        started = time.monotonic()
        with within(self._connection, self._timeout_s):
            self._connection.request(method, f"{self.address.root}{path}", body, headers)
            response = self._connection.getresponse()
            data = response.read(most_bytes)
        took_s = time.monotonic() - started
        if not response.isclosed():
            self.close()
        return Answer(response.status, data, took_s, response.getheader("content-type", ""))


def _above(url: str) -> str:
    """People paste the address of the page itself."""
    url = url.strip()
    return url if url.endswith("://") else url.rstrip("/").removesuffix("/metrics")


def _words(error: Exception, timeout_s: float) -> str:
    if isinstance(error, TimeoutError):
        return f"it did not answer within {timeout_s:g} s"
    if isinstance(error, socket.gaierror):
        return "its name is not known"
    if isinstance(error, ConnectionRefusedError):
        return "nothing listens there"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed ({error.reason or error})"
    return f"it gives no HTTP answer ({type(error).__name__})"
