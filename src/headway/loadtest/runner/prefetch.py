"""`Prefetch`: requests are made before they are due, in a thread, so that making a prompt never delays a send.

How far ahead is bounded by number and bytes, so a long run's memory stays flat.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from headway.loadtest.errors import InvalidPlan
from headway.workload.item import Arrival, Item

MAX_AHEAD = 20_000
MAX_AHEAD_BYTES = 24 * 1024 * 1024
WARM_S = 5.0  # so long a run may be kept waiting for a full store at its start
ENOUGH_S = 1.0  # where the first `least` are enough to begin with: so long is gone on making, and no longer


@dataclass(frozen=True, slots=True)
class Due:
    """A request that can be sent. `at_ns` is after the start of the run; in a closed loop it means nothing."""

    index: int
    at_ns: int
    item: Item
    request: bytes


Make = Callable[[Item, int], bytes]


def timed(arrivals: Iterable[Arrival]) -> Iterator[Arrival]:
    """The arrivals, refused when they are not in order: a schedule is never bent to fit."""
    before_ns = 0
    for index, arrival in enumerate(arrivals):
        if arrival.at_ns < before_ns:
            what = "before the start" if arrival.at_ns < 0 else f"before the one in front of it ({before_ns} ns)"
            raise InvalidPlan(f"Arrival {index} is due at {arrival.at_ns} ns, {what}. Sort the arrivals by time.")
        before_ns = arrival.at_ns
        yield arrival


def untimed(items: Iterable[Item], limit: int | None) -> Iterator[Arrival]:
    for item in items if limit is None else itertools.islice(items, limit):
        yield Arrival(0, item)


class Prefetch:
    """A store that its thread fills and the event loop empties.

    `share` of `of` processes takes every `of`-th index. With `slots`, those of a closed loop, each index has a slot,
    and it takes those of every `of`-th slot: a process with twice the slots gets through twice the requests.

    `least`: of a load whose times are not known, how many are sent at once. The store then holds those and what can be
    made in a second, not all that there is room for.
    """

    def __init__(
        self,
        arrivals: Iterator[Arrival],
        make: Make,
        *,
        share: int = 0,
        of: int = 1,
        slots: int | None = None,
        least: int | None = None,
    ) -> None:
        turn = slots or of
        self._arrivals = (pair for pair in enumerate(arrivals) if pair[0] % turn % of == share)
        self._make = make
        self._store: deque[Due] = deque()
        self._bytes_in = self._bytes_out = 0  # each is written by one thread only
        self._room = threading.Event()
        self._warm = threading.Event()
        self._least = least
        self._most = MAX_AHEAD
        self._stopped = False
        self._over = False  # the thread will add no more
        self.failure: Exception | None = None  # what the arrivals or the making raised
        self._thread = threading.Thread(target=self._fill, name="headway-prefetch", daemon=True)
        self._thread.start()

    def warm(self, limit_s: float = WARM_S) -> None:
        """Wait until the store is full, or everything is in it, or it takes too long. Blocks."""
        self._warm.wait(limit_s)

    @property
    def exhausted(self) -> bool:
        """Nothing is left and nothing more comes."""
        return self._over and not self._store

    def peek(self) -> Due | None:
        """The next, or None when it is not made yet (see `exhausted`)."""
        return self._store[0] if self._store else None

    def pop(self) -> Due:
        due = self._store.popleft()
        self._bytes_out += len(due.request)
        if not self._room.is_set() and self._has_room(0.5):
            self._room.set()
        return due

    def close(self) -> None:
        self._stopped = True
        self._room.set()
        self._thread.join()
        self._store.clear()

    def _has_room(self, share: float) -> bool:
        held = self._bytes_in - self._bytes_out
        return len(self._store) < self._most * share and held < MAX_AHEAD_BYTES * share

    def _is_enough(self, seconds: float) -> bool:
        """For the first time."""
        if self._least is None or self._warm.is_set():
            return False
        return seconds >= ENOUGH_S and len(self._store) >= self._least

    def _fill(self) -> None:
        began_s = time.monotonic()
        try:
            for index, arrival in self._arrivals:
                request = self._make(arrival.item, index)
                self._bytes_in += len(request)
                self._store.append(Due(index, arrival.at_ns, arrival.item, request))
                if self._is_enough(time.monotonic() - began_s):
                    self._most = max(2, len(self._store))
                    self._warm.set()
                while not self._stopped and not self._has_room(1.0):
                    self._warm.set()
                    self._room.clear()
                    if self._has_room(1.0):
                        break  # it was emptied between the two lines above
                    self._room.wait()
                if self._stopped:
                    break
        except Exception as error:
            self.failure = error
        finally:
            self._over = True
            self._warm.set()
