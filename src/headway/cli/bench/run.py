"""One run of a profile: progress on stderr, the report on stdout, files where they were asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console

from headway.cli.bench.flags import ReportOptions, options, taken
from headway.loadtest.bench.files import Files, save, save_records_of
from headway.loadtest.bench.options import PROFILES, Options, Profile
from headway.loadtest.bench.profiles import LENGTH
from headway.loadtest.bench.tester import OnProgress, Tester
from headway.loadtest.errors import ResultFailed
from headway.loadtest.report.live import Aim, shown
from headway.loadtest.report.terminal import print_run
from headway.loadtest.result import Load

# A server that answers does so sooner.
SLOW_S = 1.0


def run_profile(name: str, url: str, settings: dict[str, Any]) -> int:
    """The exit status. Raises `LoadTestError` and `WorkloadError`."""
    report = taken(ReportOptions, settings)
    profile = taken(PROFILES[name], settings)
    return asyncio.run(_run(url, profile, options(settings, report), report, report.files()))


async def _run(url: str, profile: Profile, wanted: Options, report: ReportOptions, files: Files) -> int:
    tester = await met(url, wanted, quiet=report.quiet)
    offered = await tester.offer(profile)
    with watched(f"{tester.ask.model} at {tester.ask.address.url}", offered.told, quiet=report.quiet) as on_progress:
        try:
            result = await tester.measure(offered, on_progress=on_progress)
        except ResultFailed as failed:
            save_records_of(failed, files)
            raise
    save(result, files, rivals=wanted.rivals)
    print_run(result.run, rivals=wanted.rivals, secrets=result.secrets)
    for path in files.paths:
        print(f"wrote {path}")
    return result.exit_code


async def met(url: str, wanted: Options, *, quiet: bool) -> Tester:
    """A server that does not answer keeps us here for a while: then it is said what is waited for."""

    def say() -> None:
        Console(stderr=True).print("asking the server…", style="dim", highlight=False)

    slow = None if quiet else asyncio.get_running_loop().call_later(SLOW_S, say)
    try:
        return await Tester.meet(url, wanted)
    finally:
        if slow is not None:
            slow.cancel()


@contextmanager
def watched(what: str, told: Load, *, quiet: bool) -> Iterator[OnProgress | None]:
    """Says what is measured, and shows how far it is."""
    if quiet:
        yield None
        return
    console = Console(stderr=True)
    length = told.settings.get(LENGTH)
    lasts = f"\nit lasts {length}" if length else ""
    console.print(f"{what}: {told.description}{lasts}", style="dim", markup=False, highlight=False, soft_wrap=True)
    with shown(Aim(told.duration_s, told.requests), console=console) as show:
        yield show
