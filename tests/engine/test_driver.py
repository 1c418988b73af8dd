"""The loop with a real clock: what enters comes out once, whoever leaves frees everything, and faults are told."""

from __future__ import annotations

import asyncio
import random
import threading
import time

import pytest

from headway.core.errors import (
    Draining,
    EngineFailed,
    Expired,
    HeadwayError,
    InvalidRequest,
    ModelError,
    QueueFull,
)
from headway.core.front.admission import NS_PER_S, AdmissionLimits
from headway.core.front.front import Front, FrontLimits
from headway.core.pace import StepTime, StepTimeModel
from headway.core.request import Request, SamplingParams
from headway.core.scheduler.kv import KvPool
from headway.core.scheduler.limits import SchedulerLimits
from headway.core.scheduler.scheduler import Scheduler
from headway.core.scheduler.step import Outcome, RowResult, Step
from headway.engine.driver import Driver
from headway.engine.snapshot import take_snapshot
from headway.engine.supervisor import ExecutorLost
from headway.executors.simulated import SimulatedConfig, SimulatedExecutor
from headway.executors.simulated_text import SimulatedTokenizer

TOKENIZER = SimulatedTokenizer()


class Executor:
    """The simulated executor in this process, with a gate to hold a step and faults to order."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.fault: Exception | Outcome | None = None
        self.restarts = 0
        self.step_s = 0.0
        self.can_restart = True
        self.lives = True
        self._inner = self._fresh()

    def _fresh(self) -> SimulatedExecutor:
        return SimulatedExecutor(SimulatedConfig(clock="virtual", num_blocks=64, mean_output_tokens=30, audit=True))

    def run(self, step: Step) -> Outcome:
        assert self.gate.wait(20)
        time.sleep(self.step_s)
        fault, self.fault = self.fault, None
        if isinstance(fault, Exception):
            raise fault
        return fault if fault is not None else self._inner.run(step)

    def restart(self) -> None:
        self.restarts += 1
        self.lives = True
        if not self.can_restart:
            raise ModelError("it keeps crashing")
        self._inner = self._fresh()

    @property
    def alive(self) -> bool:
        return self.lives

    def interrupt(self) -> None:
        self.fault = ExecutorLost("interrupted")
        self.gate.set()


class Rig:
    def __init__(self, *, max_waiting: int = 100, max_num_seqs: int = 4, queue_timeout_s: float = 0.0) -> None:
        pool = KvPool(64, 32)
        limits = AdmissionLimits(2048, pool.capacity_tokens, max_waiting)
        model = StepTimeModel(StepTime(1e6, 1e5, 1e5, 100, 10), frozen=True)
        self.front = Front(limits, FrontLimits(int(queue_timeout_s * NS_PER_S)), model=model)
        self.scheduler = Scheduler(SchedulerLimits(max_num_seqs, 64), pool, self.front.pull, model=model)
        self.executor = Executor()
        self.driver = Driver(self.front, self.scheduler, self.executor, TOKENIZER.stream)
        self.made = 0

    async def __aenter__(self):
        self.driver.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.driver.close()

    def submit(self, prompt: str = "the sea", max_tokens: int = 8, **params):
        self.made += 1
        params = {"temperature": 0.0, "ignore_eos": True, **params}
        ids = TOKENIZER.encode(prompt)
        request = Request(f"r{self.made}", ids, max_tokens, params=SamplingParams(**params))
        return self.driver.submit_all([request])[0]

    async def until_ready(self) -> None:
        async with asyncio.timeout(5):
            while not self.driver.ready:
                await asyncio.sleep(0.01)

    async def empty(self) -> None:
        """Everything is given back, within a few steps."""
        for _ in range(200):
            snapshot = take_snapshot(self.driver)
            held = (snapshot.requests, snapshot.running, snapshot.waiting, snapshot.waiting_tokens, snapshot.kv_tokens)
            if not any(held) and not snapshot.kv_blocks_used:
                assert not self.driver._live
                return
            await asyncio.sleep(0.01)
        raise AssertionError(f"still held: {snapshot}")


async def read(stream):
    deltas = [delta async for delta in stream]
    return "".join(delta.text for delta in deltas), deltas


async def test_a_stream_ends_with_its_reason_usage_and_times_in_order():
    async with Rig() as rig:
        text, deltas = await read(rig.submit(max_tokens=5))
        last = deltas[-1]
        assert [delta.finish_reason for delta in deltas[:-1]] == [None] * (len(deltas) - 1)
        assert last.finish_reason == "length"
        assert (last.usage.prompt_tokens, last.usage.output_tokens) == (len(TOKENIZER.encode("the sea")), 5)
        times = last.times
        assert 0 < times.arrival_ns <= times.started_ns <= times.first_token_ns <= times.ended_ns
        assert text == TOKENIZER.decode([token for delta in deltas for token in delta.tokens])
        await rig.empty()


async def test_many_at_once_get_what_each_would_get_alone():
    async with Rig() as rig:
        prompts = [f"story number {i} about" for i in range(12)]
        alone = [(await read(rig.submit(prompt)))[0] for prompt in prompts]
        together = await asyncio.gather(*(read(rig.submit(prompt)) for prompt in prompts))
        assert [text for text, _ in together] == alone
        await rig.empty()


async def test_a_stop_string_ends_the_sequence_in_the_core_and_never_shows():
    async with Rig() as rig:
        whole, _ = await read(rig.submit(max_tokens=20))
        stop = whole[len(whole) // 2 : len(whole) // 2 + 5]
        text, deltas = await read(rig.submit(max_tokens=20, stop=(stop,)))
        assert text == whole[: whole.index(stop)]
        assert deltas[-1].finish_reason == "stop"
        assert deltas[-1].usage.output_tokens < 20
        await rig.empty()


async def test_whoever_leaves_at_any_stage_frees_everything():
    async with Rig(max_num_seqs=2) as rig:
        rig.executor.gate.clear()
        in_step = rig.submit()
        await asyncio.sleep(0.05)  # its prefill is being computed
        queued = [rig.submit() for _ in range(5)]
        queued[2].close()
        in_step.close()
        in_step.close()
        assert rig.front.admission.requests == 5
        rig.executor.gate.set()
        mid_stream = rig.submit(max_tokens=500)
        for _ in range(3):
            await anext(mid_stream)
        mid_stream.close()
        with pytest.raises(StopAsyncIteration):
            await anext(mid_stream)
        await asyncio.gather(*(read(stream) for stream in queued))
        await rig.empty()


async def test_a_thousand_departures_at_random_stages_leave_nothing():
    rng = random.Random(7)
    async with Rig(max_waiting=64, max_num_seqs=8) as rig:

        async def one(i: int) -> None:
            await asyncio.sleep(rng.random() * 0.5)
            try:
                stream = rig.submit("word " * rng.randrange(1, 60), max_tokens=rng.randrange(1, 60))
            except QueueFull:
                return
            leave_after = rng.choice([0, 0, 1, 2, 5, 1000])
            try:
                async with asyncio.timeout(rng.choice([0.001, 0.01, 60])):
                    for _ in range(leave_after):
                        await anext(stream)
            except (TimeoutError, StopAsyncIteration):
                pass
            finally:
                stream.close()

        async with asyncio.timeout(60):
            await asyncio.gather(*(one(i) for i in range(1000)))
        await rig.empty()


async def test_a_lost_executor_fails_what_ran_and_serves_what_waited():
    async with Rig(max_num_seqs=2) as rig:
        rig.executor.gate.clear()
        running = [rig.submit() for _ in range(2)]
        await asyncio.sleep(0.05)
        waiting = rig.submit()
        rig.executor.fault = ExecutorLost("killed by SIGSEGV")
        rig.executor.gate.set()
        for stream in running:
            with pytest.raises(EngineFailed, match="SIGSEGV"):
                await read(stream)
        text, _ = await read(waiting)
        assert text
        assert rig.executor.restarts == 1
        assert rig.driver.ready
        await rig.empty()


@pytest.mark.parametrize("garbage", [Outcome(99, []), Outcome(1, [RowResult(4711, [3])]), Outcome(1, [])])
async def test_a_garbage_outcome_is_a_lost_executor(garbage):
    async with Rig() as rig:
        rig.executor.fault = garbage
        with pytest.raises(EngineFailed, match="outcome is broken"):
            await read(rig.submit())
        await rig.until_ready()
        assert (await read(rig.submit()))[0]
        await rig.empty()


async def test_an_executor_that_cannot_come_back_fails_everybody_and_says_why():
    async with Rig(max_num_seqs=1) as rig:
        rig.executor.gate.clear()
        running, waiting = rig.submit(), rig.submit()
        await asyncio.sleep(0.05)
        rig.executor.can_restart = False
        rig.executor.fault = ExecutorLost("gone")
        rig.executor.gate.set()
        with pytest.raises(EngineFailed, match="gone"):
            await read(running)
        with pytest.raises(EngineFailed, match="keeps crashing"):
            await read(waiting)
        with pytest.raises(Draining, match="keeps crashing"):
            rig.submit()
        async with asyncio.timeout(5):
            await rig.driver.drain()  # nothing inside: it must not wait for ever
        await rig.empty()


async def test_leaving_frees_everything_with_the_very_next_commit():
    async with Rig() as rig:
        rig.executor.gate.clear()
        streams = [rig.submit(max_tokens=50) for _ in range(3)]
        await asyncio.sleep(0.05)
        for stream in streams:
            stream.close()
        steps = rig.scheduler.counters.steps
        rig.executor.gate.set()
        while rig.scheduler.running:
            await asyncio.sleep(0)
        assert rig.scheduler.counters.steps == steps + 1
        await rig.empty()


async def test_a_call_of_several_requests_enters_whole_or_not_at_all():
    async with Rig(max_waiting=3, max_num_seqs=1) as rig:
        rig.executor.gate.clear()
        held = rig.submit(max_tokens=3)
        await asyncio.sleep(0.05)
        group = [Request(f"g{i}", [300], 2, params=SamplingParams(temperature=0.0)) for i in range(3)]
        first = rig.submit(max_tokens=3)
        with pytest.raises(QueueFull):
            rig.driver.submit_all(group)
        assert rig.front.admission.requests == 2
        with pytest.raises(InvalidRequest, match="at most 3") as caught:
            rig.driver.submit_all([*group, Request("g3", [300], 2)])
        assert caught.value.param == "n"
        rig.executor.gate.set()
        await asyncio.gather(read(held), read(first))
        assert [len((await read(stream))[1]) > 0 for stream in rig.driver.submit_all(group)] == [True] * 3
        await rig.empty()


async def test_a_defect_while_telling_ends_hang_nobody(monkeypatch):
    async with Rig() as rig:
        streams = [rig.submit(max_tokens=2), rig.submit(max_tokens=2)]
        broken = iter([True])

        def flush(self):
            if next(broken, False):
                raise RuntimeError("a defect in flush")
            return ""

        monkeypatch.setattr("headway.executors.simulated_text.SimulatedDetokenizer.flush", flush)
        for stream in streams:
            with pytest.raises(EngineFailed):
                async with asyncio.timeout(5):
                    await read(stream)
        await rig.empty()


@pytest.mark.parametrize("jump_s", [3600.0, -3600.0], ids=["ahead", "back"])
async def test_a_clock_that_jumps_loses_nobody(jump_s):
    """A machine that slept, or a clock that was set: waits may expire, nothing hangs, and the next ones are served."""
    async with Rig(max_num_seqs=2, queue_timeout_s=60.0) as rig:
        rig.executor.step_s = 0.005
        streams = [rig.submit(max_tokens=40) for _ in range(8)]
        reading = [asyncio.create_task(read(stream)) for stream in streams]
        await asyncio.sleep(0.05)
        rig.driver.clock = lambda: time.monotonic_ns() + int(jump_s * NS_PER_S)
        ends = await asyncio.wait_for(asyncio.gather(*reading, return_exceptions=True), 20)
        assert all(not isinstance(end, BaseException) or isinstance(end, Expired) for end in ends)
        assert sum(not isinstance(end, BaseException) for end in ends) >= 2  # those that ran
        await rig.empty()
        _, deltas = await read(rig.submit(max_tokens=4))
        assert deltas[-1].finish_reason == "length"


async def test_one_row_may_fail_alone():
    async with Rig() as rig:
        rig.executor.gate.clear()
        good, bad = rig.submit(max_tokens=4), rig.submit(max_tokens=4)
        run = rig.executor._inner.run
        spoil = iter([True])

        def spoiled(step: Step) -> Outcome:
            outcome = run(step)
            for result in outcome.results:
                if result.seq == 2 and next(spoil, False):
                    result.tokens, result.ended, result.failed = [], None, "its logits are not finite"
            return outcome

        rig.executor._inner.run = spoiled
        rig.executor.gate.set()
        with pytest.raises(EngineFailed, match="not finite"):
            await read(bad)
        assert (await read(good))[1][-1].usage.output_tokens == 4
        assert rig.executor.restarts == 0
        await rig.empty()


async def test_an_executor_that_dies_idle_is_replaced_before_anybody_asks():
    async with Rig() as rig:
        rig.executor.lives = False
        async with asyncio.timeout(5):
            while not rig.executor.restarts:
                await asyncio.sleep(0.02)
        await rig.until_ready()
        assert (await read(rig.submit()))[0]


async def test_drain_lasts_through_a_restart():
    async with Rig(max_num_seqs=1) as rig:
        rig.executor.gate.clear()
        running, waiting = rig.submit(), rig.submit()
        await asyncio.sleep(0.05)
        draining = asyncio.create_task(rig.driver.drain())
        rig.executor.fault = ExecutorLost("gone")
        rig.executor.gate.set()
        with pytest.raises(EngineFailed):
            await read(running)
        assert (await read(waiting))[0]
        async with asyncio.timeout(5):
            await draining


async def test_a_wait_expires_even_while_a_step_hangs():
    async with Rig(max_num_seqs=1, queue_timeout_s=0.2) as rig:
        rig.executor.gate.clear()
        hung = rig.submit()
        await asyncio.sleep(0.05)
        waiting = rig.submit()
        with pytest.raises(Expired):
            async with asyncio.timeout(2):
                await read(waiting)
        rig.executor.gate.set()
        await read(hung)
        await rig.empty()


async def test_a_defect_of_the_loop_is_told_to_everybody_and_hangs_nobody():
    async with Rig() as rig:
        rig.executor.fault = RuntimeError("a defect")
        with pytest.raises(EngineFailed, match="a defect"):
            await read(rig.submit())
        assert not rig.driver.ready
        await rig.empty()


async def test_a_wait_that_is_too_long_expires_while_the_engine_is_busy():
    async with Rig(max_num_seqs=1, queue_timeout_s=0.2) as rig:
        rig.executor.step_s = 0.01
        holding = rig.submit(max_tokens=1500)
        waiting = rig.submit()
        with pytest.raises(Expired):
            await read(waiting)
        holding.close()
        await rig.empty()


async def test_drain_finishes_what_is_inside_and_refuses_what_is_new():
    async with Rig(max_num_seqs=1) as rig:
        streams = [rig.submit() for _ in range(3)]
        draining = asyncio.create_task(rig.driver.drain())
        await asyncio.sleep(0)
        with pytest.raises(Draining):
            rig.submit()
        assert all([(await read(stream))[1][-1].finish_reason == "length" for stream in streams])
        async with asyncio.timeout(5):
            await draining


async def test_close_ends_every_stream_with_an_error_even_in_the_middle_of_a_step():
    rig = Rig(max_num_seqs=1)
    async with rig:
        rig.executor.gate.clear()
        streams = [rig.submit() for _ in range(3)]
        await asyncio.sleep(0.05)
    for stream in streams:
        with pytest.raises(HeadwayError, match="stopped"):
            await read(stream)


async def test_an_unread_stream_holds_no_more_than_its_tokens():
    async with Rig() as rig:
        unread = rig.submit(max_tokens=50)
        await rig.driver.drain()
        assert len(unread._deltas) <= 51
