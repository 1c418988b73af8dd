"""`OpenPace` and `ClosedPace`: when each request is sent.

The open one knows every time beforehand and never moves it: whatever delays a send shows as that record's lag, and no
send waits for another's answer. The closed one keeps a number of slots busy.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from time import monotonic_ns
from typing import Protocol

from headway.loadtest.client.limits import NS_PER_S
from headway.loadtest.record import Fate, Record
from headway.loadtest.runner.alarm import Alarm
from headway.loadtest.runner.prefetch import Due, Prefetch

BURST = 32  # so many sends in a row before arrived bytes get their turn
NOT_MADE_NS = 200_000  # look again so soon for a request that is not made yet
PAUSE_NS = 100_000_000  # a slot whose request came back with nothing waits so long: a dead server needs no flood

Send = Callable[[Due, int], None]  # a request and its scheduled time


class Pace(Protocol):
    """`over` is called once, when the last request was sent or `stop` was called."""

    def start(self, zero_ns: int) -> None: ...
    def ended(self, record: Record, free_ns: int) -> None: ...
    def stop(self) -> None: ...


class OpenPace:
    """Sends every arrival when it is due."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, prefetch: Prefetch, send: Send, over: Callable[[], None]
    ) -> None:
        self._loop = loop
        self._prefetch = prefetch
        self._send = send
        self._over = over
        self._zero_ns = 0
        self._stopped = False
        self._alarm = Alarm(loop, self._wake)

    def start(self, zero_ns: int) -> None:
        self._zero_ns = zero_ns
        self._alarm.set(zero_ns)

    def ended(self, record: Record, free_ns: int) -> None:
        """What becomes of a request does not matter to the next."""

    def stop(self) -> None:
        if not self._stopped:
            self._stopped = True
            self._alarm.close()
            self._over()

    def _wake(self) -> None:
        if self._stopped:
            return
        for _ in range(BURST):
            due = self._prefetch.peek()
            if due is None:
                if self._prefetch.exhausted:
                    self.stop()
                else:
                    self._alarm.set(monotonic_ns() + NOT_MADE_NS)
                return
            at_ns = self._zero_ns + due.at_ns
            if at_ns > monotonic_ns():
                self._alarm.set(at_ns)
                return
            self._send(self._prefetch.pop(), due.at_ns)
        self._loop.call_soon(self._wake)


class ClosedPace:
    """`concurrency` slots; each sends its next when its last has ended and `think_s` have passed."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        prefetch: Prefetch,
        send: Send,
        over: Callable[[], None],
        *,
        concurrency: int,
        think_s: float = 0.0,
        duration_s: float | None = None,
        at_least: int = 0,
        most_s: float | None = None,
    ) -> None:
        self._prefetch = prefetch
        self._send = send
        self._over = over
        self._concurrency = concurrency
        self._think_ns = int(think_s * NS_PER_S)
        self._end_ns = None if duration_s is None else int(duration_s * NS_PER_S)
        self._wanted = at_least  # so many more are sent, also after the end
        self._last_ns = None if most_s is None else int(most_s * NS_PER_S)
        self._due_ns: list[int] = []  # when slots that wait may go on, a heap
        self._zero_ns = 0
        self._stopped = False
        self._alarm = Alarm(loop, self._wake)

    def start(self, zero_ns: int) -> None:
        self._zero_ns = zero_ns
        self._due_ns = [0] * self._concurrency
        self._alarm.set(zero_ns)

    def ended(self, record: Record, free_ns: int) -> None:
        pause_ns = PAUSE_NS if record.fate is not Fate.OK and record.first_ns < 0 else 0
        heapq.heappush(self._due_ns, free_ns + self._think_ns + pause_ns)
        self._wake()

    def stop(self) -> None:
        if not self._stopped:
            self._stopped = True
            self._alarm.close()
            self._over()

    def _wake(self) -> None:
        while not self._stopped:
            now_ns = monotonic_ns() - self._zero_ns
            if self._prefetch.exhausted or self._over_at(now_ns):
                self.stop()
                return
            if not self._due_ns:
                break
            if self._due_ns[0] > now_ns:
                break
            if self._prefetch.peek() is None:
                self._alarm.set(self._zero_ns + now_ns + NOT_MADE_NS)
                return
            self._wanted -= 1
            self._send(self._prefetch.pop(), heapq.heappop(self._due_ns))
        next_ns = min([due for due in (self._until_ns(), *self._due_ns[:1]) if due is not None], default=None)
        if next_ns is not None and not self._stopped:
            self._alarm.set(self._zero_ns + next_ns)

    def _until_ns(self) -> int | None:
        return self._last_ns if self._wanted > 0 and self._end_ns is not None else self._end_ns

    def _over_at(self, now_ns: int) -> bool:
        """What was due before the end is sent, however late this client comes to it: its lag tells."""
        until_ns = self._until_ns()
        if until_ns is None or now_ns < until_ns:
            return False
        return not self._due_ns or self._due_ns[0] >= until_ns
