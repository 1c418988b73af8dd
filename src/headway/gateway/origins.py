"""Which web pages may read our answers (CORS). None unless the operator names their origins.

Credentials are never allowed: a page that may call this server knows its API key, it does not borrow the browser's.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from aiohttp import web

MAX_AGE_S = 600  # how long a browser may remember a preflight
# What a page may read beside the body.
EXPOSED = "x-request-id, x-headway-ignored-fields, Server-Timing, Retry-After, retry-after-ms"
_HEADER_NAMES = re.compile(r"[A-Za-z0-9-]+(?:, ?[A-Za-z0-9-]+){0,63}")


def headers(request: web.Request, allowed: Collection[str]) -> dict[str, str]:
    """What an answer to a page carries. Nothing when its origin is not allowed: its browser then keeps the answer."""
    if not allowed:
        return {}
    origin = request.headers.get("Origin")
    if origin is None or not ("*" in allowed or origin in allowed):
        return {"Vary": "Origin"}
    return {
        "Access-Control-Allow-Origin": "*" if "*" in allowed else origin,
        "Access-Control-Expose-Headers": EXPOSED,
        "Vary": "Origin",
    }


def preflight(request: web.Request, allowed: Collection[str]) -> web.Response | None:
    """The answer to a browser that asks before it sends; None when this is no such question from an allowed page."""
    if request.method != "OPTIONS" or "Access-Control-Request-Method" not in request.headers:
        return None
    if "Access-Control-Allow-Origin" not in headers(request, allowed):
        return None
    asked = request.headers.get("Access-Control-Request-Headers", "")
    return web.Response(
        status=204,
        headers={
            "Access-Control-Allow-Methods": "GET, POST",
            "Access-Control-Allow-Headers": asked if _HEADER_NAMES.fullmatch(asked) else "Content-Type",
            "Access-Control-Max-Age": str(MAX_AGE_S),
        },
    )
