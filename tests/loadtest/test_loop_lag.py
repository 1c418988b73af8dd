"""A client that does not look: told as what it is, and never as the server's latency."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import time
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.loadtest.client.limits import Limits
from headway.loadtest.result import Word
from headway.loadtest.runner.loop_lag import FREEZE_NS, SAMPLE_NS, LoopLag, freezes_s, lags_within_s
from headway.loadtest.runner.plan import ClosedLoad
from headway.loadtest.runner.run import run
from headway.workload.item import Item
from tests.loadtest import queues, runs
from tests.loadtest.servers import plan_for
from tests.loadtest.speaking import speaking

MS = 1_000_000


def looked_at(*moments_ns: int) -> list[int]:
    """The samples of a loop that looks at these moments only."""
    samples: list[int] = []
    for now_ns in moments_ns:
        while len(samples) * SAMPLE_NS <= now_ns:
            samples.append(now_ns - len(samples) * SAMPLE_NS)
    return samples


def test_a_freeze_weighs_as_long_as_it_lasts():
    """9 s of a minute: 15 % of all moments waited, and p99 is what they waited."""
    samples = looked_at(*range(0, 30_000 * MS, SAMPLE_NS), 39_000 * MS, *range(39_000 * MS, 60_000 * MS, SAMPLE_NS))
    lags = lags_within_s(samples, (0.0, 60.0))
    assert len(lags) == 60e9 / SAMPLE_NS
    assert float(np.mean(lags > 0)) == pytest.approx(0.15, abs=0.001)
    assert float(np.quantile(lags, 0.99)) == pytest.approx(9.0 - 0.6, abs=0.05)
    [(start_s, end_s)] = freezes_s(samples)
    assert (start_s, end_s) == pytest.approx((30.0, 39.0), abs=1.1e-9 * SAMPLE_NS)


@given(st.lists(st.integers(1, 400), max_size=30))
def test_freezes_are_apart_and_each_is_one_wait(steps_ms):
    """Whatever the moments: they are told in order, none twice, and none that is shorter than it takes to be one."""
    moments = np.cumsum(steps_ms) * MS
    found = freezes_s(looked_at(0, *moments.tolist()))
    assert all(end - start >= FREEZE_NS / 1e9 - 1e-9 for start, end in found)
    assert all(one[1] <= other[0] + 1e-9 for one, other in pairwise(found))
    waits = np.diff(np.concatenate(([0], moments)))
    assert (waits >= FREEZE_NS + SAMPLE_NS).sum() <= len(found) <= (waits >= FREEZE_NS).sum()


def test_lags_are_cut_to_the_window():
    samples, a_sample_s = list(range(100)), SAMPLE_NS / 1e9
    window_s = (20 * a_sample_s, 50 * a_sample_s)
    assert len(lags_within_s(samples, window_s)) == 30
    assert lags_within_s(samples, window_s)[0] == pytest.approx(20e-9)
    assert len(lags_within_s(samples, (90 * a_sample_s, 5.0))) == 10
    assert len(lags_within_s([], (0.0, 5.0))) == 0


async def test_the_end_of_a_run_is_looked_at_too():
    """The loop is busy from the middle of a run to its end."""
    lag = LoopLag(asyncio.get_running_loop(), time.monotonic_ns())
    await asyncio.sleep(0.03)
    time.sleep(0.3)  # noqa: ASYNC251 - what is tested
    samples = lag.close()
    assert max(samples) >= 0.25e9
    assert freezes_s(samples)
    assert lag.close() is samples


# -- the verdict ---------------------------------------------------------------------------------------------------


def requests(service_s: float, rate: float = 5.0):
    due = np.arange(0, 100, 1 / rate)
    return queues.records(queues.Served(due, due, due + service_s))


def test_a_freeze_that_many_requests_were_in_is_the_clients():
    found = runs.run(requests(0.5), runs.load(100.0), freezes=[(20.0, 29.0, 0)]).verdict
    assert found.name == Word.CLIENT_LIMITED
    assert found.findings[0].evidence == (
        "the client itself stood still or fell behind for 9 s (20.00–29.00 s) while 47 of 500 measured requests were "
        "in flight"
    )


def test_a_freeze_that_hardly_any_was_in_is_told():
    freezes = [(20.01, 20.12, 0), (30.01, 30.15, 0)]
    found = runs.run(requests(0.52, rate=20), runs.load(100.0), freezes=freezes).verdict
    assert found.name == Word.VALID
    [told] = found.remarks
    assert told.startswith(
        "the client itself stood still or fell behind 2 times, the longest for 0.14 s (30.01–30.15 s) while 13 of"
    )


def test_a_freeze_between_requests_is_nobodys():
    assert not runs.run(requests(0.05), runs.load(100.0), freezes=[(20.06, 20.19, 0)]).client.freezes
    outside = runs.run(requests(0.5), runs.load(100.0, warmup_s=50.0), freezes=[(20.0, 29.0, 0)])
    assert not outside.client.freezes


def test_a_freeze_of_half_a_long_answer_is_the_clients_though_few_began_or_ended_in_it():
    """Nobody's first token or end falls into it; 100 requests have a gap of 9 s that the server did not make."""
    due = np.arange(0, 100.0)
    long = queues.records(queues.Served(due * 0.001, due * 0.001, 30 + due * 0.001), prefill=0.01)
    found = runs.run(long, runs.load(None, loop="closed", concurrency=100), freezes=[(10.0, 19.0, 0)])
    assert found.client.freezes[0].mistimed == 0
    assert found.verdict.name == Word.CLIENT_LIMITED


# -- a process that is stopped ---------------------------------------------------------------------------------------


async def test_a_client_process_that_is_stopped_says_so():
    before = set(multiprocessing.active_children())
    async with speaking(gap_s=0.01) as server:
        load = ClosedLoad([Item(5, 5)] * 2000, 4, duration_s=4.0)
        plan = plan_for(server.url, load, limits=Limits(), processes=1)
        running = asyncio.create_task(run(plan))
        while not server.asked:
            await asyncio.sleep(0.02)
        await asyncio.sleep(0.5)
        [child] = set(multiprocessing.active_children()) - before
        assert child.pid is not None
        os.kill(child.pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(1.5)
        finally:
            os.kill(child.pid, signal.SIGCONT)
        measured = await running
    longest = max(measured.freezes, key=lambda freeze: freeze[1] - freeze[0])
    assert longest[1] - longest[0] == pytest.approx(1.5, abs=0.5)
    what = runs.load(4.0, loop="closed", profile="concurrency", concurrency=4)
    told = runs.run(
        measured.records, what, loop_lags_s=measured.loop_lags_s((0.0, 4.0)), freezes=measured.freezes
    ).verdict
    assert told.name == Word.CLIENT_LIMITED
    assert any(finding.evidence.startswith("the client itself stood still") for finding in told.findings)
