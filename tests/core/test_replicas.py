"""How many workers there should be: laws over any course of load, and what they mean in a few plain cases."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.decisions import Decision
from headway.core.errors import ConfigError
from headway.core.fleet.worker import WorkerSpec
from headway.core.front.admission import AdmissionLimits
from headway.core.front.front import Front, FrontLimits
from headway.core.front.replicas import BUSY_RATIO, LOWER_AFTER_NS, MOST_TIMES, RAISE_EVERY_NS, ReplicaLimits, Replicas
from headway.core.request import Request

S = 1_000_000_000
TICK = 5 * S

moments = st.tuples(
    st.integers(0, 6),  # workers that are up
    st.floats(0, 1),  # how full each is
    st.one_of(st.none(), st.floats(0, 10)),
    st.sampled_from(["calm", "climbing", "overloaded"]),
)


def look(replicas: Replicas, now: int, up: int, full: float = 0.0, *load):
    demand, how = load or (None, "calm")
    return replicas.look(
        now, up=up, busy=up * full, demand_ratio=demand, calm=how == "calm", overloaded=how == "overloaded"
    )


@given(
    course=st.lists(moments, min_size=1, max_size=150),
    least=st.integers(1, 4),
    more=st.one_of(st.none(), st.integers(0, 6)),
)
def test_laws(course, least, more):
    """Within the limits; raised by an overload or by hand alone, and so often; never lowered below a recent peak."""
    limits = ReplicaLimits(least, least + more if more is not None else 0)
    replicas = Replicas(limits)
    raised: list[int] = []
    busy: list[tuple[int, float]] = []
    for number, (up, full, demand, how) in enumerate(course):
        now, before, before_up = number * TICK, replicas.desired, replicas.up
        changed = look(replicas, now, up, full, demand, how)
        desired = replicas.desired
        busy.append((now, up * full if how == "calm" else float(max(1, up))))
        assert changed == (desired != before)
        assert desired == limits.clamped(desired)
        if desired > max(before, limits.least) and not up > before_up:
            assert how == "overloaded"
            assert not raised or now - raised[-1] >= RAISE_EVERY_NS
            assert desired <= max(up + 1, math.ceil(up * MOST_TIMES))
            raised.append(now)
        if desired < before:
            assert how != "overloaded"
            assert now >= LOWER_AFTER_NS
            peak = max(one for when, one in busy if now - when <= LOWER_AFTER_NS)
            assert desired >= min(before, limits.clamped(math.ceil(peak / BUSY_RATIO)))


def test_an_overload_asks_for_as_many_as_the_demand_says():
    for demand, wanted in ((None, 5), (1.1, 5), (1.5, 6), (9.0, 8)):
        replicas = Replicas()
        look(replicas, 0, 4)
        assert replicas.desired == 4
        assert look(replicas, S, 4, 1.0, demand, "overloaded")
        assert replicas.desired == wanted


def test_it_asks_again_only_after_those_could_be_up():
    replicas = Replicas()
    look(replicas, 0, 2, 1.0, None, "overloaded")
    assert replicas.desired == 3
    for now in range(S, RAISE_EVERY_NS, TICK):
        assert not look(replicas, now, 2, 1.0, None, "overloaded")
    assert not look(replicas, RAISE_EVERY_NS - 1, 3, 1.0, None, "overloaded"), "the third has only just come"
    for now in range(RAISE_EVERY_NS, 2 * RAISE_EVERY_NS - 1, TICK):
        assert not look(replicas, now, 3, 1.0, None, "overloaded")
    look(replicas, 2 * RAISE_EVERY_NS, 3, 1.0, None, "overloaded")
    assert replicas.desired == 4


def test_a_worker_that_is_gone_is_still_wanted():
    replicas = Replicas()
    look(replicas, 0, 3, 0.9)
    assert not look(replicas, S, 2, 1.0)
    assert (replicas.desired, replicas.up) == (3, 2)


def test_a_long_calm_gives_back_what_its_busiest_moment_would_not_have_needed():
    replicas, now = Replicas(), 0
    look(replicas, now, 4, 1.0, None, "climbing")
    while now < LOWER_AFTER_NS:
        now += TICK
        assert not look(replicas, now, 4, 0.3)
        assert replicas.desired == 4
    look(replicas, now + TICK, 4, 0.3)
    assert replicas.desired == math.ceil(4 * 0.3 / BUSY_RATIO) == 2


def test_limits_that_contradict_each_other():
    with pytest.raises(ConfigError, match="fewer than min_replicas"):
        ReplicaLimits(3, 2)


def test_a_front_that_is_overloaded_says_so():
    """Through the ladder: up to its last level, and back when there are enough."""
    told: list[Decision] = []
    limits = FrontLimits(replicas=ReplicaLimits(most=3))
    front = Front(AdmissionLimits(100, 1 << 40, max_waiting=4), limits, remote=True, listener=told.append)
    front.add_worker(WorkerSpec("w", first_sequences=1, most_sequences=1), 0)
    now = 0
    front.adapt(now)
    assert front.overload.replicas.desired == 1
    for number in range(5):
        front.submit(Request(f"r{number}", range(10), 5), now)
        front.plan(now)
    while now < 200 * S:
        now += S // 4
        front.adapt(now)
    assert front.ladder.height == 6
    assert front.overload.replicas.desired == 2, "as long as the second is not there, a third would not be, either"
    front.add_worker(WorkerSpec("v"), now)
    front.adapt(now)
    assert front.overload.replicas.desired == 2, "what the second takes off the first has yet to show"
    for _ in range(4 * 60):
        now += S // 4
        front.adapt(now)
    assert front.overload.replicas.desired == 3
    assert [one.why for one in told if one.kind == "replicas"] == ["1", "2", "3"]
    front.reconfigure(front.admission.limits, FrontLimits(replicas=ReplicaLimits(most=1)), front.overload.degradation)
    front.adapt(now)
    assert front.overload.replicas.desired == 1
