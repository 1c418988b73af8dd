"""`/v1/batches`, in OpenAI's shapes."""

from __future__ import annotations

from typing import Any

import msgspec
from aiohttp import web

from headway.core.errors import InvalidRequest
from headway.gateway.background.batch.request import BatchRequest
from headway.gateway.background.routes import BACKGROUND, caller, json_answer, listed, paging
from headway.gateway.background.work import ENDPOINTS
from headway.gateway.service import EDGE
from headway.wire.parse import parse

MAX_LISTED = 100


_create = msgspec.json.Decoder(BatchRequest)


async def create(request: web.Request) -> web.Response:
    owner, background = caller(request), request.app[BACKGROUND]
    asked = parse(await request.app[EDGE].body(request), _create)
    if asked.endpoint not in ENDPOINTS:
        raise InvalidRequest(
            f"endpoint must be {' or '.join(ENDPOINTS)}, not {asked.endpoint[:80]!r}.",
            param="endpoint",
            code="invalid_value",
        )
    batch = await background.batches.create(
        owner,
        input_file_id=asked.input_file_id,
        endpoint=asked.endpoint,
        completion_window=asked.completion_window,
        metadata=asked.metadata,
    )
    return json_answer(batch.as_openai())


async def get_one(request: web.Request) -> web.Response:
    owner, name = caller(request), request.match_info["id"]
    batch = await request.app[BACKGROUND].store.run(lambda store: store.batches.get(name, owner))
    return json_answer(batch.as_openai())


async def get_list(request: web.Request) -> web.Response:
    owner, page = caller(request), paging(request, most=MAX_LISTED)
    found = await request.app[BACKGROUND].store.run(lambda store: store.batches.list(owner, **page))
    return listed([batch.as_openai() for batch in found.items], more=found.has_more)


async def cancel(request: web.Request) -> web.Response:
    batch = await request.app[BACKGROUND].batches.cancel(request.match_info["id"], caller(request))
    return json_answer(batch.as_openai())


ROUTES: tuple[tuple[str, str, Any], ...] = (
    ("POST", "/v1/batches", create),
    ("GET", "/v1/batches", get_list),
    ("GET", "/v1/batches/{id}", get_one),
    ("POST", "/v1/batches/{id}/cancel", cancel),
)
