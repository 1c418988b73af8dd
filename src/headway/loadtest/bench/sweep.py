"""`sweep`: the points of a grid measured one after another, each kept as soon as it is done."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from headway.loadtest.bench.files import Files, save, save_records_of
from headway.loadtest.bench.grid import Axis, GridPoint, points
from headway.loadtest.bench.options import Options, Profile
from headway.loadtest.bench.profiles import Offered
from headway.loadtest.bench.server import READY_S, Live, check_command, command, started
from headway.loadtest.bench.several import ASKING, Audience, Folder, asked_facts, unreadable
from headway.loadtest.bench.template import template_of
from headway.loadtest.bench.tester import Result, Tester, new_text_seed
from headway.loadtest.client.address import Tls
from headway.loadtest.errors import LoadTestError, ResultFailed, Unreachable
from headway.loadtest.report.json_file import ReportError, load_run
from headway.loadtest.result import Run
from headway.loadtest.runner.interrupts import keeping

KIND = "sweep"
USUAL_FOLDER = "headway-sweep"


@dataclass(frozen=True, slots=True)
class Grid:
    """What is varied. Settings of the server change while it runs, or where a command is given with its restart."""

    profile: Profile
    loads: tuple[Axis, ...] = ()
    server: tuple[Axis, ...] = ()
    server_command: str | None = None  # with {name} for each setting
    ready_s: float = READY_S


@dataclass(frozen=True, slots=True)
class Swept:
    """Labels and runs, in order of the grid, as far as it came."""

    runs: list[tuple[str, Run]]
    points: int
    resumed: int  # that were there before
    interrupted: bool = False
    failed: str = ""  # why it did not come to its end; what was measured before is not lost


async def sweep(
    url: str,
    grid: Grid,
    options: Options,
    *,
    folder: Path | None,
    seen_by: Audience,
    on_folder: Callable[[Path], None] = lambda _: None,
) -> Swept:
    """Measure what is not there yet, or cannot be read. Raises `LoadTestError` when nothing could be measured.

    What was asked is checked before there is a folder: without one given, `USUAL_FOLDER`, or the next of that name that
    is new or of this very sweep. `on_folder` is called with it before anything is measured.
    """
    todo = points(grid.profile, options, grid.loads, grid.server)
    template = template_of(url, options.server, options.promise)
    redactor = template.redactor()
    redact = redactor.line
    varied = {axis.name: ",".join(axis.values) for axis in (*grid.loads, *grid.server)}
    await _check_settings(grid, Live(template, Tls(verify=not options.server.insecure, ca_file=options.server.ca)))
    facts = asked_facts(url, grid.profile, options, {"vary": varied, "command": grid.server_command}, redactor)
    kept = Folder.usual(Path(USUAL_FOLDER), KIND, facts) if folder is None else Folder(folder, KIND, facts)
    on_folder(kept.path)
    there = sum((kept.path / f"{point.file}.json").exists() for point in todo)
    outlook = _outlook(len(todo), there, kept.path, named=folder is not None)
    if there:
        seen_by.tell(outlook)
    runs: list[tuple[str, Run]] = []
    resumed = 0
    async with contextlib.AsyncExitStack() as stack:
        servers = _Servers(url, grid, options, kept.path / "server.log", seen_by)
        stack.push_async_callback(servers.close)
        for point in todo:
            files = Files(csv=kept.path / f"{point.file}.csv", json=kept.path / f"{point.file}.json")
            if (run := _kept(files, point, seen_by)) is not None:
                runs.append((redact(point.label), run))
                resumed += 1
                continue
            with keeping() as interrupts:
                try:
                    tester = await servers.at(point)
                    offered = await tester.offer(point.profile)
                    if point is todo[0] and not there:  # now it is known that what was asked makes sense
                        seen_by.tell(outlook)
                    result = await _measured(tester, offered, point, len(todo), seen_by)
                except LoadTestError as error:
                    if isinstance(error, ResultFailed):
                        save_records_of(error, files)
                    elif not runs:
                        kept.leave()
                    if not runs:
                        raise
                    failed = f"{redact(point.label)}: {error}"
                    return Swept(runs, len(todo), resumed, failed=failed)
                if result.run.interrupted:
                    return Swept(runs, len(todo), resumed, interrupted=True)
                _tell_settings(result.run, point, redact)
                save(result, files)
                runs.append((redact(point.label), result.run))
            if interrupts.absorbed:  # while the point was kept
                return Swept(runs, len(todo), resumed, interrupted=True)
    return Swept(runs, len(todo), resumed)


async def _check_settings(grid: Grid, live: Live) -> None:
    names = [axis.name for axis in grid.server]
    if grid.server_command is not None:
        check_command(grid.server_command, names)
    elif names:
        with contextlib.suppress(Unreachable):  # a sweep that is done needs no server, and the others find out soon
            await asyncio.to_thread(live.check, names)


def _outlook(points_: int, there: int, folder: Path, *, named: bool) -> str:
    said = f"{points_:,} points, each kept in {folder}" if points_ != 1 else f"one point, kept in {folder}"
    said += "" if named else " (--output names another folder)"
    return f"{said}; {there:,} of them measured before" if there else said


def _kept(files: Files, point: GridPoint, seen_by: Audience) -> Run | None:
    """The run of a point that was measured before; None where it is to be measured."""
    if files.json is None or not files.json.exists():
        return None
    try:
        return load_run(files.json)
    except ReportError as error:
        seen_by.warn(f"{unreadable(error)} So {point.label} is measured again.")
        return None


async def _measured(tester: Tester, offered: Offered, point: GridPoint, of: int, seen_by: Audience) -> Result:
    """Points are compared, so times and lengths are the same for all; texts are not, or a cache would know them."""
    with seen_by.watch(f"{point.number} of {of}: {point.label}", offered.described) as on_progress:
        text_seed = new_text_seed(point.options, point.number)
        return await tester.measure(offered, text_seed=text_seed, on_progress=on_progress)


def _tell_settings(run: Run, point: GridPoint, redact: Callable[[str], str]) -> None:
    for name, value in point.server.items():
        run.environment.flags[name.replace("-", "_")] = redact(value)
    run.load.settings["point"] = redact(point.label)


class _Servers:
    """The server as each point wants it."""

    def __init__(self, url: str, grid: Grid, options: Options, log: Path, seen_by: Audience) -> None:
        self._url = url
        self._grid = grid
        self._template = template_of(url, options.server, options.promise)
        self._tls = Tls(verify=not options.server.insecure, ca_file=options.server.ca)
        self._log = log
        self._seen_by = seen_by
        self._live: Live | None = None
        self._stack: contextlib.AsyncExitStack | None = None  # of the server that was started
        self._settings: dict[str, str] | None = None  # that the server has

    async def at(self, point: GridPoint) -> Tester:
        if self._settings != dict(point.server):
            await self._change(point)
        with self._seen_by.wait(ASKING):
            return await Tester.meet(self._url, point.options)

    async def _change(self, point: GridPoint) -> None:
        self._settings = None
        if self._grid.server_command is not None:
            await self._stop()
            words = command(self._grid.server_command, point.server)
            self._stack = contextlib.AsyncExitStack()
            server = started(words, self._template, self._tls, self._log, self._grid.ready_s)
            with self._seen_by.wait(f"starting {words[0]}…"):
                await self._stack.enter_async_context(server)
        elif point.server:
            self._live = self._live or Live(self._template, self._tls)
            await asyncio.to_thread(self._live.change, point.server)
        self._settings = dict(point.server)

    async def _stop(self) -> None:
        stack, self._stack = self._stack, None
        if stack is not None:
            await stack.aclose()

    async def close(self) -> None:
        await self._stop()
        if self._live is not None:
            await asyncio.to_thread(self._live.restore)
