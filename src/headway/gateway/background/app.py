"""All routes of a store, for either application."""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web

from headway.gateway.background import routes
from headway.gateway.background.batch import files
from headway.gateway.background.batch import routes as batches
from headway.gateway.background.routes import BACKGROUND, WHOSE, Whose
from headway.gateway.background.service import Background

ROUTES = (*routes.ROUTES, *files.ROUTES, *batches.ROUTES)


def add_background_routes(app: web.Application, background: Background, tenant: Callable[[web.Request], str]) -> None:
    """`tenant` says whose call it is, or raises."""
    app[BACKGROUND] = background
    app[WHOSE] = Whose(tenant)
    for method, path, handler in ROUTES:
        app.router.add_route(method, path, handler)
