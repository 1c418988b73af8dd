"""The few numbers the HTTP side of a fleet needs, beside those of every edge."""

from __future__ import annotations

from dataclasses import dataclass, field

from headway.core.request import NO_SLO, Slo
from headway.gateway.config import GatewayConfig

# Where nobody says what the workers' context is, they know it themselves; beyond this, a prompt is a mistake.
MAX_MODEL_LEN = 1_048_576


@dataclass(frozen=True, slots=True)
class FleetConfig:
    edge: GatewayConfig = field(default_factory=GatewayConfig)
    default_slo: Slo = NO_SLO
    recent_requests: int = 4096  # that `/v1/requests/{id}` knows
    # A prompt with fewer bytes is counted on the event loop: handing it to a thread would take longer.
    count_inline_bytes: int = 1024
