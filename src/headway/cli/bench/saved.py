"""`headway bench compare` and `report`: from saved files, without a server."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from headway.cli.bench.run import console_beside, tell_written
from headway.loadtest.bench.files import Files, read
from headway.loadtest.bench.outputs import write_bytes
from headway.loadtest.bench.search import is_search, read_search
from headway.loadtest.bench.several import unreadable
from headway.loadtest.compare import compare
from headway.loadtest.errors import InvalidPlan
from headway.loadtest.record import Record
from headway.loadtest.report.html import compare_page, run_page, stable_page, sweep_page
from headway.loadtest.report.json_file import ReportError
from headway.loadtest.report.terminal import print_comparison, print_run, print_stable, print_sweep
from headway.loadtest.result import Run
from headway.metrics.rivals import RIVALS

DIFFERENT, NOT_COMPARABLE = 7, 8


def compare_runs(a: Path, b: Path, varied: Sequence[str], html: Path | None) -> int:
    """Raises `LoadTestError` for files that are no runs."""
    files = Files(html=html)
    files.check()
    (one, of_one), (other, of_other) = read(a), read(b)
    found = compare(one, other, of_one or None, of_other or None, varied=varied)
    known = {condition.name for condition in found.conditions}
    if unknown := sorted(set(varied) - known):
        raise InvalidPlan(f"--varied {unknown[0]} is no condition; there are {', '.join(sorted(known))}.")
    console = console_beside(files)
    print_comparison(found, varied=varied, console=console)
    _write(files, console, lambda: compare_page(one, other, found, varied=varied))
    if not found.comparable:
        return NOT_COMPARABLE
    return DIFFERENT if found.differs else 0


def show_runs(paths: Sequence[Path], html: Path | None, rivals: Sequence[str]) -> int:
    """Raises `LoadTestError` for files that are no runs."""
    if not paths:
        raise InvalidPlan("headway bench report takes the JSON file of a run, or several of them.")
    if unknown := sorted(set(rivals) - set(RIVALS)):
        raise InvalidPlan(f"--as {unknown[0]}: there are the definitions of {', '.join(RIVALS)}.")
    files = Files(html=html)
    files.check()
    console = console_beside(files)
    if len(paths) == 1 and is_search(paths[0]):
        return _show_search(paths[0], files, console)
    found = [one for path in paths for one in _runs_of(path)]
    if len(found) == 1:
        _, run, records = found[0]
        print_run(run, rivals=tuple(rivals), console=console)
        for tool in (tool for tool in rivals if tool not in run.summary.rivals):
            print(
                f"headway: --as {tool}: the run was made without it, and single gaps, which its figures need, are not "
                f"kept: run the test again with --as {tool}.",
                file=sys.stderr,
            )
        _write(files, console, lambda: run_page(run, records, rivals=tuple(rivals)))
        return 0
    if rivals:
        print("headway: --as means nothing for several runs: show them one by one.", file=sys.stderr)
    labelled = [(_label(path, run), run) for path, run, _ in found]
    print_sweep(labelled, console=console)
    _write(files, console, lambda: sweep_page(labelled))
    return 0


def _show_search(folder: Path, files: Files, console: Console) -> int:
    kept = read_search(folder)
    if kept.stable is None:
        print(
            f"headway: {folder} holds a search for the stable region that has not ended ({kept.probes} probes so far): "
            "the command that began it goes on. This is its last probe.",
            file=sys.stderr,
        )
        print_run(kept.run, console=console)
        return 0
    stable = kept.stable
    print_stable(stable, kept.run, wanted=kept.wanted, console=console)
    _write(files, console, lambda: stable_page(stable, kept.run, wanted=kept.wanted))
    return 0


def _runs_of(path: Path) -> list[tuple[Path, Run, list[Record]]]:
    """The points of a sweep's folder, as far as they can be read; anything else is one run."""
    points = sorted(path.glob("[0-9][0-9][0-9]-*.json")) if path.is_dir() else []
    if not points:
        return [(path, *read(path))]
    found: list[tuple[Path, Run, list[Record]]] = []
    damaged: list[ReportError] = []
    for point in points:
        try:
            found.append((point, *read(point)))
        except ReportError as error:
            damaged.append(error)
    if not found:
        raise damaged[0]
    for one in damaged:
        print(f"headway: left out: {unreadable(one)}", file=sys.stderr)
    return found


def _label(path: Path, run: Run) -> str:
    name = path.parent.name if path.stem == "run" else path.name if path.is_dir() else path.stem
    return run.load.settings.get("point") or name


def _write(files: Files, console: Console, page: Callable[[], str]) -> None:
    if files.html is not None:
        write_bytes(files.html, page().encode())
        tell_written(files, console)
