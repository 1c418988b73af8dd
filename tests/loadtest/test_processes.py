"""Several client processes: the same requests as one would send, each sent once, and nothing lost on the way back."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import os
import signal
import time
from array import array
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.loadtest.errors import InvalidPlan, Unreachable
from headway.loadtest.record import CountedBy, Fate, Record
from headway.loadtest.runner.measure import Measurement
from headway.loadtest.runner.packing import pack, unpack
from headway.loadtest.runner.plan import ClosedLoad, OpenLoad
from headway.loadtest.runner.prefetch import Prefetch, timed, untimed
from headway.loadtest.runner.processes import Processes
from headway.loadtest.runner.progress import Progress
from headway.loadtest.runner.run import Runner, run
from headway.workload.item import Arrival, Item
from tests.loadtest.servers import Turn, plan_for, serving, talks

TIMES = st.integers(-1, 2**62)
COUNTS = st.integers(-1, 2**31)
RECORDS = st.lists(
    st.builds(
        Record,
        COUNTS,
        st.sampled_from(["", "short", "long"]),
        st.text(max_size=5),
        COUNTS,
        COUNTS,
        TIMES,
        sent_ns=TIMES,
        headers_ns=TIMES,
        first_ns=TIMES,
        last_ns=TIMES,
        ended_ns=TIMES,
        gaps_ns=st.lists(st.integers(0, 2**62), max_size=5).map(lambda gaps: array("q", gaps)),
        gap_tokens=st.lists(st.integers(0, 65535), max_size=5).map(lambda tokens: array("H", tokens)),
        fate=st.sampled_from(Fate),
        status=st.sampled_from([0, 200, 503]),
        error=st.text(max_size=9),
        counted=st.sampled_from(CountedBy),
        reasoning=st.booleans(),
        retry_after_s=st.sampled_from([-1.0, 0.25, 60.0]),
        server_timing=st.text(max_size=9),
    ),
    max_size=8,
)


@settings(deadline=None)
@given(RECORDS)
def test_what_is_unpacked_is_what_was_packed(records: list[Record]) -> None:
    came = unpack(pack(records))
    assert [dataclasses.asdict(record) for record in came] == [dataclasses.asdict(record) for record in records]
    assert {type(record.reasoning) for record in came} <= {bool}


@settings(deadline=None)
@given(st.integers(0, 40), st.integers(1, 7))
def test_every_arrival_is_of_one_process(number: int, of: int) -> None:
    load = [Arrival(place, Item(place, 1)) for place in range(number)]
    taken = []
    for share in range(of):
        prefetch = Prefetch(timed(load), lambda item, index: b"%d" % index, share=share, of=of)
        prefetch.warm()
        mine = []
        while not prefetch.exhausted:
            mine.append(prefetch.pop())
        prefetch.close()
        assert [due.index for due in mine] == list(range(share, number, of))
        taken += mine
    taken.sort(key=lambda due: due.index)
    assert [due.at_ns for due in taken] == list(range(number))
    assert all(due.request == b"%d" % due.index == b"%d" % due.item.input_tokens for due in taken)


def load_of(number: int, every_ns: int) -> Iterator[Arrival]:
    """Read anew in every process."""
    for place in range(number):
        yield Arrival(place * every_ns, Item(5 + place, 1 + place % 4, kind="even" if place % 2 == 0 else "odd"))


def facts(record: Record) -> dict[str, Any]:
    told = dataclasses.asdict(record)
    for name in ("sent_ns", "headers_ns", "first_ns", "last_ns", "ended_ns"):
        told[name] = told[name] >= 0
    told["gaps_ns"] = len(told["gaps_ns"])
    return told


@pytest.mark.slow
async def test_three_processes_make_the_records_of_one() -> None:
    load = OpenLoad(functools.partial(load_of, 50, 4_000_000))
    async with serving(talks) as server:
        one = await run(plan_for(server.url, load))
        bodies = sorted(asked.body for asked in server.asked)
        server.asked.clear()
        three = await run(plan_for(server.url, load, processes=3))
        assert sorted(asked.body for asked in server.asked) == bodies
    assert [facts(record) for record in three.records] == [facts(record) for record in one.records]
    assert (one.processes, three.processes) == (1, 3)
    assert all(record.sent_ns >= record.scheduled_ns for record in three.records)
    assert all(three.loop_lags_ns)
    assert len(three.loop_lags_ns) == 3
    assert three.cpu_ratio > 0


@pytest.mark.slow
async def test_a_closed_loop_is_split_by_slots() -> None:
    inside = most = 0

    async def script(turn: Turn) -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await asyncio.sleep(0.02)
        inside -= 1
        await talks(turn)

    async with serving(script) as server:
        measured = await run(plan_for(server.url, ClosedLoad([Item(5, 3)] * 30, 3), processes=2))
        assert most == 3
        assert [record.index for record in measured.records] == list(range(30))
        alone = await run(plan_for(server.url, ClosedLoad([Item(5, 3)] * 4, 1), processes=4))
        assert alone.processes == 1, "a process without a slot is not started"


@pytest.mark.slow
async def test_ctrl_c_reaches_every_process() -> None:
    told: list[Progress] = []

    async def script(turn: Turn) -> None:
        if turn.number == 20:
            os.kill(os.getpid(), signal.SIGINT)
        await talks(turn)

    async with serving(script) as server:
        load = OpenLoad(functools.partial(load_of, 10_000, 5_000_000))
        measured = await run(plan_for(server.url, load, processes=2), on_progress=told.append)
    assert measured.interrupted
    assert 20 <= len(measured.records) < 1000
    indices = [record.index for record in measured.records]
    assert indices == sorted(set(indices))
    assert {index % 2 for index in indices} == {0, 1}
    assert told[-1].sent == len(indices)


@settings(deadline=None)
@given(st.integers(0, 60), st.integers(1, 7), st.data())
def test_every_request_of_a_closed_loop_has_a_slot(number: int, concurrency: int, data: st.DataObject) -> None:
    """Three slots of two processes: two of three requests are of the one that has two of them."""
    of = data.draw(st.integers(1, concurrency))
    taken = []
    for share in range(of):
        prefetch = Prefetch(untimed([Item(1, 1)] * number, None), lambda *_: b"", share=share, of=of, slots=concurrency)
        prefetch.warm()
        mine = []
        while not prefetch.exhausted:
            mine.append(prefetch.pop().index)
        prefetch.close()
        slots = len(range(share, concurrency, of))
        assert abs(len(mine) - number * slots / concurrency) <= slots
        taken += mine
    assert sorted(taken) == list(range(number))


async def test_a_closed_loop_of_two_processes_keeps_all_its_slots_until_it_ends() -> None:
    """Three at a time, 50 ms each. One process has two of the slots, so it must have two of three requests: with half
    of them it would be through early, and a third of the load make the rest of the run.
    """

    async def script(turn: Turn) -> None:
        await asyncio.sleep(0.05)
        await talks(turn)

    async with serving(script) as server:
        plan = plan_for(server.url, ClosedLoad([Item(5, 3)] * 30, 3))
        both = [Measurement(plan, share=share, of=2) for share in range(2)]
        for one in both:
            await one.prepare()
        zero_ns = time.monotonic_ns() + 20_000_000
        parts = await asyncio.gather(*(one.run(zero_ns) for one in both))
    records = [record for part in parts for record in part.records]
    assert [len(part.records) for part in parts] == [20, 10]
    until_ns = min(part.ran_out_ns for part in parts)
    assert until_ns >= 0.9 * max(record.sent_ns for record in records)
    for at_ns in range(0, until_ns, 1_000_000):
        assert sum(record.scheduled_ns <= at_ns < record.ended_ns for record in records) == 3


async def test_what_has_ended_survives_a_process_that_dies() -> None:
    async def script(turn: Turn) -> None:
        if turn.number == 90:
            os.kill(victim(load), signal.SIGKILL)
        await talks(turn)

    async with serving(script) as server:
        arrivals = OpenLoad(functools.partial(load_of, 100, 10_000_000))
        load = Runner(plan_for(server.url, arrivals, processes=2))
        measured = await load.run()
    assert "client process 1 died by signal 9: what had not ended of its requests is lost" in measured.ended_early
    assert measured.client_failed
    indices = [record.index for record in measured.records]
    assert [index for index in indices if index % 2 == 0] == list(range(0, 100, 2)), "the other was not disturbed"
    survived = [index for index in indices if index % 2]
    assert survived == list(range(1, 2 * len(survived), 2))
    assert len(survived) >= 10, "all but of the last quarter of a second, and of what was under way"


async def test_a_stuck_process_is_left_after_the_second_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.loadtest.runner.processes.END_S", 0.5)

    async def script(turn: Turn) -> None:
        if turn.number == 80:
            os.kill(victim(load), signal.SIGSTOP)
            load.stop()
            load.stop()
        await talks(turn)

    async with serving(script) as server:
        load = Runner(plan_for(server.url, OpenLoad(functools.partial(load_of, 10_000, 10_000_000)), processes=2))
        measured = await asyncio.wait_for(load.run(), 20)
    assert measured.interrupted
    assert "client process 1 did not end when it was told to" in measured.ended_early
    assert {record.index % 2 for record in measured.records} == {0, 1}


async def test_a_stuck_process_does_not_hold_up_whoever_shares_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.loadtest.runner.processes.END_S", 0.5)
    plan = plan_for("http://127.0.0.1:9", OpenLoad(functools.partial(load_of, 1, 1)), processes=1)
    processes, turns = Processes(plan), 0
    os.kill(processes._children[0]._process.pid or 0, signal.SIGSTOP)
    closing = asyncio.create_task(processes.close())
    while not closing.done():
        await asyncio.sleep(0.01)
        turns += 1
    await closing
    assert turns > 5


def victim(load: Any) -> int:
    pid: int = load._body._children[1]._process.pid
    return pid


async def test_what_is_wrong_in_a_process_is_raised_here() -> None:
    async with serving(talks) as server:
        with pytest.raises(InvalidPlan, match="due at -5 ns"):
            await run(plan_for(server.url, OpenLoad([Arrival(-5, Item(1, 1))]), processes=2))
        with pytest.raises(InvalidPlan, match="cannot be sent to client processes"):
            await run(plan_for(server.url, OpenLoad(iter([])), processes=1, count_tokens=lambda text: 1))
        await server.die()
        with pytest.raises(Unreachable, match="connection refused"):
            await run(plan_for(server.url, processes=2))
