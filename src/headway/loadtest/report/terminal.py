"""The report on a terminal: verdict first, readable at 80 columns, plain where there is no colour."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from rich import box
from rich.console import Console, ConsoleOptions, Group, JustifyMethod, RenderableType, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from headway.loadtest.compare import Comparison
from headway.loadtest.probe import Requirements
from headway.loadtest.report import circumstances, curve, tables, versus
from headway.loadtest.report.tables import Cell, Table
from headway.loadtest.report.wording import printable
from headway.loadtest.result import Run
from headway.loadtest.stable import Stable

STYLES = {"bad": "red", "good": "green", "quiet": "dim", "": ""}
TONE_STYLES = {"good": "bold green", "warn": "bold yellow", "bad": "bold red"}


def print_run(run: Run, *, console: Console | None = None, rivals: Sequence[str] = ()) -> None:
    """`rivals`: tools whose own figures are shown beside ours (`--as`). rich itself heeds NO_COLOR and pipes."""
    _print(console, [report(run, rivals)])


def report(run: Run, rivals: Sequence[str] = ()) -> RenderableType:
    server = tables.signals(run)
    parts: list[Table | None] = [
        tables.load(run),
        tables.latencies(run),
        tables.goodput(run),
        tables.fates(run),
        tables.errors(run),
        server,
        tables.groups("By kind", run.summary.by_kind),
        tables.groups("By tenant", run.summary.by_tenant),
        *(tables.rivals(run, tool) for tool in rivals),
    ]
    drawn: list[RenderableType] = [verdict(run), *(draw(part) for part in parts if part is not None and part.rows)]
    drawn += [paragraph(note) for note in tables.notes(run)]
    drawn.append(paragraph(circumstances.environment_line(run)))
    return Group(*drawn)


def verdict(run: Run) -> RenderableType:
    word = run.verdict.name
    return banner(TONE_STYLES[word.tone], word, word.meaning, tables.evidence(run))


def banner(style: str, word: str, sentence: str, evidence: Iterable[str]) -> RenderableType:
    lines: list[RenderableType] = [Text(printable(word), style=style), Text(printable(sentence))]
    return Group(*lines, *(bullet(printable(line)) for line in evidence))


def bullet(text: str) -> RenderableType:
    grid = Grid.grid(padding=(0, 1, 0, 0))
    grid.add_row(Text("·"), Text(text))
    return Padding(grid, (0, 0, 0, 2), expand=False)


def paragraph(text: str) -> RenderableType:
    return Padding(Text(printable(text), style="dim"), (1, 0, 0, 0), expand=False)


def draw(table: Table) -> RenderableType:
    """Facts as two columns; figures as a grid, or as a block a row where the grid would be wider than the terminal."""
    parts: list[RenderableType] = [_Fitting(table) if any(table.columns) else _facts(table)]
    if table.note and any(table.columns):
        parts.append(Text(table.note, style="dim"))
    return Padding(Group(Text(table.title, style="bold"), *parts), (1, 0, 0, 0), expand=False)


def _facts(table: Table) -> Grid:
    grid = Grid.grid(padding=(0, 2, 0, 0))
    for name, value in table.rows:
        grid.add_row(_text(name), _text(value))
    return grid


class _Fitting:
    """Half a number is a wrong one: columns are never cut."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        grid = self._grid()
        endless = options.update(width=10_000, max_width=10_000)
        fits = Measurement.get(console, endless, grid).maximum <= options.max_width
        yield grid if fits or len(self._table.columns) < 3 else self._blocks()

    def _grid(self) -> Grid:
        grid = Grid(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0), collapse_padding=True)
        for place, name in enumerate(self._table.columns):
            justify: JustifyMethod = "right" if place else "left"
            grid.add_column(Text(printable(name)), justify=justify, no_wrap=place > 0, overflow="fold")
        for row in self._table.rows:
            # Below a name stands what it means, which a page has room for.
            grid.add_row(_text(row[0]), *(_text(cell, joint="\n") for cell in row[1:]))
        return grid

    def _blocks(self) -> RenderableType:
        """Each row: its name, and what follows with its columns' names, as far as a line goes."""
        lines: list[RenderableType] = []
        for row in self._table.rows:
            said = Text(" · ").join(
                Text(f"{column} ", style="dim").append_text(_text(cell, joint=" "))
                for column, cell in zip(self._table.columns[1:], row[1:], strict=True)
                if cell.text
            )
            lines += [_text(row[0]), Padding(said, (0, 0, 0, 2), expand=False)]
        return Group(*lines)


def _text(cell: Cell, joint: str = "") -> Text:
    """`joint` stands before what explains the cell; without one that is left out."""
    text = Text(printable(cell.text), style=STYLES[cell.tone])
    if cell.below and joint:
        text.append(f"\n{cell.below}" if joint == "\n" else f" ({cell.below})", style="dim")
    return text


# -- several runs ----------------------------------------------------------------------------------------------------


def print_sweep(labelled: Sequence[tuple[str, Run]], *, console: Console | None = None) -> None:
    swept = curve.of_runs(labelled)
    _print(console, [draw(curve.table(swept)), *map(paragraph, curve.remarks(swept))])


def print_stable(
    found: Stable, run: Run, *, wanted: Requirements | None = None, console: Console | None = None
) -> None:
    """`run` is any of the search's: it tells the promises and the unit of the load."""
    tone, word, sentence, evidence = curve.stable_headline(found, run, wanted or Requirements())
    probed = curve.of_stable(found, run, wanted or Requirements())
    head = banner(TONE_STYLES[tone], word, sentence, evidence)
    _print(console, [head, draw(curve.table(probed)), *map(paragraph, curve.remarks(probed))])


def print_comparison(found: Comparison, *, varied: Collection[str] = (), console: Console | None = None) -> None:
    tone, word, sentence = versus.headline(found, varied)
    parts = [versus.differences(found), versus.settings(found)]
    head = banner(TONE_STYLES[tone], word, sentence, versus.obstacles(found, varied))
    _print(console, [head, *(draw(part) for part in parts if part is not None)])


def _print(console: Console | None, parts: Iterable[RenderableType]) -> None:
    (console or Console()).print(Group(*parts))
