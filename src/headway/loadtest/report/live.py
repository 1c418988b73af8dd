"""How far a run is: two lines that renew themselves on a terminal, a line every ten seconds elsewhere.

Nothing here runs by itself: drawing costs the process that makes the load, so it happens when the caller says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from rich.console import Console
from rich.live import Live
from rich.text import Text

from headway.loadtest.report.wording import clock, count, duration, printable, significant
from headway.loadtest.runner.progress import Progress, Times

EVERY_S = 10.0  # between two plain lines
SHORT_S = 1.0  # of less there are no rates to tell
BAR_CELLS = 24
MAX_ERROR = 100  # characters of the last error


@dataclass(frozen=True, slots=True)
class Aim:
    """What the run lasts until; neither is known of a run that is ended by hand."""

    seconds: float | None = None
    requests: int | None = None

    def reached(self, progress: Progress) -> float | None:
        """0 to 1."""
        if self.seconds:
            return min(1.0, max(0.0, progress.elapsed_s) / self.seconds)
        return min(1.0, progress.done / self.requests) if self.requests else None


Report = Callable[[Progress], None]


@contextmanager
def shown(aim: Aim, *, console: Console | None = None) -> Iterator[Report]:
    """Gives the function to be told of progress; two calls a second are plenty."""
    out = console or Console(stderr=True)
    if out.is_terminal and not out.is_dumb_terminal:
        # rich would redraw in a thread of its own, which takes time from the load at moments that nobody chose.
        with Live(console=out, auto_refresh=False, transient=True) as live:
            yield lambda progress: live.update(drawn(progress, aim), refresh=True)
    else:
        yield _lines(out, aim)


def _lines(out: Console, aim: Aim) -> Report:
    told_s, told_ok, told_tokens = float("-inf"), 0, 0
    ttft_s: list[float] = []

    def report(progress: Progress) -> None:
        nonlocal told_s, told_ok, told_tokens
        ttft_s.extend(progress.new_ttft_s)
        if progress.elapsed_s - told_s < EVERY_S:
            return
        span_s = progress.elapsed_s - max(told_s, 0.0)
        parts = [position(progress, aim)]
        if span_s >= SHORT_S:
            # A line is read with the one before it, so it tells what was between the two.
            between = replace(
                progress,
                recent_rate=(progress.ok - told_ok) / span_s,
                recent_output_rate=(progress.output_tokens - told_tokens) / span_s,
                recent_ttft=Times.of(ttft_s),
            )
            parts += figures(between)
        out.print(Text(" · ".join([*parts, *troubles(progress)])), soft_wrap=True)
        told_s, told_ok, told_tokens = progress.elapsed_s, progress.ok, progress.output_tokens
        ttft_s.clear()

    return report


def drawn(progress: Progress, aim: Aim) -> Text:
    """A bar with the position; below it the figures, and what went wrong if anything did."""
    text = Text(no_wrap=True, overflow="ellipsis")
    ratio = aim.reached(progress)
    if ratio is not None:
        filled = round(ratio * BAR_CELLS)
        text.append("━" * filled, style="cyan").append("━" * (BAR_CELLS - filled), style="dim").append("  ")
    text.append(position(progress, aim)).append("\n").append(" · ".join(figures(progress)))
    if wrong := troubles(progress):
        text.append("\n").append(" · ".join(wrong), style="red")
    return text


def position(progress: Progress, aim: Aim) -> str:
    if progress.elapsed_s < 0:
        return f"starts in {-progress.elapsed_s:.0f} s"
    # A closed loop may go on until it has sent enough: then nobody knows how long it lasts.
    known = progress.offering and aim.seconds is not None and progress.elapsed_s <= aim.seconds
    of = f" of {clock(aim.seconds)}" if known and aim.seconds is not None else ""
    draining = "" if progress.offering else " · draining"
    requests = f" of {aim.requests:,}" if aim.requests else ""
    return (
        f"{clock(progress.elapsed_s)}{of}{draining} · {progress.done:,}{requests} done, "
        f"{progress.in_flight:,} in flight"
    )


def figures(progress: Progress) -> list[str]:
    """Of the last seconds on a terminal, and of the time since the last line elsewhere."""
    parts = [f"{significant(progress.recent_rate)} req/s", f"{significant(progress.recent_output_rate)} tokens/s"]
    if (ttft := progress.recent_ttft) is not None:
        high = f"p99 {duration(ttft.p99_s)}" if ttft.p99_s is not None else f"max {duration(ttft.max_s)}"
        parts.append(f"TTFT p50 {duration(ttft.p50_s)}, {high}")
    return parts


def troubles(progress: Progress) -> list[str]:
    parts = [f"{progress.limited:,} limited"] if progress.limited else []
    if progress.errors:
        last = f", last: {printable(progress.last_error, MAX_ERROR)}" if progress.last_error else ""
        parts.append(f"{count(progress.errors, 'error')}{last}")
    return parts
