"""What the dashboard reads of a gateway: its front, its figures, its roster, and the trails of its recent requests."""

from __future__ import annotations

import heapq
import time
from collections import deque
from collections.abc import Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

from aiohttp import web

from headway.core.fleet.routing import scored
from headway.core.fleet.worker import LOAD_FIELDS, WorkerState
from headway.core.front.ladder import Level
from headway.core.request import Request, SamplingParams
from headway.gateway.dashboard.reading import NS_PER_S, Reading, counts_of
from headway.gateway.dashboard.source import SLOWEST, Order, promises_told, told_parts
from headway.gateway.viewer import Viewer, viewer_of
from headway.metrics.breakdown import OTHER

if TYPE_CHECKING:  # whose application has this for a part
    from headway.gateway.fleet.service import FleetService
    from headway.gateway.fleet.trail import Trail

MOST_WORKERS = 32  # that are told, in their order; how many more there are is told as well
MOST_WORKER_LINES = 8  # with a history of their KV
MOST_TENANTS = 32  # by tokens in the last minute
LOOKED_AT = 1024  # of the latest requests, those among which the slowest are looked for
# Tenants' tokens are remembered as they stood every ten seconds, for a minute.
TENANTS_EVERY_NS, TENANTS_KEPT = 10 * NS_PER_S, 7
_PARTS = ("network", "tokenise", "queue", "worker", "gateway")
_PARAMS = SamplingParams()


