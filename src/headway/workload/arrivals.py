"""When requests are due: arrival processes as endless iterators of integer ns after the start of a load.

A process is a frozen description; `times` draws from it. None of them reads a clock: who waits for these times, on a
real clock or a virtual one, is not known here. Times never decrease.

Where the rate changes, points of a Poisson process of rate 1 are carried back through the integral of the rate: exact,
and nothing is drawn to be thrown away. Çinlar, "Introduction to Stochastic Processes" (1975), chapter 4.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Protocol

from headway.workload.draws import exponential, gamma
from headway.workload.errors import MAX_S, WorkloadError, check_number, check_rate, check_seconds, check_whole

_NS = 1_000_000_000
MAX_BURSTINESS, MIN_BURSTINESS = 1e6, 1e-3
MAX_STEPS = 10_000


class Arrivals(Protocol):
    """An arrival process. Rates are requests/s."""

    @property
    def description(self) -> str:
        """One line for people."""
        ...

    @property
    def peak_rate(self) -> float:
        """The highest rate there will be."""
        ...

    def expected(self, until_s: float) -> float:
        """How many requests are due on average before `until_s`: the integral of the rate."""
        ...

    def times(self, random: Random) -> Iterator[int]:
        """Due times, without end."""
        ...


@dataclass(frozen=True, slots=True)
class Constant:
    """Equal gaps, the first request at once."""

    rate: float

    def __post_init__(self) -> None:
        check_rate("rate", self.rate)

    @property
    def description(self) -> str:
        return f"{_rate(self.rate)}, evenly spaced"

    @property
    def peak_rate(self) -> float:
        return self.rate

    def expected(self, until_s: float) -> float:
        return self.rate * until_s

    def times(self, random: Random) -> Iterator[int]:  # noqa: ARG002 - nothing here is left to chance
        for index in itertools.count():
            yield round(index * _NS / self.rate)  # from the start each time: gaps' rounding must not add up


@dataclass(frozen=True, slots=True)
class Poisson:
    """Independent users without number: exponential gaps."""

    rate: float

    def __post_init__(self) -> None:
        check_rate("rate", self.rate)

    @property
    def description(self) -> str:
        return f"{_rate(self.rate)}, Poisson"

    @property
    def peak_rate(self) -> float:
        return self.rate

    def expected(self, until_s: float) -> float:
        return self.rate * until_s

    def times(self, random: Random) -> Iterator[int]:
        mean_ns = _NS / self.rate
        at_ns = 0.0
        while True:
            at_ns += exponential(random) * mean_ns
            yield round(at_ns)


@dataclass(frozen=True, slots=True)
class Gamma:
    """Gaps from a gamma distribution of the same mean. `burstiness` is its shape, as in `vllm bench serve`: 1 is
    Poisson, less is burstier, more is more even. The gaps' coefficient of variation is 1/√burstiness.
    """

    rate: float
    burstiness: float

    def __post_init__(self) -> None:
        check_rate("rate", self.rate)
        check_number("burstiness", self.burstiness, MIN_BURSTINESS, MAX_BURSTINESS)

    @property
    def description(self) -> str:
        spread = 1 / math.sqrt(self.burstiness)
        return f"{_rate(self.rate)}, gamma gaps of burstiness {self.burstiness:g} (gap CV {spread:.3g})"

    @property
    def peak_rate(self) -> float:
        return self.rate

    def expected(self, until_s: float) -> float:
        """In the long run: the gap before the first request is a gap like any other."""
        return self.rate * until_s

    def times(self, random: Random) -> Iterator[int]:
        scale_ns = _NS / self.rate / self.burstiness
        at_ns = 0.0
        while True:
            at_ns += gamma(random, self.burstiness) * scale_ns
            yield round(at_ns)


@dataclass(frozen=True, slots=True)
class Level:
    """A stretch of time and its rate, which grows by `slope` (requests/s per s) within it."""

    start_s: float
    end_s: float
    rate: float
    slope: float = 0.0

    def mass(self, until_s: float) -> float:
        """Requests expected from its start until `until_s`, or its end if that is earlier."""
        length_s = min(until_s, self.end_s) - self.start_s
        if length_s <= 0:
            return 0.0
        rise = self.slope * length_s * length_s / 2 if self.slope else 0.0
        return self.rate * length_s + rise

    def after(self, mass: float) -> float:
        """The inverse: when `mass` requests are expected to have come. Written so that a slope of 0 is no exception."""
        root = math.sqrt(max(0.0, self.rate * self.rate + 2 * self.slope * mass))
        return min(self.start_s + 2 * mass / (self.rate + root), self.end_s)


@dataclass(frozen=True, slots=True)
class RisingRate:
    """The rate goes from `start_rate` to `end_rate` over `duration_s` and stays there. Poisson at every moment.

    `steps` of 0 is a straight line; otherwise so many levels of equal length, the first at `start_rate` and the last at
    `end_rate`, each steady long enough to be measured by itself.
    """

    start_rate: float
    end_rate: float
    duration_s: float
    steps: int = 0

    def __post_init__(self) -> None:
        check_rate("start_rate", self.start_rate, 0)
        check_rate("end_rate", self.end_rate)
        check_seconds("duration_s", self.duration_s)
        if check_whole("steps", self.steps, 0, MAX_STEPS) == 1:
            raise WorkloadError("steps must be 0 (a straight line) or 2 and more, not 1", field="steps")

    @property
    def description(self) -> str:
        how = f"in {self.steps} steps" if self.steps else "in a line"
        return f"{_rate(self.start_rate)} to {_rate(self.end_rate)} {how} over {self.duration_s:g} s, Poisson"

    @property
    def peak_rate(self) -> float:
        return max(self.start_rate, self.end_rate)

    @property
    def levels(self) -> tuple[Level, ...]:
        """The stretches of the ramp itself; after the last one the rate stays at `end_rate`."""
        rise = self.end_rate - self.start_rate
        if not self.steps:
            return (Level(0.0, self.duration_s, self.start_rate, rise / self.duration_s),)
        edges = [self.duration_s * step / self.steps for step in range(self.steps + 1)]
        last = self.steps - 1
        return tuple(
            Level(edges[step], edges[step + 1], self.start_rate + rise * step / last) for step in range(self.steps)
        )

    def expected(self, until_s: float) -> float:
        return sum(level.mass(until_s) for level in self._all())

    def times(self, random: Random) -> Iterator[int]:
        levels = iter(self._all())
        level = next(levels)
        mass = 0.0
        while True:
            mass += exponential(random)
            while mass >= (whole := level.mass(math.inf)):  # never of the last level, which is endless
                mass -= whole
                level = next(levels)
            yield round(level.after(mass) * _NS)

    def _all(self) -> tuple[Level, ...]:
        return (*self.levels, Level(self.duration_s, math.inf, self.end_rate))


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch of time, its end excluded."""

    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class Bursts:
    """On and off: each period is calm at `base_rate`, and for `on_share` of it, in its middle, there are `burst_rate`.
    Half of the calm comes before the burst and half after, so that even the first burst has a before to compare with
    and the last one an after to recover in. Poisson at every moment; `base_rate` may be 0.
    """

    base_rate: float
    burst_rate: float
    period_s: float
    on_share: float

    def __post_init__(self) -> None:
        check_rate("base_rate", self.base_rate, 0)
        check_rate("burst_rate", self.burst_rate)
        check_number("period_s", self.period_s, 0.01, MAX_S, "s")
        check_number("on_share", self.on_share, 0.001, 0.999)
        if self.burst_rate <= self.base_rate:
            raise WorkloadError(
                f"burst_rate must be more than base_rate ({self.base_rate:g}), not {self.burst_rate:g}",
                field="burst_rate",
            )

    @property
    def description(self) -> str:
        on_s = self.period_s * self.on_share
        return f"{_rate(self.base_rate)}, with {_rate(self.burst_rate)} for {on_s:g} s of every {self.period_s:g} s"

    @property
    def peak_rate(self) -> float:
        return self.burst_rate

    def expected(self, until_s: float) -> float:
        whole_periods = math.floor(until_s / self.period_s)
        rest = sum(level.mass(until_s) for level in self._period(whole_periods))
        return whole_periods * self._period_mass() + rest

    def times(self, random: Random) -> Iterator[int]:
        each = self._period_mass()
        index, mass = 0, 0.0
        while True:
            mass += exponential(random)
            if mass >= each:  # at low rates many periods at once
                gone = math.floor(mass / each)
                index += gone
                mass = max(0.0, mass - gone * each)
            yield round(_when(self._period(index), mass) * _NS)

    def windows(self, until_s: float) -> list[Window]:
        """Where the bursts lie that begin before `until_s`; one that is cut off there ends there."""
        found: list[Window] = []
        for index in itertools.count():
            burst = self._period(index)[1]
            if burst.start_s >= until_s:
                return found
            found.append(Window(round(burst.start_s * _NS), round(min(burst.end_s, until_s) * _NS)))
        raise AssertionError("count() does not end")

    def _period_mass(self) -> float:
        return sum(level.mass(math.inf) for level in self._period(0))

    def _period(self, index: int) -> tuple[Level, Level, Level]:
        calm_s = self.period_s * (1 - self.on_share) / 2
        start_s = self.period_s * index
        end_s = self.period_s * (index + 1)
        on_s, off_s = start_s + calm_s, end_s - calm_s
        calm, again = Level(start_s, on_s, self.base_rate), Level(off_s, end_s, self.base_rate)
        return calm, Level(on_s, off_s, self.burst_rate), again


def _when(levels: Iterable[Level], mass: float) -> float:
    """When `mass` requests are expected to have come, counted from the beginning of the first level."""
    at_s = 0.0
    for level in levels:
        if whole := level.mass(math.inf):
            at_s = level.after(mass)
            if mass < whole:
                break
            mass -= whole
    return at_s


def _rate(value: float) -> str:
    return f"{value:g} requests/s"
