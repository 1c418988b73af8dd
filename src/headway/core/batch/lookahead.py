"""`Lookahead`: in which order items run that were read and have not begun, a window that slides over the input.

**grouped** (continuous batching): items that begin alike run one after another, so that the prefix cache has computed
their beginning once and still holds it; the largest group first, and within a group the longest, as among those that
share nothing: begun last, they would run on alone. One of the next group goes before the last of this one: of those
that begin together each would compute what they share.
**static**: batches whose members are of nearly one length, since a static batch pays for its longest.
**input**: as they came.

An item that has been passed too often goes first, so that the order delays nobody without bound.
"""

from __future__ import annotations

import math
from bisect import insort
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Literal

Order = Literal["grouped", "static", "input"]
Rank = tuple[int, int, int]

# An item goes first once so many windows' worth of items were taken before it.
PATIENCE_WINDOWS = 4
# Outputs whose limits differ by less count as equally long when static batches are composed.
OUTPUT_STEP = 1.25
# What is read ahead costs memory.
MOST_TOKENS = 8_000_000
# So many items go between the first of a group and its second.
LEAD = 8
# So many ranks of items that were taken may lie about in heaps, beside as many again as are still waited for.
UNSWEPT = 1024


@dataclass(frozen=True, slots=True)
class Place:
    """One item as the order sees it. `group` is equal for items that begin alike; 0 for those that share nothing."""

    number: int  # of its line in the input
    group: int = 0
    input_tokens: int = 1
    output_tokens: int = 1  # the most it may produce

    @property
    def tokens(self) -> int:
        return self.input_tokens + self.output_tokens

    @property
    def longest_first(self) -> Rank:
        return -self.output_tokens, -self.input_tokens, self.number


def _by_shape(place: Place) -> tuple[int, int, int]:
    return round(math.log(max(1, place.output_tokens), OUTPUT_STEP)), place.input_tokens, place.number


