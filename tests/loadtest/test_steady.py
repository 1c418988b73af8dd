"""Trends: Mann and Kendall's score by hand, and how often the tests cry wolf."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.loadtest import steady
from headway.metrics import latency
from tests.loadtest import queues

WINDOW_S = (50.0, 400.0)


def mm1(seed: int, utilisation: float):
    rng = np.random.default_rng(seed)
    arrived = queues.poisson(rng, 10 * utilisation, WINDOW_S[1])
    return queues.timings(queues.single(arrived, rng.exponential(0.1, len(arrived))))


def test_a_line_is_a_trend_of_its_slope():
    found = steady.trend(np.arange(20.0) * 3 + 7)
    assert found.change == pytest.approx(57)
    assert found.level == pytest.approx(7 + 9.5 * 3)
    # Without ties the score's variance is n(n − 1)(2n + 5)/18 = 950; the score itself is 190.
    assert found.p_value == pytest.approx(2 * 4.3e-10, rel=0.2)
    assert found.real()


def test_noise_is_none_and_an_outlier_makes_none():
    noise = np.random.default_rng(0).normal(10, 1, 20)
    assert not steady.trend(noise).real()
    noise[-1] = 1000
    assert not steady.trend(noise).real()
    assert abs(steady.trend(noise).change) < 3


def test_too_few_blocks_have_no_trend():
    assert steady.trend(np.arange(7.0)).p_value == 1
    assert steady.trend(np.full(20, np.nan)).p_value == 1
    assert not steady.trend(np.full(20, 4.0)).real()


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 1000), min_size=8, max_size=30), st.floats(0.01, 100))
def test_a_trend_does_not_care_for_units_nor_for_its_direction(values, factor):
    blocks = np.array(values, np.float64)
    one, mirrored = steady.trend(blocks), steady.trend(-blocks)
    assert mirrored.p_value == pytest.approx(one.p_value)
    assert mirrored.change == pytest.approx(-one.change)
    scaled = steady.trend(blocks * factor)
    assert scaled.change == pytest.approx(one.change * factor, rel=1e-6, abs=1e-6)
    assert scaled.p_value == pytest.approx(one.p_value, rel=1e-6)


def test_correlated_blocks_are_not_taken_for_a_trend():
    """Blocks that each remember half of the one before; taken for independent, one in twenty would be a trend."""
    seen = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        walk = np.empty(20)
        walk[0] = rng.normal()
        for i in range(1, 20):
            walk[i] = 0.5 * walk[i - 1] + rng.normal()
        seen += steady.trend(walk).real()
    assert seen <= 6


@pytest.mark.parametrize("utilisation", [0.3, 0.6, 0.8])
def test_stable_queues_do_not_grow(utilisation):
    for seed in range(30):
        times = mm1(seed, utilisation)
        queue = steady.queue(times, WINDOW_S)
        assert queue is not None
        assert not (queue.trend.real() and queue.trend.change > 0.02 * queue.arrivals)


def test_an_unstable_queue_grows_by_what_is_too_much():
    """Offered 13 of 10 a second for 350 s: about 1,050 more in the queue at the end."""
    changes = []
    for seed in range(10):
        queue = steady.queue(mm1(seed, 1.3), WINDOW_S)
        assert queue is not None
        assert queue.trend.real()
        changes.append(queue.trend.change)
    assert np.mean(changes) == pytest.approx(1050, rel=0.15)


def test_littles_law_holds_in_a_steady_queue():
    """M/M/1 at 0.6: 1.5 requests inside on average."""
    queues_seen = [steady.queue(mm1(seed, 0.6), WINDOW_S) for seed in range(30)]
    assert np.mean([queue.expected for queue in queues_seen if queue]) == pytest.approx(1.5, rel=0.1)


def test_requests_in_flight_are_counted_from_schedule_to_end():
    times = queues.timings(queues.Served(np.array([0.0, 1.0]), np.array([0.0, 2.0]), np.array([2.0, 3.0])))
    assert list(steady.in_flight(times, np.array([0.5, 1.5, 2.5, 3.5]) * 1e9)) == [1, 2, 1, 0]
    times.ended_ns[1] = -1  # it never ended
    assert list(steady.in_flight(times, np.array([3.5e9]))) == [1]


def test_drift_is_seen_in_medians_and_not_in_outliers():
    rng = np.random.default_rng(0)
    at = np.arange(0, 400, 0.2)
    even = rng.uniform(0.1, 0.2, len(at))
    even[rng.integers(0, len(at), 20)] = 30
    for service, drifts in ((even, False), (even * (1 + at / 400), True)):
        times = queues.timings(queues.Served(at, at, at + service))
        found = steady.drift(times, latency.e2e_s(times), WINDOW_S)
        assert found is not None
        assert found.trend.real() == drifts


def test_blocks_in_which_few_were_waited_for_long_enough_are_left_out():
    """Answers of 8 s each, cut at 100 s but for one in three, that took 1 s: of the last 8 s only those are known."""
    at = np.arange(0, 100, 0.1)
    service = np.where(np.arange(1000) % 3 == 0, 1.0, 8.0)
    times = queues.timings(queues.Served(at, at, np.minimum(at + service, 100.0)))
    times.given_up[:] = at + service > 100
    times.ok[:] = ~times.given_up
    found = steady.drift(times, latency.e2e_s(times), (0, 100))
    assert found is not None
    assert (found.trend.level, found.trend.change) == pytest.approx((8, 0))
    assert not found.steps(steady.LIKELY)


@pytest.mark.parametrize(("rate", "rises"), [(20, True), (5, False)])
def test_those_that_come_late_take_longer_where_the_queue_grows(rate, rises):
    """Of ten a second, cut at 60 s; and of answers of 20 s, of which more and more are under way at first."""
    for seed in range(5):
        rng = np.random.default_rng(seed)
        due = queues.poisson(rng, rate, 60)
        served = queues.single(due, rng.exponential(0.1, len(due)))
        times = queues.timings(queues.Served(due, due, np.minimum(served.ended, 60.0)))
        times.given_up[:] = served.ended > 60
        times.ok[:] = ~times.given_up
        assert steady.rising(times, (0, 60)) is rises
    at = np.arange(0, 100, 0.1)
    assert not steady.rising(queues.timings(queues.Served(at, at, at + 20)), (0, 100))


def test_few_requests_are_not_judged():
    times = queues.timings(queues.Served(np.arange(10.0), np.arange(10.0), np.arange(10.0) + 1))
    assert steady.queue(times, (0, 10)) is None
    assert steady.drift(times, latency.e2e_s(times), (0, 10)) is None


# -- silence -------------------------------------------------------------------------------------------------------


def one_by_one(*pauses_s: tuple[float, float]):
    """One request after another, 0.1 s each, for 100 s; at each of these moments the server pauses."""
    at, start, end = 0.0, [], []
    pauses = sorted(pauses_s)
    while at < 100:
        start.append(at)
        at += 0.1
        if pauses and at > pauses[0][0]:
            at += pauses.pop(0)[1]
        end.append(at)
    return queues.timings(queues.Served(np.array(start), np.array(end) - 0.1, np.array(end)))


def test_the_longest_silence_is_found_and_cut_at_the_window():
    found = steady.silence(one_by_one((20.0, 3.0), (50.0, 5.0)), (10, 90), concurrency=1)
    assert found is not None
    assert found.end_s - found.start_s == pytest.approx(5, abs=0.2)
    assert (found.in_flight, found.never_ended) == (1, 0)
    assert 50 <= found.end_s <= 55.3
    found = steady.silence(one_by_one((48.0, 5.0)), (50, 90), concurrency=1)
    assert found is not None
    assert found.start_s == 50
    assert steady.silence(one_by_one((48.0, 5.0)), (60, 90), concurrency=1) is None


def test_nobody_waits_in_a_silence_without_requests():
    """Requests come every 5 s and take 0.1."""
    at = np.arange(0, 100, 5.0)
    times = queues.timings(queues.Served(at, at, at + 0.1))
    assert steady.silence(times, (0, 100), open_loop=True) is None


def test_one_request_that_hangs_is_no_server_that_stands_still():
    at = np.arange(0, 100, 5.0)
    times = queues.timings(queues.Served(at, at, at + 0.1))
    times.ended_ns[0], times.ok[0], times.first_ns[0], times.last_ns[0] = -1, False, -1, -1
    assert steady.silence(times, (0, 100), open_loop=True) is None
    assert steady.silence(times, (0, 100), concurrency=2) is None


@settings(max_examples=50, deadline=None)
@given(st.floats(10, 80), st.floats(3, 15))
def test_a_pause_is_found_wherever_it_is(at_s, seconds):
    found = steady.silence(one_by_one((at_s, seconds)), (5, 100), concurrency=1)
    assert found is not None
    assert found.end_s - found.start_s == pytest.approx(seconds, abs=0.21)
