"""The driver by itself: whoever holds a place leaves it once, and the front hears of it once."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.core.errors import HeadwayError, NoWorker
from headway.core.fleet.worker import WorkerSpec
from headway.core.front.admission import AdmissionLimits
from headway.core.front.front import NOTHING, Front, FrontLimits
from headway.core.request import Request, Usage
from headway.gateway.fleet.driver import FleetDriver, Place


class Clock:
    def __init__(self) -> None:
        self.ns = 1_000_000_000

    def __call__(self) -> int:
        return self.ns


def driver_of(clock: Clock, workers: int = 2, most: int = 2, queue_timeout_ns: int = 0) -> FleetDriver:
    front = Front(AdmissionLimits(10_000, 1 << 40), FrontLimits(queue_timeout_ns), remote=True)
    driver = FleetDriver(front, clock=clock)
    for number in range(workers):
        driver.add_worker(WorkerSpec(id=f"w{number}", first_sequences=most, most_sequences=most))
    return driver


def ask(number: int) -> Request:
    return Request(f"r{number}", range(10), 5)


def inside(driver: FleetDriver) -> tuple[int, ...]:
    admission, fleet = driver.front.admission, driver.front.fleet
    return (admission.requests, admission.waiting, len(driver.places), len(fleet.flights), len(driver.front.lanes))


moves = st.lists(
    st.tuples(
        st.sampled_from(["enter", "enter", "began", "finished", "failed", "lost", "leave", "wait"]), st.integers(0, 30)
    ),
    max_size=80,
)


def moved(place: Place, what: str) -> bool:
    """Do what its owner may do in its state. Has it been left?"""
    if what == "leave" or place.error is not None:
        place.leave()
        place.leave()  # again is nothing
        return True
    if place.dispatch is None:
        return False  # who waits can only wait or leave
    if what == "began":
        place.began()
        return False
    if what == "finished":
        place.told_at_once(3)
        place.finished(Usage(10, 3))
        return True
    if what == "failed":
        place.failed(NOTHING, by_worker=True)
        return True
    try:
        place.lost(NOTHING, began=False)
    except HeadwayError:
        return True
    return False


@given(moves)
@settings(max_examples=200)
def test_every_way_out_leaves_nothing(moves: list[tuple[str, int]]) -> None:
    clock = Clock()
    driver = driver_of(clock, queue_timeout_ns=3_000_000_000)
    held: list[Place] = []
    for number, (what, which) in enumerate(moves):
        clock.ns += 50_000_000
        if what == "enter":
            with contextlib.suppress(HeadwayError):
                held.append(driver.enter(ask(number)))
        elif what == "wait":
            clock.ns += 1_000_000_000
            driver.plan()
            driver.refuse_hopeless()
        elif held and moved(place := held[which % len(held)], what):
            held.remove(place)
        assert len(driver.places) == sum(place.error is None for place in held)
        assert driver.front.admission.requests == len(driver.places)
    for place in held:
        place.leave()
    assert not any(inside(driver))


async def test_a_place_is_told_where_to_go_when_somebody_has_room() -> None:
    clock = Clock()
    driver = driver_of(clock, workers=1, most=1)
    first, second = driver.enter(ask(1)), driver.enter(ask(2))
    assert (await first.placed()).worker == "w0"
    waits = asyncio.ensure_future(second.placed())
    await asyncio.sleep(0)
    assert not waits.done()
    first.began()
    first.finished(Usage(10, 5))
    assert (await waits).worker == "w0"
    second.leave()
    assert not any(inside(driver))


async def test_a_lost_place_is_sent_elsewhere_and_ends_after_three_workers() -> None:
    clock = Clock()
    driver = driver_of(clock, workers=4)
    place = driver.enter(ask(1))
    tried = [(await place.placed()).worker]
    for _ in range(2):
        place.lost(NOTHING, began=False)
        tried.append((await place.placed()).worker)
    assert len(set(tried)) == 3
    with pytest.raises(HeadwayError):
        place.lost(NOTHING, began=False)
    place.leave()
    assert not any(inside(driver))


async def test_who_waits_is_told_when_nobody_is_left() -> None:
    clock = Clock()
    driver = driver_of(clock, workers=1, most=1)
    first, second = driver.enter(ask(1)), driver.enter(ask(2))
    waits = asyncio.ensure_future(second.placed())
    await asyncio.sleep(0)
    driver.drain_worker("w0", draining=True)
    driver.refuse_hopeless()
    assert not waits.done()  # it may come back
    clock.ns += 3_000_000_000
    driver.refuse_hopeless()
    with pytest.raises(NoWorker):
        await waits
    second.leave()
    first.leave()
    assert not any(inside(driver))


async def test_closing_tells_everybody_who_waits() -> None:
    clock = Clock()
    driver = driver_of(clock, workers=1, most=1)
    driver.start()
    first, second = driver.enter(ask(1)), driver.enter(ask(2))
    waits = asyncio.ensure_future(second.placed())
    await asyncio.sleep(0)
    await driver.close()
    with pytest.raises(HeadwayError):
        await waits
    with pytest.raises(HeadwayError):
        driver.enter(ask(3))
    first.leave()
    second.leave()
    assert not any(inside(driver))
