"""The routes that generate nothing: models, tokens, health, numbers, the description."""

from __future__ import annotations

import dataclasses
import time

import msgspec
from aiohttp import web

from headway.core.errors import MAX_RETRY_AFTER_S, Draining, NotFound
from headway.core.front.front import RETRY_WHEN_CLOSED_S
from headway.gateway.service import SERVICE, Service
from headway.wire.responses import Health, Index, ModelCard, ModelList, Version

INDEX = web.AppKey("headway.index", Index)
DESCRIPTION = web.AppKey("headway.description", bytes)
STARTED_S = web.AppKey("headway.started_s", int)


def json_response(body: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(body), content_type="application/json")


async def index(request: web.Request) -> web.Response:
    """What is here, for somebody who came with a browser."""
    return json_response(request.app[INDEX])


async def version(request: web.Request) -> web.Response:
    return json_response(Version(version=request.app[INDEX].version))


async def models(request: web.Request) -> web.Response:
    service = request.app[SERVICE]
    return json_response(ModelList(data=[_card(request, service, name) for name in service.names]))


async def model(request: web.Request) -> web.Response:
    service, name = request.app[SERVICE], request.match_info["model"]
    if name not in service.names:
        raise NotFound(
            f"The model {name!r} is not served here. GET /v1/models lists those that are.",
            param="model",
            code="model_not_found",
        )
    return json_response(_card(request, service, name))


async def tokenize(request: web.Request) -> web.Response:
    service = request.app[SERVICE]
    return json_response(await service.prepared_aside(service.preparer.tokenize, await service.body(request)))


async def detokenize(request: web.Request) -> web.Response:
    service = request.app[SERVICE]
    return json_response(await service.prepared_aside(service.preparer.detokenize, await service.body(request)))


async def health(request: web.Request) -> web.Response:
    """Whether this process is worth keeping: 503 with the reason once its engine is down for good."""
    backend = request.app[SERVICE].backend
    if backend.dead:
        raise Draining(backend.not_ready_reason, retry_after_s=MAX_RETRY_AFTER_S, code="engine_down")
    return json_response(Health())


async def ready(request: web.Request) -> web.Response:
    """Whether to send traffic here: 503 with the reason while the engine is not up, or drains."""
    if reason := request.app[SERVICE].backend.not_ready_reason:
        raise Draining(reason, retry_after_s=RETRY_WHEN_CLOSED_S)
    return json_response(Health())


async def metrics(request: web.Request) -> web.Response:
    exporter = request.app[SERVICE].metrics
    return web.Response(body=exporter.render(), headers={"Content-Type": exporter.content_type})


async def load(request: web.Request) -> web.Response:
    """The engine's numbers now, as JSON: what a router or a test polls."""
    backend = request.app[SERVICE].backend
    reason = backend.not_ready_reason
    return json_response({"ready": not reason, "not_ready_reason": reason, **dataclasses.asdict(backend.snapshot())})


async def description(request: web.Request) -> web.Response:
    return web.Response(body=request.app[DESCRIPTION], content_type="application/json")


def started_s() -> int:
    return int(time.time())


def _card(request: web.Request, service: Service, name: str) -> ModelCard:
    return ModelCard(
        id=name,
        created=request.app[STARTED_S],
        max_model_len=service.backend.max_model_len,
        sampling_defaults=service.sampling_defaults,
    )
