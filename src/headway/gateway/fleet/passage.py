"""The rest of `/v1`: passed on as it comes, under the same quotas, queue and choice of worker, and counted as far as it
says what it cost.
"""

from __future__ import annotations

import re

import msgspec
from aiohttp import web

from headway.core.errors import InvalidRequest
from headway.core.front.treatment import Asked
from headway.gateway.edge import REQUEST_ID
from headway.gateway.fleet.admit import plain_request
from headway.gateway.fleet.counting import FIRST_RATIO
from headway.gateway.fleet.exchange import Exchange
from headway.gateway.fleet.headers import CALLER, from_client
from headway.gateway.fleet.service import FLEET
from headway.gateway.fleet.trail import Trail
from headway.gateway.promises import slo_of
from headway.gateway.tenancy.auth import Forbidden
from headway.workers.worker import Call

# What changes a worker is its operator's, not a tenant's.
OPERATORS = frozenset({"/v1/load_lora_adapter", "/v1/unload_lora_adapter"})
# A path that a worker could read as another one goes nowhere.
_PLAIN_PATH = re.compile(r"/v1/(?:(?!\.\.?/|\.\.?$)[A-Za-z0-9._~:@!$&'()*+,;=-]+/?)+")


class _Said(msgspec.Struct):
    model: str | None = None
    stream: bool | None = None


_said = msgspec.json.Decoder(_Said)


async def pass_on(request: web.Request) -> web.StreamResponse:
    service = request.app[FLEET]
    trail = Trail(service.figures)
    caller = request[CALLER] = service.door.caller(request.headers)
    path = request.rel_url.raw_path
    if path.rstrip("/") in OPERATORS:
        raise Forbidden(f"{path} changes a worker; it is not passed on.")
    if not _PLAIN_PATH.fullmatch(path):
        raise InvalidRequest("This path is not passed on: write it without escapes and dots.", code="invalid_path")
    service.driver.check_door(caller.tenant)
    slo = slo_of(request.headers, service.fleet_config.default_slo)
    body = await service.body_of(request)
    trail.received()
    said = _said_of(request, body)
    model, streams = (said.model or "", bool(said.stream)) if said is not None else ("", False)
    tokens = int(len(body) / FIRST_RATIO) if said is not None else 1
    asked = Asked(id=request[REQUEST_ID], tenant=caller.tenant, prompt_tokens=tokens, max_tokens=1)
    treatment = service.driver.treat(asked)
    core_request = plain_request(
        service, caller.tenant, slo, request_id=request[REQUEST_ID], model=model, tokens=tokens
    )
    core_request.priority = treatment.priority
    trail.ready(core_request, ())
    call = Call(
        path=request.rel_url.raw_path_qs if request.query_string else path,
        body=body,
        method=request.method,
        headers=from_client(request),
        streams=streams,
    )
    return await Exchange(request, service, call, trail).carried(core_request)


def _said_of(request: web.Request, body: bytes) -> _Said | None:
    """What a JSON body says of itself; None where there is none that can be read."""
    if not body or "json" not in request.content_type:
        return None
    try:
        return _said.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None  # its worker will say what is wrong with it
