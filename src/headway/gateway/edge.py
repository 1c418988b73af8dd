"""What happens around every handler: request ids, headers that travel along, a log line, errors in OpenAI's shape."""

from __future__ import annotations

import asyncio
import logging
import random
import re
import time
from collections.abc import Awaitable, Callable, Sequence

from aiohttp import web

from headway.core.errors import HeadwayError
from headway.gateway import origins
from headway.gateway.observe import OVER, REFUSAL, call_line
from headway.gateway.service import EDGE, log
from headway.wire.errors import error_body, retry_headers

REQUEST_ID = web.RequestKey("headway.request_id", str)
IGNORED = web.RequestKey("headway.ignored", tuple[str, ...])  # fields of the body that mean nothing here
TRACEPARENT = web.RequestKey("headway.traceparent", bytes)  # of our own span, for whoever works on the call
IGNORED_HEADER = "x-headway-ignored-fields"
MAX_IGNORED, MAX_IGNORED_CHARS = 16, 64  # names in the header, and characters of each
_INSANE = re.compile(r"[^A-Za-z0-9_.-]")
_SANE_ID = re.compile(r"[A-Za-z0-9._:@/+=-]{1,128}")
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
CLIENT_GONE = 499  # as nginx counts it; nobody is there to read it

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@web.middleware
async def edge(request: web.Request, handler: Handler) -> web.StreamResponse:
    request[REQUEST_ID] = request_id(request)
    metrics, tracing = request.app[EDGE].metrics, request.app[EDGE].tracing
    traced = tracing.begin(request) if tracing is not None else None
    begun_s = time.monotonic()
    status = CLIENT_GONE
    metrics.in_flight += 1
    try:
        response = await _answered(request, handler)
        status = response.status
        return response
    finally:
        metrics.in_flight -= 1
        resource = request.match_info.route.resource
        metrics.answered(resource.canonical if resource else "unmatched", status)
        request.app[OVER](request, status)
        if traced is not None:
            traced.end(status)
        if log.isEnabledFor(logging.DEBUG):
            log.debug("request %s: %s", request[REQUEST_ID], call_line(request, status, time.monotonic() - begun_s))


def request_id(request: web.BaseRequest) -> str:
    """The client's own id when it is usable, else a new one."""
    given = request.headers.get("x-request-id", "")
    return given if _SANE_ID.fullmatch(given) else f"req_{random.getrandbits(128):032x}"


async def _answered(request: web.Request, handler: Handler) -> web.StreamResponse:
    allowed = request.app[EDGE].config.allowed_origins
    try:
        return origins.preflight(request, allowed) or await handler(request)
    except HeadwayError as error:
        request[REFUSAL] = error
        if error.status >= 500 and not retry_headers(error):
            log.error("request %s failed: %s", request[REQUEST_ID], error.message)
        return error_response(error)
    except web.HTTPException as error:
        return http_error_response(request, error)
    except (asyncio.CancelledError, ConnectionError):
        raise  # the client is gone
    except Exception:
        return error_response(internal_error(request))


def internal_error(request: web.Request) -> HeadwayError:
    """Log the exception being handled, and return what the client may know of it."""
    log.exception("request %s: unexpected error in %s %s", request[REQUEST_ID], request.method, request.path)
    return HeadwayError(
        f"The server failed while answering request {request[REQUEST_ID]}. This is a defect of the server; "
        "please report it with that id.",
        code="internal_error",
    )


def error_response(error: HeadwayError) -> web.Response:
    return web.Response(
        status=error.status, body=error_body(error), content_type="application/json", headers=retry_headers(error)
    )


def http_error_response(request: web.BaseRequest, error: web.HTTPException) -> web.Response:
    """Aiohttp's own refusals, such as no such route, in OpenAI's shape."""
    message, code = f"{error.status} {error.reason}", None
    headers = {}
    if isinstance(error, web.HTTPMethodNotAllowed):
        headers["Allow"] = ", ".join(sorted(error.allowed_methods))
        message = f"{request.path} does not take {request.method}. Use {headers['Allow']}."
        code = "method_not_allowed"
    elif isinstance(error, web.HTTPNotFound):
        message = f"There is nothing at {request.path}. See /openapi.json for what there is."
        code = "not_found"
    told = HeadwayError(message, code=code)
    told.status = error.status
    told.type = "invalid_request_error" if error.status < 500 else "server_error"
    response = error_response(told)
    response.headers.update(headers)
    return response


async def add_headers(request: web.Request, response: web.StreamResponse) -> None:
    """On every response, streams included: who the request was, for those who have to find it in a log."""
    if REQUEST_ID in request:  # else it was refused before the middleware, and named there
        name_response(response, request[REQUEST_ID])
        response.headers.update(origins.headers(request, request.app[EDGE].config.allowed_origins))
        if ignored := request.get(IGNORED):
            response.headers[IGNORED_HEADER] = shown_fields(ignored)
    traceparent = request.headers.get("traceparent", "")
    if _TRACEPARENT.fullmatch(traceparent):
        response.headers["traceparent"] = traceparent


def shown_fields(names: Sequence[str]) -> str:
    """Names that a client made up, fit for a header: short, few, and of harmless characters."""
    shown = [_INSANE.sub("?", name[:MAX_IGNORED_CHARS]) for name in names[:MAX_IGNORED]]
    more = len(names) - len(shown)
    return ", ".join(shown) + (f", and {more} more" if more else "")


def name_response(response: web.StreamResponse, id: str) -> None:
    response.headers["x-request-id"] = id
    response.headers["Server"] = "headway"
