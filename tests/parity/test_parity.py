"""One core, several bodies: what the server's engine does with some arrivals, the virtual drive does with them.

Every `Step` that reaches an executor is compared whole: rows, token ids, block tables, what is begun and dropped, when
it was planned. So are the times of every request.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.core.errors import Expired, HeadwayError
from headway.core.front.front import Front
from headway.core.pace import StepTimeModel
from headway.core.scheduler.kv import KvPool
from headway.core.scheduler.policies import HEADWAY
from headway.core.scheduler.scheduler import Scheduler
from headway.core.scheduler.sequence import Ended
from headway.core.scheduler.static import StaticScheduler
from headway.core.scheduler.step import Outcome, Step
from headway.engine.assembly import assemble, step_time_model
from headway.engine.config import EngineConfig, engine_config
from headway.engine.driver import Driver
from headway.engine.stream import Stream
from headway.executors.simulated import SimulatedConfig, SimulatedExecutor
from headway.executors.simulated_text import SimulatedTokenizer
from headway.simulate import Run, VirtualRequest, VirtualSettings, VirtualWorker, simulate
from tests.simulate.worlds import COST, MS, arrivals

EXECUTOR = SimulatedConfig(cost=COST, clock="virtual", num_blocks=40, block_size=4, max_model_len=150)
# By id: (end, started, first token, ended); without times where nobody is told any.
Told = dict[str, tuple[str, int, int, int]]


@pytest.fixture(autouse=True)
def no_real_time(monkeypatch: pytest.MonkeyPatch):
    """The driver also looks for expired waits every so many real seconds; real seconds mean nothing here."""
    monkeypatch.setattr("headway.engine.driver.EXPIRE_EVERY_S", 3600.0)


class Recorded(SimulatedExecutor):
    """Keeps what it was asked. Tables are shared with the scheduler and change later, so it keeps copies."""

    def __init__(self, config: SimulatedConfig) -> None:
        super().__init__(config)
        self.steps: list[Step] = []

    def run(self, step: Step) -> Outcome:
        self.steps.append(copy.deepcopy(step))
        return super().run(step)


class Server:
    """The engine of `headway serve`, as it assembles itself, around a clock that steps and arrivals move."""

    def __init__(self, config: EngineConfig, requests: list[VirtualRequest]) -> None:
        self.now = 0
        self.executor = Recorded(EXECUTOR)
        info = self.executor.info
        self.front, self.scheduler = assemble(config, info, step_time_model(info))
        self.told: Told = {}
        self._outputs = {request.id: request.output_tokens for request in requests}
        events: list[tuple[int, int, int, Callable[[], None]]] = []
        for number, asked in enumerate(requests):
            events.append((asked.arrival_ns, 0, number, lambda a=asked, n=number: self._submit(a, n)))  # type: ignore[misc]
            if asked.cancel_ns is not None:
                events.append((asked.cancel_ns, 1, number, lambda a=asked: self._close(a.id)))  # type: ignore[misc]
        self._events = sorted(events, key=lambda event: event[:3])
        self._streams: dict[str, Stream] = {}
        self._readers: list[asyncio.Task[None]] = []

    async def serve(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.driver = Driver(self.front, self.scheduler, self, SimulatedTokenizer().stream, clock=lambda: self.now)
        self.driver.start()
        try:
            async with asyncio.timeout(60):
                while self._events or self.driver._live:
                    if self._idle:
                        self._skip_to_what_comes_next()
                    await asyncio.sleep(0)
                await asyncio.gather(*self._readers)
        finally:
            await self.driver.close()

    @property
    def _idle(self) -> bool:
        waits_for_time = self.scheduler.wake_ns is not None and not self.scheduler.busy
        return not self.driver._live or (waits_for_time and not self.driver._wake.is_set())

    def _skip_to_what_comes_next(self) -> None:
        wake_ns = self.scheduler.wake_ns if self.driver._live else None
        if wake_ns is not None and (not self._events or wake_ns < self._events[0][0]):
            self.now = wake_ns
            self.driver._wake.set()
        else:
            self._let_happen(self._events[0][0])

    # What the driver needs of an executor.

    def run(self, step: Step) -> Outcome:
        """On the executor's thread: compute, and let the rest of the world go on until the step ends."""
        for row in step.rows:
            if row.begin is not None:
                self.executor.end_after(row.seq, self._outputs[self.scheduler.request(row.seq).id])
        outcome = self.executor.run(step)
        ends_ns = self.now + COST.of(step)
        asyncio.run_coroutine_threadsafe(self._meanwhile(ends_ns), self.loop).result(20)
        self.now = ends_ns
        return outcome

    def restart(self) -> None:
        raise AssertionError("nothing breaks here")

    def interrupt(self) -> None: ...

    @property
    def alive(self) -> bool:
        return True

    async def _meanwhile(self, until_ns: int) -> None:
        self._let_happen(until_ns)

    def _let_happen(self, until_ns: int) -> None:
        while self._events and self._events[0][0] <= until_ns:
            self.now, _, _, happen = self._events.pop(0)
            happen()

    def _submit(self, asked: VirtualRequest, number: int) -> None:
        try:
            [stream] = self.driver.submit_all([asked.request(number + 1)])
        except HeadwayError:
            self.told[asked.id] = ("refused", 0, 0, 0)
            return
        self._streams[asked.id] = stream
        self._readers.append(self.loop.create_task(self._read(stream)))

    def _close(self, name: str) -> None:
        stream = self._streams.get(name)
        if stream is not None and not stream.over:
            self.told[name] = ("cancelled", 0, 0, 0)
            stream.close()

    async def _read(self, stream: Stream) -> None:
        try:
            async for delta in stream:
                if delta.finish_reason is not None:
                    assert delta.times is not None
                    times = delta.times
                    end = (delta.finish_reason, times.started_ns, times.first_token_ns, times.ended_ns)
                    self.told[stream.request.id] = end
        except Expired:
            self.told[stream.request.id] = ("expired", 0, 0, 0)


