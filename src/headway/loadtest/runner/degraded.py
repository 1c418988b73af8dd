"""When a rising load has shown what it was made for: service has clearly degraded, and stayed so.

Three signs, each looked for in the last seconds: most requests fail or are turned away; most break a promise; or those
in flight wait many times as long as in the beginning (Little's law: in flight / answered a second) while fewer are
answered than sent. A sign must last for a fifth of the run so far, so that the knee has load on both its sides.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from statistics import median

LOOK_BACK_S = 5.0
MOSTLY = 0.5  # of what ended in that time
MIN_ENDED = 10
LONGER = 8.0  # as in `knee`: so much slower is broken
MIN_IN_FLIGHT = 32
KEEPS_UP = 0.9  # answered, as a share of sent
FIRST = 1 / 3  # of the run so far: what "in the beginning" means


@dataclass(frozen=True, slots=True)
class Counts:
    """Since the start, over all client processes."""

    at_s: float
    sent: int
    in_flight: int
    ok: int
    failed: int  # or turned away
    late: int  # of those that are ok: broke a promise


class Degraded:
    """Fed a few times a second. `hold_s`: a sign lasts so long at least."""

    def __init__(self, hold_s: float = LOOK_BACK_S) -> None:
        self._hold_s = hold_s
        self._past: deque[Counts] = deque()
        self._waits: list[tuple[float, float]] = []  # when, and seconds by Little's law
        self._since_s: float | None = None

    def look(self, now: Counts) -> str:
        """Why it is enough, in one line; empty while it is not."""
        self._past.append(now)
        while len(self._past) > 1 and self._past[1].at_s <= now.at_s - min(LOOK_BACK_S, self._hold_s):
            self._past.popleft()
        sign = self._sign(self._past[0], now)
        if not sign:
            self._since_s = None
            return ""
        if self._since_s is None:
            self._since_s = now.at_s
        lasted_s = now.at_s - self._since_s
        if lasted_s < max(self._hold_s, 0.2 * now.at_s):
            return ""
        return f"service has clearly degraded for {lasted_s:.3g} s: {sign}"

    def _sign(self, before: Counts, now: Counts) -> str:
        ok, failed, late = now.ok - before.ok, now.failed - before.failed, now.late - before.late
        ended, seconds = ok + failed, now.at_s - before.at_s
        if ended >= MIN_ENDED and failed > MOSTLY * ended:
            return f"{failed} of the last {ended} requests failed or were turned away"
        if ended >= MIN_ENDED and failed + late > MOSTLY * ended:
            return f"{failed + late} of the last {ended} requests broke a promise or failed"
        if seconds <= 0 or now.in_flight < MIN_IN_FLIGHT:
            self._remember(now, ended, seconds)
            return ""
        wait_s = now.in_flight * seconds / max(ended, 1)
        usual_s = self._usual_s(now.at_s)
        behind = ended < KEEPS_UP * (now.sent - before.sent)
        if usual_s and behind and wait_s > LONGER * usual_s:
            return (
                f"{now.in_flight} requests are in flight, a wait of {wait_s:.2g} s where it was {usual_s:.2g} s in the "
                f"beginning, and {ended} were answered while {now.sent - before.sent} were sent"
            )
        self._remember(now, ended, seconds)
        return ""

    def _remember(self, now: Counts, ended: int, seconds: float) -> None:
        if ended and now.in_flight and seconds > 0:
            self._waits.append((now.at_s, now.in_flight * seconds / ended))

    def _usual_s(self, now_s: float) -> float | None:
        first = [wait_s for at_s, wait_s in self._waits if at_s <= FIRST * now_s]
        return median(first) if first else None
