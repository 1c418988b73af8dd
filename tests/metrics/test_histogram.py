"""A histogram counts what Prometheus' own client counts."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from prometheus_client import Histogram as Peer

from headway.metrics.histogram import Histogram

BOUNDS = (0.01, 0.1, 0.5, 1.0, 5.0)
values = st.lists(st.floats(0, 10, allow_subnormal=False), max_size=60)


def peer_of(observed: list[float]) -> dict[str, float]:
    registry = CollectorRegistry()
    peer = Peer("peer", "", buckets=BOUNDS, registry=registry)
    for value in observed:
        peer.observe(value)
    (family,) = registry.collect()
    found = {sample.labels["le"]: sample.value for sample in family.samples if sample.name == "peer_bucket"}
    return found | {"sum": next(sample.value for sample in family.samples if sample.name == "peer_sum")}


@settings(deadline=None)
@given(values)
def test_it_counts_as_prometheus_client_does(observed: list[float]):
    histogram = Histogram(BOUNDS)
    for value in observed:
        histogram.observe(value)
    peer = peer_of(observed)
    assert histogram.sum == pytest.approx(peer.pop("sum"))
    assert dict(histogram.cumulative()) == peer
    assert histogram.count == len(observed)


@settings(deadline=None)
@given(values, st.integers(1, 9))
def test_many_at_once_are_many(observed: list[float], times: int):
    at_once, one_by_one = Histogram(BOUNDS), Histogram(BOUNDS)
    for value in observed:
        at_once.observe(value, times)
        for _ in range(times):
            one_by_one.observe(value)
    assert at_once.counts == one_by_one.counts
    assert at_once.sum == pytest.approx(one_by_one.sum)


@settings(deadline=None)
@given(values, values)
def test_two_added_are_both(first: list[float], second: list[float]):
    both, one, other = Histogram(BOUNDS), Histogram(BOUNDS), Histogram(BOUNDS)
    for value in first:
        both.observe(value)
        one.observe(value)
    for value in second:
        both.observe(value)
        other.observe(value)
    one.add(other.counts, other.sum)
    assert one.counts == both.counts
    assert one.sum == pytest.approx(both.sum)


@settings(deadline=None)
@given(values, st.sets(st.sampled_from(BOUNDS)))
def test_fewer_bounds_lose_nothing(observed: list[float], some: set[float]):
    """What is shown in some of its bounds is what a histogram with only those would count."""
    fine, coarse = Histogram(BOUNDS), Histogram(sorted(some))
    for value in observed:
        fine.observe(value)
        coarse.observe(value)
    assert fine.upto(sorted(some)) == coarse.upto(sorted(some))


def test_a_bound_that_it_has_not_cannot_be_shown():
    with pytest.raises(ValueError, match="no bound"):
        Histogram(BOUNDS).upto((0.02,))


@settings(deadline=None)
@given(values, st.integers(1, 400))
def test_what_is_noted_is_counted_when_somebody_reads(observed: list[float], times: int):
    """Also across batches, and in any mixture with what is observed at once."""
    noted, seen = Histogram(BOUNDS), Histogram(BOUNDS)
    for value in [*observed, *BOUNDS]:
        seen.observe(value, times + 1)
        noted.observe(value)
        for _ in range(times):
            noted.note(value)
    assert noted.counts == seen.counts
    assert noted.sum == pytest.approx(seen.sum)
    assert noted.count == seen.count
