"""`guard`: a server that answers nobody but whoever started it."""

from __future__ import annotations

import hmac

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from headway.gateway.tenancy.auth import Unauthenticated


def guard(secret: str) -> Middleware:
    """Refuses every call, of whatever route, that does not carry `secret` as its bearer token."""
    expected = f"Bearer {secret}".encode()

    @web.middleware
    async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
        presented = request.headers.get("authorization", "").encode("utf-8", "surrogateescape")
        if not hmac.compare_digest(presented, expected):
            raise Unauthenticated("This server was started by a gateway and answers it alone. Call the gateway.")
        return await handler(request)

    return guarded
