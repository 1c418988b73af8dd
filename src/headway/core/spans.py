"""`Spans`: a prompt of which it is known only what is alike, as a trace of hashes tells it, and not what it says.

Its beginning is numbered blocks of `unit` tokens, and equal numbers mean equal text; the rest is like nobody else's. It
is a sequence of token ids like any other, made up so that this holds. But no token exists until it is asked for, and
what a block of the KV cache holds is told by its first token (`blocks`): so a prompt of a million tokens costs what its
numbered blocks cost.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Self, overload

# Tokens of nobody else's lie below zero, apart by this much; numbered ones above what any vocabulary has, so that no
# answer says by chance what a numbered block does.
OWN_TOKENS = 1 << 40
FIRST_NUMBERED = 1 << 32


class Spans(Sequence[int]):
    """`length` tokens: those of `shared` blocks, of `unit` tokens each, as far as they go, then tokens of `own`.

    `own` is a number unlike any other prompt's. What is added (`+`, `+=`) are tokens as they are: an answer's.
    """

    __slots__ = ("_added", "_first_own", "_length", "_prompt", "_shared", "_shared_tokens", "_unit")

    def __init__(self, length: int, own: int, shared: tuple[int, ...] = (), unit: int = 1) -> None:
        self._shared = shared
        self._unit = unit
        self._shared_tokens = min(length, len(shared) * unit)
        self._first_own = -(own + 1) * OWN_TOKENS
        self._prompt = self._length = length
        self._added: list[int] = []

    def copy(self) -> Spans:
        """Another that grows by itself."""
        made = object.__new__(Spans)
        made._shared, made._unit, made._shared_tokens = self._shared, self._unit, self._shared_tokens
        made._first_own, made._prompt, made._length = self._first_own, self._prompt, self._length
        made._added = self._added[:]
        return made

    def blocks(self, first: int, end: int, size: int) -> list[Hashable]:
        """What the blocks `first` to `end` of `size` tokens hold, for comparison with those of other `Spans`.

        Where such a block lies within one numbered one, or within what is nobody else's, its first token says it.
        """
        at, stop = first * size, end * size
        if (answered := at - self._prompt) >= 0:
            return [tuple(self._added[start : start + size]) for start in range(answered, stop - self._prompt, size)]
        unit = self._unit
        told: list[Hashable] = []
        while at < stop and at + size <= self._shared_tokens and unit % size == 0:
            number, offset = divmod(at, unit)
            upto = min(unit, offset + stop - at, offset + self._shared_tokens - at) // size * size
            token = FIRST_NUMBERED + self._shared[number] * unit
            told += range(token + offset, token + upto, size)
            at += upto - offset
        while at < min(stop, self._shared_tokens):
            told.append(tuple(self[at : at + size]))
            at += size
        own = max(at, min(stop, self._prompt // size * size))
        told += range(self._first_own + at, self._first_own + own, size)
        told += [tuple(self[start : start + size]) for start in range(own, stop, size)]
        return told

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, place: int) -> int: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[int]: ...
    def __getitem__(self, place: int | slice) -> int | Sequence[int]:
        if isinstance(place, slice):
            if place.stop is None and place.step is None and place.start is not None and place.start >= self._prompt:
                return self._added[place.start - self._prompt :]
            start, stop, step = place.indices(self._length)
            if start >= self._prompt and step > 0:
                return self._added[start - self._prompt : max(start, stop) - self._prompt : step]
            return _View(self, range(start, stop, step))
        if place < 0:
            place += self._length
        if not 0 <= place < self._length:
            raise IndexError(f"token {place} of {self._length}")
        return self._at(place)

    def __iter__(self) -> Iterator[int]:
        return map(self._at, range(self._length))

    def __iadd__(self, tokens: Sequence[int]) -> Self:
        self._added += tokens
        self._length += len(tokens)
        return self

    def __add__(self, tokens: Sequence[int]) -> Spans:
        made = self.copy()
        made += tokens
        return made

    def _at(self, place: int) -> int:
        if place < self._shared_tokens:
            block, offset = divmod(place, self._unit)
            return FIRST_NUMBERED + self._shared[block] * self._unit + offset
        return self._first_own + place if place < self._prompt else self._added[place - self._prompt]


class _View(Sequence[int]):
    """Some tokens of a `Spans`, which are made when they are asked for: mostly only their number is."""

    __slots__ = ("_of", "_places")

    def __init__(self, of: Spans, places: range) -> None:
        self._of = of
        self._places = places

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, place: int) -> int: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[int]: ...
    def __getitem__(self, place: int | slice) -> int | Sequence[int]:
        found = self._places[place]
        return self._of[found] if isinstance(found, int) else _View(self._of, found)

    def __iter__(self) -> Iterator[int]:
        return map(self._of._at, self._places)


def tokens_of(prompt: Iterable[int]) -> list[int] | Spans:
    """The prompt as a sequence that an answer can be added to."""
    return prompt.copy() if isinstance(prompt, Spans) else list(prompt)
