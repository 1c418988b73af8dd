"""One run of a profile: progress on stderr, the report on stdout, files where they were asked for."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from rich.console import Console

from headway.cli.bench.flags import ReportOptions, options, taken
from headway.loadtest.bench.files import Files, save, save_records_of
from headway.loadtest.bench.options import PROFILES, Options, Profile
from headway.loadtest.bench.outputs import is_stdout
from headway.loadtest.bench.profiles import LENGTH
from headway.loadtest.bench.several import ASKING
from headway.loadtest.bench.tester import OnProgress, Tester
from headway.loadtest.errors import ResultFailed
from headway.loadtest.report.live import Aim, shown
from headway.loadtest.report.terminal import print_run
from headway.loadtest.report.wording import printable
from headway.loadtest.result import Load
from headway.loadtest.runner.interrupts import keeping

# A server that answers does so sooner.
SLOW_S = 1.0


def run_profile(name: str, url: str, settings: dict[str, Any]) -> int:
    """The exit status. Raises `LoadTestError` and `WorkloadError`."""
    report = taken(ReportOptions, settings)
    profile = taken(PROFILES[name], settings)
    return asyncio.run(_run(url, profile, options(settings, report, url), report, report.files()))


async def _run(url: str, profile: Profile, wanted: Options, report: ReportOptions, files: Files) -> int:
    with waiting(ASKING, quiet=report.quiet):
        tester = await Tester.meet(url, wanted)
    offered = await tester.offer(profile)
    what = printable(f"{tester.template.model} at {tester.template.address.url}")  # the server named itself
    with keeping(_tell_writing):
        with watched(what, offered.described, quiet=report.quiet) as on_progress:
            try:
                result = await tester.measure(offered, on_progress=on_progress)
            except ResultFailed as failed:
                save_records_of(failed, files)
                if files.csv is not None:
                    print(f"wrote {files.csv}: every request as it was measured", file=sys.stderr)
                raise
        console = console_beside(files)
        if not result.records:  # nothing that a file could tell; and its folder stays free for the next try
            files = Files()
        try:
            save(result, files, rivals=wanted.rivals)
        finally:  # a disk that is full costs the files, not what was measured
            print_run(result.run, console=console, rivals=wanted.rivals)
        tell_written(files, console)
    return result.exit_code


def _tell_writing() -> None:
    """In a signal's handler, where print() may be what was interrupted."""
    with suppress(OSError):
        os.write(2, b"\nheadway: writing the report\xe2\x80\xa6\n")


def console_beside(files: Files) -> Console:
    """Where a report is printed: not among the bytes of a file that goes to stdout."""
    return Console(stderr=files.on_stdout)


def tell_written(files: Files, console: Console) -> None:
    for path in files.paths:
        if not is_stdout(path):
            print(f"wrote {path}", file=console.file)


@contextmanager
def waiting(words: str, *, quiet: bool) -> Iterator[None]:
    """Says what is waited for, when it lasts."""
    if quiet:
        yield
        return
    console = Console(stderr=True)
    slow = asyncio.get_running_loop().call_later(
        SLOW_S, lambda: console.print(words, style="dim", markup=False, highlight=False)
    )
    try:
        yield
    finally:
        slow.cancel()


@contextmanager
def watched(what: str, load: Load, *, quiet: bool) -> Iterator[OnProgress | None]:
    """Says what is measured, and shows how far it is."""
    if quiet:
        yield None
        return
    console = Console(stderr=True)
    length = load.settings.get(LENGTH)
    lasts = f"\nit lasts {length}" if length else ""
    console.print(f"{what}: {load.description}{lasts}", style="dim", markup=False, highlight=False, soft_wrap=True)
    with shown(Aim(load.duration_s, load.requests), console=console) as show:
        yield show
