"""`Runner`: a plan carried out. The one door to everything that makes a load and measures it.

measured = await run(plan, on_progress=show)
"""

from __future__ import annotations

import asyncio
import datetime as dt
from array import array
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from time import monotonic_ns

import numpy as np

from headway.loadtest.client.kernel_time import arrivals_are
from headway.loadtest.client.limits import NS_PER_S
from headway.loadtest.record import Record
from headway.loadtest.result import Environment, Signals
from headway.loadtest.runner.degraded import Degraded
from headway.loadtest.runner.interrupts import Interrupts, keeping
from headway.loadtest.runner.loop_lag import freezes_s, lags_within_s
from headway.loadtest.runner.measure import CHECK_S, Measurement, Part
from headway.loadtest.runner.plan import Plan
from headway.loadtest.runner.processes import NoteTick, Processes
from headway.loadtest.runner.progress import Meter, Progress, Tick
from headway.loadtest.runner.stolen import stolen_s
from headway.loadtest.side.aside import aside
from headway.loadtest.side.environment import client_facts, environment_of
from headway.loadtest.side.scrape import Scraper, channel_of
from headway.metrics.latency import Floats

OnProgress = Callable[[Progress], None]
START_IN_NS = 100_000_000


@dataclass(slots=True)
class Measured:
    """What came of a plan. Records are in order of schedule; times in them count from `started_at`.

    Shown without the long parts: asyncio shows the result of a task when it restores Ctrl-C, and takes a second for it.
    """

    started_at: str  # ISO 8601, UTC
    elapsed_s: float
    records: list[Record] = field(repr=False)
    processes: int  # that made the load
    cpu_ratio: float  # of the busiest: CPU seconds per second
    loop_lags_ns: list[array[int]] = field(repr=False)  # of each process: see `LoopLag`
    connections: int  # that were opened
    signals: Signals = field(repr=False)
    environment: Environment
    # Of a closed loop: when the first process had sent its share of the requests: fewer were in flight from then on.
    ran_out_s: float | None = None
    stolen_ratio: float = 0.0  # of this machine's time, by its host
    interrupted: bool = False
    ended_early: str = ""  # why, if the load was ended before its time by itself
    client_failed: bool = False  # that was the reason, and not the server
    degraded: str = ""  # the sign of it, if the load was ended because service had clearly degraded, as was wanted
    off_lengths: list[int] = field(default_factory=list, repr=False)  # of prompts: tokens too many or too few
    notes: list[str] = field(default_factory=list)

    def loop_lags_s(self, window_s: tuple[float, float]) -> Floats:
        """How late an event loop was, in every 20 ms of the window: the loop that was latest at p99 of it."""
        lags_s = [lags_within_s(samples_ns, window_s) for samples_ns in self.loop_lags_ns]
        return max(lags_s, key=lambda lags: float(np.quantile(lags, 0.99)) if len(lags) else 0.0)

    @property
    def freezes(self) -> list[tuple[float, float, int]]:
        """When which process did not look at its sockets at all: (from, until) in s after the start, its number."""
        return [(*freeze, process) for process, lags in enumerate(self.loop_lags_ns) for freeze in freezes_s(lags)]


async def run(plan: Plan, *, on_progress: OnProgress | None = None) -> Measured:
    """Carry a plan out. Raises `LoadTestError`s for what is wrong before the first request; afterwards only
    `ClientFailed`, for a defect of the load tester.

    Ctrl-C (and SIGTERM) ends the offering and waits a little for what is under way; a second one does not wait. What
    was measured is returned. A third that comes 3 s later goes to whoever had it. Inside `keeping()` what follows loses
    nothing to one.
    """
    return await Runner(plan, on_progress=on_progress).run()