def virtual(server: Server, requests: list[VirtualRequest], monkeypatch: pytest.MonkeyPatch) -> tuple[Run, list[Step]]:
    """The same on the virtual drive, without leaps, and the steps its executor was asked for."""
    made: list[Recorded] = []

    def recorded(config: SimulatedConfig) -> Recorded:
        made.append(Recorded(config))
        return made[0]

    monkeypatch.setattr("headway.simulate.engine.SimulatedExecutor", recorded)
    run = simulate(requests, replace(same_service(server), leaps=False))
    return run, made[0].steps


def same_service(server: Server) -> VirtualSettings:
    scheduler = server.scheduler
    worker = VirtualWorker(
        limits=scheduler.limits,
        num_blocks=EXECUTOR.num_blocks,
        block_size=EXECUTOR.block_size,
        prefix_cache=scheduler.pool.prefix_cache,
        cost=COST,
        policy=scheduler.policy if isinstance(scheduler, Scheduler) else HEADWAY,
        batching=scheduler.batching if isinstance(scheduler, StaticScheduler) else None,
    )
    return VirtualSettings(
        workers=(worker,), front=server.front.limits, admission=server.front.admission.limits, keeps_kv=True
    )


def told(run: Run) -> Told:
    return {
        r.id: (r.end, r.started_ns, r.first_token_ns, r.ended_ns) if r.finished else (r.end, 0, 0, 0)
        for r in run.records
    }


configs = st.builds(
    engine_config,
    executor=st.just("simulated"),
    max_num_seqs=st.integers(1, 6),
    max_num_batched_tokens=st.sampled_from([16, 24, 64]),
    max_waiting=st.sampled_from([3, 100]),
    queue_timeout=st.sampled_from([0.0, 0.15]),
    kv_full=st.sampled_from(["preempt", "wait"]),
    policy=st.sampled_from(["headway", "vllm"]),
    pace=st.booleans(),
    prefix_cache_scope=st.sampled_from(["tenant", "off"]),
)