class FleetSource:
    kind = "gateway"

    def __init__(self, service: FleetService) -> None:
        self._service = service
        self._tenant_tokens: deque[tuple[int, dict[str, int]]] = deque(maxlen=TENANTS_KEPT)

    # -- with a history --------------------------------------------------------------------------------------------

    def read(self) -> Reading:
        service, now_ns = self._service, self._service.driver.clock()
        front, figures = service.front, service.figures
        self._note_tenants(now_ns)
        ttft, itl = counts_of(figures.ttft_s), counts_of(figures.itl_s)
        workers = front.fleet.workers
        kv = {f"kv.{name}": one.kv_used_ratio(now_ns) for name, one in islice(workers.items(), MOST_WORKER_LINES)}
        return Reading(
            at_s=time.time(),
            now_ns=time.monotonic_ns(),
            gauges={
                "requests": front.admission.requests,
                "sequences": front.admission.running,
                "flight_tokens": sum(one.tokens for one in workers.values()),
                "waiting": front.admission.waiting,
                "level": front.ladder.height,
                "pressure": front.ladder.pressure.height,
                **{f"lane.{name}": count for name, count in front.lanes.waiting_by_lane().items()},
                **{name: ratio for name, ratio in kv.items() if ratio is not None},
            },
            totals={
                "input_tokens": figures.input_tokens,
                "output_tokens": ttft.samples + itl.samples,  # as their clients were sent them
                "returned": figures.returned,
                **{f"ended.{how}": count for how, count in figures.ended.items()},
                **{f"refused.{code}": count for code, count in front.refused.items()},
                **{f"outcome.{how}": count for how, count in figures.calls.outcomes.items()},
            },
            times={
                "ttft": ttft,
                "itl": itl,
                "e2e": counts_of(figures.duration_s),
                **{f"part.{name}": counts_of(getattr(figures, f"{name}_s")) for name in _PARTS},
            },
        )

    def _note_tenants(self, now_ns: int) -> None:
        noted = self._tenant_tokens
        if not noted or now_ns - noted[-1][0] >= TENANTS_EVERY_NS:
            noted.append((now_ns, self._service.figures.calls.by["tenant"].computed_tokens()))

    # -- as it is --------------------------------------------------------------------------------------------------

    def viewer(self, request: web.Request) -> Viewer:
        return viewer_of(request, self._service.door)

    def about(self) -> dict[str, Any]:
        service, front = self._service, self._service.front
        slo, limits = service.fleet_config.default_slo, front.admission.limits
        windows = sum(int(one.window.sequences) for one in front.fleet.workers.values())
        return {
            "models": service.roster.models(),
            "not_ready": front.not_ready_reason or self._nobody(),
            "keys": service.door.ring is not None,
            "promises": promises_told(slo.ttft_ns, slo.itl_ns),
            "limits": {"sequences": windows, "max_model_len": limits.max_model_len},
            "beyond": {"ttft": service.figures.ttft_s.bounds[-1], "itl": service.figures.itl_s.bounds[-1]},
        }

    def _nobody(self) -> str:
        return "" if self._service.front.fleet.up(self._service.driver.clock()) else "No worker is up."

    def absent(self) -> Mapping[str, str]:
        service = self._service
        workers = service.front.fleet.workers.values()
        absent = {"steps": "Steps are taken inside the workers, which do not tell what each of them carried."}
        if not any(one.load.kv_used_ratio for one in workers):
            absent["kv"] = "No worker tells how much of its KV cache is in use."
        if service.door.ring is None:
            absent["tenants"] = "There are no API keys: everybody is one tenant."
        return absent

    def now(self, viewer: Viewer) -> dict[str, Any]:
        ladder = self._service.front.ladder
        levels = [
            {"name": level.name.lower(), "active": ladder.active(level), "mode": ladder.modes[level].value}
            for level in Level
        ]
        told: dict[str, Any] = {"ladder": {"height": ladder.height, "levels": levels}}
        told["workers"] = self._workers(viewer)
        told["more_workers"] = max(0, len(self._service.front.fleet.workers) - MOST_WORKERS)
        if self._service.door.ring is not None:
            told["tenants"] = self._tenants(viewer)
        return told

    def _workers(self, viewer: Viewer) -> list[dict[str, Any]] | None:
        """With what a typical new request would score there. Anybody but an operator sees their tenants' answers say
        which worker they had, and no more than that.
        """
        if not viewer.is_operator:
            return None
        service, now_ns = self._service, self._service.driver.clock()
        fleet = service.front.fleet
        states = list(islice(fleet.workers.values(), MOST_WORKERS))
        typical = max(1.0, fleet.typical_tokens)
        asked = Request("", range(int(typical)), 1, params=_PARAMS)
        terms = scored(states, asked, typical, now_ns) if states else {}
        return [self._worker(state, terms[state.spec.id], now_ns) for state in states]

    def _worker(self, state: WorkerState, terms: Mapping[str, float], now_ns: int) -> dict[str, Any]:
        name, service = state.spec.id, self._service
        signals = {field: signal for field in LOAD_FIELDS if (signal := getattr(state.load, field)) is not None}
        newest_ns = max((signal.at_ns for signal in signals.values()), default=None)
        return {
            "id": name,
            "kind": service.roster.members[name].worker.kind if name in service.roster.members else "",
            "trust": state.breaker.trust(now_ns).value,
            "draining": state.draining,
            "not_well": service.roster.reason(name),
            "in_flight": len(state.flights),
            "window": int(state.window.sequences),
            "tokens": state.tokens,
            "ttft_s": state.ttft_ns / NS_PER_S if state.ttft_ns else None,
            "says": {field: signal.value for field, signal in signals.items()},
            "age_s": None if newest_ns is None else (now_ns - newest_ns) / NS_PER_S,
            "score": sum(terms.values()),
            "terms": {term: round(value, 3) for term, value in terms.items()},
        }

    def _tenants(self, viewer: Viewer) -> list[dict[str, Any]]:
        """Tokens of requests that ended in the last minute, each tenant's share of them, and the share of its weight
        among those who had any or wait. As fairness counts them: what was found in a cache costs nothing.

        Of those beyond the busiest nobody counts each; together they are in the total.
        """
        front, now = self._service.front, self._service.figures.calls.by["tenant"].computed_tokens()
        before = self._tenant_tokens[0][1] if self._tenant_tokens else {}
        waiting = front.lanes.waiting_by_tenant()
        tokens = {name: max(0, count - before.get(name, 0)) for name, count in now.items()}
        total, uncounted = sum(tokens.values()), None if tokens.pop(OTHER, None) is not None else 0
        busy = {name for counts in (tokens, waiting) for name, count in counts.items() if count}
        weights = {name: front.tenants.weight(name) for name in busy}
        weight = sum(weights.values())
        shown = [name for name in busy if viewer.owns(name)]
        return [
            {
                "name": name,
                "tokens": (count := tokens.get(name, uncounted)),
                "share": count / total if total and count is not None else None,
                "weight": weights[name],
                "fair_share": weights[name] / weight,
                "waiting": waiting.get(name, 0),
            }
            for name in heapq.nlargest(MOST_TENANTS, shown, key=lambda one: (tokens.get(one, 0), waiting.get(one, 0)))
        ]

    # -- single requests -------------------------------------------------------------------------------------------

    def slow(self, viewer: Viewer, seconds: int, order: Order) -> list[dict[str, Any]] | None:
        if viewer.see == "public":
            return None
        now_ns = time.monotonic_ns()
        since_ns = now_ns - seconds * NS_PER_S
        recent = [
            trail
            for trail in islice(self._service.trails, LOOKED_AT)
            if trail.ended_ns >= since_ns and viewer.owns(trail.tenant)
        ]
        slowest = heapq.nlargest(
            SLOWEST, recent, key=lambda one: one.ended_ns - one.arrival_ns if order == "total" else (one.ttft_s or 0.0)
        )
        return [_told(trail, viewer, now_ns, why=False) for trail in slowest]

    def story(self, viewer: Viewer, request_id: str) -> dict[str, Any] | None:
        """As `/v1/requests/{id}`: a tenant's own, and an operator's any."""
        now_ns = time.monotonic_ns()
        if viewer.is_operator:
            found = next((one for one in islice(self._service.trails, LOOKED_AT) if one.id == request_id), None)
        else:
            found = self._service.trails.find(viewer.tenant, request_id)
        return None if found is None else _told(found, viewer, now_ns, why=True)


def _told(trail: Trail, viewer: Viewer, now_ns: int, *, why: bool) -> dict[str, Any]:
    """`why`: with every try, and the terms of its score."""
    told = trail.told()
    seconds = told["seconds"]
    return {
        "id": trail.id,
        "tenant": trail.tenant if viewer.is_operator else "",
        "model": trail.model,
        "state": trail.state,
        "bad": trail.outcome in ("failed", "expired"),
        "worker": told["worker"],
        "tries": told["tries"] if why else len(trail.tries),
        "degraded": told["degraded"],
        "tokens": {"prompt": trail.prompt_tokens, "cached": trail.cached_tokens, "output": trail.output_tokens},
        "ttft_s": seconds["ttft"],
        "total_s": seconds["total"],
        "ago_s": (now_ns - trail.ended_ns) / NS_PER_S if trail.ended_ns else 0.0,
        "parts": told_parts(trail.parts(), trail.arrival_ns),
    }
