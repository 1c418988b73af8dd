"""A tuning from the command line: who is tuned, what is seen meanwhile, and where the result goes."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console

from headway.cli.bench.flags import taken
from headway.cli.bench.run import watched
from headway.cli.interrupt import heard
from headway.cli.stages import stages
from headway.cli.tune.flags import ResultOptions, TuneOptions, options_of, profile_of
from headway.cli.tune.local import local_server, words_of
from headway.cli.tune.own import build_of
from headway.cli.tune.show import page, print_report
from headway.loadtest.bench.outputs import check_apart, check_output, write_bytes
from headway.loadtest.bench.tester import OnProgress, Tester
from headway.loadtest.errors import InvalidPlan
from headway.loadtest.result import Load
from headway.simulate.fit import load_fit
from headway.tune import Audience, Http, Report, Settings, Tuning, Wanted, find_target, report_bytes

FAILED, INTERRUPTED = 1, 130
_PAGE_SIGN = b'<meta name="generator" content="headway bench">'


def run_tune(url: str | None, settings: dict[str, Any]) -> int:
    """The exit status. Raises `LoadTestError` and `HeadwayError` for what is wrong before the first live test."""
    mine, result = taken(TuneOptions, settings), taken(ResultOptions, settings)
    if (url is None) == (mine.local is None):
        raise InvalidPlan("Give either the URL of a server, or --local MODEL.")
    if mine.local is not None and mine.restart_command is not None:
        raise InvalidPlan("--restart-command is for a server that you started; --local starts its own.")
    words_of(mine.serve_flags)
    outputs = _outputs(result)
    wanted = _wanted(mine, settings, url)
    wanted.check()
    with _ends_by_exception():
        if mine.local is None:
            assert url is not None
            report = _tuned(url, mine, wanted, quiet=result.quiet)
            command = ""
        else:
            if not result.quiet:
                print(f"starting a server for {mine.local} …", file=sys.stderr, flush=True)
            with local_server(mine.local, mine.serve_flags, _start(mine)) as server:
                wanted = replace(wanted, step_log=str(server.step_log))
                report = _tuned(server.url, mine, wanted, quiet=result.quiet)
                command = server.command
    return _tell(report, result, outputs, command)


def _wanted(mine: TuneOptions, settings: dict[str, Any], url: str | None) -> Wanted:
    return Wanted(
        profile=profile_of(mine, settings),
        options=options_of(mine, settings, url),
        fixed_rate=mine.request_rate is not None or mine.profile in ("burst", "trace"),
        good=mine.good,
        live_tests=mine.live_tests,
        probe_s=mine.probe,
        fit=load_fit(Path(mine.fit)) if mine.fit is not None else None,
        step_log=mine.step_log,
        keep=mine.keep,
    )


def _start(mine: TuneOptions) -> dict[str, int]:
    """What the server of our own begins with."""
    limits = {"max_num_seqs": mine.max_num_seqs, "max_num_batched_tokens": mine.max_num_batched_tokens}
    return {name: value for name, value in limits.items() if value is not None}


def _tuned(url: str, mine: TuneOptions, wanted: Wanted, *, quiet: bool) -> Report:
    tester = asyncio.run(Tester.meet(url, wanted.options))
    http = Http(tester.template, tester.tls)
    target = find_target(http, mine.restart_command, _given(mine), mine.restart_timeout)
    return Tuning(target, tester, wanted, build_of, _audience(quiet=quiet)).run()


def _given(mine: TuneOptions) -> Settings | None:
    seqs, tokens = mine.max_num_seqs, mine.max_num_batched_tokens
    if (seqs is None) != (tokens is None):
        raise InvalidPlan("--max-num-seqs and --max-num-batched-tokens belong together: both say what the server has.")
    return Settings(seqs, tokens) if seqs is not None and tokens is not None and mine.local is None else None


# -- meanwhile --------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _ends_by_exception() -> Iterator[None]:
    """SIGTERM and SIGHUP end it as Ctrl-C does: the server must have its settings again."""

    def leave(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    with heard((signal.SIGTERM, signal.SIGHUP), leave):
        yield


def _audience(*, quiet: bool) -> Audience:
    def watch(what: str, load: Load) -> AbstractContextManager[OnProgress | None]:
        return watched(what, load, quiet=quiet)

    return Audience(watch, lambda: stages(quiet=quiet))


# -- afterwards -------------------------------------------------------------------------------------------------------


def _outputs(result: ResultOptions) -> list[Path]:
    """Known to be writable before anything is measured. Raises `InvalidPlan`."""
    json = Path("/dev/stdout" if result.json == "-" else result.json) if result.json else None
    html = Path(result.html) if result.html else None
    check_apart([path for path in (json, html) if path is not None])
    if json is not None:
        check_output(json, lambda head: b'"schema_version"' in head, "JSON")
    if html is not None:
        check_output(html, lambda head: _PAGE_SIGN in head, "page")
    return [path for path in (json, html) if path is not None]


def _tell(report: Report, result: ResultOptions, outputs: list[Path], command: str) -> int:
    console = Console(stderr=result.json in ("-", "/dev/stdout"))
    try:
        for path in outputs:
            write_bytes(path, page(report).encode() if str(path) == result.html else report_bytes(report))
    finally:
        print_report(report, console)
        if command and report.flags:
            console.print(f"\n{command} {report.flags}", markup=False, highlight=False, soft_wrap=True)
        if report.not_restored:
            print(f"headway: NOT RESTORED: {report.not_restored}", file=sys.stderr)
        elif report.failed:
            print(f"headway: {report.failed}", file=sys.stderr)
    if report.interrupted:
        return INTERRUPTED
    return FAILED if report.failed or report.not_restored else 0
