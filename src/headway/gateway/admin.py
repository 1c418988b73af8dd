"""What an operator may change while serving. Answers only the machine it runs on."""

from __future__ import annotations

import dataclasses
import ipaddress
from typing import Any

import msgspec
from aiohttp import web

from headway.core.errors import HeadwayError, InvalidRequest
from headway.gateway.inform import json_response
from headway.gateway.service import SERVICE

# A proxy on this machine makes the whole world look local, and so does a browser that shows somebody's page; these say
# that it is not.
_FROM_ELSEWHERE = ("x-forwarded-for", "forwarded", "x-real-ip", "origin")


class NotLocal(HeadwayError):
    """Administration from elsewhere."""

    status = 403
    type = "permission_error"
    code = "not_local"


async def config(request: web.Request) -> web.Response:
    """The engine's configuration as it is now, and `precision`: what came of `dtype` on this machine."""
    check_local(request)
    backend = request.app[SERVICE].backend
    told = dataclasses.asdict(backend.config)
    if (info := getattr(backend, "info", None)) is not None:  # only what computes itself knows
        told["precision"] = info.precision
    return json_response(told)


async def reconfigure(request: web.Request) -> web.Response:
    """POST the settings to change, as JSON: all of them are taken, or none. Answers with the whole configuration."""
    check_local(request)
    service = request.app[SERVICE]
    try:
        changes: Any = msgspec.json.decode(await service.body(request))
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequest(f"The body is not JSON: {error}", code="invalid_json") from error
    if not isinstance(changes, dict) or not changes:
        raise InvalidRequest('Send an object of settings, such as {"max_num_seqs": 32}.', code="invalid_value")
    return json_response(dataclasses.asdict(service.backend.reconfigure(**changes)))


def check_local(request: web.Request) -> None:
    """Raises `NotLocal`."""
    try:
        local = ipaddress.ip_address(request.remote or "").is_loopback
    except ValueError:
        local = False
    if not local or any(name in request.headers for name in _FROM_ELSEWHERE):
        raise NotLocal("Administration answers only requests from this machine, through no proxy and from no web page.")
