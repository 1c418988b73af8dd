"""How far work in stages is, on stderr: a bar once it lasts, and without a terminal a line for each stage."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

SLOW_S = 2.0  # what is done sooner needs no bar

# What is being done, and how much of how much; of nothing where nobody knows.
OnStage = Callable[[str, int, int], None]


@contextmanager
def stages(*, quiet: bool) -> Iterator[OnStage]:
    console = Console(stderr=True)
    if quiet:
        yield lambda _doing, _done, _of: None
        return
    if not console.is_terminal:
        told: set[str] = set()

        def line(doing: str, _done: int, _of: int) -> None:
            if doing not in told:
                told.add(doing)
                print(f"{doing} …", file=sys.stderr, flush=True)

        yield line
        return
    began = time.monotonic()
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bars:
        task = bars.add_task("", total=None, visible=False)

        def bar(doing: str, done: int, of: int) -> None:
            lasts = time.monotonic() - began > SLOW_S
            bars.update(task, description=doing, completed=done, total=of or None, visible=lasts)

        yield bar
