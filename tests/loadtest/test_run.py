"""Loads made for real: schedules are kept, slots are kept busy, an end is an end, whatever brought it."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from headway.loadtest.client.limits import Limits
from headway.loadtest.errors import InvalidPlan, Unreachable
from headway.loadtest.record import Fate, Record
from headway.loadtest.runner.plan import ClosedLoad, OpenLoad
from headway.loadtest.runner.progress import Progress
from headway.loadtest.runner.run import Runner, run
from headway.workload.item import Arrival, Item
from tests.loadtest.servers import QUICK, Turn, error, plan_for, serving, stream, talks, whole, words

MS = 1_000_000
ITEM = Item(5, 3, kind="short", tenant="t")


def arrivals(number: int, every_ms: float) -> list[Arrival]:
    return [Arrival(int(place * every_ms * MS), ITEM) for place in range(number)]


async def test_an_open_loop_keeps_its_schedule_whatever_the_server_does() -> None:
    """Every request is sent, once, with the time it was due; nothing waits for an answer."""
    most = 0

    async def slow(turn: Turn) -> None:
        nonlocal most
        most = max(most, len(server.writers))
        await asyncio.sleep(0.3)
        await talks(turn)

    load = arrivals(100, 2)
    async with serving(slow) as server:
        measured = await run(plan_for(server.url, OpenLoad(load)))
    records = measured.records
    assert [record.index for record in records] == list(range(100))
    assert [record.scheduled_ns for record in records] == [arrival.at_ns for arrival in load]
    assert all(record.sent_ns >= record.scheduled_ns for record in records)
    assert {record.fate for record in records} == {Fate.OK}
    assert {(record.kind, record.tenant, record.asked_input_tokens) for record in records} == {("short", "t", 5)}
    assert most > 50, "no cap on concurrency"
    assert (measured.processes, measured.interrupted, measured.ended_early) == (1, False, "")


async def test_a_stall_shows_in_an_open_loop_and_hides_in_a_closed_one() -> None:
    """The server freezes for half a second, once. Those who would have come meanwhile are the whole difference."""

    def stalling() -> Any:
        stalled_until_s = 0.0

        async def script(turn: Turn) -> None:
            nonlocal stalled_until_s
            if turn.number == 60:
                stalled_until_s = turn.asked.at_s + 0.5
            await asyncio.sleep(max(0.0, stalled_until_s - asyncio.get_running_loop().time()))
            await talks(turn)

        return script

    async with serving(stalling()) as server:
        opened = (await run(plan_for(server.url, OpenLoad(arrivals(150, 6))))).records
    async with serving(stalling()) as server:
        closed = (await run(plan_for(server.url, requests=300))).records
    assert ttft_p99_s(opened) > 0.4
    assert ttft_p99_s(closed) < 0.25
    assert 1 <= sum(ttft_s(record) > 0.25 for record in closed) <= 3
    assert sum(ttft_s(record) > 0.25 for record in opened) > 20


def ttft_s(record: Record) -> float:
    return (record.first_ns - record.scheduled_ns) / 1e9


def ttft_p99_s(records: list[Record]) -> float:
    return float(np.percentile([ttft_s(record) for record in records], 99))


@pytest.mark.parametrize("concurrency", [1, 4])
async def test_a_closed_loop_keeps_its_slots_busy_and_no_more(concurrency: int) -> None:
    inside = most = 0

    async def script(turn: Turn) -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await asyncio.sleep(0.005)
        inside -= 1
        await talks(turn)

    async with serving(script) as server:
        measured = await run(plan_for(server.url, requests=24, concurrency=concurrency))
    records = measured.records
    assert most == concurrency
    assert len(records) == 24
    starts = sorted(record.scheduled_ns for record in records)
    ends = sorted(record.ended_ns for record in records)
    assert starts[:concurrency] == [0] * concurrency
    assert starts[concurrency:] == ends[: 24 - concurrency], "a slot is free when its request has ended"
    assert measured.connections == concurrency


async def test_time_to_think() -> None:
    async with serving(talks) as server:
        load = ClosedLoad([ITEM] * 4, 1, think_s=0.05)
        records = (await run(plan_for(server.url, load))).records
    for before, after in itertools.pairwise(records):
        assert after.scheduled_ns == before.ended_ns + 50 * MS
        assert after.sent_ns >= after.scheduled_ns


async def test_a_closed_loop_over_a_time() -> None:
    async with serving(talks) as server:
        load = ClosedLoad(itertools.repeat(ITEM), 2, duration_s=0.3)
        measured = await run(plan_for(server.url, load))
    assert measured.records
    assert all(record.scheduled_ns < 300 * MS for record in measured.records)
    assert {record.fate for record in measured.records} == {Fate.OK}


async def test_a_slot_that_got_nothing_does_not_flood_a_dead_server() -> None:
    async def dying(turn: Turn) -> None:
        turn.close()

    async with serving(dying) as server:
        load = ClosedLoad(itertools.repeat(ITEM), 2, duration_s=0.5)
        records = (await run(plan_for(server.url, load))).records
    assert {record.fate for record in records} == {Fate.CONNECTION}
    assert len(records) <= 2 * 6


async def test_an_open_load_that_is_over_at_once() -> None:
    async with serving(talks) as server:
        measured = await run(plan_for(server.url, OpenLoad([])))
    assert measured.records == []
    assert measured.ended_early == ""


# -- ends --------------------------------------------------------------------------------------------------------------


async def test_ctrl_c_ends_the_offering_and_returns_what_was_measured() -> None:
    async def script(turn: Turn) -> None:
        if turn.number == 20:
            os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(0.02)
        await talks(turn)

    handler = signal.getsignal(signal.SIGINT)
    async with serving(script) as server:
        measured = await run(plan_for(server.url, OpenLoad(arrivals(1000, 5))))
    assert measured.interrupted
    assert 20 <= len(measured.records) < 2500, "of 5,000; a busy machine sends some more before it hears"
    assert {record.fate for record in measured.records} == {Fate.OK}, "what was under way was waited for"
    assert signal.getsignal(signal.SIGINT) is handler


async def test_a_second_ctrl_c_does_not_wait() -> None:
    async def script(turn: Turn) -> None:
        if turn.number < 3:
            await talks(turn)
            return
        if turn.number == 4:
            await asyncio.sleep(0.05)
            load.stop()
            load.stop()
        await asyncio.sleep(60)

    async with serving(script) as server:
        load = Runner(plan_for(server.url, OpenLoad(arrivals(1000, 5)), limits=Limits()))
        measured = await load.run()
    assert measured.interrupted
    assert [record.fate for record in measured.records[:3]] == [Fate.OK] * 3
    assert {record.fate for record in measured.records[3:]} == {Fate.CANCELLED}


async def test_ctrl_c_while_the_last_are_waited_for() -> None:
    async def script(turn: Turn) -> None:
        if turn.number == 4:
            await asyncio.sleep(0.05)
            load.stop()
        await asyncio.sleep(60)

    limits = Limits(drain_s=60, interrupted_drain_s=0.1)
    async with serving(script) as server:
        load = Runner(plan_for(server.url, OpenLoad(arrivals(5, 1)), limits=limits))
        measured = await asyncio.wait_for(load.run(), 10)
    assert measured.interrupted
    assert [record.fate for record in measured.records] == [Fate.CANCELLED] * 5


@pytest.mark.parametrize("processes", [0, 2])
async def test_stopped_before_it_began(processes: int) -> None:
    async with serving(talks) as server:
        load = Runner(plan_for(server.url, OpenLoad(arrivals(1000, 5)), processes=processes))
        load.stop()
        measured = await load.run()
    assert measured.interrupted
    assert measured.records == []


async def test_refusals_do_not_end_a_run_but_failures_do() -> None:
    from tests.loadtest.servers import answering, error, whole

    limits = Limits(give_up_s=0.2, drain_s=1)
    for status, ended in ((429, False), (500, True), (401, True)):
        number = 5000 if ended else 75
        async with serving(answering(whole(error("no key sk-secret"), status=status))) as server:
            plan = plan_for(
                server.url, OpenLoad(arrivals(number, 8)), limits=limits, headers={"authorization": "Bearer sk-secret"}
            )
            measured = await run(plan)
        assert bool(measured.ended_early) is ended
        assert (len(measured.records) < number) is ended
        assert "sk-secret" not in repr((measured, measured.records))
        if ended:
            assert f"HTTP {status}: no key ***" in measured.ended_early


async def test_a_slow_server_is_not_a_dead_one() -> None:
    """Nothing succeeds for long, and nothing fails."""

    async def slow(turn: Turn) -> None:
        await asyncio.sleep(0.8)
        await talks(turn)

    async with serving(slow) as server:
        plan = plan_for(server.url, requests=8, concurrency=8, limits=Limits(give_up_s=0.2))
        measured = await run(plan)
    assert measured.ended_early == ""
    assert {record.fate for record in measured.records} == {Fate.OK}


async def test_nobody_there_is_told_before_the_load() -> None:
    async with serving(talks) as server:
        await server.die()
        with pytest.raises(Unreachable):
            await run(plan_for(server.url))


# -- bad plans ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("times", "words"),
    [
        ((-1, 0), "Arrival 0 is due at -1 ns, before the start"),
        ((5, 3), r"Arrival 1 is due at 3 ns, before the one in"),
    ],
)
async def test_a_schedule_out_of_order(times: tuple[int, int], words: str) -> None:
    async with serving(talks) as server:
        with pytest.raises(InvalidPlan, match=words):
            await run(plan_for(server.url, OpenLoad([Arrival(at_ns, ITEM) for at_ns in times])))


async def test_items_that_fail_later_end_the_run_with_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.loadtest.runner.prefetch.MAX_AHEAD", 10)

    def items() -> Iterator[Item]:
        yield from [ITEM] * 30
        raise ValueError("line 31 is torn")

    async with serving(talks) as server:
        measured = await run(plan_for(server.url, ClosedLoad(items(), 2, requests=100)))
    assert len(measured.records) == 30
    assert {record.fate for record in measured.records} == {Fate.OK}
    assert "line 31 is torn" in measured.ended_early


async def test_arrivals_that_fail_at_once_are_told_before_the_load() -> None:
    def arrivals() -> Iterator[Arrival]:
        yield Arrival(0, ITEM)
        raise ValueError("trace.csv:3: no time")

    async with serving(talks) as server:
        with pytest.raises(InvalidPlan, match=r"The load cannot be made: trace\.csv:3: no time"):
            await run(plan_for(server.url, OpenLoad(arrivals)))
    assert server.asked == []


async def test_a_prompt_that_cannot_be_made_is_told_at_once() -> None:
    async with serving(talks) as server:
        plan = plan_for(server.url)
        object.__setattr__(plan, "prompts", lambda item, index: [1, 2, 3])
        with pytest.raises(InvalidPlan, match="Token ids cannot be sent to /chat"):
            await run(plan)


def test_plans_that_make_no_sense() -> None:
    for bad in (
        lambda: ClosedLoad([ITEM], 0),
        lambda: ClosedLoad(itertools.repeat(ITEM), 1),
        lambda: ClosedLoad([ITEM], 1, duration_s=0.0),
        lambda: ClosedLoad([ITEM], 1, think_s=float("nan")),
        lambda: Limits(timeout_s=0.0),
        lambda: Limits(drain_s=-1.0),
        lambda: plan_for("http://h", processes=-1),
    ):
        with pytest.raises(InvalidPlan):
            bad()


# -- progress ----------------------------------------------------------------------------------------------------------


async def test_progress_adds_up() -> None:
    async def script(turn: Turn) -> None:
        await asyncio.sleep(0.02)
        turn.write(stream(*words(3)))

    told: list[Progress] = []
    async with serving(script) as server:
        measured = await run(plan_for(server.url, OpenLoad(arrivals(100, 10))), on_progress=told.append)
    assert told
    for before, after in itertools.pairwise(told):
        assert before.sent <= after.sent
        assert before.done <= after.done
        assert before.elapsed_s <= after.elapsed_s
    for one in told:
        assert one.sent == one.done + one.in_flight
    assert (told[-1].sent, told[-1].done, told[-1].errors) == (100, 100, 0)
    assert not told[-1].offering
    assert told[-1].recent_ttft is not None
    assert told[-1].recent_ttft.p50_s >= 0.02
    assert measured.elapsed_s >= 1.0


async def test_a_display_that_fails_does_not_cost_the_run() -> None:
    def fails(progress: Progress) -> None:
        raise RuntimeError("no terminal")

    async with serving(talks) as server:
        measured = await run(plan_for(server.url, OpenLoad(arrivals(30, 10))), on_progress=fails)
    assert len(measured.records) == 30


async def test_a_defect_of_the_client_is_no_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    from headway.loadtest.client.reading import Reading
    from headway.loadtest.errors import ClientFailed

    def broken(self: Reading, data: bytes, now_ns: int) -> None:
        raise KeyError("oops")

    monkeypatch.setattr(Reading, "feed", broken)
    async with serving(talks) as server:
        with pytest.raises(ClientFailed, match="oops"):
            await run(plan_for(server.url, requests=3))


def test_quick_limits_are_what_tests_wait() -> None:
    assert QUICK.timeout_s <= 5


async def test_progress_tells_the_last_error() -> None:
    told: list[Progress] = []

    async def script(turn: Turn) -> None:
        turn.write(whole(error("the blue pipe is blocked"), status=500))

    async with serving(script) as server:
        await run(plan_for(server.url, OpenLoad(arrivals(60, 10))), on_progress=told.append)
    assert "the blue pipe is blocked" in told[-1].last_error
    assert told[-1].errors == 60
