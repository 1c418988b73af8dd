"""Random numbers that stay the same: one seed gives one load in every process and every version of Python.

Only the seeding of `random.Random` and its method `random()` are promised not to change, so everything here is made
from these two; `gauss`, `gammavariate`, `choices` and numpy's generators are free to draw otherwise tomorrow.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterable, Sequence
from random import Random
from statistics import NormalDist
from typing import TypeVar

T = TypeVar("T")

_STANDARD_NORMAL = NormalDist()


def stream(seed: int, *path: str | int) -> Random:
    """The generator of one purpose. Other purposes of the same seed neither follow it nor disturb it."""
    return Random("/".join(map(str, (seed, *path))))


def fork(random: Random) -> Random:
    """A generator of its own, which costs `random` one draw however much is drawn from it later."""
    return Random(int(random.random() * 2**53))


def exponential(random: Random) -> float:
    """Mean 1; never 0."""
    return -math.log1p(-(random.random() or 2**-54))


def normal(random: Random) -> float:
    """Mean 0, standard deviation 1; one draw of `random`."""
    return _STANDARD_NORMAL.inv_cdf(random.random() or 2**-54)


def gamma(random: Random, shape: float) -> float:
    """Mean `shape`, scale 1. Marsaglia and Tsang, "A simple method for generating gamma variables" (2000)."""
    if shape < 1:
        boost: float = (random.random() or 2**-54) ** (1 / shape)
        return gamma(random, shape + 1) * boost
    d = shape - 1 / 3
    c = 1 / math.sqrt(9 * d)
    while True:
        x = normal(random)
        v = 1 + c * x
        if v <= 0:
            continue
        v = v * v * v
        if math.log(random.random() or 2**-54) < x * x / 2 + d - d * v + d * math.log(v):
            return d * v


def below(random: Random, n: int) -> int:
    """One of 0…n−1, for n far below 2⁵³."""
    return min(int(random.random() * n), n - 1)


def cumulative(weights: Iterable[float]) -> tuple[float, ...]:
    """For `pick`."""
    return tuple(itertools.accumulate(weights))


def pick(random: Random, bounds: Sequence[float]) -> int:
    """An index, as often as its weight says; `bounds` are the weights added up."""
    return min(bisect.bisect_right(bounds, random.random() * bounds[-1]), len(bounds) - 1)


def shuffled(random: Random, values: Iterable[T]) -> list[T]:
    """A new list in random order (Fisher and Yates)."""
    mixed = list(values)
    for last in range(len(mixed) - 1, 0, -1):
        other = below(random, last + 1)
        mixed[last], mixed[other] = mixed[other], mixed[last]
    return mixed
