"""`Tenants`: who shares this service, and what each may have of it (`TenantLimits`)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from headway.core.errors import ConfigError, InvalidRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantLimits:
    """What one tenant may have; 0 is no limit.

    `priority` is what its requests stand at; they may ask for less, not for more. None leaves it to each request.
    `lanes` are those it may use; none named is all of them.
    """

    max_input_tokens: int = 0
    max_output_tokens: int = 0
    max_concurrency: int = 0  # requests inside, waiting or running
    requests_per_minute: int = 0  # calls: the samples of one call are one request
    tokens_per_minute: int = 0  # input that had to be computed, and output
    weight: float = 1.0  # its share of the tokens, while others want them too
    priority: int | None = None
    lanes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("max_input_tokens", "max_output_tokens", "max_concurrency", *PER_MINUTE):
            value = getattr(self, name)
            if value < 0:
                raise ConfigError(f"{name} is {value}; it must be 0 (no limit) or more.", param=name)
        if not (self.weight > 0 and math.isfinite(self.weight)):
            raise ConfigError(f"weight is {self.weight}; it must be a number above 0.", param="weight")

    def check_lane(self, lane: str) -> None:
        """Raises `InvalidRequest` when `lane` is not one of those it may use."""
        if lane not in self.lanes:
            raise InvalidRequest(
                f"By the lengths of its prompt and max_tokens this request belongs to the lane {lane!r}; this key may "
                f"use {', '.join(self.lanes)}. Shorten the prompt or lower max_tokens.",
                param="max_tokens",
                code="lane_not_allowed",
            )


PER_MINUTE = ("requests_per_minute", "tokens_per_minute")

NO_LIMITS = TenantLimits()


class Tenants:
    """The limits in force. Everybody who decides by them holds the same `Tenants`, so that a reload is one call."""

    def __init__(self, default: TenantLimits = NO_LIMITS, overrides: Mapping[str, TenantLimits] | None = None) -> None:
        self.set(default, overrides or {})

    def set(self, default: TenantLimits, overrides: Mapping[str, TenantLimits]) -> None:
        """Change limits. What was granted under the old ones stays granted."""
        self.default = default
        self.overrides = dict(overrides)

    def of(self, tenant: str) -> TenantLimits:
        return self.overrides.get(tenant, self.default)

    def weight(self, tenant: str) -> float:
        return self.of(tenant).weight
