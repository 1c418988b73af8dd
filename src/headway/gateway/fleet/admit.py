"""From what was read of a call to what is let in: its tokens counted, the ladder's word on it carried out.

`core` decides what becomes of a call (`Front.treat`); here its parts are left out, its turns dropped, and it is counted
again, until the front has nothing more to say.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from headway.core.errors import InvalidRequest
from headway.core.front.spare import BATCH_PRIORITY
from headway.core.front.treatment import Asked, Treatment
from headway.core.request import BATCH, ONLINE, Request, SamplingParams, Slo
from headway.gateway.fleet.counting import MEDIA_TOKENS, count_exactly, prefix_of, text_size
from headway.gateway.fleet.cutting import Fields, check_optional, drop_optional, trim
from headway.gateway.fleet.scan import Scan
from headway.gateway.fleet.service import FleetService
from headway.workers.worker import Decided

_PARAMS = SamplingParams()  # a worker reads the client's own


@dataclass(slots=True)
class Admitted:
    """A call as it is to be let in. `divert`: it goes to the asynchronous store instead, or stays there."""

    request: Request
    decided: Decided
    degraded: tuple[str, ...]
    divert: bool


async def admit(
    service: FleetService, scan: Scan, tenant: str, slo: Slo, request_id: str, *, kept: bool = False
) -> Admitted:
    """Count and treat a call; `kept`: it comes from the store. Raises the `HeadwayError` with which it is refused."""
    batch = kept or scan.batch
    tokens = await _counted(service, scan)
    treatment = _treated(
        service, scan, tenant, request_id, tokens, optional=bool(scan.optional), batch=batch, again=kept
    )
    degraded, fields, said = treatment.degraded, {}, scan
    if treatment.drop_optional:
        fields = drop_optional(scan)
        said = scan.changed(fields)
        tokens = await _counted(service, said)
        treatment = _treated(service, said, tenant, request_id, tokens, optional=False, batch=batch)
        degraded = _united(degraded, treatment)
    elif scan.optional:
        check_optional(scan)
    if treatment.trim_to_tokens is not None and not treatment.divert:
        shorter, tokens = await _trimmed(service, said, tokens, treatment.trim_to_tokens)
        fields = {**fields, **shorter}
        said = said.changed(shorter)
        treatment = _treated(service, said, tenant, request_id, tokens, optional=False, batch=batch)
        degraded = _united(degraded, treatment)
    request = Request(
        id=service.core_id(request_id),
        prompt=range(tokens),
        max_tokens=_reserved_output(service, scan, tenant, tokens, treatment),
        params=_PARAMS,
        tenant=tenant,
        priority=max(treatment.priority, BATCH_PRIORITY) if batch else treatment.priority,
        slo=slo,
        model=scan.model,
        pool=BATCH if batch else ONLINE,
        streams=scan.stream,
        prefix=prefix_of(said.text, f"{tenant}\0{scan.sent.cache_salt or ''}"),
    )
    decided = service.usually_decided(tenant)
    max_tokens = _decided_output(service, scan, tenant, tokens, treatment)
    priority = request.priority if request.priority or scan.sent.priority is not None else None
    if fields or max_tokens is not None or priority is not None:
        decided = replace(decided, max_tokens=max_tokens, priority=priority, replaced=fields)
    return Admitted(request, decided, degraded, treatment.divert or (scan.background and not kept))


def _treated(
    service: FleetService,
    scan: Scan,
    tenant: str,
    request_id: str,
    tokens: int,
    *,
    optional: bool,
    batch: bool,
    again: bool = True,
) -> Treatment:
    asked = Asked(
        id=request_id,
        tenant=tenant,
        prompt_tokens=tokens,
        max_tokens=scan.max_tokens,
        priority=scan.sent.priority,
        batch=batch,
        optional=optional,
    )
    return service.driver.treat(asked, again=again)


async def _counted(service: FleetService, scan: Scan) -> int:
    counter = service.counting.exactly(scan)
    if counter is None:
        return service.counting.estimate(scan)
    try:
        tokens = await service.counted(lambda: count_exactly(counter, scan), len(scan.text))
    except InvalidRequest:  # the template knows no such message; its worker may, and says so else
        return service.counting.estimate(scan)
    return tokens + text_size(scan.text)[1] * MEDIA_TOKENS


async def _trimmed(service: FleetService, scan: Scan, tokens: int, to_tokens: int) -> tuple[Fields, int]:
    counter, counting = service.counting.exactly(scan), service.counting

    def count(fields: Fields) -> int:
        shorter = scan.changed(fields)
        return counting.estimate(shorter) if counter is None else count_exactly(counter, shorter)

    return await service.counted(lambda: trim(scan, tokens, to_tokens, count), len(scan.text))


def _united(degraded: tuple[str, ...], treatment: Treatment) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*degraded, *treatment.degraded)))


def _decided_output(service: FleetService, scan: Scan, tenant: str, tokens: int, treatment: Treatment) -> int | None:
    """What the worker is told of `max_tokens`, None where the client's own word, or silence, stands."""
    if scan.max_tokens is not None:
        return treatment.max_tokens if treatment.max_tokens < scan.max_tokens else None
    limits = service.front.tenants.of(tenant)
    limited = limits.max_output_tokens or limits.tokens_per_minute or "output-clamped" in treatment.degraded
    # A default that only says what the context leaves is better left to the worker, who knows its context.
    return treatment.max_tokens if limited and tokens + treatment.max_tokens < _context(service) else None


def _reserved_output(service: FleetService, scan: Scan, tenant: str, tokens: int, treatment: Treatment) -> int:
    """Output tokens that are set aside for a call: of all its samples, as far as one request may hold."""
    outputs = scan.samples * scan.prompts
    if outputs == 1:
        return treatment.max_tokens
    limits = service.front.tenants.of(tenant)
    most = [outputs * treatment.max_tokens, _context(service) - tokens]
    most += [limits.max_output_tokens] if limits.max_output_tokens else []
    most += [limits.tokens_per_minute - tokens] if limits.tokens_per_minute else []
    return max(treatment.max_tokens, min(most))


def _context(service: FleetService) -> int:
    return service.front.admission.limits.max_model_len


def plain_request(service: FleetService, tenant: str, slo: Slo, *, request_id: str, model: str, tokens: int) -> Request:
    """A call of a kind that is only passed on."""
    return Request(
        id=service.core_id(request_id),
        prompt=range(max(1, tokens)),
        max_tokens=1,
        params=_PARAMS,
        tenant=tenant,
        slo=slo,
        model=model,
        streams=False,  # whether it does, and what its first byte would mean, is not known
    )
