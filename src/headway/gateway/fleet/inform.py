"""A fleet's routes that generate nothing: its models, one request's story, health, numbers."""

from __future__ import annotations

from aiohttp import web

from headway.core.errors import MAX_RETRY_AFTER_S, Draining, NotFound, NoWorker
from headway.core.front.front import RETRY_WHEN_CLOSED_S
from headway.gateway.fleet.headers import CALLER
from headway.gateway.fleet.service import FLEET, FleetService
from headway.gateway.inform import STARTED_S, json_response
from headway.gateway.tenancy.auth import Unauthenticated
from headway.gateway.viewer import Viewer, viewer_of
from headway.wire.responses import Health


async def models(request: web.Request) -> web.Response:
    """Of all workers together, each once."""
    service = request.app[FLEET]
    request[CALLER] = service.door.caller(request.headers)
    cards = [_card(request, service, name) for name in service.roster.models()]
    return json_response({"object": "list", "data": cards})


async def model(request: web.Request) -> web.Response:
    service, name = request.app[FLEET], request.match_info["model"]
    request[CALLER] = service.door.caller(request.headers)
    if name not in service.roster.models():
        raise NotFound(
            f"No worker serves the model {name[:200]!r}. GET /v1/models lists those that are served.",
            param="model",
            code="model_not_found",
        )
    return json_response(_card(request, service, name))


async def story(request: web.Request) -> web.Response:
    """What became of one of the caller's recent requests: its worker, every term of its score, its times and tokens."""
    service, name = request.app[FLEET], request.match_info["request"]
    caller = request[CALLER] = service.door.caller(request.headers)
    trail = service.trails.find(caller.tenant, name)
    if trail is None:
        raise NotFound(
            f"The request {name[:200]!r} is not among the last {service.fleet_config.recent_requests:,}, or not yours.",
            code="request_not_found",
        )
    return json_response(trail.told())


async def health(request: web.Request) -> web.Response:
    """Whether this process is worth keeping. Its workers are others."""
    del request
    return json_response(Health())


async def ready(request: web.Request) -> web.Response:
    """Whether to send traffic here: 503 with the reason while no worker is up, or while it drains."""
    service = request.app[FLEET]
    if reason := service.front.not_ready_reason:
        raise Draining(reason, retry_after_s=RETRY_WHEN_CLOSED_S)
    if not _up(service):
        raise NoWorker("No worker is up.", retry_after_s=min(MAX_RETRY_AFTER_S, RETRY_WHEN_CLOSED_S))
    return json_response(Health())


async def load(request: web.Request) -> web.Response:
    """The fleet's numbers now, as JSON: what a router above or a test polls. Tenants by name to who may know them."""
    service = request.app[FLEET]
    viewer, no_keys = _viewer(request, service), service.door.ring is None
    front, now = service.front, service.driver.clock()
    admission = front.admission
    reason = front.not_ready_reason or ("" if _up(service) else "No worker is up.")
    workers = {
        name: {
            "trust": worker.breaker.trust(now).value,
            "draining": worker.draining,
            "requests": len(worker.flights),
            "tokens": worker.tokens,
            "window_sequences": int(worker.window.sequences),
        }
        for name, worker in front.fleet.workers.items()
    }
    return json_response(
        {
            "ready": not reason,
            "not_ready_reason": reason,
            "requests": admission.requests,
            "running": admission.running,
            "waiting": admission.waiting,
            "waiting_tokens": admission.waiting_tokens,
            "claimed_tokens": admission.claimed_tokens,
            "places": len(service.driver.places),
            "waiting_by_lane": front.lanes.waiting_by_lane(),
            "waiting_by_tenant": {
                tenant: waiting
                for tenant, waiting in front.lanes.waiting_by_tenant().items()
                if no_keys or viewer.owns(tenant)
            },
            "ended_total": service.figures.ended,
            "refused_total": front.refused,
            "returned_total": service.figures.returned,
            "workers": workers,
        }
    )


async def metrics(request: web.Request) -> web.Response:
    """For Prometheus. Where there are keys, only one for administration is told anything by tenant."""
    service = request.app[FLEET]
    viewer, exporter = _viewer(request, service), service.metrics
    body = exporter.render(tenants=viewer.is_operator or service.door.ring is None)
    return web.Response(body=body, headers={"Content-Type": exporter.content_type})


def _viewer(request: web.Request, service: FleetService) -> Viewer:
    """Of what needs no key: a bad one is taken for none, and counted. Monitoring must not end with its key."""
    try:
        return viewer_of(request, service.door)
    except Unauthenticated as error:
        service.figures.keys_ignored += error.code == Unauthenticated.code  # else there was none
        return Viewer("public")


def _up(service: FleetService) -> bool:
    now = service.driver.clock()
    return any(not one.draining and one.breaker.allows(now) for one in service.front.fleet.workers.values())


def _card(request: web.Request, service: FleetService, name: str) -> dict[str, object]:
    members = service.roster.members.values()
    where = [member.spec.id for member in members if not member.models or name in member.models]
    return {
        "id": name,
        "object": "model",
        "created": request.app[STARTED_S],
        "owned_by": "headway",
        "workers": where,
    }