class Lookahead:
    """Holds about `capacity` items and `most_tokens` tokens; `full` says when reading should pause."""

    def __init__(self, order: Order = "grouped", capacity: int = 4096, most_tokens: int = MOST_TOKENS) -> None:
        self.order = order
        self.capacity = capacity
        self._most_tokens = most_tokens
        self.tokens = 0  # of all that wait here
        self._waiting: dict[int, tuple[Place, int]] = {}  # by number, oldest first: and what was taken before it came
        self._taken = 0
        # Heaps; they may hold what was taken. Those of a group, and all.
        self._groups: dict[int, list[Rank]] = {}
        self._all: list[Rank] = []
        self._sizes: dict[int, int] = {}  # of groups, without what was taken
        self._largest: list[tuple[int, int]] = []  # heap of -size and group; sizes may have changed since
        self._led: deque[int] = deque()  # groups whose first has begun, in the order in which they are worked off
        self._shapes: list[Place] = []

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def full(self) -> bool:
        return len(self._waiting) >= self.capacity or self.tokens >= self._most_tokens

    def add(self, place: Place) -> None:
        assert place.number not in self._waiting, "an item waits once"
        self._waiting[place.number] = (place, self._taken)
        self.tokens += place.tokens
        if self.order == "grouped":
            self._add_to_group(place)
        elif self.order == "static":
            insort(self._shapes, place, key=_by_shape)

    def take(self) -> Place | None:
        """The item to begin next; None when none waits."""
        if not self._waiting:
            return None
        if self.order == "static":
            return self.take_batch(1)[0]
        number = next(iter(self._waiting))
        if self.order == "grouped" and not self._overdue:
            number = self._next_of_group()
        return self._remove(number)

    def take_batch(self, size: int) -> list[Place]:
        """The items of the next static batch, at most `size`; of any other order the next so many."""
        if self.order != "static":
            return [place for _ in range(min(size, len(self))) if (place := self.take()) is not None]
        if not self._waiting:
            return []
        start, end = self._best_run(size)
        batch = self._shapes[start:end]
        del self._shapes[start:end]
        for place in batch:
            self._remove(place.number)
        return batch

    # -- grouped -------------------------------------------------------------------------------------------------------

    def _add_to_group(self, place: Place) -> None:
        rank = place.longest_first
        heappush(self._groups.setdefault(place.group, []), rank)
        heappush(self._all, rank)
        size = self._sizes[place.group] = self._sizes.get(place.group, 0) + 1
        heappush(self._largest, (-size, place.group))
        if len(self._all) > 2 * len(self._waiting) + UNSWEPT:
            self._all = sorted(waiting.longest_first for waiting, _ in self._waiting.values())
            self._largest = sorted((-size, group) for group, size in self._sizes.items())

    def _next_of_group(self) -> int:
        """The longest of the group that is being worked off; when few are left of those begun, of a new one."""
        led, sizes = self._led, self._sizes
        while led and not sizes.get(led[0]):
            led.popleft()
        if sum(sizes.get(group, 0) for group in led) < LEAD and (largest := self._largest_group()):
            led.append(largest)
            heap = self._groups[largest]
        else:
            heap = self._groups[led[0]] if led else self._all
        while heap[0][2] not in self._waiting:
            heappop(heap)
        return heap[0][2]

    def _largest_group(self) -> int:
        """Of those that have not begun; 0 when no two that wait begin alike."""
        heap = self._largest
        while heap:
            size, group = -heap[0][0], heap[0][1]
            now = self._sizes.get(group, 0)
            if now == size and group and group not in self._led:
                return group if size > 1 else 0
            heappop(heap)
            if now and now != size:
                heappush(heap, (-now, group))
        return 0

    # -- static --------------------------------------------------------------------------------------------------------

    def _best_run(self, size: int) -> tuple[int, int]:
        """Where, among items by shape, are `size` neighbours that waste the least on padding? With the oldest in it
        where that one is overdue.
        """
        shapes = self._shapes
        size = min(size, len(shapes))
        low, high = 0, len(shapes)
        if self._overdue:
            oldest = next(iter(self._waiting.values()))[0]
            at = shapes.index(oldest)
            low, high = max(0, at - size + 1), min(len(shapes), at + size)
        if high - low <= size:
            return low, high
        starts = range(low, high - size + 1)
        wasted = _padding_of_runs(shapes[low:high], size)
        best = min(starts, key=lambda start: (wasted[start - low], -start))
        return best, best + size

    # -- both ----------------------------------------------------------------------------------------------------------

    @property
    def _overdue(self) -> bool:
        """Has the oldest waited long enough?"""
        since = next(iter(self._waiting.values()))[1]
        return self._taken - since >= PATIENCE_WINDOWS * self.capacity

    def _remove(self, number: int) -> Place:
        place, _ = self._waiting.pop(number)
        self._taken += 1
        self.tokens -= place.tokens
        if self.order == "grouped":
            self._sizes[place.group] -= 1
            if not self._sizes[place.group]:
                del self._sizes[place.group], self._groups[place.group]
        return place


def _padding_of_runs(shapes: Sequence[Place], size: int) -> list[float]:
    """Of every run of `size` neighbours: the share of what it computes that is padding."""
    inputs, outputs = ([place.input_tokens for place in shapes], [place.output_tokens for place in shapes])
    useful = sum(inputs[:size]) + sum(outputs[:size])
    longest_inputs, longest_outputs = _running_max(inputs, size), _running_max(outputs, size)
    shares = []
    for start, (most_input, most_output) in enumerate(zip(longest_inputs, longest_outputs, strict=True)):
        if start:
            useful += inputs[start + size - 1] + outputs[start + size - 1] - inputs[start - 1] - outputs[start - 1]
        shares.append(1.0 - useful / (size * (most_input + most_output)))
    return shares


def _running_max(values: Sequence[int], size: int) -> list[int]:
    """The largest of every `size` neighbours, in one pass."""
    falling: deque[int] = deque()  # places whose values may still be the largest
    largest = []
    for at, value in enumerate(values):
        while falling and values[falling[-1]] <= value:
            falling.pop()
        falling.append(at)
        if falling[0] <= at - size:
            falling.popleft()
        if at >= size - 1:
            largest.append(values[falling[0]])
    return largest
