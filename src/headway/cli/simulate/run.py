"""One simulation: progress on stderr, the report on stdout, files where they were asked for."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from headway.cli.bench.flags import ReportOptions, options, taken
from headway.cli.bench.run import console_beside, tell_written
from headway.cli.simulate.demand import Demand, clients_of, demand_of, feeler, offered, replayed
from headway.cli.simulate.flags import SERVICE_KEYS, WorldOptions
from headway.cli.simulate.result import result_of
from headway.cli.simulate.service import Service, service_of
from headway.core.errors import ConfigError
from headway.engine.assembly import ns
from headway.loadtest.bench.files import save
from headway.loadtest.bench.options import PROFILES, Options, Profile, Ramp
from headway.loadtest.bench.tester import BEYOND, Result
from headway.loadtest.errors import InvalidPlan
from headway.loadtest.report.terminal import print_run
from headway.loadtest.side.noted import check_notes
from headway.simulate import Run, Stuck, simulate
from headway.simulate.demand import Clients

# What takes less needs no bar.
SLOW_S = 2.0
_SERVICE = frozenset(key.field for key in SERVICE_KEYS)


def simulate_profile(name: str, config: Path | None, settings: dict[str, Any]) -> int:
    """The exit status, which is the verdict's. Raises `ConfigError`, `LoadTestError` and `WorkloadError`."""
    report = taken(ReportOptions, settings)
    world = taken(WorldOptions, settings)
    wanted = options(settings, report)
    check_notes(wanted.noted)
    files = report.files()
    service = service_of(world, {key: settings[key] for key in settings.keys() & _SERVICE}, config)
    result = predicted(taken(PROFILES[name], settings), wanted, service, replay=world.replay, quiet=report.quiet)
    console = console_beside(files)
    try:
        save(result, files, rivals=wanted.rivals)
    finally:
        print_run(result.run, console=console, rivals=wanted.rivals)
    tell_written(files, console)
    return result.exit_code


def predicted(
    profile: Profile, wanted: Options, service: Service, *, replay: str | None = None, quiet: bool = True
) -> Result:
    """What the load meets at the service."""
    clients = clients_of(
        wanted,
        service.config.engine.ttft_limit,
        way_ns=service.fit.request_ns,
        shares="tenant" if service.config.engine.prefix_cache_scope == "tenant" else "shared",
    )
    if replay is not None:
        demand = replayed(Path(replay).expanduser(), clients, wanted.window.seed)
    else:
        if isinstance(profile, Ramp) and profile.end_rate is None:
            profile = replace(profile, end_rate=_end_rate(profile, wanted, service, clients))
        demand = demand_of(offered(profile, wanted, service.max_model_len), clients)
    _check_fits(demand, service)
    return result_of(_run(demand, service, quiet=quiet), demand, service, wanted)


def _run(demand: Demand, service: Service, *, quiet: bool = True) -> Run:
    loop = demand.loop
    with _watched(demand, quiet=quiet) as watch:
        try:
            return simulate(
                demand.requests, service.settings, follow=loop.after if loop is not None else None, watch=watch
            )
        except Stuck as stuck:
            raise ConfigError(
                f"This workload never finishes: {stuck}. Look at the limits that keep them out: --max-running, the "
                "lanes' slots and tokens, and --kv-claim-ratio."
            ) from stuck


def _check_fits(demand: Demand, service: Service) -> None:
    """What can never be scheduled, before hours of it are simulated. Raises `ConfigError`."""
    worker = service.settings.workers[0]
    capacity = worker.capacity_tokens
    for request in demand.requests:
        prompt = request.prompt if isinstance(request.prompt, int) else len(request.prompt)
        if prompt + request.output_tokens > capacity:
            raise ConfigError(
                f"Request {request.id} can never be scheduled: {prompt:,} prompt and {request.output_tokens:,} output "
                f"tokens need more KV than a worker has, which is {capacity:,} tokens ({worker.num_blocks:,} blocks of "
                f"{worker.block_size}). Give it more (--num-blocks, --kv-cache-gib), or shorten the requests: of a "
                "trace with --max-input-len and --max-output-len."
            )


def _end_rate(ramp: Ramp, wanted: Options, service: Service, clients: Clients) -> float:
    """Twice what a short closed loop gets through."""
    run = _run(feeler(wanted, service.max_model_len, clients), service)
    ended = [record.ended_ns for record in run.records if record.finished]
    if not ended:
        raise InvalidPlan("Where a ramp should end could not be found out: no request ended well. Give --end-rate.")
    return float(f"{max(BEYOND * len(ended) / (max(ended) / 1e9), 2 * ramp.start_rate):.2g}")


@contextmanager
def _watched(demand: Demand, *, quiet: bool) -> Iterator[Callable[[int, int], None] | None]:
    """A bar once it lasts, on a terminal."""
    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield None
        return
    began, loop = time.monotonic(), demand.loop
    lasts_ns = ns(demand.described.duration_s) if demand.described.duration_s else 0
    count = loop.requests if loop is not None else len(demand.requests)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Bars(*columns, console=console, transient=True, auto_refresh=False) as bars:
        task = bars.add_task("simulating", total=count or lasts_ns or None, visible=False)

        def watch(now_ns: int, ended: int) -> None:
            if time.monotonic() - began < SLOW_S:
                return
            said = f"simulating: {now_ns / 1e9:,.0f} virtual s, {ended:,} requests"
            bars.update(task, description=said, completed=ended if count else now_ns, visible=True)
            bars.refresh()

        yield watch
