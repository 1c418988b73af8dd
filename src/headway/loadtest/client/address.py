"""What a load tester's URL may hold beyond where an API is: a key, a user, and the route that is tested."""

from __future__ import annotations

import dataclasses
import ssl
from dataclasses import dataclass
from typing import Literal

from headway.loadtest.errors import InvalidPlan
from headway.wire.http_address import HttpAddress, any_address
from headway.wire.tls import tls_context

DEFAULT_BASE = "/v1"

Endpoint = Literal["chat", "completions"]
PATHS: dict[Endpoint, str] = {"chat": "/chat/completions", "completions": "/completions"}


def parse_url(url: str) -> tuple[HttpAddress, Endpoint | None]:
    """A URL with or without scheme, path and route. A URL without a path means `/v1`; the endpoint is None if not told.

    Raises `InvalidPlan`.
    """
    try:
        address = any_address(url)
    except ValueError as error:
        raise InvalidPlan(str(error)) from None
    for endpoint, route in PATHS.items():
        if address.base.endswith(route):
            return dataclasses.replace(address, base=address.base.removesuffix(route)), endpoint
    return dataclasses.replace(address, base=address.base or DEFAULT_BASE), None


@dataclass(frozen=True, slots=True)
class Tls:
    """How much an https server is trusted."""

    verify: bool = True
    ca_file: str | None = None

    def context_for(self, address: HttpAddress) -> ssl.SSLContext | None:
        """None where the address wants no TLS. Raises `InvalidPlan` when the file of certificates cannot be used."""
        if address.scheme != "https":
            return None
        try:
            return tls_context(self.ca_file, verify=self.verify)
        except ValueError as error:
            raise InvalidPlan(str(error)) from None
