"""`Asker`: a person's question to one server, with what it takes to be let in. Raises `Unreachable`, `Unauthorised`."""

from __future__ import annotations

import json
import socket
import ssl
from dataclasses import dataclass
from typing import Any

from headway.core.errors import HeadwayError
from headway.wire.blocking import MAX_BODY_BYTES, Answer, Channel
from headway.wire.http_address import basic, http_address


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
    """What to show: a bearer token, or a user and a password."""

    token: str = ""
    user: str = ""
    password: str = ""

    def as_headers(self) -> dict[str, str]:
        if self.token:
            return {"authorization": f"Bearer {self.token}"}
        return {"authorization": basic(f"{self.user}:{self.password}")} if self.user else {}


class Asker:
    """Paths are below the URL's. Not thread-safe.

    `what` names the server in complaints, `advice` ends those about a login. `tls`: how to trust it, if not as the
    system does.
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
        self.address = http_address(_above(url))
        shown = (login or Login()).as_headers()
        self._given = bool(shown)
        self._timeout_s, self._what, self._advice = timeout_s, what, advice
        context = (tls or ssl.create_default_context()) if self.address.scheme == "https" else None
        self._channel = Channel(self.address, {"user-agent": "headway", **shown}, context, timeout_s)

    @property
    def url(self) -> str:
        return f"{self.address.scheme}://{self.address.authority}{self.address.root}"

    def get(self, path: str) -> Answer:
        """Raises `Unreachable`, and `Unauthorised` for 401 and 403."""
        answer = self.try_get(path)
        if answer.status in (401, 403):
            given = "the login that was given is not accepted" if self._given else "it wants a login"
            raise Unauthorised(
                f"{self._what} at {self.url} answers {answer.status} to {path}: {given}. {self._advice}".strip()
            )
        return answer

    def try_get(self, path: str) -> Answer:
        """The same, whatever it answers."""
        return self._ask("GET", path, None, MAX_BODY_BYTES)

    def try_post(self, path: str, body: object, *, most_bytes: int = MAX_BODY_BYTES) -> Answer:
        """`body` as JSON, whatever it answers; more than `most_bytes` of that is not waited for."""
        return self._ask("POST", path, json.dumps(body).encode(), most_bytes)

    def json_of(self, path: str) -> dict[str, Any]:
        """What it tells there; nothing where it has no such page or cannot be asked."""
        return self._channel.json(f"{self.address.root}{path}")

    def close(self) -> None:
        self._channel.close()

    def _ask(self, method: str, path: str, body: bytes | None, most_bytes: int) -> Answer:
        try:
            return self._channel.ask(method, f"{self.address.root}{path}", body, most_bytes=most_bytes)
        except OSError as error:
            raise Unreachable(
                f"{self._what} at {self.url} cannot be asked: {_words(error, self._timeout_s)}."
            ) from None


def _above(url: str) -> str:
    """People paste the address of the page itself."""
    url = url.strip()
    return url if url.endswith("://") else url.rstrip("/").removesuffix("/metrics")


def _words(error: OSError, timeout_s: float) -> str:
    if isinstance(error, TimeoutError):
        return f"it did not answer within {timeout_s:g} s"
    if isinstance(error, socket.gaierror):
        return "its name is not known"
    if isinstance(error, ConnectionRefusedError):
        return "nothing listens there"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed ({error.reason or error})"
    return f"it gives no HTTP answer ({type(error.__cause__ or error).__name__})"
