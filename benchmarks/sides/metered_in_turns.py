"""`headway serve` that counts and times, and counts and times nothing, in turns of `TURN_S`.

What it costs to know is the difference. One process does both: two of one program differ by several per cent for their
whole life, by where their memory lies. At its end it writes each turn into the file that HEADWAY_TURNS names, as JSON:
[metered, CPU seconds, answers, chunks].

HEADWAY_TURNS=turns.json python -m benchmarks.sides.metered_in_turns --worker URL --port 9000
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headway.cli import run
from headway.gateway.fleet.figures import Figures
from headway.gateway.fleet.trail import Trail
from headway.metrics.breakdown import Calls
from headway.metrics.exporter import EdgeExporter
from headway.metrics.gaps import AllGaps
from headway.metrics.histogram import Histogram

TURN_S = 0.1
COUNTS = {
    AllGaps: ("note", "sort"),
    Histogram: ("observe", "note", "note_all", "add"),
    Calls: ("ended", "refused"),
    EdgeExporter: ("answered",),
    Figures: ("over", "refused", "count_failure"),
}


def nothing(*_: object, **__: object) -> int:
    return 0


class Turns:
    """Begun by `start`, and gone on with by a timer's signal."""

    def __init__(self) -> None:
        self._real = {(owner, name): getattr(owner, name) for owner, names in COUNTS.items() for name in names}
        self._metered = True
        self._began_s = time.process_time()
        self._answers = self._chunks = 0
        self.told: list[tuple[bool, float, int, int]] = []

    def start(self) -> None:
        """What is counted to compare the turns is counted in all of them."""
        Trail.passed = self._counting(Trail.passed, "_chunks")  # type: ignore[method-assign]
        Trail.ended = self._counting(Trail.ended, "_answers")  # type: ignore[method-assign]
        signal.signal(signal.SIGALRM, self._turn)
        signal.setitimer(signal.ITIMER_REAL, TURN_S, TURN_S)

    def _counting(self, real: Callable[..., Any], what: str) -> Callable[..., Any]:
        numbers = vars(self)

        def counted(*args: Any, **named: Any) -> Any:
            numbers[what] += 1
            return real(*args, **named)

        return counted

    def _turn(self, *_: object) -> None:
        self.told.append((self._metered, time.process_time() - self._began_s, self._answers, self._chunks))
        self._answers = self._chunks = 0
        self._metered = not self._metered
        for (owner, name), counts in self._real.items():
            setattr(owner, name, counts if self._metered else nothing)
        self._began_s = time.process_time()


if __name__ == "__main__":
    turns = Turns()
    turns.start()
    try:
        run(["serve", *sys.argv[1:]])
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        Path(os.environ["HEADWAY_TURNS"]).write_text(json.dumps(turns.told))
