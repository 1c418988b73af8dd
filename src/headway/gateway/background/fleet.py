"""Kept calls through a fleet's front to its workers: counted, treated, let in, placed and carried like any other."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

from aiohttp import web

from headway.core.errors import NoWorker, Shed
from headway.core.front.spare import check_possible, has_spare
from headway.core.request import NO_SLO, Request, Usage
from headway.gateway.background.app import add_background_routes
from headway.gateway.background.config import BackgroundConfig
from headway.gateway.background.metrics import BackgroundCollector
from headway.gateway.background.routes import answer_kept
from headway.gateway.background.service import Background
from headway.gateway.background.work import CHAT, Answered, Kept, Wanted
from headway.gateway.edge import REQUEST_ID
from headway.gateway.fleet.admit import admit
from headway.gateway.fleet.exchange import Exchange
from headway.gateway.fleet.headers import CALLER
from headway.gateway.fleet.scan import scan_chat, scan_completion
from headway.gateway.fleet.service import FLEET, FleetService
from headway.gateway.fleet.trail import NS_PER_S, Trail
from headway.workers.worker import Call


def attach(service: FleetService, config: BackgroundConfig) -> Background:
    """Give a fleet's gateway a store. `routes_for` adds its routes; to open and close it is its owner's affair."""
    background = Background(FleetRuns(service), config)
    service.metrics.registry.register(BackgroundCollector(background))
    service.hooks = replace(service.hooks, divert=FleetDiverting(service, background))
    return background


def routes_for(background: Background) -> Callable[[web.Application], None]:
    """For `create_fleet_app`."""
    return lambda app: add_background_routes(app, background, tenant_of_call)


class FleetRuns:
    def __init__(self, service: FleetService) -> None:
        self._service = service

    def has_spare(self) -> bool:
        return has_spare(self._service.front)

    async def run(self, kept: Kept) -> Answered:
        """Its trail is found under its id, at `/v1/requests`."""
        service, began_s = self._service, time.monotonic()
        trail = Trail(service.figures)
        scan = scan_chat(kept.body) if kept.path == CHAT else scan_completion(kept.body)
        admitted = await admit(service, scan, kept.tenant, NO_SLO, kept.id, kept=True)
        if admitted.divert:
            raise Shed(
                "Batch work stays in the store while the service is overloaded.",
                retry_after_s=service.front.admission.retry_after_s(),
            )
        call = Call(
            path=kept.path,
            body=kept.body,
            headers=((b"x-request-id", kept.id.encode()), (b"content-type", b"application/json")),
            choices=scan.samples * scan.prompts,
            decided=admitted.decided,
        )
        trail.ready(admitted.request, admitted.degraded)
        response = await Exchange(_nobody(kept.id), service, call, trail, scan=scan).carried(admitted.request)
        body = response.body if isinstance(response, web.Response) else None
        assert isinstance(body, bytes), "an answer that is no stream comes in one piece"
        return Answered(
            status=response.status,
            body=body,
            usage=Usage(trail.prompt_tokens, trail.output_tokens, trail.cached_tokens),
            queue_s=(trail.sent_ns - trail.ready_ns) / NS_PER_S if trail.sent_ns else None,
            wall_s=time.monotonic() - began_s,
        )


class FleetDiverting:
    """What a fleet does with a call that is to be kept."""

    def __init__(self, service: FleetService, background: Background) -> None:
        self._service = service
        self._background = background

    async def __call__(self, request: web.Request, wanted: Wanted, asked: Request) -> web.StreamResponse:
        """Raises `NotFound` for a model that nobody serves, and what `check_possible` and `Background.keep` raise."""
        del request
        front = self._service.front
        check_possible(front, asked)
        with contextlib.suppress(NoWorker):  # by the time it is computed somebody may be up
            front.fleet.check_up(asked, self._service.driver.clock())
        return await answer_kept(self._background, wanted)


def _nobody(request_id: str) -> web.Request:
    """Nobody waits for the answer: of a client's request there is only its id. An answer in one piece needs no more."""
    nobody: dict[Any, Any] = {REQUEST_ID: request_id}
    return cast(web.Request, nobody)


def tenant_of_call(request: web.Request) -> str:
    """Raises `Unauthenticated`, `Forbidden`."""
    caller = request[CALLER] = request.app[FLEET].door.caller(request.headers)
    return caller.tenant
