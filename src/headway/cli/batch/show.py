"""A batch's summary on the terminal."""

from __future__ import annotations

from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from headway.cli.batch.words import KEYS, facts_of, percentiles_of
from headway.offline.batch import Ended
from headway.offline.files import Files
from headway.offline.status import Status
from headway.offline.summary import Summary


def print_ended(files: Files, ended: Ended) -> None:
    summary = ended.summary
    word = "stopped" if ended.reason else "done, with failures" if summary.failed else "done"
    _print(word, summary)
    console = Console()
    if first := _first_failure(files.errors):
        console.print(Text(f"the first that failed, {first}"), soft_wrap=True)
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


def _first_failure(errors: Path) -> str:
    """Empty where none is told."""
    try:
        with errors.open("rb") as lines:
            told = msgspec.json.decode(lines.readline())
        words = str(told["error"]["message"]).removeprefix(f"Line {told['headway']['line']}: ")
        return f"line {told['headway']['line']}: {words}"
    except (OSError, msgspec.DecodeError, LookupError, TypeError):
        return ""


def _percentiles(summary: Summary) -> Table:
    table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
    table.add_column("")
    for name in (*(f"p{key}" for key in KEYS), "most"):
        table.add_column(name, justify="right")
    for row in percentiles_of(summary):
        table.add_row(*map(Text, row))
    return table
