"""`Setting`: what a field of a configuration means. Flags, configuration files and the reference are made from it.

It stands beside the layers, for those that are configured and for the command line, which makes flags of their fields.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Setting:
    """What a configuration field means and which numbers it takes."""

    help: str
    group: str
    low: float = -math.inf
    high: float = math.inf
    default: str = ""  # what happens when it is left out, where the default itself does not say
    names: tuple[str, ...] = ()  # of the flag, the main one first; empty: the field's own

    def check(self, value: float | None) -> None:
        """Raises ValueError, fit to follow the field's name, when `value` is outside the limits."""
        if value is None or (self.low <= value <= self.high and math.isfinite(value)):
            return
        limit = f"at least {self.low:,}" if self.high == math.inf else f"between {self.low:,} and {self.high:,}"
        raise ValueError(f"must be {limit}, not {value:,}")
