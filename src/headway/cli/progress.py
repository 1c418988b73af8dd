"""Shows how far the fetching, converting and loading of a model is: a bar on a terminal, a line per stage elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from headway.cli.interrupt import ends_at_once
from headway.models import Progress

WORDS = {
    "fetch": "Fetching",
    "check": "Checking",
    "convert": "Converting",
    "tokenizer": "Reading the tokenizer of",
    "load": "Loading",
    "measure": "Measuring the steps of",
}


@contextmanager
def shown_progress(doing: str) -> Iterator[Callable[[Progress], None]]:
    """Gives the `report` that `load_model` and `Engine` take. A signal ends the process at once while it is open."""
    console = Console(stderr=True)
    with ends_at_once(doing, before=console.show_cursor):
        if console.is_terminal:
            with _bars(console) as report:
                yield report
        else:
            yield _lines()


@contextmanager
def _bars(console: Console) -> Iterator[Callable[[Progress], None]]:
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Bars(*columns, console=console, transient=True) as bars:
        tasks: dict[str, TaskID] = {}

        def report(progress: Progress) -> None:
            description = f"{WORDS[progress.stage]} {progress.subject}"
            if description not in tasks:
                tasks[description] = bars.add_task(description)
            bars.update(tasks[description], completed=progress.done_bytes, total=progress.total_bytes)

        yield report


def _lines() -> Callable[[Progress], None]:
    told: set[str] = set()

    def report(progress: Progress) -> None:
        description = f"{WORDS[progress.stage]} {progress.subject}"
        if description not in told:
            told.add(description)
            print(f"{description} ...", file=sys.stderr, flush=True)

    return report
