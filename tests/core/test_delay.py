"""How much later than predicted first tokens come: known from the first on, and of each worker by itself."""

from __future__ import annotations

import random
from typing import Any

import pytest

from headway.core.fleet.breaker import FAILURES
from headway.core.fleet.delay import Delay
from headway.core.fleet.worker import WorkerSpec
from headway.core.front.admission import AdmissionLimits
from headway.core.front.front import Front, FrontLimits
from headway.core.request import Request, Slo, State, Usage

MS = 1_000_000
S = 1_000 * MS
LIMITS = AdmissionLimits(1 << 20, 1 << 50, max_waiting=1 << 40, max_waiting_tokens=1 << 50)


@pytest.mark.parametrize("draw", [lambda d: d.gauss(30, 60), lambda d: d.expovariate(1 / 80)], ids=["even", "skewed"])
def test_few_come_later_than_is_said_from_the_second_on(draw):
    draws = random.Random(4)
    runs, later, most_ns = 200, [0] * 100, 0.0
    for _ in range(runs):
        delay = Delay()
        for number in range(100):
            late_ns = draw(draws) * MS
            later[number] += late_ns > delay.most_ns
            delay.observe(late_ns)
        most_ns += delay.most_ns / runs
    assert sum(later[1:11]) < 0.15 * 10 * runs, "a new worker's too"
    assert sum(later[20:]) < 0.08 * 80 * runs
    assert most_ns < 300 * MS, "as much as it takes, and not more"


def test_first_tokens_that_come_sooner_than_predicted_are_no_delay():
    delay = Delay()
    for _ in range(50):
        delay.observe(-20.0 * MS)
    assert delay.most_ns == 0.0


def test_what_was_long_ago_is_forgotten():
    delay = Delay()
    for late_ms in [400] * 500 + [10] * 100:
        delay.observe(late_ms * MS)
    assert delay.most_ns < 30 * MS


# -- of a fleet --------------------------------------------------------------------------------------------------------


def fleet(*specs: WorkerSpec) -> Front:
    front = Front(LIMITS, FrontLimits(), remote=True)
    for spec in specs:
        front.add_worker(spec, 0)
    return front


def answered(front: Front, now: int, takes_ms: dict[str, int], *, count: int = 40, **asks: Any) -> int:
    """One after another, each with a first token as late as its worker has them. Returns when the last ended."""
    for number in range(count):
        front.submit(Request(f"{now}-{number}", range(100), 10, **asks), now)
        (dispatch,) = front.plan(now)
        now += takes_ms[dispatch.worker] * MS  # type: ignore[union-attr]
        front.began(dispatch.request.id, now)
        front.settle(dispatch.request.id, Usage(100, 10), now, end=State.FINISHED)
    return now


def waits_ns(front: Front, now: int, promised_ns: int, **asks: Any) -> int:
    """How long one that comes now may wait for its promise to be kept."""
    request = Request(f"promised-{now}-{promised_ns}", range(100), 10, slo=Slo(ttft_ns=promised_ns), **asks)
    front.submit(request, now)
    latest_ns = request.latest_start_ns - now
    assert front.cancel(request.id, now)
    return latest_ns


QUICK, SLOW = 100, 2_000


def two_models() -> tuple[Front, int]:
    front = fleet(WorkerSpec("quick", models=frozenset({"q"})), WorkerSpec("slow", models=frozenset({"s"})))
    takes_ms = {"quick": QUICK, "slow": SLOW}
    now = answered(front, 0, takes_ms, model="q")
    return front, answered(front, now, takes_ms, model="s")


def test_what_another_model_takes_delays_nobody():
    front, now = two_models()
    assert waits_ns(front, now, S, model="q") == pytest.approx(S - QUICK * MS, abs=5 * MS)


def test_nobody_is_promised_what_only_another_model_could_keep():
    front, now = two_models()
    assert waits_ns(front, now, S, model="s") < 0
    assert waits_ns(front, now, 5 * S, model="s") == pytest.approx(5 * S - SLOW * MS, abs=5 * MS)


def test_what_another_pool_takes_delays_nobody():
    front = fleet(WorkerSpec("quick"), WorkerSpec("slow", pool="spare"))
    takes_ms = {"quick": QUICK, "slow": SLOW}
    now = answered(front, 0, takes_ms, pool="spare")
    now = answered(front, now, takes_ms)
    assert waits_ns(front, now, S) == pytest.approx(S - QUICK * MS, abs=5 * MS)


def unequal(slow_ms: int) -> tuple[Front, int]:
    """Two workers of one model, each known."""
    front = fleet(WorkerSpec("quick"), WorkerSpec("slow"))
    now = 0
    for other in ("slow", "quick"):
        front.fleet.drain(other, now)
        now = answered(front, now, {"quick": QUICK, "slow": slow_ms})
        front.fleet.drain(other, now, draining=False)
    return front, now


@pytest.mark.parametrize("gone", ["drained", "down"])
@pytest.mark.parametrize(("other", "left_ms"), [("slow", QUICK), ("quick", SLOW)])
def test_who_takes_no_requests_neither_delays_nor_hurries_anybody(gone, other, left_ms):
    front, now = unequal(SLOW)
    if gone == "drained":
        front.fleet.drain(other, now)
    else:
        for _ in range(FAILURES):
            front.fleet.health(other, now, well=False)
    assert waits_ns(front, now, 5 * S) == pytest.approx(5 * S - left_ms * MS, abs=5 * MS)


def test_a_promise_is_begun_so_early_that_the_slower_of_two_keeps_it_too():
    front, now = unequal(5 * QUICK)
    assert waits_ns(front, now, S) == pytest.approx(S - 5 * QUICK * MS, abs=5 * MS)


def test_what_first_tokens_are_late_by_is_measured_against_what_is_predicted_of_them():
    """Of the whole prompt: a worker that has dropped from its cache what we take to be there is not late."""
    front, now = fleet(WorkerSpec("w")), 0
    for number in range(20):
        now = answer(front, now, f"r{number}", tokens=400 + 200 * (number % 10), prefix=())
    worker, prefix = front.fleet.workers["w"], tuple(range(12))
    now = answer(front, now, "first", tokens=2_000, prefix=prefix)
    assert worker.cached_tokens(Request("x", range(2_000), 10, prefix=prefix)) > 700
    before_ns = worker.delay.most_ns
    answer(front, now, "again", tokens=2_000, prefix=prefix)
    assert worker.delay.most_ns <= before_ns


def answer(front: Front, now: int, name: str, *, tokens: int, prefix: tuple[int, ...]) -> int:
    """Each of its tokens takes 0.1 ms to read, cached or not."""
    front.submit(Request(name, range(tokens), 10, prefix=prefix), now)
    assert len(front.plan(now)) == 1
    now += tokens * MS // 10
    front.began(name, now)
    front.settle(name, Usage(tokens, 10), now, end=State.FINISHED)
    return now
