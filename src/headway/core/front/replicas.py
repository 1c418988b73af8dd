"""`Replicas`: how many workers there should be. More are asked for at the ladder's last level, when less cannot be done
for each; fewer after a long calm, as many as its busiest moment would have needed.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from headway.core.errors import ConfigError

NS_PER_S = 1_000_000_000
# A worker that is asked for takes about so long to load its model: until then nobody knows whether it is enough.
RAISE_EVERY_NS = 60 * NS_PER_S
# So long the load must have been low before fewer would do.
LOWER_AFTER_NS = 300 * NS_PER_S
# How busy those that are left may be in the busiest moment of that time.
BUSY_RATIO = 0.7
# Demand is measured over seconds: at most so many times what there is, at once.
MOST_TIMES = 2.0


@dataclass(frozen=True, slots=True)
class ReplicaLimits:
    """`most` 0 is no limit. Raises ConfigError."""

    least: int = 1
    most: int = 0

    def __post_init__(self) -> None:
        if self.most and self.most < self.least:
            raise ConfigError(
                f"max_replicas is {self.most}, fewer than min_replicas, which is {self.least}.", param="max_replicas"
            )

    def clamped(self, count: int) -> int:
        count = max(self.least, count)
        return min(self.most, count) if self.most else count


ANY_NUMBER = ReplicaLimits()


class Replicas:
    """`desired` is 0 before the first look."""

    def __init__(self, limits: ReplicaLimits = ANY_NUMBER) -> None:
        self.limits = limits
        self.desired = 0
        self.up = 0  # workers that take requests, as they were last seen
        self._highest = 0  # that `up` has been, since fewer were wanted
        self._raised_ns: int | None = None
        self._first_ns: int | None = None
        self._busy: deque[tuple[int, float]] = deque()  # (when, how many were busy), falling: the first is the peak

    def look(self, now: int, *, up: int, busy: float, demand_ratio: float | None, calm: bool, overloaded: bool) -> bool:
        """Has `desired` changed?

        `up` workers take requests, and `busy` of them would be enough if each were full. `demand_ratio` is what is
        asked for over what is drained. `calm`: no level of the ladder has been climbed; `overloaded`: all of them.
        """
        before = self.desired
        self._first_ns = now if self._first_ns is None else self._first_ns
        self._remember(now, busy if calm else float(max(up, 1)))
        # Whoever adds workers by hand has reasons for it; they are given back as any others are.
        desired = max(self.desired, up) if up > self.up else self.desired
        if up > self._highest and before:
            self._raised_ns = now  # what a new one takes off the others has yet to show
        self._highest = max(self._highest, up)
        if overloaded:
            desired = self._more(now, up, demand_ratio, desired)
        elif now - self._first_ns >= LOWER_AFTER_NS:
            desired = min(desired, max(1, math.ceil(self._busy[0][1] / BUSY_RATIO)))
            self._highest = min(self._highest, desired)
        self.up = up
        self.desired = self.limits.clamped(desired)
        return self.desired != before

    def _more(self, now: int, up: int, demand_ratio: float | None, desired: int) -> int:
        if self._raised_ns is not None and now - self._raised_ns < RAISE_EVERY_NS:
            return desired
        wanted = max(desired, up + 1, math.ceil(up * min(MOST_TIMES, demand_ratio or 1.0)))
        if wanted > desired:
            self._raised_ns = now
        return wanted

    def _remember(self, now: int, busy: float) -> None:
        held = self._busy
        while held and held[-1][1] <= busy:
            held.pop()
        held.append((now, busy))
        while now - held[0][0] > LOWER_AFTER_NS:
            held.popleft()
