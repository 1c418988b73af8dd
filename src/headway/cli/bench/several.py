"""`headway bench stable` and `sweep`: many runs, kept one by one, and one report."""

from __future__ import annotations

import asyncio
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from headway.cli.bench.flags import GridOptions, ReportOptions, SearchOptions, options, taken
from headway.cli.bench.run import console_beside, tell_written, waiting, watched
from headway.loadtest.bench.files import Files
from headway.loadtest.bench.grid import axes, usual_axis
from headway.loadtest.bench.options import PROFILES, Concurrency, Profile, Rate, Trace
from headway.loadtest.bench.outputs import write_bytes
from headway.loadtest.bench.search import Found, Wanted, find_stable
from headway.loadtest.bench.several import Audience
from headway.loadtest.bench.sweep import Grid, Swept, sweep
from headway.loadtest.bench.tester import INTERRUPTED, OnProgress
from headway.loadtest.errors import InvalidPlan
from headway.loadtest.probe import Requirements
from headway.loadtest.report.html import stable_page, sweep_page
from headway.loadtest.report.terminal import print_stable, print_sweep
from headway.loadtest.report.wording import printable
from headway.loadtest.result import Load, Word
from headway.loadtest.stable import Search, Stable

FAILED = 1
# Of a search: no load that was tried holds, and it ended before the border was known.
NO_LOAD_HOLDS, UNDECIDED = 9, 10
CLIENT_BOUND = "client"


def run_stable(url: str, settings: dict[str, Any]) -> int:
    """0 when a load holds and the border is known, 3 when this machine was the limit, 9 when no load holds, 10 when the
    search ended before, 130 when interrupted.
    """
    report, how = taken(ReportOptions, settings), taken(SearchOptions, settings)
    wanted = options(settings, report, url)
    whole = how.by == "concurrency"
    search = Search(
        start=round(how.start) or 1 if whole else how.start,
        tolerance=how.tolerance,
        window_s=how.window,
        sustain=how.sustain,
        repeats=how.repeats,
        whole=whole,
        lowest=max(1.0, how.lowest) if whole else how.lowest,
        highest=how.highest,
        most_probes=how.most_probes,
        wanted=Requirements(
            good_ratio=how.good,
            errors=how.max_errors,
            kv_used_ratio=how.max_kv,
            preempted_ratio=how.max_preempted,
        ),
    )
    by = Concurrency(concurrency=1) if whole else Rate(request_rate=how.start, burstiness=how.burstiness)
    folder = Path(report.output) if report.output else None
    page = _page(report, folder, "stable.html")
    found = asyncio.run(find_stable(url, Wanted(search, by), wanted, folder=folder, seen_by=_terminal(report)))
    return _tell_stable(found, search, page)


def _tell_stable(found: Found, search: Search, page: Files) -> int:
    if found.run is None or found.stable is None:
        print(f"The search was interrupted after {len(found.probes)} probes.", file=sys.stderr)
        return INTERRUPTED
    stable, run, console = found.stable, found.run, console_beside(page)
    try:
        if page.html is not None:
            text = stable_page(stable, run, wanted=search.wanted)
            write_bytes(page.html, text.encode())
    finally:
        print_stable(stable, run, wanted=search.wanted, console=console)
    tell_written(page, console)
    return stable_code(stable)


def stable_code(stable: Stable) -> int:
    if stable.bound == CLIENT_BOUND:
        return Word.CLIENT_LIMITED.exit_code
    if stable.load is None and stable.converged:
        return NO_LOAD_HOLDS
    return 0 if stable.sustained and stable.converged else UNDECIDED


def run_sweep(url: str, settings: dict[str, Any]) -> int:
    """0 when every point was measured, 3 when this client was too slow for one, 130 when interrupted."""
    report, how = taken(ReportOptions, settings), taken(GridOptions, settings)
    wanted = options(settings, report, url)
    profile = _profile(how)
    loads, server = axes(how.vary, "--vary"), axes(how.setting, "--setting")
    if not loads and not server:
        loads = [usual_axis(profile)]
    grid = Grid(profile, tuple(loads), tuple(server), how.server_command, how.server_timeout)
    page = _page(report, None, "sweep.html")

    def on_folder(folder: Path) -> None:
        nonlocal page
        page = _page(report, folder, "sweep.html")

    folder = Path(report.output) if report.output else None
    swept = asyncio.run(sweep(url, grid, wanted, folder=folder, seen_by=_terminal(report), on_folder=on_folder))
    return _tell_sweep(swept, page)


def _profile(how: GridOptions) -> Profile:
    if (how.profile == "trace") != (how.trace is not None):
        raise InvalidPlan("The profile trace and --trace FILE belong together.")
    return Trace(file=how.trace) if how.trace is not None else PROFILES[how.profile]()


def _tell_sweep(swept: Swept, page: Files) -> int:
    console = console_beside(page)
    if swept.runs:
        try:
            if page.html is not None:
                text = sweep_page(swept.runs)
                write_bytes(page.html, text.encode())
        finally:
            print_sweep(swept.runs, console=console)
    if swept.resumed:
        print(f"{swept.resumed} of {swept.points} points had been measured before.", file=console.file)
    if swept.runs:
        tell_written(page, console)
    missing = swept.points - len(swept.runs)
    if swept.failed:
        print(f"headway: {swept.failed} The same command goes on with {missing} points.", file=sys.stderr)
        return FAILED
    if swept.interrupted:
        print(f"Interrupted; the same command goes on with {missing} points.", file=sys.stderr)
        return INTERRUPTED
    limited = any(run.verdict.name == Word.CLIENT_LIMITED for _, run in swept.runs)
    return Word.CLIENT_LIMITED.exit_code if limited else 0


def _page(report: ReportOptions, folder: Path | None, name: str) -> Files:
    """Where the report goes, known to be writable before hours are measured."""
    page = Files(html=Path(report.html) if report.html else folder / name if folder is not None else None)
    page.check()
    return page


def _terminal(report: ReportOptions) -> Audience:
    """What a person sees meanwhile."""

    def watch(what: str, load: Load) -> AbstractContextManager[OnProgress | None]:
        return watched(what, load, quiet=report.quiet)

    def wait(words: str) -> AbstractContextManager[None]:
        return waiting(words, quiet=report.quiet)

    def warn(words: str) -> None:
        print(f"headway: {words}", file=sys.stderr)

    def tell(words: str) -> None:
        if not report.quiet:
            print(printable(words), file=sys.stderr)

    return Audience(watch, wait, warn, tell)
