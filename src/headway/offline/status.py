"""What can be said of a batch from its files alone, also while it runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from headway.offline.files import Files
from headway.offline.journal import key_of, read_journal
from headway.offline.manifest import Manifest, load
from headway.offline.summary import Prices, Summary, summarise
from headway.offline.tally import Tally


@dataclass(frozen=True, slots=True)
class Status:
    manifest: Manifest
    summary: Summary
    tally: Tally
    running: bool

    @property
    def word(self) -> str:
        """`running`, `done`, `stopped`, or `killed`: it says that it runs, and nobody does."""
        if self.running:
            return "running"
        return "killed" if self.manifest.state == "running" else self.manifest.state


def status_of(output: Path, prices: Prices | None = None) -> Status:
    """Raises `BatchError` when there is no batch."""
    files = Files(output)
    manifest = load(files)
    tally = Tally()
    answered: set[int] = set()
    for line in read_journal(files.output):
        answered.add(key_of(line))
        tally.add(line.headway)
    for line in read_journal(files.errors):
        if key_of(line) not in answered:
            tally.add(line.headway)
    ended_at = tally.ended_at()
    running = files.busy
    wall_s = manifest.ran_s
    if len(ended_at) and (running or manifest.state == "running"):  # of a run that has not told how long it took
        wall_s = max(wall_s, float(ended_at.max() - manifest.started_at))
    return Status(manifest, summarise(tally, items=manifest.items, wall_s=wall_s, prices=prices), tally, running)
