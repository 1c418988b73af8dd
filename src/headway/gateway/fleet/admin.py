"""What an operator may do to a fleet while it serves. Answers a key for administration; without keys, this machine."""

from __future__ import annotations

from typing import Any

import msgspec
from aiohttp import web

from headway.core.errors import HeadwayError, InvalidRequest
from headway.core.fleet.worker import LOAD_FIELDS, WorkerState
from headway.core.front.ladder import Level, Mode
from headway.gateway.admin import check_local
from headway.gateway.fleet.service import FLEET, FleetService
from headway.gateway.inform import json_response
from headway.gateway.tenancy.auth import Forbidden, Unauthenticated

LEVELS = {level.name.lower(): level for level in Level}
MODES = {mode.value: mode for mode in Mode}


class Unsupported(HeadwayError):
    """Whoever assembled this gateway did not lend it what this takes."""

    status = 501
    code = "unsupported_feature"


async def workers(request: web.Request) -> web.Response:
    """Every worker: what was said of it, what it says of itself, and what is known of it here."""
    service = _allowed(request)
    return json_response({"object": "list", "data": [_worker(service, name) for name in service.roster.members]})


async def add_worker(request: web.Request) -> web.Response:
    """POST a worker as in the configuration file's `[[worker]]`: url, and what else is to be said of it."""
    service = _allowed(request)
    if service.hooks.member is None:
        raise Unsupported("This gateway cannot add workers while it serves.")
    table = await _object(request, service)
    member = service.hooks.member(table)
    await service.roster.add(member)
    return json_response(_worker(service, member.spec.id))


async def remove_worker(request: web.Request) -> web.Response:
    """DELETE: it gets nothing more, and what runs there may end."""
    service, name = _allowed(request), request.match_info["worker"]
    await service.roster.remove(name)
    return json_response({"id": name, "object": "headway.worker", "removed": True})


async def drain_worker(request: web.Request) -> web.Response:
    return _drained(request, draining=True)


async def undrain_worker(request: web.Request) -> web.Response:
    return _drained(request, draining=False)


def _drained(request: web.Request, *, draining: bool) -> web.Response:
    service, name = _allowed(request), request.match_info["worker"]
    service.roster.drain(name, draining=draining)
    return json_response(_worker(service, name))


async def ladder(request: web.Request) -> web.Response:
    return json_response(_ladder(_allowed(request)))


async def set_ladder(request: web.Request) -> web.Response:
    """POST {"clamp_output": "on", "shed_low_priority": "off", ...}: on pins a level, off disables it, auto frees it."""
    service = _allowed(request)
    table = await _object(request, service)
    modes = {}
    for name, mode in table.items():
        if name not in LEVELS:
            raise InvalidRequest(
                f"There is no level {name[:80]!r}; there are {', '.join(LEVELS)}.",
                param=name[:80],
                code="invalid_value",
            )
        if not isinstance(mode, str) or mode not in MODES:
            raise InvalidRequest(f"{name} must be one of {', '.join(MODES)}.", param=name, code="invalid_value")
        modes[LEVELS[name]] = MODES[mode]
    service.driver.set_levels(modes)
    return json_response(_ladder(service))


async def reload(request: web.Request) -> web.Response:
    """Read the configuration file and the API keys again: all of it holds from now on, or nothing has changed."""
    service = _allowed(request)
    if service.hooks.reload is None:
        raise Unsupported("This gateway was started without a configuration file or API keys.")
    return json_response({"reloaded": True, **await service.hooks.reload()})


def _allowed(request: web.Request) -> FleetService:
    """Raises `Forbidden`, `Unauthenticated` or `NotLocal` for who may not.

    Where there are keys, being on this machine is not enough: behind a proxy that says nothing of itself everybody is.
    """
    service = request.app[FLEET]
    if service.door.ring is None:
        check_local(request)
        return service
    caller = service.door.presented(request.headers)
    if caller is None:
        raise Unauthenticated(
            "This gateway has API keys: administration takes one that was made with `headway keys create --admin`, in "
            "the header Authorization: Bearer KEY.",
            code="missing_api_key",
        )
    if not caller.admin:
        raise Forbidden("This key is a tenant's; administration takes one that was made with --admin.")
    return service


async def _object(request: web.Request, service: FleetService) -> dict[str, Any]:
    try:
        table: Any = msgspec.json.decode(await service.body(request))
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequest(f"The body is not JSON: {error}", code="invalid_json") from error
    if not isinstance(table, dict) or not table:
        raise InvalidRequest("Send a JSON object with at least one key.", code="invalid_value")
    return table


def _worker(service: FleetService, name: str) -> dict[str, Any]:
    member = service.roster.members.get(name)
    state = service.front.fleet.worker(name)  # raises NotFound
    assert member is not None, "the roster and the front know the same workers"
    return {
        "id": name,
        "object": "headway.worker",
        "url": member.url or getattr(member.worker, "url", None),
        "kind": member.worker.kind or None,
        "pool": state.spec.pool,
        "weight": state.spec.weight,
        "models": sorted(member.models),
        "trust": state.breaker.trust(service.driver.clock()).value,
        "not_well": service.roster.reason(name) or None,
        "draining": state.draining,
        "in_flight": {"requests": len(state.flights), "tokens": state.tokens},
        "window": {"sequences": int(state.window.sequences)},
        "says": _says(state, service.driver.clock()),
    }


def _says(state: WorkerState, now: int) -> dict[str, Any]:
    """Each of its signals with its age; what is not known is null."""
    told: dict[str, Any] = {}
    for name in LOAD_FIELDS:
        signal = getattr(state.load, name)
        told[name] = None if signal is None else {"value": signal.value, "age_s": round((now - signal.at_ns) / 1e9, 3)}
    return told


def _ladder(service: FleetService) -> dict[str, Any]:
    ladder = service.driver.decider.ladder
    return {
        "height": ladder.height,
        "pressure": ladder.pressure.height,
        "levels": {
            name: {"active": ladder.active(level), "mode": ladder.modes[level].value} for name, level in LEVELS.items()
        },
    }
