"""Who looks, and what they may see: an operator everything, a tenant itself, anybody else what `/load` tells anyway.

Nobody sees a prompt, an output or a key: none of them is kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from aiohttp import web

from headway.gateway.admin import NotLocal, check_local
from headway.gateway.tenancy import Door

See = Literal["operator", "tenant", "public"]


@dataclass(frozen=True, slots=True)
class Viewer:
    """`tenant`: whose requests it may ask for by id; empty where there are no tenants."""

    see: See
    tenant: str = ""

    @property
    def is_operator(self) -> bool:
        return self.see == "operator"

    def owns(self, tenant: str) -> bool:
        """May it know of this tenant's share and requests?"""
        return self.is_operator or (self.see == "tenant" and tenant == self.tenant)


def viewer_of(request: web.Request, door: Door | None) -> Viewer:
    """As administration has it: a key where there are keys, else this machine. Raises `Unauthenticated` for a key that
    is no good, and for none where one is needed.
    """
    if door is None or door.ring is None:
        return Viewer("operator" if is_local(request) else "public")
    found = door.presented(request.headers)
    if found is None:
        return Viewer("public", door.caller(request.headers).tenant)
    return Viewer("operator") if found.admin else Viewer("tenant", found.tenant)


def is_local(request: web.Request) -> bool:
    """From this machine, as administration takes it."""
    try:
        check_local(request)
    except NotLocal:
        return False
    return True
