"""Knees of ramps over queues: found near their capacity, and only where there is one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.loadtest.knee import Ramp, describe, find_knee, knee_of, ramp_bins
from tests.loadtest import queues
from tests.loadtest.runs import load

CAPACITY = 10.0
DURATION_S = 600.0
WHAT = load(DURATION_S, profile="ramp")


def line(seed: int, highest: float, lowest: float = 0.5) -> queues.Served:
    """Arrivals whose rate rises in a line, at an M/M/1 queue."""
    rng = np.random.default_rng(seed)
    mass = np.sort(rng.uniform(0, 1, rng.poisson((lowest + highest) / 2 * DURATION_S)))
    rise = highest - lowest
    place = (np.sqrt(lowest**2 + rise * mass * (lowest + highest)) - lowest) / rise
    return queues.single(place * DURATION_S, rng.exponential(1 / CAPACITY, len(mass)))


def stairs(seed: int, highest: float, steps: int = 10) -> queues.Served:
    rng = np.random.default_rng(seed)
    each = DURATION_S / steps
    levels = np.linspace(1, highest, steps)
    arrived = np.concatenate([number * each + queues.poisson(rng, rate, each) for number, rate in enumerate(levels)])
    return queues.single(arrived, rng.exponential(1 / CAPACITY, len(arrived)))


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("ramp", [line, stairs])
def test_a_ramp_past_capacity_has_its_knee_near_it(ramp, seed):
    figures = knee_of(queues.timings(ramp(seed, 1.8 * CAPACITY)), WHAT, (0.0, DURATION_S))
    assert 0.65 * CAPACITY <= figures["load"] <= 1.2 * CAPACITY
    assert figures["low"] <= figures["load"] <= figures["high"]
    assert figures["delivered_rate"] <= 1.1 * CAPACITY
    assert figures["p_value"] <= 0.01
    assert describe(figures).startswith("knee at ")


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("ramp", [line, stairs])
def test_a_ramp_well_below_capacity_has_none(ramp, seed):
    """Its latency rises all the same, as a queue's does on the way to its limit."""
    figures = knee_of(queues.timings(ramp(seed, 0.6 * CAPACITY)), WHAT, (0.0, DURATION_S))
    assert "load" not in figures
    assert figures["highest_load"] == pytest.approx(6, rel=0.15)
    assert describe(figures).startswith("no knee within the loads offered (up to ")


def test_of_a_ramp_that_hardly_anybody_survives_no_knee_can_be_told():
    """«No knee up to here» would read as if all had been well."""
    times = queues.timings(line(0, 0.6 * CAPACITY))
    times.ok[:] = np.arange(len(times)) % 10 == 0
    figures = knee_of(times, WHAT, (0.0, DURATION_S))
    assert "load" not in figures
    assert figures["answered_ratio"] == pytest.approx(0.1, abs=0.01)
    assert "no knee can be told: only 10% of the requests were answered" in describe(figures)


def test_the_knee_of_a_scripted_ramp_is_where_it_was_put():
    """A server that delivers what is offered up to 40/s and no more, in 0.1 s up to there and ever longer beyond."""
    x = np.linspace(1, 80, 40)
    over = np.maximum(x - 40, 0)
    knee = find_knee(Ramp(x, np.minimum(x, 40.0), 0.1 * np.exp(over / 10), np.ones(40)))
    assert knee is not None
    assert knee.load == pytest.approx(40, abs=1.5)
    assert knee.gain_ratio == pytest.approx(0, abs=0.05)
    assert knee.slowdown == pytest.approx(np.exp(4), rel=0.15)


@settings(max_examples=20, deadline=None)
@given(st.floats(0.01, 100), st.floats(0.01, 100), st.floats(0.01, 100))
def test_a_knee_does_not_care_for_units(loads, rates, seconds):
    x = np.linspace(1, 80, 40)
    noise = np.random.default_rng(0).normal(0, 1, (2, 40))
    delivered, slow = np.minimum(x, 40.0) + noise[0], 0.1 * np.exp(np.maximum(x - 40, 0) / 10 + 0.1 * noise[1])
    one = find_knee(Ramp(x, delivered, slow, np.ones(40)))
    other = find_knee(Ramp(x * loads, delivered * rates, slow * seconds, np.ones(40)))
    assert one is not None
    assert other is not None
    assert other.load == pytest.approx(one.load * loads, rel=1e-6)
    assert other.gain_ratio == pytest.approx(one.gain_ratio, abs=1e-6)
    assert other.slowdown == pytest.approx(one.slowdown, rel=1e-6)


def test_a_straight_ramp_has_no_knee():
    x = np.linspace(1, 40, 40)
    even = np.full(40, 0.1)
    assert find_knee(Ramp(x, x, even, np.ones(40))) is None
    assert find_knee(Ramp(np.full(40, 3.0), np.full(40, 3.0), even, np.ones(40))) is None


def test_few_requests_have_no_ramp():
    served = queues.Served(np.arange(20.0), np.arange(20.0), np.arange(20.0) + 0.1)
    assert ramp_bins(queues.timings(served), (0, 20)) is None
    assert describe(knee_of(queues.timings(served), WHAT, (0, 20))) == "too few requests to look for a knee"


def test_requests_that_were_given_up_count_with_what_they_waited():
    """A server that answers nothing beyond its capacity: without those requests its latency would look fine."""
    served = line(0, 1.8 * CAPACITY)
    times = queues.timings(served)
    gone = served.ended - served.arrived > 5
    times.ok[gone] = False
    times.ended_ns[gone] = times.scheduled_ns[gone] + 5_000_000_000
    figures = knee_of(times, WHAT, (0.0, DURATION_S))
    assert figures["load"] <= 1.2 * CAPACITY


@pytest.mark.parametrize("seed", range(5))
def test_a_server_that_turns_away_what_it_cannot_do_has_a_knee_as_well(seed):
    """With at most five inside, latency hardly rises, whatever is offered: what breaks is what is served."""
    served = line(seed, 2 * CAPACITY)
    free: list[float] = []
    kept = np.zeros(len(served.arrived), np.bool_)
    ended = served.arrived + 0.001
    for index, (at, service) in enumerate(zip(served.arrived, served.ended - served.started, strict=True)):
        free = [end for end in free if end > at]
        if len(free) < 5:
            kept[index] = True
            ended[index] = max(at, max(free, default=0.0)) + service
            free.append(float(ended[index]))
    times = queues.timings(queues.Served(served.arrived, served.arrived, ended))
    times.ok[:] = kept
    figures = knee_of(times, WHAT, (0.0, DURATION_S))
    assert 0.5 * CAPACITY <= figures["load"] <= 1.2 * CAPACITY
    assert figures["slowdown"] < 3
