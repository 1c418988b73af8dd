"""Recovery from bursts: a drained queue, by hand and by Lindley."""

from __future__ import annotations

import numpy as np
import pytest

from headway.loadtest.bench.options import Burst, TextOptions, WindowOptions
from headway.loadtest.bench.profiles import Terms, offer
from headway.loadtest.recovery import recoveries
from headway.loadtest.result import Word
from headway.loadtest.runner.plan import OpenLoad, read
from headway.loadtest.verdict import Tolerances
from headway.workload.tokens import Calibration
from tests.loadtest import queues, runs


def even(*parts: tuple[float, float, float]) -> np.ndarray:
    """Arrivals at even distances: (from, to, rate)."""
    return np.concatenate([np.arange(start, end, 1 / rate) for start, end, rate in parts])


def test_a_queue_drains_at_the_spare_rate():
    """D/D/1, capacity 10/s. Ten seconds at 30/s leave 200 behind; at 5/s offered they are gone after 200/5 = 40 s."""
    arrived = even((0, 50, 5), (50, 60, 30), (60, 200, 5))
    times = queues.timings(queues.single(arrived, np.full(len(arrived), 0.1)))
    found = recoveries(times, [(50.0, 60.0)], until_s=200.0)
    assert found is not None
    assert found.worst_s == pytest.approx(40, abs=1)
    assert found.unrecovered == 0


def test_a_burst_with_nothing_before_and_after_is_recovered_from_when_its_work_is_done():
    """300 requests at once at 10/s: 30 s of work, 10 of them in the burst."""
    arrived = even((0, 10, 30))
    times = queues.timings(queues.single(arrived, np.full(len(arrived), 0.1)))
    found = recoveries(times, [(0.0, 10.0)], until_s=100.0)
    assert found is not None
    assert found.worst_s == pytest.approx(20, abs=0.5)


def test_a_server_that_does_not_recover_is_said_not_to():
    arrived = even((0, 50, 5), (50, 60, 30), (60, 80, 5), (80, 90, 30), (90, 200, 5))
    times = queues.timings(queues.single(arrived, np.full(len(arrived), 0.1)))
    found = recoveries(times, [(50.0, 60.0), (80.0, 90.0)], until_s=200.0)
    assert found is not None
    assert found.unrecovered == 1
    assert found.each_s[0] == pytest.approx(20)  # as long as it was watched
    assert found.each_s[1] == pytest.approx(60, abs=1)  # 300 behind


@pytest.mark.parametrize(("capacity", "word"), [(10.0, Word.VALID), (6.0, Word.UNSTEADY)])
def test_a_run_that_ends_with_a_burst_still_in_the_queue_is_unsteady(capacity, word):
    """What its figures are depends on how much of the calm after the burst it saw: 40 s drain it, or 140 s."""
    arrived = even((0, 50, 5), (50, 60, 30), (60, 110, 5))
    served = queues.single(arrived, np.full(len(arrived), 1 / capacity))
    what = runs.load(110.0, profile="burst", stationary=False)
    found = runs.run(
        queues.records(served), what, bursts_s=[(50.0, 60.0)], tolerances=Tolerances(percentile=50)
    ).verdict
    assert found.name == word
    if word == Word.UNSTEADY:
        assert found.findings[0].evidence == "1 burst was not recovered from before the next, or the end"


def test_a_burst_that_a_server_does_not_notice_takes_no_time():
    arrived = even((0, 50, 5), (50, 60, 9), (60, 100, 5))
    times = queues.timings(queues.single(arrived, np.full(len(arrived), 0.1)))
    found = recoveries(times, [(50.0, 60.0)], until_s=100.0)
    assert found is not None
    assert found.worst_s == 0


def test_one_slow_request_is_no_relapse():
    arrived = even((0, 50, 5), (50, 60, 30), (60, 200, 5))
    served = queues.single(arrived, np.full(len(arrived), 0.1))
    slow = np.searchsorted(arrived, 150)
    served.ended[slow] += 20
    found = recoveries(queues.timings(served), [(50.0, 60.0)], until_s=200.0)
    assert found is not None
    assert found.worst_s == pytest.approx(40, abs=1)


def test_a_server_that_refuses_everything_after_the_burst_has_not_recovered():
    arrived = even((0, 50, 5), (50, 60, 30), (60, 100, 5))
    times = queues.timings(queues.single(arrived, np.full(len(arrived), 0.1)))
    refused = (arrived >= 60) & (arrived < 80)
    times.ok[refused] = False
    times.ended_ns[refused] = times.scheduled_ns[refused] + 1_000_000
    late = arrived >= 80
    times.ended_ns[late] = times.scheduled_ns[late] + 100_000_000
    found = recoveries(times, [(50.0, 60.0)], until_s=100.0)
    assert found is not None
    assert found.worst_s == pytest.approx(20, abs=1)


@pytest.mark.parametrize("seed", range(10))
def test_random_arrivals_recover_about_as_fast(seed):
    rng = np.random.default_rng(seed)
    arrived = np.concatenate(
        [queues.poisson(rng, 5, 100), 100 + queues.poisson(rng, 30, 10), 110 + queues.poisson(rng, 5, 190)]
    )
    times = queues.timings(queues.single(arrived, rng.exponential(0.1, len(arrived))))
    found = recoveries(times, [(100.0, 110.0)], until_s=300.0)
    assert found is not None
    assert found.unrecovered == 0
    assert found.worst_s == pytest.approx(40, rel=0.5)


@pytest.mark.parametrize("seed", range(8))
def test_the_profiles_own_bursts_tell_a_server_that_recovers_from_one_that_does_not(seed):
    """Four servers. With a capacity of 6.7/s the 80 requests too many of a burst are gone after about 17 s; with one of
    2.5/s they are not, after 54 s. Every burst is judged, also the last.
    """
    terms = Terms(WindowOptions(seed=seed), TextOptions(), Calibration(), None)
    found = offer(Burst(), terms)
    until_s = found.described.duration_s
    assert isinstance(found.load, OpenLoad)
    assert until_s is not None
    arrived = np.array([arrival.at_ns for arrival in read(found.load.arrivals)]) / 1e9
    rng = np.random.default_rng(seed)
    for service_s, recovers in ((0.6, True), (1.6, False)):
        served = queues.several(arrived, rng.exponential(service_s, len(arrived)), 4)
        told = recoveries(queues.timings(served), found.bursts_s, until_s=until_s)
        assert told is not None
        assert len(told.each_s) == 3
        assert told.unrecovered == (0 if recovers else 3)
        assert not recovers or 2 < np.median(told.each_s) < 40


def test_a_burst_that_the_end_of_the_run_cuts_off_is_not_judged():
    """D/D/1 again: 40 s to drain, and only 20 of them watched after the second burst."""
    arrived = even((0, 50, 5), (50, 60, 30), (60, 150, 5), (150, 160, 30), (160, 180, 5))
    times = queues.timings(queues.single(arrived, np.full(len(arrived), 0.1)))
    bursts_s = [(50.0, 60.0), (150.0, 160.0)]
    for until_s, judged in ((180.0, 1), (250.0, 2)):
        found = recoveries(times, bursts_s, until_s=until_s)
        assert found is not None
        assert len(found.each_s) == judged
        assert found.each_s[0] == pytest.approx(40, abs=1)


def test_no_burst_within_the_run_has_no_recovery():
    times = queues.timings(queues.single(np.arange(10.0), np.full(10, 0.1)))
    assert recoveries(times, [(20.0, 30.0)], until_s=10.0) is None
    assert recoveries(times, [], until_s=10.0) is None
