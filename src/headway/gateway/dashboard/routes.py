"""The dashboard's routes, and the clock that reads for it once a second."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, get_args

import msgspec
from aiohttp import web

from headway.core.errors import InvalidRequest, NotFound
from headway.gateway import inform
from headway.gateway.dashboard.history import EVERY_S, KEPT_S, History
from headway.gateway.dashboard.page import page
from headway.gateway.dashboard.source import Order, Source

PATH, DATA_PATH = "/dashboard", "/dashboard/data"
SHORTEST_WINDOW_S = 10
WINDOW_S = 60
MAX_ID_CHARS = 128
# Of the data's query: what each means.
PARAMETERS = {
    "after": "The number of the last row that is known; only later ones are told. 0 when left out.",
    "window": f"Of so many seconds figures, rows and slow requests are told, {SHORTEST_WINDOW_S} to {KEPT_S}. "
    f"{WINDOW_S} when left out.",
    "order": "By what slow requests are slow: `ttft`, when left out, or `total`.",
    "request": "The id of a request whose story is wanted.",
}

log = logging.getLogger("headway.gateway")


class Board:
    """A source, and the history of what was read of it. `run` is another for each start of the server."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.history = History()
        self.run = secrets.token_hex(8)

    async def keep_reading(self) -> None:
        loop = asyncio.get_running_loop()
        due_s = loop.time()
        while True:
            try:
                self.history.add(self.source.read())
            except Exception:  # whatever is wrong with a number must not end the pictures of all the others
                log.exception("the dashboard could not read")
            due_s = max(due_s + EVERY_S, loop.time())
            await asyncio.sleep(due_s - loop.time())


BOARD = web.AppKey("headway.dashboard", Board)


def add_dashboard(app: web.Application, source: Source) -> None:
    """The clock; routes are in the applications' own tables (`DASHBOARD_ROUTES`)."""
    app[BOARD] = Board(source)
    app.cleanup_ctx.append(_reading)


async def _reading(app: web.Application) -> AsyncIterator[None]:
    task = asyncio.create_task(app[BOARD].keep_reading())
    yield
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def root(request: web.Request) -> web.Response:
    """The dashboard for a browser; for anything else what is here, as JSON."""
    response = shown(request) if _wants_page(request) else await inform.index(request)
    response.headers["Vary"] = "Accept, Accept-Encoding"
    return response


async def dashboard(request: web.Request) -> web.Response:
    """The page. It holds no numbers, so anybody may have it."""
    return shown(request)


def _wants_page(request: web.Request) -> bool:
    return BOARD in request.app and "text/html" in request.headers.get("Accept", "")


def shown(request: web.Request) -> web.Response:
    made = page()
    headers = {
        "Content-Security-Policy": made.policy,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Cache-Control": "no-cache",
        "ETag": made.etag,
        "Vary": "Accept-Encoding",
    }
    if request.headers.get("If-None-Match") == made.etag:
        return web.Response(status=304, headers=headers)
    if "gzip" in request.headers.get("Accept-Encoding", ""):
        headers["Content-Encoding"] = "gzip"
        return web.Response(body=made.packed, content_type="text/html", charset="utf-8", headers=headers)
    return web.Response(body=made.text, content_type="text/html", charset="utf-8", headers=headers)


async def data(request: web.Request) -> web.Response:
    """Everything the page shows, for who asks. Its query: `PARAMETERS`."""
    board = request.app.get(BOARD)
    if board is None:
        raise NotFound("This engine was started by a gateway; the dashboard is the gateway's.", code="not_found")
    viewer = board.source.viewer(request)
    after, window_s = (
        _number(request, "after", 0, 0, 1 << 53),
        _number(request, "window", WINDOW_S, SHORTEST_WINDOW_S, KEPT_S),
    )
    order = _order(request)
    told: dict[str, Any] = {
        "version": request.app[inform.INDEX].version,
        "kind": board.source.kind,
        "run": board.run,
        "started": request.app[inform.STARTED_S],
        "see": viewer.see,
        **board.source.about(),
        "absent": board.source.absent(),
        "number": board.history.number,
        "rows": board.history.rows(after, window_s + 1),
        "columns": board.history.columns,
        **board.source.now(viewer),
        "slow": board.source.slow(viewer, window_s, order),
    }
    between = board.history.last(window_s)
    told["figures"] = between.figures() if between is not None else None
    if (wanted := request.query.get("request")) is not None:
        told["request"] = board.source.story(viewer, wanted[:MAX_ID_CHARS])
    response = web.Response(body=msgspec.json.encode(told), content_type="application/json")
    response.headers["Cache-Control"] = "no-store"
    response.headers["X-Content-Type-Options"] = "nosniff"
    return response


def _number(request: web.Request, name: str, default: int, low: int, high: int) -> int:
    text = request.query.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(high)) and low <= int(text) <= high):
        raise InvalidRequest(
            f"{name} must be a whole number from {low} to {high:,}, not {text[:40]!r}.",
            param=name,
            code="invalid_value",
        )
    return int(text)


def _order(request: web.Request) -> Order:
    text = request.query.get("order", "ttft")
    for order in get_args(Order):
        if text == order:
            return order  # type: ignore[no-any-return] # get_args does not tell
    raise InvalidRequest(f"order must be ttft or total, not {text[:40]!r}.", param="order", code="invalid_value")


Route = Callable[[web.Request], Awaitable[web.StreamResponse]]
DASHBOARD_ROUTES: tuple[tuple[str, str, Route], ...] = (
    ("GET", "/", root),
    ("GET", PATH, dashboard),
    ("GET", DATA_PATH, data),
)
