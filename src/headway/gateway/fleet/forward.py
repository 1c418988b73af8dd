"""The routes that generate: who calls, what is asked, what becomes of it, and on to a worker (`exchange`)."""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web

from headway.core.errors import InvalidRequest, QueueFull, Shed
from headway.gateway.background.work import BACKGROUND, DIVERTED, NO_STORE, Wanted
from headway.gateway.edge import REQUEST_ID
from headway.gateway.fleet.admit import Admitted, admit
from headway.gateway.fleet.exchange import Exchange
from headway.gateway.fleet.headers import CALLER, from_client
from headway.gateway.fleet.scan import Scan, scan_chat, scan_completion
from headway.gateway.fleet.service import FLEET, FleetService
from headway.gateway.fleet.trail import Trail
from headway.gateway.promises import slo_of
from headway.workers.worker import Call

Read = Callable[[bytes], Scan]


async def chat_completions(request: web.Request) -> web.StreamResponse:
    return await _generate(request, scan_chat, "/v1/chat/completions")


async def completions(request: web.Request) -> web.StreamResponse:
    return await _generate(request, scan_completion, "/v1/completions")


async def _generate(request: web.Request, read: Read, path: str) -> web.StreamResponse:
    service = request.app[FLEET]
    trail = Trail(service.figures)
    caller = request[CALLER] = service.door.caller(request.headers)
    full = _check_door(service, caller.tenant)
    slo = slo_of(request.headers, service.fleet_config.default_slo)
    body = await service.body_of(request)
    trail.received()
    scan = read(body)
    if full is not None and not scan.batch:
        raise full
    try:
        admitted = await admit(service, scan, caller.tenant, slo, request[REQUEST_ID])
        if admitted.divert or full is not None:
            service.driver.diverted(request[REQUEST_ID])
            return await _diverted(request, service, path, scan, admitted)
        call = Call(
            path=path,
            body=body,
            headers=from_client(request),
            streams=scan.stream,
            choices=scan.samples * scan.prompts,
            decided=admitted.decided,
        )
        trail.ready(admitted.request, admitted.degraded)
        return await Exchange(request, service, call, trail, scan=scan).carried(admitted.request)
    except InvalidRequest as error:  # told by the fields that the client sent
        fields = {"prompt": scan.prompt_field, "max_tokens": scan.max_tokens_field}
        error.param = fields.get(error.param or "", error.param)
        error.code = error.code or "invalid_value"
        raise


def _check_door(service: FleetService, tenant: str) -> QueueFull | None:
    """Before the body is read: a refusal must not cost what it saves. A full queue is no reason not to keep a call."""
    try:
        service.driver.check_door(tenant)
    except QueueFull as full:
        if service.hooks.divert is None:
            raise
        return full
    return None


async def _diverted(
    request: web.Request, service: FleetService, path: str, scan: Scan, admitted: Admitted
) -> web.StreamResponse:
    """Work that nobody waits for, or that cannot be done while somebody waits."""
    if service.hooks.divert is None:
        if scan.background:
            raise InvalidRequest(NO_STORE, param="background", code="unsupported_feature")
        raise Shed(
            "The service is overloaded and does no batch work for now; without --store it cannot keep any for later. "
            "Come back later.",
            retry_after_s=service.front.admission.retry_after_s(),
        )
    why = BACKGROUND if scan.background else DIVERTED
    wanted = Wanted(admitted.request.tenant, path, scan.body, scan.model, why, admitted.degraded)
    return await service.hooks.divert(request, wanted, admitted.request)
