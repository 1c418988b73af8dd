"""The limits of what is kept for later, and for how long."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from headway.core.batch.hours import Hours

DAY_S = 86_400.0
GIB = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class BackgroundConfig:
    directory: Path
    slots: int = 16  # that run at a time
    max_queued: int = 10_000  # of all tenants; where there are several, one may have half of them
    max_bytes: int = 16 * GIB  # of everything in the store; one tenant's files may take half
    timeout_s: float = DAY_S  # from being kept to being started
    retention_s: float = DAY_S  # of results
    batch_retention_s: float = 30 * DAY_S  # of ended batches and their output files
    batch_hours: Hours = field(default_factory=Hours)  # in which lines of batches begin, by this machine's clock
    max_batches: int = 100  # of one tenant, that have not ended
    lease_s: float = 600.0
    keep_house_s: float = 5.0
