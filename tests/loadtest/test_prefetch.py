"""What is made ahead of a load, and when a closed loop is over: no longer than needed, no shorter than wanted."""

from __future__ import annotations

import asyncio
import itertools
import time

import pytest

from headway.loadtest.result import Load, Word
from headway.loadtest.runner.pace import ClosedPace
from headway.loadtest.runner.plan import ClosedLoad
from headway.loadtest.runner.prefetch import Prefetch, untimed
from headway.loadtest.runner.run import run
from headway.workload.item import Item
from tests.loadtest.runs import run as run_of
from tests.loadtest.servers import Turn, plan_for, serving, talks

MS = 1_000_000
ITEM = Item(5, 3)


def test_an_endless_closed_loop_begins_with_what_it_needs() -> None:
    """Not with a full store: two for each slot at least, and what a second makes; more only as it is used up."""
    made = 0

    def make(_item: Item, _index: int) -> bytes:
        nonlocal made
        time.sleep(0.004)
        made += 1
        return b"x"

    prefetch = Prefetch(untimed(itertools.repeat(ITEM), None), make, least=20)
    try:
        prefetch.warm(30.0)
        time.sleep(0.1)
        before = made
        time.sleep(0.1)
        assert 20 <= before == made < 1000, "five seconds would make 1,250"
        assert [prefetch.pop().index for _ in range(before)] == list(range(before))
        until_s = time.monotonic() + 10
        while made == before and time.monotonic() < until_s:
            time.sleep(0.01)
        assert made > before
    finally:
        prefetch.close()


@pytest.mark.slow
async def test_a_closed_loop_goes_on_until_it_has_enough() -> None:
    async def script(turn: Turn) -> None:
        await asyncio.sleep(0.02)
        await talks(turn)

    items = itertools.repeat(ITEM)
    async with serving(script) as server:
        enough = ClosedLoad(items, 2, duration_s=0.3, at_least=40, most_s=60.0)
        assert len((await run(plan_for(server.url, enough))).records) == 40
        bounded = ClosedLoad(items, 2, duration_s=0.5, at_least=100_000, most_s=2.0)
        assert 2 < len((await run(plan_for(server.url, bounded))).records) <= 210
        met = ClosedLoad(items, 2, duration_s=2.0, at_least=1, most_s=60.0)
        assert 2 < len((await run(plan_for(server.url, met))).records) <= 210


async def test_a_client_that_comes_late_sends_what_was_due_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """A closed loop that is over before this client came to it is no load without requests, but one that was late."""
    start = ClosedPace.start

    def late(pace: ClosedPace, zero_ns: int) -> None:
        asyncio.get_running_loop().call_later(0.4, start, pace, zero_ns)

    monkeypatch.setattr(ClosedPace, "start", late)
    async with serving(talks) as server:
        measured = await run(plan_for(server.url, ClosedLoad(itertools.repeat(ITEM), 3, duration_s=0.01)))
    assert [record.scheduled_ns for record in measured.records] == [0, 0, 0]
    assert all(record.sent_ns > 100 * MS for record in measured.records)
    load = Load(profile="concurrency", loop="closed", description="", duration_s=0.01, concurrency=3)
    told = run_of(measured.records, load).verdict
    assert told.name is Word.CLIENT_LIMITED
    assert [finding.verdict for finding in told.findings][-1] is Word.TOO_FEW_SAMPLES
