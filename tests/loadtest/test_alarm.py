"""The alarm rings when it should, not before, once, for its last setting; with timer files and without."""

from __future__ import annotations

import asyncio
from time import monotonic_ns

import pytest

from headway.loadtest.runner.alarm import Alarm

MS = 1_000_000


@pytest.fixture(params=["timer file", "loop's timer"])
def rung(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    if request.param == "loop's timer":

        def absent(name: None, **given: object) -> None:
            raise OSError("no such library")

        monkeypatch.setattr("ctypes.CDLL", absent)
    return []


async def test_it_rings_at_its_time_and_once(rung: list[int]) -> None:
    one = Alarm(asyncio.get_running_loop(), lambda: rung.append(monotonic_ns()))
    due_ns = monotonic_ns() + 20 * MS
    one.set(due_ns)
    await asyncio.sleep(0.005)
    assert rung == []
    await asyncio.sleep(0.05)
    assert len(rung) == 1
    assert rung[0] >= due_ns - MS, "a loop's timer may be a fraction of its resolution early"
    one.close()


async def test_a_time_that_is_past_rings_at_once(rung: list[int]) -> None:
    one = Alarm(asyncio.get_running_loop(), lambda: rung.append(0))
    for past_ns in (monotonic_ns() - 5, 0):
        one.set(past_ns)
        await asyncio.sleep(0.02)
    assert len(rung) == 2
    one.close()


async def test_the_last_setting_counts(rung: list[int]) -> None:
    one = Alarm(asyncio.get_running_loop(), lambda: rung.append(monotonic_ns()))
    one.set(monotonic_ns() + 5 * MS)
    one.set(later_ns := monotonic_ns() + 40 * MS)
    await asyncio.sleep(0.08)
    assert len(rung) == 1
    assert rung[0] >= later_ns - MS
    one.close()


async def test_a_closed_alarm_is_silent(rung: list[int]) -> None:
    one = Alarm(asyncio.get_running_loop(), lambda: rung.append(0))
    one.set(monotonic_ns() + 10 * MS)
    one.close()
    one.close()
    await asyncio.sleep(0.03)
    assert rung == []
