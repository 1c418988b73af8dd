"""Headers: which of a client's go along to a worker, which of a worker's come back, and what is added to an answer."""

from __future__ import annotations

import re
from typing import Final

from aiohttp import web

from headway.gateway.edge import REQUEST_ID, TRACEPARENT
from headway.gateway.fleet.service import FLEET
from headway.gateway.fleet.trail import Trail
from headway.gateway.tenancy import Identity
from headway.gateway.tenancy.auth import challenge, quota_headers
from headway.workers.worker import Head, Headers

CALLER = web.RequestKey("headway.caller", Identity)
TRAIL = web.RequestKey("headway.trail", Trail)

# Ends that are counted by name; whatever else a worker calls its reasons is counted together.
SHOWN: Final = frozenset({"stop", "length", "tool_calls", "content_filter", "function_call"})

# A client's headers that go no further: of the connection, of its key, of its place, and those that we say ourselves.
_OURS = frozenset(
    (
        b"host",
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"expect",
        b"content-length",
        b"content-encoding",  # what was compressed has been read
        b"accept-encoding",
        b"authorization",
        b"api-key",
        b"x-api-key",
        b"cookie",
        b"origin",
        b"referer",
        b"forwarded",
        b"user-agent",
        b"via",
        b"x-real-ip",
        b"x-request-id",
        b"x-ttft-limit-ms",  # spent here, in part
        b"traceparent",
    )
)
_INTERNAL = (b"x-headway-", b"x-forwarded-")
_TRACEPARENT = re.compile(rb"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")

# A worker's headers that mean something to its client.
_HANDED_ON = frozenset(
    (
        b"content-type",
        b"content-disposition",
        b"openai-model",
        b"openai-processing-ms",
        b"openai-version",
        b"x-headway-ignored-fields",
    )
)


def from_client(request: web.Request) -> Headers:
    """What goes along. Nobody can forge what only we say: `x-headway-*` is taken out."""
    kept = [(b"x-request-id", request[REQUEST_ID].encode())]
    named = b""
    for name, value in request.raw_headers:
        name = name.lower()
        if name in _OURS:
            if name == b"connection":
                named = value.lower()
            elif name == b"traceparent" and _TRACEPARENT.fullmatch(value):
                kept.append((name, value))
        elif not name.startswith(_INTERNAL):
            kept.append((name, value))
    if (own := request.get(TRACEPARENT)) is not None:  # a worker's spans belong under ours
        kept = [*(pair for pair in kept if pair[0] != b"traceparent"), (b"traceparent", own)]
    if named not in (b"", b"keep-alive", b"close"):  # headers that the client meant for one hop
        hop = {one.strip() for one in named.split(b",")}
        kept = [(name, value) for name, value in kept if name not in hop]
    return tuple(kept)


def to_client(head: Head) -> dict[str, str]:
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in head.headers if name in _HANDED_ON}


async def add_fleet_headers(request: web.Request, response: web.StreamResponse) -> None:
    """On every answer, streams included: where it ran and why, what was taken from it, what is left of the quota."""
    headers = response.headers
    caller, trail = request.get(CALLER), request.get(TRAIL)
    if trail is not None:
        if trail.tries:
            headers["x-headway-worker"] = trail.worker
        headers["Server-Timing"] = trail.timing()
        if trail.degraded:
            headers["x-headway-degraded"] = ", ".join(trail.degraded)
    if caller is not None:
        service = request.app[FLEET]
        limits = service.front.tenants.of(caller.tenant)
        if limits.requests_per_minute or limits.tokens_per_minute:
            quotas = service.front.admission.ledger.quotas(caller.tenant, service.driver.clock())
            headers.update(quota_headers(quotas))
    elif response.status == 401:
        headers.update(challenge())
