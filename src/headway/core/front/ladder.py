"""`Ladder`: six levels of doing less when there is too much to do, entered fast and left slowly.

What a level does is in `treatment.py`. A level is entered when the pressure stands at its mark, one each `UP_EVERY_NS`;
and left when it has been below the mark by `HYSTERESIS`, and less than what the service drains is asked of it, for a
while; those below it after half of that. One that was left is entered again only when the pressure stays. Leaving a
level that soon has to be entered again doubles that while: what a level takes off the service must not look like the
end of the overload.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum

UP_EVERY_NS = 500_000_000
DOWN_AFTER_NS = 1_000_000_000
LONGEST_DOWN_NS = 60_000_000_000
# Entering a level again within this was a relapse.
RELAPSE_NS = 20_000_000_000
HYSTERESIS = 0.3
# KV use is no pressure up to here: a full cache is a busy one.
KV_EASY_RATIO = 0.85


class Level(IntEnum):
    CLAMP_OUTPUT = 1
    DEMOTE_LONG = 2
    SHED_LOW_PRIORITY = 3
    DROP_OPTIONAL = 4
    DIVERT_BATCH = 5
    SHORTEN_CONTEXT = 6  # and ask for replicas


MARKS = {
    Level.CLAMP_OUTPUT: 0.5,
    Level.DEMOTE_LONG: 0.6,
    Level.SHED_LOW_PRIORITY: 0.7,
    Level.DROP_OPTIONAL: 0.8,
    Level.DIVERT_BATCH: 0.85,
    Level.SHORTEN_CONTEXT: 0.9,
}


class Mode(Enum):
    """What an operator says of one level."""

    AUTO = "auto"
    ON = "on"
    OFF = "off"


@dataclass(frozen=True, slots=True)
class Pressure:
    """How much too much there is. None is unknown, and says nothing either way."""

    waiting_ratio: float = 0.0  # of what may wait, by count or tokens, whichever is more
    kv_used_ratio: float | None = None
    slo_met_ratio: float | None = None  # of the requests that ended lately
    demand_ratio: float | None = None  # what is asked for, refused or not, over what is drained

    @property
    def height(self) -> float:
        """From 0 to 1, by the worst of them.

        While less is asked for than is drained, KV is full of what waited before, which misses its promises, too. That
        ends by itself, and what waits tells how soon: KV is no pressure then, and promises are the less the less is
        asked for (the square is by trial: with the first power the ladder often stayed for more than ten seconds).
        """
        demand = 1.0 if self.demand_ratio is None else min(1.0, self.demand_ratio)
        kv = missed = 0.0
        if self.kv_used_ratio is not None and demand == 1.0:
            kv = (self.kv_used_ratio - KV_EASY_RATIO) / (1 - KV_EASY_RATIO)
        if self.slo_met_ratio is not None:
            missed = 2 * (1 - self.slo_met_ratio) * demand**2
        return min(1.0, max(self.waiting_ratio, kv, missed, 0.0))


@dataclass(frozen=True, slots=True)
class LevelChange:
    """A level that is in force from now on, or is no longer."""

    level: Level
    active: bool
    height: float


class Ladder:
    """`height` is how many levels the pressure has climbed; `active` is what is in force, with the modes applied."""

    def __init__(self) -> None:
        self.height = 0
        self.pressure = Pressure()  # as it was last told
        self.modes: Mapping[Level, Mode] = dict.fromkeys(Level, Mode.AUTO)
        self._changed_ns: int | None = None
        self._calm_since_ns: int | None = None
        self._high_since_ns: int | None = None  # at the next level's mark
        self._left_ns: int | None = None
        self._down_after_ns = DOWN_AFTER_NS

    def active(self, level: Level) -> bool:
        mode = self.modes[level]
        return mode is Mode.ON or (mode is Mode.AUTO and level <= self.height)

    def set_modes(self, modes: Mapping[Level, Mode]) -> list[LevelChange]:
        """Pin levels on or off, or leave them to the pressure; those that are not named stay as they are."""
        before = self._in_force()
        self.modes = {**self.modes, **modes}
        return self._changes(before)

    def step(self, pressure: Pressure, now: int) -> list[LevelChange]:
        """Go up or down by at most one level, as `pressure` says."""
        self.pressure = pressure
        before = self._in_force()
        if self.height < len(Level) and pressure.height >= MARKS[Level(self.height + 1)]:
            self._calm_since_ns = None
            self._high_since_ns = now if self._high_since_ns is None else self._high_since_ns
            if self._may_climb(now):
                self._climb(now)
        elif self.height and self._calm(pressure):
            self._high_since_ns = None
            self._calm_since_ns = now if self._calm_since_ns is None else self._calm_since_ns
            if now - self._calm_since_ns >= self._down_after_ns:
                self._descend(now)
        else:
            self._calm_since_ns = self._high_since_ns = None
        return self._changes(before)

    def _may_climb(self, now: int) -> bool:
        if self._changed_ns is not None and now - self._changed_ns < UP_EVERY_NS:
            return False
        # On the way down a moment is not enough.
        stays = self._high_since_ns is not None and now - self._high_since_ns >= UP_EVERY_NS
        return self._left_ns is None or now - self._left_ns >= RELAPSE_NS or stays

    def _calm(self, pressure: Pressure) -> bool:
        enough = pressure.demand_ratio is None or pressure.demand_ratio < 1.0
        return enough and pressure.height < MARKS[Level(self.height)] - HYSTERESIS

    def _climb(self, now: int) -> None:
        self.height += 1
        self._changed_ns = now
        if self._left_ns is not None:  # one relapse is one, however far it goes
            relapsed = now - self._left_ns < RELAPSE_NS
            self._down_after_ns = min(LONGEST_DOWN_NS, 2 * self._down_after_ns) if relapsed else DOWN_AFTER_NS
        self._left_ns = None

    def _descend(self, now: int) -> None:
        self.height -= 1
        self._changed_ns = self._left_ns = now
        self._calm_since_ns = now - self._down_after_ns // 2

    def _in_force(self) -> set[Level]:
        return {level for level in Level if self.active(level)}

    def _changes(self, before: set[Level]) -> list[LevelChange]:
        after = self._in_force()
        return [LevelChange(level, level in after, self.pressure.height) for level in sorted(before ^ after)]
