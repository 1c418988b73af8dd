"""`LoopLag`: how late the client's event loop comes to what is due, all along a run.

Every 20 ms it is asked, and the question waits as bytes would, in line with the sockets: a loop that turns quickly may
read late all the same. Weighted by time: of a loop that does not look for nine seconds, every 20 ms of them are told
with what was left to wait, not one question that was nine seconds late among thousands that were not. So p99 is what
one in a hundred moments had to wait, whoever stopped the process.
"""

from __future__ import annotations

import asyncio
import gc
from array import array
from collections.abc import Sequence
from time import monotonic_ns

import numpy as np

from headway.loadtest.client.limits import NS_PER_S
from headway.loadtest.runner.alarm import Alarm, Readers
from headway.metrics.latency import S_PER_NS, Floats

SAMPLE_NS = 20_000_000  # waking for it costs some 100 µs
SWEEP_NS = NS_PER_S  # once in so long the last garbage is swept, while nothing else is done
FREEZE_NS = 100_000_000  # so long the loop did not look: that is no longer a delay, and is told by itself


class LoopLag:
    """Sample i is of the moment i × 20 ms after `start_ns`. `readers`: who looks at the sockets, if not the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, start_ns: int, readers: Readers | None = None) -> None:
        self._samples = array("q")
        self._due_ns = start_ns
        self._sweep_ns = start_ns + SWEEP_NS
        self._alarm: Alarm | None = Alarm(loop, self._look, readers)
        self._alarm.set(start_ns)

    def _look(self) -> None:
        self._sample()
        if self._due_ns >= self._sweep_ns:
            gc.collect(1)
            gc.freeze()  # records live to the end: nobody need look at them again
            self._sweep_ns = self._due_ns + SWEEP_NS
        if self._alarm is not None:
            self._alarm.set(self._due_ns)

    def _sample(self) -> None:
        now_ns = monotonic_ns()
        while self._due_ns <= now_ns:
            self._samples.append(now_ns - self._due_ns)
            self._due_ns += SAMPLE_NS

    def close(self) -> array[int]:
        """What is due and not looked at yet counts: a run may end with a freeze."""
        if self._alarm is not None:
            self._sample()
            self._alarm.close()
            self._alarm = None
        return self._samples


def lags_within_s(samples_ns: Sequence[int], window_s: tuple[float, float]) -> Floats:
    """The samples of a window, in s."""
    first, last = (max(0, -int(-edge_s * NS_PER_S // SAMPLE_NS)) for edge_s in window_s)
    seconds: Floats = np.multiply(np.asarray(samples_ns[first:last], np.int64), S_PER_NS)
    return seconds


def freezes_s(samples_ns: Sequence[int]) -> list[tuple[float, float]]:
    """When the loop did not look for `FREEZE_NS` or longer, in s after the start."""
    found: list[tuple[float, float]] = []
    until_ns = 0
    for place in np.flatnonzero(np.asarray(samples_ns, np.int64) >= FREEZE_NS).tolist():
        since_ns = place * SAMPLE_NS
        if since_ns >= until_ns:
            until_ns = since_ns + samples_ns[place]
            found.append((since_ns * S_PER_NS, until_ns * S_PER_NS))
    return found
