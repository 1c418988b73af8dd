"""`headway serve` that stops counting and timing when it gets SIGUSR1, and goes on with the next.

What it costs to know is the difference. One process does both: two of one program differ by several per cent for their
whole life, by where their memory lies.

python -m benchmarks.sides.metered_in_turns --worker URL --port 9000
"""

from __future__ import annotations

import signal
import sys

from headway.cli import run
from headway.gateway.fleet.figures import Figures
from headway.metrics.breakdown import Calls
from headway.metrics.exporter import EdgeExporter
from headway.metrics.histogram import Histogram

COUNTS = {
    Histogram: ("observe", "note", "note_all", "add"),
    Calls: ("ended", "refused"),
    EdgeExporter: ("answered",),
    Figures: ("over", "count_failure"),
}


def nothing(*_: object, **__: object) -> int:
    return 0


def main() -> None:
    real = {(owner, name): getattr(owner, name) for owner, names in COUNTS.items() for name in names}
    metered = True

    def turn(*_: object) -> None:
        nonlocal metered
        metered = not metered
        for (owner, name), counts in real.items():
            setattr(owner, name, counts if metered else nothing)

    signal.signal(signal.SIGUSR1, turn)
    run(["serve", *sys.argv[1:]])


if __name__ == "__main__":
    main()
