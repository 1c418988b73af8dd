"""`HttpAddress`: where an API is, read from the URL that a person types."""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass, field, replace
from typing import Literal
from urllib.parse import unquote, urlsplit

from headway.core.errors import ConfigError

_PORTS = {"http": 80, "https": 443}
_ENCODE = "In a user's name, a password or a path, write / as %2F, ? as %3F, # as %23 and @ as %40."


@dataclass(frozen=True, slots=True)
class HttpAddress:
    """`base` is the path of the API's version, such as `/v1`. `query` and `login` may be secrets: never shown."""

    scheme: Literal["http", "https"]
    host: str
    port: int
    base: str = "/v1"
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

    def target(self, path: str) -> str:
        """The request target there of `path`, which is written as if the API were at `/v1`."""
        return self.path(path[3:]) if path.startswith("/v1/") else self.root + path

    @property
    def authorization(self) -> str:
        """The value of an Authorization header, when the URL brought a user and a password."""
        return basic(self.login) if self.login else ""


def basic(login: str) -> str:
    """The value of an Authorization header for user:password."""
    return f"Basic {base64.b64encode(login.encode()).decode()}"


def http_address(url: str) -> HttpAddress:
    """Of an API: a URL with or without a scheme and a path; without a path it is at `/v1`. Raises `ConfigError`."""
    try:
        address = any_address(url)
    except ValueError as error:
        raise ConfigError(str(error), param="url") from None
    if not url.isascii():
        raise ConfigError(f"The URL {_shown(url)!r} has a character in it that no URL has.", param="url")
    if address.login or address.query or url.partition("#")[2]:
        raise ConfigError(
            f"The URL {_shown(url)!r} has a user, a query or a fragment; give its host, port and path. "
            "A key belongs into the environment, not into a URL.",
            param="url",
        )
    return address if re.search(r"/v\d+$", address.base) else replace(address, base=f"{address.base}/v1")


def any_address(url: str) -> HttpAddress:
    """Of whatever is there: the path is taken as it is written, but for a slash at its end. Raises `ValueError`."""
    shown = _shown(url)
    if re.search(r"[\s\x00-\x1f\x7f]", url):
        raise ValueError(f"The URL {shown!r} has a space or a control character in it.")
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        port = parts.port
    except ValueError as error:
        if "@" in url:  # its words may hold a part of the password
            raise ValueError(f"The URL of {shown!r} cannot be read. {_ENCODE}") from None
        raise ValueError(f"The URL {shown!r} cannot be read: {error}") from None
    if "@" in parts.path or "@" in parts.fragment:
        raise ValueError(f"The URL of {shown!r} has an @ in its path. {_ENCODE}")
    if parts.scheme not in _PORTS:
        raise ValueError(f"The URL {shown!r} begins with {parts.scheme!r}; use http or https.")
    if not parts.hostname:
        raise ValueError(f"The URL {shown!r} names no host. Give one such as http://localhost:8000.")
    if port == 0:
        raise ValueError(f"The URL {shown!r} has port 0, where nobody can be reached.")
    scheme: Literal["http", "https"] = "https" if parts.scheme == "https" else "http"
    login = "" if parts.username is None else f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    port = _PORTS[scheme] if port is None else port
    return HttpAddress(scheme, parts.hostname, port, parts.path.rstrip("/"), parts.query, login)


def _shown(url: str) -> str:
    """Whatever is wrong with it, a password is not told, wherever it seems to end."""
    return re.sub(r"^([a-z][a-z0-9+.-]*://)?.*@", r"\1", url, flags=re.IGNORECASE | re.DOTALL).partition("?")[0]
