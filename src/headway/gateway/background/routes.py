"""`/v1/background`: what became of calls that were answered with 202, to nobody but their own tenant."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
from aiohttp import web

from headway.core.errors import InvalidRequest
from headway.gateway.background.service import Background
from headway.gateway.background.shown import OBJECT, address, shown_job
from headway.gateway.background.tenants import owner_of
from headway.gateway.background.work import Wanted
from headway.store import Job, JobState, Store

BACKGROUND = web.AppKey("headway.background", Background)


class Whose:
    """Says whose a call is, or raises."""

    def __init__(self, tenant: Callable[[web.Request], str]) -> None:
        self.tenant = tenant


WHOSE = web.AppKey("headway.background.whose", Whose)

POLL_AGAIN_S = 1
MAX_LISTED = 100


def caller(request: web.Request) -> str:
    """The tenant that calls, as the store knows it."""
    return owner_of(request.app[WHOSE].tenant(request))


async def answer_kept(background: Background, wanted: Wanted) -> web.Response:
    """Keep a call, and tell its client where to ask for the answer."""
    job = await background.keep(wanted)
    response = _json(shown_job(job), status=202)
    response.headers["Location"] = address(job.id)
    response.headers["Retry-After"] = str(POLL_AGAIN_S)
    if wanted.degraded:
        response.headers["x-headway-degraded"] = ", ".join(wanted.degraded)
    return response


async def get_one(request: web.Request) -> web.Response:
    owner, name = caller(request), request.match_info["id"]

    def read(store: Store) -> tuple[Job, bytes | None]:
        job = store.jobs.get(name, owner)
        return job, store.jobs.response(name) if job.state.final else None

    job, answer = await request.app[BACKGROUND].store.run(read)
    response = _json(shown_job(job, answer))
    if not job.state.final:
        response.headers["Retry-After"] = str(POLL_AGAIN_S)
    return response


async def get_list(request: web.Request) -> web.Response:
    owner, page = caller(request), paging(request, most=MAX_LISTED)
    found = await request.app[BACKGROUND].store.run(lambda store: store.jobs.list(owner, **page))
    return listed([shown_job(job) for job in found.items], more=found.has_more)


async def cancel(request: web.Request) -> web.Response:
    """POST: at once. What has ended stays as it is, and is shown."""
    background, name = request.app[BACKGROUND], request.match_info["id"]
    job = await background.cancel(name, request.app[WHOSE].tenant(request))
    answer = await background.store.run(lambda store: store.jobs.response(name)) if job.state.final else None
    return _json(shown_job(job, None if job.state is JobState.CANCELLED else answer))


async def delete(request: web.Request) -> web.Response:
    """What has ended, with its answer."""
    owner, name, background = caller(request), request.match_info["id"], request.app[BACKGROUND]
    await background.store.run(lambda store: store.jobs.delete(name, owner, background.clock_s()))
    return _json({"id": name, "object": f"{OBJECT}.deleted", "deleted": True})


ROUTES: tuple[tuple[str, str, Any], ...] = (
    ("GET", "/v1/background", get_list),
    ("GET", "/v1/background/{id}", get_one),
    ("POST", "/v1/background/{id}/cancel", cancel),
    ("DELETE", "/v1/background/{id}", delete),
)


def paging(request: web.Request, *, most: int, usual: int = 20) -> dict[str, Any]:
    """`after`, `limit` and `order` of a query. Raises `InvalidRequest`, naming the one."""
    query = request.query
    page: dict[str, Any] = {"limit": usual}
    if "limit" in query:
        text = query["limit"]
        if not (text.isascii() and text.isdigit() and len(text) < 8 and 1 <= int(text) <= most):
            raise InvalidRequest(
                f"limit must be a whole number from 1 to {most:,}, not {text[:40]!r}.",
                param="limit",
                code="invalid_value",
            )
        page["limit"] = int(text)
    if query.get("after"):
        page["after"] = query["after"]
    if query.get("order"):
        page["order"] = query["order"]
    return page


def listed(data: list[dict[str, Any]], *, more: bool) -> web.Response:
    """A page, as OpenAI's clients walk it."""
    ends = {"first_id": data[0]["id"], "last_id": data[-1]["id"]} if data else {"first_id": None, "last_id": None}
    return _json({"object": "list", "data": data, **ends, "has_more": more})


def _json(body: object, *, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(body), status=status, content_type="application/json")


json_answer = partial(_json)
