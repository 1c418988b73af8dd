"""How far a batch is: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bars

from headway.offline.progress import Progress

LINE_EVERY_S = 10.0


@contextmanager
def shown(*, quiet: bool) -> Iterator[Callable[[Progress], None] | None]:
    console = Console(stderr=True)
    if quiet:
        yield None
    elif console.is_terminal:
        with _bar(console) as on_progress:
            yield on_progress
    else:
        yield _lines()


@contextmanager
def _bar(console: Console) -> Iterator[Callable[[Progress], None]]:
    """From the first news on: before that, loading a model may show its own."""
    columns = (BarColumn(), TextColumn("{task.percentage:>5.1f}%"), TextColumn("{task.description}"))
    bars = Bars(*columns, console=console, transient=True, refresh_per_second=4)
    task = bars.add_task("reading", total=1.0)

    def show(progress: Progress) -> None:
        bars.start()
        bars.update(task, completed=progress.ratio, description=escape(told(progress)))

    try:
        yield show
    finally:
        bars.stop()


def _lines() -> Callable[[Progress], None]:
    last_s = time.monotonic()

    def show(progress: Progress) -> None:
        nonlocal last_s
        if time.monotonic() - last_s >= LINE_EVERY_S:
            last_s = time.monotonic()
            print(f"{progress.ratio:.1%} {told(progress)}", file=sys.stderr, flush=True)

    return show


def told(progress: Progress) -> str:
    parts = [f"{progress.done:,} done"]
    if progress.failed:
        parts.append(f"{progress.failed:,} failed")
    parts.append(f"{progress.in_flight:,} running")
    if progress.tokens_per_s:
        parts.append(f"{progress.tokens_per_s:,.0f} tokens/s")
    if progress.eta_s is not None:
        parts.append(f"{duration(progress.eta_s)} left")
    if progress.words:
        parts.append(progress.words if len(progress.words) <= 80 else progress.words[:79] + "…")
    return " · ".join(parts)


def duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02} min"
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"
