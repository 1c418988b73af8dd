"""The routes that generate nothing: models, tokens, health, numbers, the description."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import msgspec
from aiohttp import web

from headway.core.errors import NotFound
from headway.gateway.service import SERVICE, Service
from headway.wire.responses import Health, ModelCard, ModelList

DESCRIPTION = web.AppKey("headway.description", bytes)
STARTED_S = web.AppKey("headway.started_s", int)


def json_response(body: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(body), content_type="application/json")


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
    return json_response(await service.prepared(request, service.preparer.tokenize))


async def detokenize(request: web.Request) -> web.Response:
    service = request.app[SERVICE]
    return json_response(await service.prepared(request, service.preparer.detokenize))


async def health(request: web.Request) -> web.Response:  # noqa: ARG001  # a handler's signature
    """The process lives and its loop turns. Says nothing of the engine: see `ready`."""
    return json_response(Health())


async def ready(request: web.Request) -> web.Response:
    """Whether to send traffic here: 503 with the reason while the engine is not up, or drains."""
    request.app[SERVICE].check_ready()
    return json_response(Health())


async def metrics(request: web.Request) -> web.Response:
    exporter = request.app[SERVICE].metrics
    return web.Response(body=exporter.render(), headers={"Content-Type": exporter.content_type})


async def load(request: web.Request) -> web.Response:
    """The engine's numbers now, as JSON: what a router or a test polls."""
    backend = request.app[SERVICE].backend
    snapshot: Any = backend.snapshot()
    numbers = dataclasses.asdict(snapshot)
    return json_response({"ready": backend.ready, "not_ready_reason": backend.not_ready_reason, **numbers})


async def description(request: web.Request) -> web.Response:
    return web.Response(body=request.app[DESCRIPTION], content_type="application/json")


def started_s() -> int:
    return int(time.time())


def _card(request: web.Request, service: Service, name: str) -> ModelCard:
    return ModelCard(id=name, created=request.app[STARTED_S], max_model_len=service.backend.max_model_len)
