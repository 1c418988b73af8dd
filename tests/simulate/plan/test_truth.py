"""Plans whose answer is known without simulating: queues with a formula, and curves with a closed form."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from headway.executors.simulated import StepCost
from headway.metrics.percentiles import percentile
from headway.simulate.plan import Limits, Promise, curve_of, knee_of, plan
from headway.simulate.plan.trial import settings_of, tried
from headway.workload.lengths import Fixed
from tests.simulate.plan.worlds import MS, candidate, traffic

EVEN = 1e6  # gaps of equal length, but for a thousandth
# One at a time, one token each: every request takes one step of exactly 100 ms.
SERVICE_S = 0.1
ONE_AT_A_TIME: dict[str, Any] = {"cost": StepCost(100 * MS, 0, 0, 0, 0, 0), "seqs": 1, "budget": 64}


def crommelin(utilisation: float, wait: float) -> float:
    """P(W ≤ wait) of M/D/1, `wait` in service times (Erlang 1909; Crommelin 1932)."""
    terms = (
        (-utilisation * (wait - k)) ** k / math.factorial(k) * math.exp(utilisation * (wait - k))
        for k in range(math.floor(wait) + 1)
    )
    return (1 - utilisation) * sum(terms)


def wait_s(utilisation: float, share: float) -> float:
    """The wait that so many do not exceed."""
    low, high = 0.0, 30.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if crommelin(utilisation, middle) >= share else (middle, high)
    return high * SERVICE_S


@pytest.mark.parametrize(("rate", "replicas"), [(7.0, 1), (13.0, 2), (47.0, 5)])
def test_even_arrivals_need_rate_times_service(rate: float, replicas: int) -> None:
    """D/D/n: with fewer the queue grows for ever, with so many nobody waits."""
    found = plan(
        traffic(rate, Fixed(16), Fixed(1), EVEN),
        Promise(ttft_s=1.3 * SERVICE_S),
        [candidate(**ONE_AT_A_TIME)],
        requests=80,
    )
    best = found.best
    assert best is not None
    assert best.count == replicas == math.ceil(rate * SERVICE_S)
    assert best.latencies["ttft"].value == pytest.approx(SERVICE_S, rel=0.3)


def test_random_arrivals_wait_as_the_formula_says() -> None:
    """M/D/1 at 60%."""
    arrivals = traffic(6.0, Fixed(16), Fixed(1)).draw(3, 3_000)
    one = candidate(**ONE_AT_A_TIME)
    trial = tried(arrivals, settings_of(one.worker(Limits(1, 64), 512), 1), Promise(ttft_s=1.0), edge_s=10)
    for share in (50, 90, 95):
        said = SERVICE_S + wait_s(0.6, share / 100)
        assert percentile(trial.samples["ttft"], share) == pytest.approx(said, rel=0.15)


@pytest.mark.parametrize(("factor", "enough"), [(1.8, True), pytest.param(0.6, False, marks=pytest.mark.slow)])
def test_one_server_is_enough_when_the_formula_says_so(factor: float, enough: bool) -> None:
    promise = Promise(ttft_s=SERVICE_S + factor * wait_s(0.6, 0.95), percentile=95)
    found = plan(traffic(6.0, Fixed(16), Fixed(1)), promise, [candidate(**ONE_AT_A_TIME)], requests=500)
    best = found.best
    assert best is not None
    assert (best.count == 1) is enough


def test_the_knee_is_where_a_batch_costs_as_much_as_a_step() -> None:
    """Steps of a + b·n: throughput over latency is n / (a + b·n)², which is highest at n = a / b."""
    cost = StepCost(16 * MS, 0, MS, 0, 0, 0)
    found = curve_of(
        candidate(cost=cost),
        traffic(1.0, Fixed(4), Fixed(40)),
        Promise(ttft_s=9.0),
        max_model_len=64,
        budget=lambda _batch: 2_048,
        sizes=[1, 2, 4, 8, 16, 32, 64],
    )
    knee = knee_of(found)
    assert knee is not None
    assert knee.batch == 16
    for point in found:
        step_s = (16 + point.batch) / 1e3
        assert point.itl_p50_s == pytest.approx(step_s, rel=0.01)
        assert point.output_token_rate == pytest.approx(point.batch / step_s, rel=0.15)


def test_cost_is_price_over_tokens() -> None:
    """3,600 requests an hour of 10 output tokens each, for 7.20 an hour: 200 for a million tokens."""
    found = plan(traffic(1.0, Fixed(10), Fixed(10)), Promise(e2e_s=5.0), [candidate(price=7.2, seqs=8)], requests=40)
    best = found.best
    assert best is not None
    assert best.count == 1
    assert best.cost is not None
    assert best.cost.per_million_output_tokens == pytest.approx(200.0)
    assert best.cost.per_million_tokens == pytest.approx(100.0)


def test_headroom_is_what_is_left_of_capacity() -> None:
    """Evenly spaced at 60% of what one can do: two thirds more fit."""
    found = plan(
        traffic(6.0, Fixed(16), Fixed(1), EVEN), Promise(ttft_s=1.5 * SERVICE_S), [candidate(**ONE_AT_A_TIME)],
        requests=150,
    )  # fmt: skip
    assert found.best is not None
    assert found.best.headroom_ratio == pytest.approx(2 / 3, abs=0.17)


@pytest.mark.slow
def test_kv_use_is_what_running_requests_hold() -> None:
    """Little's law: rate × time inside × tokens, over what there is."""
    found = plan(traffic(5.0, Fixed(480), Fixed(64)), Promise(itl_s=0.2), [candidate(seqs=48)], requests=100)
    best = found.best
    assert best is not None
    assert best.kv_used_ratio is not None
    e2e_s = best.latencies["e2e_p50"].value
    assert e2e_s is not None
    inside = 5.0 * e2e_s * 512 / 100_000
    assert inside * 0.8 < (best.kv_used_ratio.value or 0.0) < inside * 3.5  # the peak, of Poisson arrivals
    assert np.isclose(best.kv_tokens or 0, 100_000)
