"""What a gateway's core is told, as lines of the decision log: lengths and hashes, and never a text or a key.

`docs/reference/logs.md` describes every field; `simulate/replay_front.py` and `simulate/replay_fleet.py` read them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from headway.core.front.admission import AdmissionLimits
from headway.core.front.front import FrontLimits
from headway.core.front.ledger import Amounts, Ledger
from headway.core.front.tenants import Tenants
from headway.core.front.treatment import Asked, Degradation
from headway.core.request import Request
from headway.engine.journal import Journal


def header(
    admission: AdmissionLimits, limits: FrontLimits, degradation: Degradation, tenants: Tenants, *, shadow: bool
) -> dict[str, Any]:
    """The settings under which all of it is decided."""
    return {
        "body": "gateway",
        "shadow": shadow,
        "admission": asdict(admission),
        "limits": asdict(limits),
        "degradation": asdict(degradation),
        "default_limits": asdict(tenants.default),
        "tenants": {name: asdict(one) for name, one in tenants.overrides.items()},
    }


def submitted(request: Request) -> dict[str, Any]:
    """What the core knows of a request when it is submitted. Of its prompt that is a length."""
    return {
        "request": request.id,
        "prompt_tokens": request.prompt_tokens,
        "max_tokens": request.max_tokens,
        "priority": request.priority,
        "tenant": request.tenant,
        "model": request.model,
        "pool": request.pool,
        "prefix": list(request.prefix),
        "streams": request.streams,
        "slo": asdict(request.slo),
    }


def treated(asked: Asked) -> dict[str, Any]:
    """What is known of a call before it is prepared."""
    return {
        "tenant": asked.tenant,
        "prompt_tokens": asked.prompt_tokens,
        "max_tokens": asked.max_tokens,
        "priority": asked.priority,
        "batch": asked.batch,
        "optional": asked.optional,
    }


# What a ledger of several gateways is told by being set.
STATES = frozenset({"refill_ratio", "closed", "unanswered"})


class ToldLedger(Ledger):
    """A ledger that grants what another allows it. All that it is allowed is written down: decisions follow from it."""

    def __init__(self, tenants: Tenants, decisions: Journal | None, clock: Callable[[], int]) -> None:
        self._decisions = decisions
        self._clock = clock
        super().__init__(tenants.of)

    def allow(self, tenant: str, more: Amounts, now: int) -> Amounts:
        """See `Ledger`."""
        self._told("allow", now, tenant=tenant, more=asdict(more))
        return super().allow(tenant, more, now)

    def set_refill_ratio(self, ratio: float, now: int) -> None:
        """See `Ledger`."""
        self._told("refill", now, ratio=ratio)
        super().set_refill_ratio(ratio, now)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in STATES and hasattr(self, name) and value != getattr(self, name):
            self._told("ledger", self._clock(), **{name: value})
        super().__setattr__(name, value)

    def _told(self, kind: str, now: int, **fields: Any) -> None:
        if self._decisions is not None:
            self._decisions.write({"stimulus": kind, "now_ns": now, **fields})
