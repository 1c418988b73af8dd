"""`Promise`: what users accept. Each limit holds at one percentile: of requests for TTFT and E2E, of gaps for ITL."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from headway.core.errors import ConfigError
from headway.metrics.percentiles import key

LEAST_PERCENTILE, MOST_PERCENTILE = 50.0, 99.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """Seconds, at `percentile`; None promises nothing. Raises `ConfigError` for what nobody can promise."""

    ttft_s: float | None = None
    itl_s: float | None = None
    e2e_s: float | None = None
    percentile: float = 99.0

    def __post_init__(self) -> None:
        for name, limit_s in (("ttft", self.ttft_s), ("itl", self.itl_s), ("e2e", self.e2e_s)):
            if limit_s is not None and not (0 < limit_s < math.inf):
                raise ConfigError(f"--slo-{name} is {limit_s}, and must be a number of seconds above 0", param=name)
        if not LEAST_PERCENTILE <= self.percentile <= MOST_PERCENTILE:
            raise ConfigError(
                f"--percentile is {self.percentile}, and must be {LEAST_PERCENTILE:g} to {MOST_PERCENTILE:g}",
                param="percentile",
            )
        if not dict(self.limits()):
            raise ConfigError(
                "nothing is promised, so anything would do: give at least one of --slo-ttft, --slo-itl and --slo-e2e",
                param="slo_ttft",
            )

    def limits(self) -> Iterator[tuple[str, float]]:
        """The limits that there are, by name: "ttft", "itl", "e2e"."""
        for name, limit_s in (("ttft", self.ttft_s), ("itl", self.itl_s), ("e2e", self.e2e_s)):
            if limit_s is not None:
                yield name, limit_s

    @property
    def tail(self) -> str:
        """How the percentile is called: p99."""
        return f"p{key(self.percentile)}"

    def __str__(self) -> str:
        return ", ".join(f"{name.upper()} {self.tail} {duration(limit_s)}" for name, limit_s in self.limits())


def duration(seconds: float) -> str:
    """Three digits, in seconds or milliseconds."""
    if not math.isfinite(seconds):
        return "no end"
    return f"{seconds:,.3g} s" if seconds >= 1 else f"{seconds * 1e3:,.3g} ms"