class Runner:
    """`run` once; `stop` does what Ctrl-C does."""

    def __init__(self, plan: Plan, *, on_progress: OnProgress | None = None) -> None:
        self._plan = plan
        self._on_progress = on_progress
        self._stops = 0
        self._degraded = ""
        self._body: _Here | Processes | None = None
        self._asking: asyncio.Task[tuple[Environment, Scraper | None]] | None = None

    def stop(self) -> None:
        self._stops += 1
        if self._asking is not None:
            self._asking.cancel()
        if self._body is not None:
            self._body.stop()

    async def run(self) -> Measured:
        with keeping() as interrupts:
            return await self._run(interrupts)

    async def _run(self, interrupts: Interrupts) -> Measured:
        body = self._body = _Here(self._plan) if self._plan.processes == 0 else Processes(self._plan)
        meter = _Shown(self._on_progress, body.number, self._enough if self._plan.stop_when_degraded else None)
        scraper: Scraper | None = None
        for _ in range(self._stops):  # that came before there was anything to stop
            body.stop()
        try:
            with interrupts.ending(self.stop):
                await body.prepare()
                environment, scraper = await self._asked()
                # Far enough ahead that every process has the order by then.
                zero_ns = meter.zero_ns = monotonic_ns() + START_IN_NS
                started_at = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=START_IN_NS / NS_PER_S)
                if scraper is not None:
                    scraper.start(zero_ns)
                before_s = stolen_s()
                parts = await body.run(zero_ns, meter.note)
                elapsed_s = (monotonic_ns() - zero_ns) / NS_PER_S
                stolen_ratio = (stolen_s() - before_s) / elapsed_s
        finally:
            try:
                await asyncio.to_thread(meter.close)
                await body.close()
            finally:
                signals = await asyncio.to_thread(scraper.stop) if scraper is not None else Signals()
        measured = self._measured(started_at, elapsed_s, parts, signals, environment)
        measured.stolen_ratio = stolen_ratio
        return measured

    def _enough(self, why: str) -> None:
        """Once: what a rising load was to show has been seen."""
        if not self._degraded and self._body is not None:
            self._degraded = why
            self._body.stop()

    async def _asked(self) -> tuple[Environment, Scraper | None]:
        """What the server says about itself; a server that is slow to say it does not hold up Ctrl-C."""
        self._asking = asyncio.create_task(aside(self._ask_server))
        try:
            return await self._asking
        except asyncio.CancelledError:
            if not self._stops:
                raise
            return Environment(model=self._plan.template.model, client=client_facts()), None
        finally:
            self._asking = None

    def _ask_server(self) -> tuple[Environment, Scraper | None]:
        plan = self._plan
        if plan.scrape_interval_s is None:
            return Environment(model=plan.template.model, client=client_facts()), None
        channel, places = channel_of(plan.template, plan.tls, plan.metrics_url)
        scraper = Scraper(channel, places, plan.scrape_interval_s)
        sample = next(filter(None, (scraper.ask() for _ in range(len(places)))), None)
        address = plan.template.address
        return environment_of(channel, address.root, address.base, plan.template.model, sample), scraper

    def _measured(
        self, started_at: dt.datetime, elapsed_s: float, parts: list[Part], signals: Signals, told: Environment
    ) -> Measured:
        busiest = max(parts, key=lambda part: part.cpu_ratio)
        records = [record for part in parts for record in part.records]
        records.sort(key=lambda record: record.index)
        ran_out_ns = [part.ran_out_ns for part in parts if part.ran_out_ns >= 0]
        ended_early = "; ".join(dict.fromkeys(part.ended_early for part in parts if part.ended_early))
        told.client["arrivals"] = arrivals_are(sum(part.reads for part in parts), sum(part.stamped for part in parts))
        return Measured(
            started_at=started_at.isoformat(timespec="milliseconds"),
            elapsed_s=elapsed_s,
            records=records,
            processes=len(parts),
            cpu_ratio=busiest.cpu_ratio,
            loop_lags_ns=[part.loop_lag_ns for part in parts],
            connections=sum(part.connections for part in parts),
            ran_out_s=(min(ran_out_ns) + 1) / NS_PER_S if ran_out_ns else None,  # that one included
            signals=signals,
            environment=told,
            interrupted=self._stops > 0,
            ended_early=ended_early,
            degraded=self._degraded,
            off_lengths=[off for part in parts for off in part.off_lengths],
            client_failed=any(part.client_failed for part in parts),
            notes=list(dict.fromkeys(note for part in parts for note in part.notes)),
        )


class _Shown:
    """Ticks become progress, in a thread of its own: whoever draws it does not hold up the load."""

    def __init__(
        self, on_progress: OnProgress | None, processes: int, enough: Callable[[str], None] | None = None
    ) -> None:
        self._on_progress = on_progress
        self._enough = enough  # is told when service has clearly degraded
        self._degraded = Degraded()
        self._meter = Meter(processes)
        self._drawing: ThreadPoolExecutor | None = None
        self.zero_ns = monotonic_ns()
        self._drawn_ns = 0
        if on_progress is not None:
            self._drawing = ThreadPoolExecutor(1, "headway-progress")

    def note(self, process: int, tick: Tick) -> None:
        if self._on_progress is None and self._enough is None:
            return
        now_ns = monotonic_ns()
        elapsed_s = (now_ns - self.zero_ns) / NS_PER_S
        self._meter.note(process, tick, elapsed_s)
        if now_ns - self._drawn_ns >= CHECK_S * NS_PER_S * 0.8:  # ticks of several processes are drawn once
            self._drawn_ns = now_ns
            if self._drawing is not None and self._on_progress is not None:
                self._drawing.submit(self._on_progress, self._meter.progress(elapsed_s))
            if self._enough is not None and (why := self._degraded.look(self._meter.counts(elapsed_s))):
                self._enough(why)

    def close(self) -> None:
        """Draw how it ended."""
        if self._drawing is not None and self._on_progress is not None:
            elapsed_s = (monotonic_ns() - self.zero_ns) / NS_PER_S
            self._drawing.submit(self._on_progress, self._meter.progress(elapsed_s))
            self._drawing.shutdown(wait=True)


class _Here:
    """The load is made on the running event loop."""

    number = 1

    def __init__(self, plan: Plan) -> None:
        self._measurement = Measurement(plan)

    async def prepare(self) -> None:
        await self._measurement.prepare()

    async def run(self, zero_ns: int, note_tick: NoteTick) -> list[Part]:
        ticks = asyncio.create_task(self._tick(note_tick))
        try:
            return [await self._measurement.run(zero_ns)]
        finally:
            ticks.cancel()
            note_tick(0, self._measurement.tick())

    async def _tick(self, note_tick: NoteTick) -> None:
        while True:
            await asyncio.sleep(CHECK_S)
            note_tick(0, self._measurement.tick())

    def stop(self) -> None:
        self._measurement.stop()

    async def close(self) -> None:
        """Nothing is left: the measurement cleans up after itself."""
