"""`headway serve` that counts and times nothing: what it costs to know is the difference to the real one.

python -m benchmarks.sides.unmetered --worker URL --port 9000
"""

from __future__ import annotations

import sys

from headway.cli import run
from headway.gateway.fleet.figures import Figures
from headway.metrics.breakdown import Calls
from headway.metrics.exporter import EdgeExporter
from headway.metrics.histogram import Histogram


def nothing(*_: object, **__: object) -> int:
    return 0


for owner, names in (
    (Histogram, ("observe", "note", "note_all", "add")),
    (Calls, ("ended", "refused")),
    (EdgeExporter, ("answered",)),
    (Figures, ("over", "count_failure")),
):
    for name in names:
        assert hasattr(owner, name), f"{owner.__name__} has no {name} any more"
        setattr(owner, name, nothing)

if __name__ == "__main__":
    run(["serve", *sys.argv[1:]])