@settings(max_examples=60, deadline=None)
@given(configs, arrivals())
def test_the_server_and_the_virtual_drive_take_the_same_steps(config, requests):
    requests.sort(key=lambda request: request.arrival_ns)
    server = Server(config, requests)
    asyncio.run(server.serve())
    with pytest.MonkeyPatch.context() as monkeypatch:
        run, steps = virtual(server, requests, monkeypatch)
    assert told(run) == server.told
    assert steps == server.executor.steps
    # And with leaps nobody can tell the difference.
    assert told(simulate(requests, same_service(server))) == server.told


def test_the_worlds_above_are_crowded():
    """Parity says little unless there are chunks, preemptions, cancellations and a queue in it."""
    requests = [VirtualRequest(f"r{i}", i * 5 * MS, 20 + i, 25, 20 + i % 9, cancel_ns=700 * MS) for i in range(12)]
    config = engine_config(executor="simulated", max_num_seqs=6, max_num_batched_tokens=16)
    server = Server(config, requests)
    asyncio.run(server.serve())
    with pytest.MonkeyPatch.context() as monkeypatch:
        run, steps = virtual(server, requests, monkeypatch)
    assert steps == server.executor.steps
    assert told(run) == server.told
    assert run.counters[0].preemptions > 0
    assert {"stop", "cancelled"} <= run.ends.keys()


@settings(max_examples=40, deadline=None)
@given(configs, arrivals())
def test_static_batches_are_the_same_too(config, requests):
    """A server never knows that nothing else will come; here somebody comes long after, and is left out."""
    config = replace(config, batching="static", policy="headway")
    requests.sort(key=lambda request: request.arrival_ns)
    last = VirtualRequest("last", 10**15, 1, 1, 1)
    server = Server(config, [*requests, last])
    asyncio.run(server.serve())
    with pytest.MonkeyPatch.context() as monkeypatch:
        run, steps = virtual(server, [*requests, last], monkeypatch)
    assert told(run).keys() == server.told.keys()
    assert {**told(run), "last": ()} == {**server.told, "last": ()}
    assert steps[:-1] == server.executor.steps[:-1]


@settings(max_examples=150, deadline=None)
@given(configs, arrivals())
def test_a_fleet_of_one_is_a_single_engine(config, requests):
    """Against the plainest loop there is: submit what has come, plan, run, commit."""
    requests = [replace(request, cancel_ns=None) for request in requests]
    requests.sort(key=lambda request: request.arrival_ns)
    server = Server(config, requests)  # for its assembled limits only
    assert told(simulate(requests, same_service(server))) == plain_loop(same_service(server), requests)


def plain_loop(service: VirtualSettings, requests: list[VirtualRequest]) -> Told:
    worker = service.workers[0]
    model = StepTimeModel(worker.step_time, frozen=True)
    pool = KvPool(worker.num_blocks, worker.block_size, prefix_cache=worker.prefix_cache)
    front = Front(service.admits, service.front, model=model, policy=worker.policy)
    scheduler = Scheduler(worker.limits, pool, front.pull, model=model, policy=worker.policy)
    executor = SimulatedExecutor(EXECUTOR)
    ends: Told = {}
    now, left = 0, list(enumerate(requests, 1))
    while left or scheduler.busy or len(front.lanes):
        while left and left[0][1].arrival_ns <= now:
            number, asked = left.pop(0)
            try:
                front.submit(asked.request(number), asked.arrival_ns)
            except HeadwayError:
                ends[asked.id] = ("refused", 0, 0, 0)
        for expire in front.plan(now):
            ends[expire.request.id] = ("expired", 0, 0, 0)
        step = scheduler.plan(now)
        if step is None:
            now = left[0][1].arrival_ns if left else now
            continue
        for row in step.rows:
            if row.begin is not None:
                name = scheduler.request(row.seq).id
                executor.end_after(row.seq, next(r.output_tokens for r in requests if r.id == name))
        outcome = executor.run(step)
        now += COST.of(step)
        for event in scheduler.commit(step, outcome, now):
            if isinstance(event, Ended):
                front.settle(event.request.id, event.usage, now)
                times = event.times
                assert event.reason is not None
                name = event.request.id
                ends[name] = (event.reason.value, times.started_ns, times.first_token_ns, times.ended_ns)
    return ends
