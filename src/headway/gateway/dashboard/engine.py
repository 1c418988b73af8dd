"""What the dashboard reads of an engine: its snapshot, the edge's histograms, its last steps, the calls that ended."""

from __future__ import annotations

import heapq
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from headway.gateway.dashboard.reading import NS_PER_S, Reading, counts_of
from headway.gateway.dashboard.source import SLOWEST, Order, promises_told, told_parts
from headway.gateway.edge import CLIENT_GONE, REQUEST_ID
from headway.gateway.observe import TALLY, Part, Tally
from headway.gateway.service import Service
from headway.gateway.viewer import Viewer, viewer_of

RECENT = 1024  # calls that are remembered, under half a kilobyte each
_PARTS = ("network", "tokenise", "queue", "prefill", "decode", "gateway")
_NO_FLEET = "This is one engine and not a gateway: there are no workers to choose from."
_NO_TENANTS = "This is one engine and not a gateway: everybody is one tenant."
_NO_LADDER = "The ladder of degradation is a gateway's; an engine alone refuses instead."


@dataclass(slots=True)
class Call:
    """A call that ended. Of its texts nothing is kept."""

    id: str
    status: int
    failure: str
    model: str
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    ttft_s: float | None
    total_s: float
    ended_ns: int
    parts: Sequence[Part]
    finish_reasons: Sequence[str] = field(default=())

    def told(self, now_ns: int) -> dict[str, Any]:
        arrival_ns = self.parts[0].begin_ns if self.parts else self.ended_ns
        state = self.failure or ", ".join(dict.fromkeys(self.finish_reasons))
        return {
            "id": self.id,
            "model": self.model,
            "state": state or ("cancelled" if self.status == CLIENT_GONE else "failed"),
            "bad": bool(self.failure) or not (state or self.status == CLIENT_GONE),
            "tokens": {"prompt": self.prompt_tokens, "cached": self.cached_tokens, "output": self.output_tokens},
            "ttft_s": self.ttft_s,
            "total_s": self.total_s,
            "ago_s": (now_ns - self.ended_ns) / NS_PER_S,
            "parts": told_parts(self.parts, arrival_ns),
        }


class Calls:
    """The most recent ones. A client may use an id again; then the later call is meant."""

    def __init__(self, most: int = RECENT) -> None:
        self._calls: deque[Call] = deque(maxlen=most)

    def note(self, request: web.Request, tally: Tally, status: int, began_ns: int) -> None:
        now_ns = time.monotonic_ns()
        parts = list(tally.parts())
        self._calls.append(
            Call(
                id=request[REQUEST_ID],
                status=status,
                failure=tally.failure,
                model=tally.model,
                prompt_tokens=tally.prompt_tokens,
                cached_tokens=tally.cached_tokens,
                output_tokens=tally.output_tokens,
                ttft_s=tally.ttft_s,
                total_s=(now_ns - (parts[0].begin_ns if parts else began_ns)) / NS_PER_S,
                ended_ns=now_ns,
                parts=parts,
                finish_reasons=tuple(tally.finish_reasons),
            )
        )

    def slowest(self, since_ns: int, order: Order) -> list[Call]:
        recent = [call for call in self._calls if call.ended_ns >= since_ns]
        return heapq.nlargest(
            SLOWEST, recent, key=lambda call: call.total_s if order == "total" else (call.ttft_s or 0.0)
        )

    def find(self, request_id: str) -> Call | None:
        return next((call for call in reversed(self._calls) if call.id == request_id), None)


def noting(calls: Calls) -> Middleware:
    """Remembers each call that got as far as an engine, when it is over."""

    @web.middleware
    async def noted(request: web.Request, handler: Handler) -> web.StreamResponse:
        began_ns = time.monotonic_ns()
        status = CLIENT_GONE
        try:
            response = await handler(request)
            status = response.status
            return response
        except Exception as error:
            status = getattr(error, "status", 500)
            raise
        finally:
            if (tally := request.get(TALLY)) is not None:
                calls.note(request, tally, status, began_ns)

    return noted


class EngineSource:
    kind = "engine"

    def __init__(self, service: Service, calls: Calls) -> None:
        self._service = service
        self._calls = calls

    def read(self) -> Reading:
        now, metrics = self._service.backend.snapshot(), self._service.metrics
        ttft, itl = counts_of(metrics.ttft_s), counts_of(metrics.itl_s)
        parts = {f"part.{name}": counts_of(getattr(metrics, f"{name}_s")) for name in _PARTS}
        return Reading(
            at_s=time.time(),
            now_ns=time.monotonic_ns(),
            gauges={
                "requests": now.requests,
                "sequences": now.running,
                "preempted": now.preempted,
                "step_tokens": now.step_tokens,
                "kv_tokens": now.kv_tokens,
                "waiting": now.waiting,
                "kv.used": now.kv_usage_ratio,
                **{f"lane.{name}": count for name, count in now.waiting_by_lane.items()},
            },
            totals={
                "prefill_tokens": now.prefill_tokens_total,
                "decode_tokens": now.decode_tokens_total,
                "output_tokens": ttft.samples + itl.samples,  # as their clients were sent them
                "steps": now.steps_total,
                "preemptions": now.preemptions_total,
                **{f"ended.{how}": count for how, count in now.ended_total.items()},
                **{f"refused.{code}": count for code, count in now.refused_total.items()},
                **{f"outcome.{how}": count for how, count in metrics.calls.outcomes.items()},
            },
            times={"ttft": ttft, "itl": itl, "e2e": counts_of(metrics.duration_s), **parts},
        )

    def viewer(self, request: web.Request) -> Viewer:
        return viewer_of(request, None)

    def about(self) -> dict[str, Any]:
        service, now = self._service, self._service.backend.snapshot()
        slo = service.backend.default_slo
        return {
            "models": list(service.names),
            "not_ready": service.backend.not_ready_reason,
            "keys": False,
            "promises": promises_told(slo.ttft_ns, slo.itl_ns),
            "limits": {
                "sequences": now.max_num_seqs,
                "step_tokens": now.max_num_batched_tokens,
                "max_model_len": service.backend.max_model_len,
            },
            "beyond": {"ttft": service.metrics.ttft_s.bounds[-1], "itl": service.metrics.itl_s.bounds[-1]},
            "kv": {
                "blocks": now.kv_blocks_total,
                "used": now.kv_blocks_used,
                "cached": now.kv_blocks_cached,
                "set_aside": now.kv_blocks_set_aside,
                "reserved_bytes": now.kv_reserved_bytes,
                "memory_bytes": now.memory_bytes,
            },
        }

    def absent(self) -> Mapping[str, str]:
        return {"workers": _NO_FLEET, "tenants": _NO_TENANTS, "ladder": _NO_LADDER}

    def now(self, viewer: Viewer) -> dict[str, Any]:
        del viewer  # of one engine there is nothing that /load would not tell anybody
        return {
            "steps": [
                [one.id, one.prefill_tokens, one.decode_tokens, one.pad_tokens, one.sequences, round(one.seconds, 5)]
                for one in self._service.backend.recent_steps
            ]
        }

    def slow(self, viewer: Viewer, seconds: int, order: Order) -> list[dict[str, Any]] | None:
        if not viewer.is_operator:
            return None
        now_ns = time.monotonic_ns()
        return [call.told(now_ns) for call in self._calls.slowest(now_ns - seconds * NS_PER_S, order)]

    def story(self, viewer: Viewer, request_id: str) -> dict[str, Any] | None:
        del viewer  # who knows an id made the request, or was told of it
        call = self._calls.find(request_id)
        return None if call is None else call.told(time.monotonic_ns())
