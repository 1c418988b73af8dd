"""The routes, in one table."""

from __future__ import annotations

from collections.abc import AsyncIterator
from importlib.metadata import PackageNotFoundError, version

import msgspec
from aiohttp import web

from headway.gateway import admin, generate, inform
from headway.gateway.backend import Backend
from headway.gateway.config import GatewayConfig
from headway.gateway.dashboard import DASHBOARD_ROUTES, add_dashboard
from headway.gateway.dashboard.engine import Calls, EngineSource, noting
from headway.gateway.edge import add_headers, edge
from headway.gateway.guard import guard
from headway.gateway.observe import OVER
from headway.gateway.openapi import describe, routes
from headway.gateway.outcomes import count_engine_call
from headway.gateway.service import EDGE, SERVICE, Service
from headway.wire import limits
from headway.wire.responses import Index


def create_app(backend: Backend, config: GatewayConfig = GatewayConfig()) -> web.Application:
    """OpenAI's API over `backend`. Starting, draining and closing the backend is its owner's affair.

    Serve it with `listening`, which also sets what keeps a server's connections healthy.
    """
    middlewares = [edge, guard(config.secret)] if config.secret else [edge]
    app = web.Application(middlewares=middlewares, client_max_size=limits.MAX_BODY_BYTES)
    service = Service(backend, config)
    app[EDGE] = app[SERVICE] = service
    app[OVER] = count_engine_call
    app[inform.STARTED_S] = inform.started_s()
    described = describe(service.names, installed_version())
    app[inform.DESCRIPTION] = msgspec.json.encode(described)
    app[inform.INDEX] = Index(version=installed_version(), models=list(service.names), routes=routes(described))
    app.add_routes(
        [
            web.post("/v1/chat/completions", generate.chat_completions),
            web.post("/v1/completions", generate.completions),
            web.get("/v1/models", inform.models),
            web.get("/v1/models/{model:.+}", inform.model),  # a Hugging Face id has a slash in it
            web.post("/tokenize", inform.tokenize),
            web.post("/detokenize", inform.detokenize),
            web.get("/version", inform.version),
            web.get("/health", inform.health),
            web.get("/ping", inform.health),  # the name that SageMaker and vLLM have for it
            web.get("/ready", inform.ready),
            web.get("/metrics", inform.metrics),
            web.get("/load", inform.load),
            web.get("/openapi.json", inform.description),
            web.get("/admin/config", admin.config),
            web.post("/admin/reconfigure", admin.reconfigure),
        ]
    )
    for _, path, handler in DASHBOARD_ROUTES:
        app.router.add_get(path, handler)
    if not config.secret:  # else a gateway's, whose dashboard tells of it
        calls = Calls()
        app.middlewares.append(noting(calls))
        add_dashboard(app, EngineSource(service, calls))
    app.on_response_prepare.append(add_headers)
    app.cleanup_ctx.append(_service_lifetime)
    return app


async def _service_lifetime(app: web.Application) -> AsyncIterator[None]:
    yield
    app[SERVICE].close()


def installed_version() -> str:
    try:
        return version("headway")
    except PackageNotFoundError:  # run from a source tree that was not installed
        return "0"
