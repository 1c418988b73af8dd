"""`Measurement`: one process's share of a load, from its first request made ahead to its last record.

The interpreter is kept quiet meanwhile: no collection of garbage but of the last second's, threads that yield soon.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import resource
import sys
import time
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from time import monotonic_ns
from typing import Any

from headway.loadtest.client.client import Client
from headway.loadtest.client.inbox import Inbox
from headway.loadtest.client.limits import NS_PER_S
from headway.loadtest.client.recount import Recount
from headway.loadtest.client.request import RequestWriter
from headway.loadtest.client.stamped_sockets import StampedSockets
from headway.loadtest.errors import ClientFailed, InvalidPlan, LoadTestError
from headway.loadtest.record import Record
from headway.loadtest.runner.loop_lag import LoopLag
from headway.loadtest.runner.pace import ClosedPace, OpenPace, Pace
from headway.loadtest.runner.plan import ClosedLoad, OpenLoad, Plan, read
from headway.loadtest.runner.prefetch import Due, Prefetch, timed, untimed
from headway.loadtest.runner.progress import Tally, Tick
from headway.loadtest.side.reach import reach
from headway.wire.http_pool import Pool, Server

CHECK_S = 0.25
SWITCH_INTERVAL_S = 0.0005  # so long another thread may keep the loop waiting
MIN_FAILURES = 5  # that a run is ended early for
LONGER = 2  # times the longest success: so long may nothing succeed


@dataclass(slots=True)
class Part:
    """What one process measured."""

    records: list[Record]
    # Of a closed loop: when it had sent its share of the requests, and its slots fell empty; -1: they did not.
    ran_out_ns: int = -1
    # CPU seconds per second from the first request due to the last one's end, or while requests were offered:
    # whichever is more.
    cpu_ratio: float = 0.0
    loop_lag_ns: array[int] = field(default_factory=lambda: array("q"))  # see `LoopLag`
    reads: int = 0  # of sockets
    stamped: int = 0  # of these: by the kernel
    connections: int = 0  # that were opened
    ended_early: str = ""  # why, if it was
    client_failed: bool = False  # and this client was the reason
    off_lengths: list[int] = field(default_factory=list)  # of prompts that were sent: tokens too many or too few
    notes: list[str] = field(default_factory=list)


class Measurement:
    """`prepare`, `run` once, and `stop` at any time."""

    def __init__(self, plan: Plan, *, share: int = 0, of: int = 1) -> None:
        self._plan = plan
        self._share = share
        self._of = of
        self._tally = Tally(
            slo_ttft_s=plan.template.slo_ttft_s,
            slo_itl_s=plan.template.slo_itl_s if plan.stop_when_degraded else None,  # it takes some time
            slo_e2e_s=plan.slo_e2e_s,
        )
        self._ended_records: list[Record] = []  # and not taken yet
        self._counted_again: list[Record] = []  # taken when the marker is done
        self._marker: Record | None = None
        self._last_index = -1
        self._first_ns = -1  # when the first was sent
        self._last_ns = -1  # when the last was due or sent
        self._sockets: StampedSockets | None = None
        self._stops = 0  # 1: offer no more, 2: wait for nothing
        self._offered = asyncio.Event()
        self._news = asyncio.Event()  # for whoever waits for the end
        self._ended_early = ""
        self._defect: BaseException | None = None
        self._prefetch: Prefetch | None = None
        self._client: Client | None = None
        self._pace: Pace | None = None

    async def prepare(self) -> None:
        """Everything that takes time: the address, the first prompts. Raises `LoadTestError`s."""
        plan, loop = self._plan, asyncio.get_running_loop()
        _raise_file_limit()
        tls = plan.tls.context_for(plan.template.address)
        host, port = await reach(plan.template.address, tls, plan.limits.connect_timeout_s)
        recount = None if plan.count_tokens is None else Recount(plan.count_tokens)
        # An address already: no look-up may delay a request.
        server = Server(host, port, tls, plan.template.address.host)
        patience_s, self._sockets = plan.limits.connect_timeout_s, StampedSockets(loop)
        pool = Pool(server, connect_timeout_s=patience_s, inbox=Inbox(loop), connect=self._sockets.connect)
        self._client = Client(loop, pool, plan.template, plan.limits, recount)
        writer = RequestWriter(plan.template)
        load = plan.load
        arrivals = (
            timed(read(load.arrivals)) if isinstance(load, OpenLoad) else untimed(read(load.items), load.requests)
        )
        self._prefetch = Prefetch(
            arrivals,
            lambda item, index: writer(item, plan.prompts(item, index)),
            share=self._share,
            of=self._of,
            slots=None if isinstance(load, OpenLoad) else load.concurrency,
            least=None if isinstance(load, OpenLoad) else 2 * self._slots(load),
        )
        await asyncio.to_thread(self._prefetch.warm)
        if self._prefetch.failure is not None:
            await self._close()
            raise _as_invalid(self._prefetch.failure)
        self._pace = self._new_pace(loop, self._prefetch, load)

    def _slots(self, load: ClosedLoad) -> int:
        return len(range(self._share, load.concurrency, self._of))

    def _new_pace(self, loop: asyncio.AbstractEventLoop, prefetch: Prefetch, load: OpenLoad | ClosedLoad) -> Pace:
        if isinstance(load, OpenLoad):
            return OpenPace(loop, prefetch, self._send, self._offered.set)
        return ClosedPace(
            loop,
            prefetch,
            self._send,
            self._offered.set,
            concurrency=self._slots(load),
            think_s=load.think_s,
            duration_s=load.duration_s,
            at_least=-(-load.at_least * self._slots(load) // load.concurrency),
            most_s=load.most_s,
        )

    async def run(self, zero_ns: int) -> Part:
        """Offer the load from `zero_ns` on, wait for what is under way, and tell all that was not taken before."""
        assert self._client is not None and self._pace is not None and self._prefetch is not None, "prepare first"  # noqa: PT018 - one precondition
        loop = asyncio.get_running_loop()
        self._client.zero_ns = zero_ns
        part = Part([])
        lag = LoopLag(loop, zero_ns, self._sockets)
        check = loop.create_task(self._check())
        try:
            with _quiet(), _defects_noted(loop, self._failed):
                self._pace.start(zero_ns)
                if self._stops:
                    self._pace.stop()
                await asyncio.sleep(max(0, zero_ns - monotonic_ns()) / NS_PER_S)
                cpu_s = time.process_time()
                await self._offered.wait()
                part.cpu_ratio = (time.process_time() - cpu_s) / _since_s(zero_ns)
                part.ran_out_ns = self._ran_out_ns()
                await self._drain()
                part.cpu_ratio = max(part.cpu_ratio, (time.process_time() - cpu_s) / _since_s(zero_ns))
                part.loop_lag_ns = lag.close()
        finally:
            lag.close()
            check.cancel()
            await self._close()
        if self._defect is not None:
            raise ClientFailed(f"The load tester failed: {self._defect!r}. This is a defect of it.") from self._defect
        part.records = self._counted_again + self._ended_records
        part.connections = self._client.pool.opened
        assert self._sockets is not None
        part.reads, part.stamped = self._sockets.time.reads, self._sockets.time.stamped
        self._tell_failures(part)
        return part

    def stop(self) -> None:
        """Once: send no more and wait for what is under way. Twice: do not wait either."""
        self._stops += 1
        if self._pace is not None:
            self._pace.stop()
        self._news.set()

    def tick(self) -> Tick:
        client = self._client
        assert client is not None, "prepare first"
        return self._tally.tick(len(client.in_flight), client.tokens_in_flight(), offering=not self._offered.is_set())

    def take(self) -> list[Record]:
        """Records that nothing is added to any more, each once: whoever takes them keeps them."""
        assert self._client is not None, "prepare first"
        taken, recount = self._ended_records, self._client.recount
        if recount is not None:  # a thread adds to them, in order: they are done when a marker behind them is
            if self._marker is not None and self._marker.recounted_tokens < 0 and not recount.failure:
                return []
            taken, self._counted_again = self._counted_again, taken
            self._marker = Record(-1, "", "", 0, 0, 0)
            recount.put(self._marker, None, "")
        self._ended_records = []
        return taken

    # -- while it runs -------------------------------------------------------------------------------------------------

    def _send(self, due: Due, scheduled_ns: int) -> None:
        assert self._client is not None
        item = due.item
        record = Record(due.index, item.kind, item.tenant, item.input_tokens, item.output_tokens, scheduled_ns)
        self._tally.sent += 1
        self._last_index = due.index
        self._client.send(record, due.request, self._ended)
        if self._first_ns < 0:
            self._first_ns = record.sent_ns
        self._last_ns = max(self._last_ns, scheduled_ns, record.sent_ns)

    def _ended(self, record: Record, free_ns: int) -> None:
        assert self._client is not None and self._pace is not None  # noqa: PT018 - for the type checker
        self._tally.count(record)
        self._ended_records.append(record)
        self._pace.ended(record, free_ns)
        if self._offered.is_set() and not self._client.in_flight:
            self._news.set()

    def _ran_out_ns(self) -> int:
        """A closed loop that lasts for a number of requests ends for a process when it has sent its own."""
        load, prefetch = self._plan.load, self._prefetch
        assert prefetch is not None
        if isinstance(load, OpenLoad) or self._stops or self._ended_early:
            return -1
        return self._last_ns if prefetch.exhausted or load.at_least else -1

    async def _drain(self) -> None:
        assert self._client is not None
        limits, loop = self._plan.limits, asyncio.get_running_loop()
        end_s, hurried = loop.time() + limits.drain_s, False
        while self._client.in_flight and self._stops < 2:
            if not hurried and (self._stops or self._ended_early):
                hurried = True
                end_s = min(end_s, loop.time() + limits.interrupted_drain_s)
            if loop.time() >= end_s:
                return
            self._news.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), end_s - loop.time())

    async def _check(self) -> None:
        """End a run in which nothing succeeds any more."""
        assert self._prefetch is not None
        while True:
            await asyncio.sleep(CHECK_S)
            tally = self._tally
            if tally.failed_in_a_row >= MIN_FAILURES and self._silent_ns() > (patience_ns := self._patience_ns()):
                self._end_early(
                    f"nothing succeeded for {patience_ns / NS_PER_S:.3g} s: {tally.failed_in_a_row} requests "
                    f"failed in a row, the last with «{tally.last_error}»"
                )
            elif self._prefetch.failure is not None and self._offered.is_set():
                self._end_early(f"no further request could be made: {self._prefetch.failure}")

    def _silent_ns(self) -> int:
        """Since anything succeeded, or said a token, or was sent at all."""
        assert self._client is not None
        return self._client.now_ns() - max(self._tally.last_success_ns, self._client.last_token_ns(), self._first_ns)

    def _patience_ns(self) -> int:
        """A server whose answers take a minute is not dead after twenty seconds: nor while it is at its first ones."""
        assert self._client is not None
        longest_ns = self._tally.longest_ns
        if not self._tally.ok and (oldest := next(iter(self._client.in_flight), None)) is not None:
            longest_ns = self._client.now_ns() - oldest.record.sent_ns
        return max(int(self._plan.limits.give_up_s * NS_PER_S), LONGER * longest_ns)

    def _end_early(self, why: str) -> None:
        if not self._ended_early:
            self._ended_early = why
            self._news.set()
            if self._pace is not None:
                self._pace.stop()

    def _failed(self, defect: BaseException) -> None:
        self._defect = self._defect or defect
        self.stop()
        self.stop()

    # -- afterwards ----------------------------------------------------------------------------------------------------

    async def _close(self) -> None:
        if self._client is not None:
            await self._client.close()
            assert self._sockets is not None
            self._sockets.close()
            if self._client.recount is not None:
                await asyncio.to_thread(self._client.recount.close)
        if self._prefetch is not None:
            await asyncio.to_thread(self._prefetch.close)

    def _tell_failures(self, part: Part) -> None:
        assert self._client is not None and self._prefetch is not None  # noqa: PT018 - for the type checker
        failure = self._prefetch.failure
        if failure is not None and not self._ended_early:
            self._ended_early = f"no further request could be made: {failure}"
        part.client_failed = failure is not None
        off_by: Mapping[int, int] = getattr(self._plan.prompts, "off_by", {})
        part.off_lengths = [off for index, off in off_by.items() if index <= self._last_index]
        part.ended_early = self._client.redact(self._ended_early) if self._ended_early else ""
        if self._client.recount is not None and self._client.recount.failure:
            part.notes.append(self._client.recount.failure)


def _as_invalid(failure: Exception) -> LoadTestError:
    """What the arrivals or the prompts raised, as the plan's fault."""
    return failure if isinstance(failure, LoadTestError) else InvalidPlan(f"The load cannot be made: {failure}")


def _since_s(zero_ns: int) -> float:
    return max(1, monotonic_ns() - zero_ns) / NS_PER_S


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    enabled, interval_s = gc.isenabled(), sys.getswitchinterval()
    gc.collect()
    gc.freeze()
    gc.disable()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        yield
    finally:
        sys.setswitchinterval(interval_s)
        gc.unfreeze()
        if enabled:
            gc.enable()


@contextlib.contextmanager
def _defects_noted(loop: asyncio.AbstractEventLoop, note: Any) -> Iterator[None]:
    """An exception in a callback is a defect of ours and must not pass as a measurement."""
    handler = loop.get_exception_handler()

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if error is not None and not isinstance(error, OSError):
            note(error)
        elif handler is not None:
            handler(loop, context)

    loop.set_exception_handler(handle)
    try:
        yield
    finally:
        loop.set_exception_handler(handler)


def _raise_file_limit() -> None:
    """As many connections as the system lets this process open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
