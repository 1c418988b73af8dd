"""A batch's summary on the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from headway.cli.batch.progress import duration
from headway.offline.batch import Ended
from headway.offline.files import Files
from headway.offline.status import Status
from headway.offline.summary import Summary

NAMES = {
    "queue_s": "queue, s",
    "prefill_s": "prefill, s",
    "decode_s": "decode, s",
    "wall_s": "in all, s",
    "input_tokens": "input tokens",
    "cached_tokens": "of them cached",
    "output_tokens": "output tokens",
}


def print_ended(files: Files, ended: Ended) -> None:
    summary = ended.summary
    word = "stopped" if ended.reason else "done, with failures" if summary.failed else "done"
    _print(word, summary)
    console = Console()
    paths = [files.output, *([files.errors] if summary.failed else []), files.summary]
    for path in filter(Path.exists, paths):
        console.print(Text(f"wrote {path}"), soft_wrap=True)
    if ended.surplus:
        console.print(
            Text(f"{ended.surplus:,} results are of items that are not in the input any more; they are kept.")
        )


def print_status(output: Path, status: Status) -> None:
    _print(status.word, status.summary)
    if status.word in ("stopped", "killed"):
        why = f"{status.manifest.reason} " if status.manifest.reason else ""
        Console().print(Text(f"{why}Go on with: headway batch resume {output}"), soft_wrap=True)


def _print(word: str, summary: Summary) -> None:
    console = Console()
    console.print(Text(word, style="bold"))
    facts = Table.grid(padding=(0, 2, 0, 0))
    for name, value in facts_of(summary):
        facts.add_row(Text(name, style="dim"), Text(value))
    console.print(facts)
    if summary.done:
        console.print(_percentiles(summary))


def facts_of(summary: Summary) -> Iterator[tuple[str, str]]:
    of = f" of {summary.items:,}" if summary.items is not None else ""
    yield "answered", f"{summary.done:,}{of}"
    if summary.failed:
        yield "failed", f"{summary.failed:,}: " + ", ".join(f"{n:,} {name}" for name, n in summary.errors.items())
    if summary.missing:
        yield "missing", f"{summary.missing:,}"
    if summary.retried:
        yield "tried again", f"{summary.retried:,}"
    if summary.cut:
        yield "cut off", f"{summary.cut:,}"
    yield "time", duration(summary.wall_s) if summary.wall_s >= 60 else f"{summary.wall_s:.1f} s"
    yield "tokens", f"{summary.input_tokens:,} in ({summary.cached_tokens:,} cached), {summary.output_tokens:,} out"
    if summary.tokens_per_s is not None:
        yield (
            "throughput",
            f"{summary.tokens_per_s:,.0f} tokens/s, {summary.output_tokens_per_s or 0:,.0f} of them output",
        )
    if summary.padding_efficiency_ratio is not None:
        yield "padding", f"{1 - summary.padding_efficiency_ratio:.1%} of what was computed"
    if summary.cost is not None:
        yield "cost", f"{summary.cost:,.4f}"


def _percentiles(summary: Summary) -> Table:
    table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
    table.add_column("")
    keys = ("50", "90", "95", "99")
    for name in (*(f"p{key}" for key in keys), "most"):
        table.add_column(name, justify="right")
    for name, found in summary.distributions.items():
        if found.samples:
            values = [found.percentiles[key].value for key in keys] + [found.max]
            table.add_row(Text(NAMES[name]), *(_figure(value, whole=name.endswith("tokens")) for value in values))
    return table


def _figure(value: float | None, *, whole: bool) -> str:
    """Too few samples for a percentile is a dash."""
    return "–" if value is None else f"{value:,.0f}" if whole else f"{value:,.3g}"
