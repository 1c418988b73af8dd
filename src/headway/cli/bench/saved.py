"""`headway bench compare` and `report`: from saved files, without a server."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from headway.loadtest.bench.files import Files, read, write_bytes
from headway.loadtest.compare import compare
from headway.loadtest.errors import InvalidPlan
from headway.loadtest.report.html import compare_page, run_page, sweep_page
from headway.loadtest.report.terminal import print_comparison, print_run, print_sweep
from headway.loadtest.result import Run
from headway.metrics.rivals import RIVALS

DIFFERENT, NOT_COMPARABLE = 7, 8


def compare_runs(a: Path, b: Path, varied: Sequence[str], html: Path | None) -> int:
    """Raises `LoadTestError` for files that are no runs."""
    Files(html=html).check()
    (one, of_one), (other, of_other) = read(a), read(b)
    found = compare(one, other, of_one or None, of_other or None, varied=varied)
    known = {condition.name for condition in found.conditions}
    if unknown := sorted(set(varied) - known):
        raise InvalidPlan(f"--varied {unknown[0]} is no condition; there are {', '.join(sorted(known))}.")
    print_comparison(found, varied=varied)
    _write(html, lambda: compare_page(one, other, found, varied=varied))
    if not found.comparable:
        return NOT_COMPARABLE
    return DIFFERENT if found.differs else 0


def show_runs(paths: Sequence[Path], html: Path | None, rivals: Sequence[str]) -> int:
    """Raises `LoadTestError` for files that are no runs."""
    if not paths:
        raise InvalidPlan("headway bench report takes the JSON file of a run, or several of them.")
    if unknown := sorted(set(rivals) - set(RIVALS)):
        raise InvalidPlan(f"--as {unknown[0]}: there are the definitions of {', '.join(RIVALS)}.")
    Files(html=html).check()
    paths = [one for path in paths for one in _runs_of(path)]
    found = [read(path) for path in paths]
    if len(found) == 1:
        run, records = found[0]
        print_run(run, rivals=tuple(rivals))
        _write(html, lambda: run_page(run, records, rivals=tuple(rivals)))
        return 0
    labelled = [(_label(path, run), run) for path, (run, _) in zip(paths, found, strict=True)]
    print_sweep(labelled)
    _write(html, lambda: sweep_page(labelled))
    return 0


def _runs_of(path: Path) -> list[Path]:
    """The points of a sweep's folder; anything else is one run."""
    points = sorted(path.glob("[0-9][0-9][0-9]-*.json")) if path.is_dir() else []
    return points or [path]


def _label(path: Path, run: Run) -> str:
    name = path.parent.name if path.stem == "run" else path.name if path.is_dir() else path.stem
    return run.load.settings.get("point") or name


def _write(html: Path | None, page: Callable[[], str]) -> None:
    if html is not None:
        write_bytes(html, page().encode())
        print(f"wrote {html}")
