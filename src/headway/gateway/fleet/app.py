"""A fleet's routes, in one table."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

from aiohttp import web

from headway.gateway import inform as own
from headway.gateway.app import installed_version
from headway.gateway.dashboard import DASHBOARD_ROUTES, add_dashboard
from headway.gateway.dashboard.fleet import FleetSource
from headway.gateway.edge import add_headers, edge
from headway.gateway.fleet import admin, forward, inform
from headway.gateway.fleet.headers import add_fleet_headers
from headway.gateway.fleet.outcomes import count_fleet_call
from headway.gateway.fleet.passage import pass_on
from headway.gateway.fleet.service import FLEET, FleetService
from headway.gateway.observe import OVER
from headway.gateway.service import EDGE
from headway.wire import limits
from headway.wire.responses import Index

ROUTES = (
    ("POST", "/v1/chat/completions", forward.chat_completions),
    ("POST", "/v1/completions", forward.completions),
    ("GET", "/v1/models", inform.models),
    ("GET", "/v1/models/{model:.+}", inform.model),  # a Hugging Face id has a slash in it
    ("GET", "/v1/requests/{request}", inform.story),
    *DASHBOARD_ROUTES,
    ("GET", "/version", own.version),
    ("GET", "/health", inform.health),
    ("GET", "/ping", inform.health),
    ("GET", "/ready", inform.ready),
    ("GET", "/metrics", inform.metrics),
    ("GET", "/load", inform.load),
    ("GET", "/admin/workers", admin.workers),
    ("POST", "/admin/workers", admin.add_worker),
    ("DELETE", "/admin/workers/{worker}", admin.remove_worker),
    ("POST", "/admin/workers/{worker}/drain", admin.drain_worker),
    ("POST", "/admin/workers/{worker}/undrain", admin.undrain_worker),
    ("GET", "/admin/ladder", admin.ladder),
    ("POST", "/admin/ladder", admin.set_ladder),
    ("POST", "/admin/reload", admin.reload),
)
PASSED_ON = ("GET", "POST", "DELETE")


def create_fleet_app(
    service: FleetService, add_routes: Callable[[web.Application], None] | None = None
) -> web.Application:
    """OpenAI's API over a fleet. Starting and closing the driver and the roster is their owner's affair.

    `add_routes` adds more, which go before what is passed on.
    """
    app = web.Application(middlewares=[edge], client_max_size=limits.MAX_BODY_BYTES)
    app[EDGE] = service
    app[FLEET] = service
    app[OVER] = count_fleet_call
    app[own.STARTED_S] = own.started_s()
    passed_on = [f"{method} /v1/…" for method in PASSED_ON]
    app[own.INDEX] = Index(
        version=installed_version(), models=[], routes=[f"{method} {path}" for method, path, _ in ROUTES] + passed_on
    )
    for method, path, handler in ROUTES:
        app.router.add_route(method, path, handler)
    if add_routes is not None:
        add_routes(app)
    for method in PASSED_ON:
        app.router.add_route(method, "/v1/{rest:.+}", pass_on)
    add_dashboard(app, FleetSource(service))
    app.on_response_prepare.append(add_headers)
    app.on_response_prepare.append(add_fleet_headers)
    app.cleanup_ctx.append(_lifetime)
    return app


async def _lifetime(app: web.Application) -> AsyncIterator[None]:
    yield
    app[FLEET].close()
