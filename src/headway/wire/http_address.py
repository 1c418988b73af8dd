"""`HttpAddress`: where an API is, read from the URL that a person types."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class HttpAddress:
    """`base` is the path of the API's version, such as `/v1`."""

    scheme: Literal["http", "https"]
    host: str
    port: int
    base: str = "/v1"

    @property
    def authority(self) -> str:
        """Host and port as a Host header has them."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.authority}{self.base}"

    @property
    def root(self) -> str:
        """The path above the API's version: `/metrics` and the like hang there."""
        return re.sub(r"/v\d+$", "", self.base)

    def target(self, path: str) -> str:
        """The request target there of `path`, which is written as if the API were at `/v1`."""
        if path.startswith("/v1/"):
            return self.base + path[3:]
        return self.root + path


def http_address(url: str) -> HttpAddress:
    """A URL with or without a scheme and a path; without a path the API is at `/v1`. Raises `ValueError`."""
    shown = re.sub(r"//[^/@]*@", "//", url.partition("?")[0])  # whatever is wrong with it, a password is not told
    if re.search(r"[\s\x00-\x1f\x7f]", url) or not url.isascii():
        raise ValueError(f"The URL {shown!r} has a character in it that no URL has.")
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        port = parts.port
    except ValueError as error:
        raise ValueError(f"The URL {shown!r} cannot be read: {error}") from None
    if parts.scheme not in _PORTS:
        raise ValueError(f"The URL {shown!r} begins with {parts.scheme!r}; use http or https.")
    if not parts.hostname:
        raise ValueError(f"The URL {shown!r} names no host. Give one such as http://localhost:8000.")
    if port == 0:
        raise ValueError(f"The URL {shown!r} has port 0, where nobody can be reached.")
    if parts.username is not None or parts.query or parts.fragment:
        raise ValueError(
            f"The URL {shown!r} has a user, a query or a fragment; give its host, port and path. "
            "A key belongs into the environment, not into a URL."
        )
    scheme: Literal["http", "https"] = "https" if parts.scheme == "https" else "http"
    path = parts.path.rstrip("/")
    base = path if re.search(r"/v\d+$", path) else f"{path}/v1"
    return HttpAddress(scheme, parts.hostname, _PORTS[scheme] if port is None else port, base)
