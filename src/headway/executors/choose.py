"""Choosing one token from one row of logits: temperature, then top_k, min_p and top_p, then a uniform number.

`top_p` alone rarely needs a sort: a token drawn from the *whole* distribution and kept only if it lies in the nucleus
is a draw from the nucleus. Whether it does takes one sum (of what is heavier), and a draw is kept with probability
`top_p` or more. After a few refusals the nucleus is built for good, so the cost is bounded and the result exact.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from headway.core.request import SamplingParams

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
# Columns summed together. Finding a draw's block first makes its exact place cheap to find.
_BLOCK = 256
# Draws from the whole distribution before the nucleus is built.
_TRIES = 3
# How far below the maximum, in nats, to look for the nucleus before sorting all there is.
_REACH_NATS = (3.0, 7.0)


def uniform(seed: int, index: int, attempt: int = 0) -> float:
    """A number in [0, 1) with 53 random bits that depends on the arguments only; `attempt` is at most `_TRIES`.

    SplitMix64 (Steele, Lea, Flood 2014, doi 10.1145/2660193.2660195) entered at the asked place, from a state that is
    itself mixed, so that neighbouring seeds share nothing.
    """
    place = index * (_TRIES + 1) + attempt + 1
    return (_mix(_mix(seed & _MASK) + place * _GOLDEN) >> 11) * 2.0**-53


def _mix(value: int) -> int:
    value = (value + _GOLDEN) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


class Chooser:
    """Draws from rows of `vocab_size` logits. Owns scratch memory, so one thread at a time."""

    def __init__(self, vocab_size: int) -> None:
        padded = -(-vocab_size // _BLOCK) * _BLOCK  # the padding stays 0
        self._weights = np.zeros(padded, np.float32)
        self._heavier = np.zeros(padded, np.float32)
        self._vocab_size = vocab_size

    def choose(self, row: Floats, peak: float, params: SamplingParams, index: int) -> int:
        """The token of output `index`. `peak` is the row's maximum, finite; `params.temperature` is above 0."""
        weights = self._weights[: self._vocab_size]
        np.subtract(row, np.float32(peak), out=weights)
        np.multiply(weights, np.float32(1.0 / params.temperature), out=weights)
        np.exp(weights, out=weights)  # relative to the most likely token: the largest is 1
        if params.top_k > 0 or params.min_p > 0.0:
            kept = _filtered(weights, params)
            return int(kept[_place(weights[kept], uniform(params.seed, index))])
        sums = _block_sums(self._weights).cumsum(dtype=np.float64)
        if params.top_p >= 1.0:
            return self._from_all(weights, sums, uniform(params.seed, index))
        mass = params.top_p * float(sums[-1])
        for attempt in range(_TRIES):
            token = self._from_all(weights, sums, uniform(params.seed, index, attempt))
            if self._in_nucleus(weights, token, mass):
                return token
        kept = _nucleus_of_all(weights, mass)
        return int(kept[_place(weights[kept], uniform(params.seed, index, _TRIES))])

    def _from_all(self, weights: Floats, sums: Doubles, draw: float) -> int:
        target = draw * sums[-1]
        block = min(int(sums.searchsorted(target, side="right")), len(sums) - 1)
        start = block * _BLOCK
        inside = weights[start : start + _BLOCK]
        before = sums[block - 1] if block else 0.0
        place = int(inside.cumsum(dtype=np.float64).searchsorted(target - before, side="right"))
        # Rounding may put the target a hair past the block's end: the last token that can be drawn takes it.
        return start + (place if place < len(inside) else int(np.flatnonzero(inside)[-1]))

    def _in_nucleus(self, weights: Floats, token: int, mass: float) -> bool:
        """Whether what comes before `token` (heavier, or as heavy with a lower id) falls short of `mass`."""
        weight = weights[token]
        np.multiply(weights, weights > weight, out=self._heavier[: self._vocab_size])
        before = float(_block_sums(self._heavier).sum(dtype=np.float64))
        if before >= mass:
            return False
        equals = int(np.count_nonzero(weights[:token] == weight))
        return before + equals * float(weight) < mass


def _block_sums(weights: Floats) -> Floats:
    sums: Floats = np.add.reduce(weights.reshape(-1, _BLOCK), axis=1)
    return sums


def _filtered(weights: Floats, params: SamplingParams) -> Ids:
    """Ids, ascending, that top_k, min_p and top_p leave. The first two keep the heaviest, so they commute."""
    floor = np.float32(min(params.min_p, 1.0))
    if params.top_k > 0:
        kept = _top_k(weights, params.top_k)
        kept = kept[weights[kept] >= floor]
    else:
        kept = np.flatnonzero(weights >= floor)
    if params.top_p >= 1.0:
        return kept
    left = weights[kept]
    return kept[_nucleus(left, params.top_p * float(left.sum(dtype=np.float64)))]


def _place(weights: Floats, draw: float) -> int:
    """Index that `draw` falls on when [0, 1) is divided in proportion to `weights`."""
    sums = weights.cumsum(dtype=np.float64)
    place = int(sums.searchsorted(draw * sums[-1], side="right"))
    return place if place < len(sums) else int(np.flatnonzero(weights)[-1])


def _nucleus_of_all(weights: Floats, mass: float) -> Ids:
    for reach in _REACH_NATS:
        near = np.flatnonzero(weights >= np.float32(np.exp(-reach)))
        left = weights[near]
        # Everything outside weighs less than anything inside, so a nucleus that fits inside is the true one.
        if left.sum(dtype=np.float64) >= mass:
            return near[_nucleus(left, mass)]
    return _nucleus(weights, mass)


def _nucleus(weights: Floats, mass: float) -> Ids:
    """Indexes, ascending, of the fewest heaviest `weights` that together reach `mass`; among equals the first."""
    ordered = np.sort(weights)[::-1]
    count = int(ordered.cumsum(dtype=np.float64).searchsorted(mass, side="left")) + 1
    return _heaviest(weights, ordered, min(count, len(weights)))


def _top_k(weights: Floats, count: int) -> Ids:
    """The `count` heaviest ids, ascending; among equals the lowest."""
    floor = _floor_of_top(weights, count)
    near = np.flatnonzero(weights >= floor) if floor is not None else np.arange(len(weights))
    if count >= len(near):
        return near
    left = weights[near]
    return near[_heaviest(left, np.sort(left)[::-1], count)]


def _heaviest(weights: Floats, ordered: Floats, count: int) -> Ids:
    last = ordered[count - 1]
    above = weights > last
    equals = np.flatnonzero(weights == last)[: count - int(np.count_nonzero(above))]
    above[equals] = True
    return np.flatnonzero(above)


def _floor_of_top(values: Floats, count: int) -> np.float32 | None:
    """A value that at least `count` of `values` reach, close to the `count`-th largest; None when `count` is large.

    The `count`-th largest maximum of disjoint blocks is such a value, and costs one pass instead of a partition.
    """
    starts = np.arange(0, len(values), _BLOCK)
    if count > len(starts):
        return None
    peaks = np.maximum.reduceat(values, starts)
    floor: np.float32 = np.partition(peaks, len(peaks) - count)[len(peaks) - count]
    return floor


def top_tokens(row: Floats, count: int) -> list[int]:
    """The `count` ids of the largest values, largest first; among equals the lowest id first."""
    if count <= 0:
        return []
    floor = _floor_of_top(row, count)
    near = np.flatnonzero(row >= floor) if floor is not None else np.arange(len(row))
    order = np.lexsort((near, -row[near]))[:count]
    tokens: list[int] = near[order].tolist()
    return tokens
