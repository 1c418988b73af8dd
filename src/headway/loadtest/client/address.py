"""`Address`: where a server's API is, read from the URL that a user types."""

from __future__ import annotations

import base64
import re
import ssl
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import SplitResult, unquote, urlsplit

from headway.loadtest.errors import InvalidPlan

DEFAULT_BASE = "/v1"
_PORTS = {"http": 80, "https": 443}
_ROUTES = {"/chat/completions": "chat", "/completions": "completions"}

Endpoint = Literal["chat", "completions"]
PATHS: dict[Endpoint, str] = {"chat": "/chat/completions", "completions": "/completions"}


@dataclass(frozen=True, slots=True)
class Address:
    """`base` is the path that API paths are appended to. `query` and `login` may be secrets: they are never shown."""

    scheme: Literal["http", "https"]
    host: str
    port: int
    base: str = DEFAULT_BASE
    query: str = field(default="", repr=False)
    login: str = field(default="", repr=False)  # user:password of the URL

    @property
    def authority(self) -> str:
        """Host and port as a Host header has them."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def url(self) -> str:
        """Fit to show: without credentials."""
        return f"{self.scheme}://{self.authority}{self.base}"

    @property
    def root(self) -> str:
        """The path above the API's version: `/metrics` and the like hang there."""
        return re.sub(r"/v\d+$", "", self.base)

    def path(self, route: str) -> str:
        """The request target of an API route, such as `/models`."""
        return self.base + route + (f"?{self.query}" if self.query else "")

    @property
    def authorization(self) -> str:
        """The value of an Authorization header, when the URL brought a user and a password."""
        return f"Basic {base64.b64encode(self.login.encode()).decode()}" if self.login else ""


def parse_url(url: str) -> tuple[Address, Endpoint | None]:
    """A URL with or without scheme, path and route. A URL without a path means `/v1`; the endpoint is None if not told.

    Raises `InvalidPlan`.
    """
    parts, port = _split(url)
    scheme: Literal["http", "https"] = "https" if parts.scheme == "https" else "http"
    path = parts.path.rstrip("/")
    endpoint: Endpoint | None = None
    for route, name in _ROUTES.items():
        if path.endswith(route):
            path, endpoint = path.removesuffix(route), "chat" if name == "chat" else "completions"
            break
    login = ""
    if parts.username is not None:
        login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    address = Address(
        scheme=scheme,
        host=parts.hostname or "",
        port=_PORTS[scheme] if port is None else port,
        base=path or (DEFAULT_BASE if endpoint is None else ""),
        query=parts.query,
        login=login,
    )
    return address, endpoint


_ENCODE = "In a user's name, a password or a path, write / as %2F, ? as %3F, # as %23 and @ as %40."


def _split(url: str) -> tuple[SplitResult, int | None]:
    # Whatever is wrong with it, a password is not told, wherever it seems to end.
    shown = re.sub(r"^([a-z][a-z0-9+.-]*://)?.*@", r"\1", url, flags=re.IGNORECASE | re.DOTALL).partition("?")[0]
    if re.search(r"[\s\x00-\x1f]", url):
        raise InvalidPlan(f"The URL {shown!r} has a space or a control character in it.")
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        port = parts.port
    except ValueError as error:
        if "@" in url:  # its words may hold a part of the password
            raise InvalidPlan(f"The URL of {shown!r} cannot be read. {_ENCODE}") from None
        raise InvalidPlan(f"The URL {shown!r} cannot be read: {error}") from None
    if "@" in parts.path or "@" in parts.fragment:
        raise InvalidPlan(f"The URL of {shown!r} has an @ in its path. {_ENCODE}")
    if parts.scheme not in _PORTS:
        raise InvalidPlan(f"The URL {shown!r} begins with {parts.scheme!r}; only http and https can be tested.")
    if not parts.hostname:
        raise InvalidPlan(f"The URL {shown!r} names no host. Give one such as http://localhost:8000.")
    if port == 0:
        raise InvalidPlan(f"The URL {shown!r} has port 0, where nobody can be reached.")
    return parts, port


@dataclass(frozen=True, slots=True)
class Tls:
    """How much an https server is trusted."""

    verify: bool = True
    ca_file: str | None = None

    def context_for(self, address: Address) -> ssl.SSLContext | None:
        """None where the address wants no TLS. Raises as `context` does."""
        return self.context() if address.scheme == "https" else None

    def context(self) -> ssl.SSLContext:
        """Raises `InvalidPlan` when the file of certificates cannot be used."""
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
        except (OSError, ssl.SSLError) as error:
            raise InvalidPlan(f"The certificates in {self.ca_file!r} cannot be used: {error}") from None
        context.set_alpn_protocols(["http/1.1"])
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context
