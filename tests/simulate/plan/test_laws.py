"""What holds of every plan: more traffic, a dearer promise, slower steps; and that what is printed holds again."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from headway.core.scheduler.policies import HEADWAY
from headway.executors.simulated import StepCost
from headway.simulate.plan import Candidate, Limits, Plan, Promise, Recorded, Room, Steady, StepCosts, plan, plan_bytes
from headway.simulate.plan.search import fewest
from headway.simulate.plan.trial import settings_of, tried
from headway.workload.item import Arrival, Item
from headway.workload.lengths import Fixed, Uniform
from tests.simulate.plan.worlds import COST, MS, candidate, traffic

PROMISE = Promise(ttft_s=0.4, itl_s=0.06, percentile=90)


def chat(rate: float) -> Steady:
    return traffic(rate, Uniform(20, 200), Uniform(4, 30))


def small(**changes: Any) -> Candidate:
    """KV for about thirty requests."""
    return candidate(room=Room(240, 16), **changes)


def planned(rate: float, promise: Promise = PROMISE, one: Candidate | None = None) -> Plan:
    return plan(chat(rate), promise, [one or small()], requests=50)


def replicas(found: Plan) -> int:
    assert found.best is not None, found.options[0].why
    return found.best.count


@pytest.mark.slow
def test_more_traffic_never_needs_fewer_replicas() -> None:
    counts = [replicas(planned(rate, one=small(seqs=16, budget=512))) for rate in (10.0, 30.0, 60.0)]
    assert counts == sorted(counts)
    assert counts[0] < counts[-1]


@pytest.mark.slow
def test_a_dearer_promise_never_costs_less() -> None:
    """From nearly nothing to nearly what one request takes alone."""
    counts = [replicas(planned(20.0, Promise(itl_s=itl_s, percentile=90))) for itl_s in (0.2, 0.04, 0.016)]
    assert counts == sorted(counts)
    assert counts[0] < counts[-1]


@pytest.mark.slow
def test_slower_steps_never_need_fewer_replicas() -> None:
    slow = StepCost(20 * MS, 40_000, 2 * MS, 0, 0, 0)
    slower, usual = (planned(40.0, one=small(cost=cost, seqs=16, budget=512)) for cost in (slow, COST))
    assert replicas(slower) > replicas(usual)


@pytest.mark.parametrize("seed", [99, pytest.param(17, marks=pytest.mark.slow)])
def test_what_is_printed_keeps_the_promise_on_another_day(seed: int) -> None:
    one, asked = small(), chat(30.0)
    best = plan(asked, PROMISE, [one], requests=120).best
    assert best is not None
    worker = one.worker(Limits(best.max_num_seqs or 0, best.max_num_batched_tokens or 0), best.max_model_len or 0)
    trial = tried(asked.draw(seed, 300), settings_of(worker, best.count), PROMISE, edge_s=1.0)
    assert trial.strain(PROMISE) <= 1
    assert trial.failed == 0


@pytest.mark.slow
def test_intervals_hold_their_value_and_grow_with_doubt() -> None:
    sure = planned(10.0).best
    slow, fast = (StepCost(round(f * 10 * MS), round(f * 20_000), round(f * MS), 0, 0, 0) for f in (1.4, 0.7))
    unsure = planned(10.0, one=small(costs=StepCosts(COST, fast, slow))).best
    assert sure is not None
    assert unsure is not None
    for name, found in unsure.latencies.items():
        assert found.value is not None
        assert (found.low or 0.0) <= found.value
        assert found.high is None or found.high >= found.value
        before = sure.latencies[name]
        assert (found.low or 0.0) < (before.low or 0.0)
        assert found.high is None or found.high > (before.high or 0.0)
    assert unsure.replicas is not None
    assert (unsure.replicas.low or 0) <= unsure.count


def test_the_cheapest_that_holds_is_chosen() -> None:
    found = plan(
        chat(10.0),
        PROMISE,
        [candidate(name, price, seqs=16) for name, price in (("dear", 9.0), ("cheap", 1.0))]
        + [candidate("weak", 0.1, StepCost(500 * MS, 0, 0, 0, 0, 0))],
        requests=60,
    )
    assert found.chosen == "cheap"
    assert [option.name for option in found.options] == ["cheap", "dear", "weak"]


def test_the_same_seed_gives_the_same_plan_and_the_file_reads_back() -> None:
    found, again = (planned(10.0, one=small(seqs=8)) for _ in range(2))
    first = plan_bytes(found)
    assert first == plan_bytes(again)
    document = msgspec.json.decode(first)
    assert next(iter(document)) == "schema_version"
    del document["kind"]
    assert msgspec.convert(document, Plan) == found


def test_limits_that_are_given_are_kept() -> None:
    best = planned(10.0, one=small(seqs=6, budget=128)).best
    assert best is not None
    assert (best.max_num_seqs, best.max_num_batched_tokens) == (6, 128)
    assert [point.batch for point in best.curve] == [6]


@pytest.mark.slow
def test_our_own_policy_is_planned_as_well() -> None:
    assert replicas(planned(10.0, one=small(policy=HEADWAY))) >= 1


@pytest.mark.slow
def test_a_recorded_day_is_sized_for_its_peak() -> None:
    """The same number of requests, at once or spread: the rush needs more."""
    item = Item(100, 4)
    spread = Recorded("spread", [Arrival(n * 100 * MS, item) for n in range(200)])
    rush = Recorded(
        "rush", [Arrival(n * 10 * MS if n < 120 else 2_000 * MS + n * 1_000 * MS, item) for n in range(200)]
    )
    promise = Promise(ttft_s=0.1, percentile=90)
    one = candidate(seqs=4, budget=256)
    calm, busy = (plan(day, promise, [one], requests=200) for day in (spread, rush))
    assert replicas(busy) > replicas(calm)
    assert rush.peak_rate > rush.rate


@pytest.mark.parametrize("least", [1, 2, 7, 30, 31, 32, 100])
def test_fewest_finds_the_border_with_few_questions(least: int) -> None:
    asked: list[int] = []

    def holds(count: int) -> bool:
        asked.append(count)
        return count >= least

    assert fewest(holds) == least
    assert len(asked) <= 16
    assert len(set(asked)) == len(asked)
    assert fewest(lambda _: False, 1, 64) is None


def test_fixed_lengths_have_no_longer_request() -> None:
    assert traffic(1.0, Fixed(100), Fixed(28)).lengths.longest == 128
