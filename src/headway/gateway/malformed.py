"""What happens before a route is found. A slash at the end of a path is forgiven, and what aiohttp answers has OpenAI's
shape as everything else: bytes that are no HTTP, too large headers, an expectation that cannot be met.

aiohttp makes these answers in its protocol class and offers no hook for them, so `Server` and the protocol are ours.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from aiohttp import web

from headway.core.errors import HeadwayError, InvalidRequest
from headway.gateway.edge import error_response, http_error_response, name_response, request_id
from headway.gateway.service import EDGE, log

ROUTE = "malformed"  # in headway_http_responses_total


class Runner(web.AppRunner):
    """An application runner whose connections answer by `Connection`."""

    async def _make_server(self) -> web.Server:
        made = await super()._make_server()
        return _Server(
            made.request_handler,
            app=self.app,
            request_factory=_without_trailing_slash(made.request_factory),
            handler_cancellation=made.handler_cancellation,
            **made._kwargs,
        )


class _Server(web.Server):
    def __init__(self, handler: Any, *, app: web.Application, **settings: Any) -> None:
        super().__init__(handler, **settings)
        self._app = app

    def __call__(self) -> web.RequestHandler:
        return Connection(self, app=self._app, loop=asyncio.get_running_loop(), **self._kwargs)


def _without_trailing_slash(make: Callable[..., web.BaseRequest]) -> Callable[..., web.BaseRequest]:
    """Clients that join a base URL and a path often leave a slash at the end of /v1 routes; it changes nothing there.

    Done before a route is looked for: a redirect would cost a POST its body, and a second route its place in metrics.
    """

    def made(*parts: Any) -> web.BaseRequest:
        request = make(*parts)
        url = request.rel_url
        if url.raw_path.endswith("/") and url.raw_path.startswith("/v1/"):
            return request.clone(rel_url=url.with_path(url.raw_path.rstrip("/"), encoded=True, keep_query=True))
        return request

    return made


class Connection(web.RequestHandler):
    """One client's connection."""

    __slots__ = ("_app",)

    def __init__(self, manager: web.Server, *, app: web.Application, **settings: Any) -> None:
        super().__init__(manager, **settings)
        self._app = app

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer what could not be read as a request, and close: what follows on the connection means nothing."""
        if isinstance(exc, ConnectionError):
            raise exc  # the client left in the middle of its answer
        if request.writer.output_size > 0:
            raise ConnectionError("an answer has begun; another cannot follow it")
        if status >= 500:
            log.error("unexpected error outside of every handler", exc_info=exc)
            defect = HeadwayError("The server failed. This is a defect of it; please report it.", code="internal_error")
            return self._told(request, error_response(defect), "internal error")
        why = (message or str(exc)).strip().splitlines()[0].rstrip(" :.")
        error = InvalidRequest(f"The request is not valid HTTP: {why}. Send HTTP/1.1.", code="invalid_http")
        return self._told(request, error_response(error), why)

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        if isinstance(resp, web.HTTPException):  # raised before our middleware could see it
            resp = self._told(request, http_error_response(request, resp), f"{resp.status} {resp.reason}")
        return await super().finish_response(request, resp, start_time)

    def _told(self, request: web.BaseRequest, response: web.Response, why: str) -> web.Response:
        given = request_id(request)
        name_response(response, given)
        response.force_close()
        self._app[EDGE].metrics.answered(ROUTE, response.status)
        log.warning("request %s from %s is refused: %s", given, request.remote, why)
        return response
