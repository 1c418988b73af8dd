"""How long prompts and answers are, in tokens: distributions, and the short form in which a command line writes them.

512                    always 512
100:500                uniform, both ends included
normal:512,100         mean and standard deviation
lognormal:512,300      the same two, of the lengths themselves, not of their logarithms
normal:512,100,16:2048 the same, clipped to 16…2048 (without a clip: to 1…10,000,000)

Clipped means that what falls outside becomes the limit, which shifts the mean a little.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from random import Random
from typing import Protocol

from headway.workload.draws import below, normal
from headway.workload.errors import MAX_TOKENS, WorkloadError, check_number, check_whole, shown
from headway.workload.item import Arrival

FORMS = "Write 512, 100:500 (uniform), normal:MEAN,STD or lognormal:MEAN,STD, the last two also with a clip: ,LOW:HIGH"

_MOST_STD = 4.0  # standard deviations that one draw in thirty thousand goes beyond


class Lengths(Protocol):
    """Lengths of one side, input or output."""

    @property
    def description(self) -> str:
        """For people, e.g. "100 to 500"."""
        ...

    @property
    def most(self) -> int:
        """What draws do not go beyond; of one without an upper end, one in thirty thousand does."""
        ...

    def draw(self, random: Random) -> int:
        """At least 1."""
        ...


class Pairs(Protocol):
    """Input and output lengths of a request, drawn together."""

    @property
    def description(self) -> str:
        """For people."""
        ...

    def draw(self, random: Random) -> tuple[int, int]:
        """Input and output tokens."""
        ...


@dataclass(frozen=True, slots=True)
class Fixed:
    tokens: int

    def __post_init__(self) -> None:
        check_whole("tokens", self.tokens, 1, MAX_TOKENS, "tokens")

    @property
    def description(self) -> str:
        return f"{self.tokens:,}"

    @property
    def most(self) -> int:
        return self.tokens

    def draw(self, random: Random) -> int:  # noqa: ARG002 - nothing is left to chance
        return self.tokens


@dataclass(frozen=True, slots=True)
class Uniform:
    """Every length from `low` to `high` is as likely."""

    low: int
    high: int

    def __post_init__(self) -> None:
        _check_bounds(self.low, self.high)

    @property
    def description(self) -> str:
        return f"{self.low:,} to {self.high:,}"

    @property
    def most(self) -> int:
        return self.high

    def draw(self, random: Random) -> int:
        return self.low + below(random, self.high - self.low + 1)


@dataclass(frozen=True, slots=True)
class Normal:
    mean: float
    std: float
    low: int = 1
    high: int = MAX_TOKENS

    def __post_init__(self) -> None:
        _check_moments(self.mean, self.std)
        _check_bounds(self.low, self.high)

    @property
    def description(self) -> str:
        return f"normal, mean {self.mean:,g}, std {self.std:,g}, {_clip(self.low, self.high)}"

    @property
    def most(self) -> int:
        return min(max(math.ceil(self.mean + _MOST_STD * self.std), self.low), self.high)

    def draw(self, random: Random) -> int:
        return min(max(round(self.mean + self.std * normal(random)), self.low), self.high)


@dataclass(frozen=True, slots=True)
class Lognormal:
    """`mean` and `std` are those of the lengths before they are clipped."""

    mean: float
    std: float
    low: int = 1
    high: int = MAX_TOKENS

    def __post_init__(self) -> None:
        _check_moments(self.mean, self.std)
        _check_bounds(self.low, self.high)

    @property
    def description(self) -> str:
        return f"lognormal, mean {self.mean:,g}, std {self.std:,g}, {_clip(self.low, self.high)}"

    @property
    def most(self) -> int:
        return self._clipped(self._at(_MOST_STD))

    def draw(self, random: Random) -> int:
        return self._clipped(self._at(normal(random)))

    def _at(self, deviations: float) -> float:
        """The length so many standard deviations above the middle, of the logarithms."""
        variance = math.log1p((self.std / self.mean) ** 2)
        return math.exp(math.log(self.mean) - variance / 2 + math.sqrt(variance) * deviations)

    def _clipped(self, length: float) -> int:
        return min(max(round(length), self.low), self.high)


@dataclass(frozen=True, slots=True)
class Independent:
    """Input and output that know nothing of each other."""

    input: Lengths
    output: Lengths

    @property
    def description(self) -> str:
        return f"{self.input.description} → {self.output.description}"

    def draw(self, random: Random) -> tuple[int, int]:
        return self.input.draw(random), self.output.draw(random)


@dataclass(frozen=True, slots=True)
class Empirical:
    """Lengths that were seen, drawn with replacement and always together: long prompts keep their kind of answer."""

    pairs: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        if not self.pairs:
            raise WorkloadError("pairs must hold at least one pair of input and output tokens", field="pairs")
        for place, (input_len, output_len) in enumerate(self.pairs):
            check_whole(f"pairs[{place}] input", input_len, 1, MAX_TOKENS, "tokens")
            check_whole(f"pairs[{place}] output", output_len, 1, MAX_TOKENS, "tokens")

    @property
    def description(self) -> str:
        return f"{len(self.pairs):,} observed pairs"

    def draw(self, random: Random) -> tuple[int, int]:
        return self.pairs[below(random, len(self.pairs))]


def observed(arrivals: Iterable[Arrival]) -> Empirical:
    """The lengths of a trace, without its times."""
    return Empirical(tuple((arrival.item.input_tokens, arrival.item.output_tokens) for arrival in arrivals))


def parse_lengths(text: str, field: str = "lengths") -> Lengths:
    """Lengths from their short form; see the top of this file.

    Raises:
        WorkloadError: it is none of the forms, or a number is out of range. `field` is what the message calls it.
    """
    name, colon, rest = text.strip().partition(":")
    try:
        if name.lower() in {"normal", "lognormal"}:
            return _parse_moments(name.lower(), rest, field)
        if colon:
            return Uniform(_integer(name, field), _integer(rest, field))
        return Fixed(_integer(name, field))
    except WorkloadError as error:
        raise WorkloadError(f"{field} {shown(text)}: {error}. {FORMS}.", field=field) from None


def _parse_moments(name: str, rest: str, field: str) -> Lengths:
    parts = rest.split(",")
    if len(parts) not in {2, 3}:
        raise WorkloadError(f"{name} takes a mean and a standard deviation, with a comma between", field=field)
    low, high = 1, MAX_TOKENS
    if len(parts) == 3:
        first, colon, last = parts[2].partition(":")
        if not colon:
            raise WorkloadError(f"the clip is LOW:HIGH, not {shown(parts[2])}", field=field)
        low, high = _integer(first, field), _integer(last, field)
    mean, std = _decimal(parts[0], field), _decimal(parts[1], field)
    return Normal(mean, std, low, high) if name == "normal" else Lognormal(mean, std, low, high)


def _integer(text: str, field: str) -> int:
    """Digits only: `int` would also take 1_000 and the digits of other scripts."""
    text = text.strip()
    if not re.fullmatch(r"[+-]?[0-9]{1,18}", text):
        raise WorkloadError(f"{shown(text)} is not a whole number", field=field)
    return int(text)


def _decimal(text: str, field: str) -> float:
    text = text.strip()
    if not re.fullmatch(r"[+-]?[0-9]{1,18}(\.[0-9]*)?", text):
        raise WorkloadError(f"{shown(text)} is not a number", field=field)
    return float(text)


def _check_moments(mean: float, std: float) -> None:
    check_number("mean", mean, 1, MAX_TOKENS, "tokens")
    check_number("std", std, 0, MAX_TOKENS, "tokens")


def _check_bounds(low: int, high: int) -> None:
    check_whole("low", low, 1, MAX_TOKENS, "tokens")
    check_whole("high", high, 1, MAX_TOKENS, "tokens")
    if low > high:
        raise WorkloadError(f"the lower end, {low:,}, is above the upper one, {high:,}", field="low")


def _clip(low: int, high: int) -> str:
    return f"at least {low:,}" if high == MAX_TOKENS else f"clipped to {low:,}…{high:,}"
