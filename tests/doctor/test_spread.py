"""`Spread`: of samples exact, of buckets exact in the sum and at their edges, and as fine as they are elsewhere."""

from __future__ import annotations

import math
from bisect import bisect_left

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.doctor.spread import Spread

BOUNDS = (0.01, 0.1, 0.5, 1.0, 5.0, math.inf)
VALUES = st.lists(st.floats(0.001, 4.9), min_size=1, max_size=200)


def bucketed(values: list[float]) -> Spread:
    upto = {bound: float(sum(value <= bound for value in values)) for bound in BOUNDS}
    made = Spread.of_buckets(upto, sum(values))
    assert made is not None
    return made


@given(VALUES)
def test_quantiles_of_buckets_lie_in_the_right_bucket(values: list[float]) -> None:
    made, ordered = bucketed(values), sorted(values)
    assert made.count == pytest.approx(len(values))
    for share in (0.1, 0.5, 0.95):
        exact = ordered[min(len(ordered) - 1, max(0, math.ceil(share * len(ordered)) - 1))]
        place = bisect_left(BOUNDS, exact)
        low, high = (0.0, *BOUNDS)[place], BOUNDS[place]
        assert low < made.quantile(share) <= high


@given(VALUES)
def test_the_sum_and_what_is_above_each_edge_are_exact(values: list[float]) -> None:
    made = bucketed(values)
    assert made.sum == pytest.approx(sum(values))
    for edge in BOUNDS:
        assert made.share_above(edge) == pytest.approx(sum(value > edge for value in values) / len(values))


@pytest.mark.parametrize("stall_s", [0.51, 0.55, 0.99])
def test_true_stalls_are_not_moved_below_what_is_one(stall_s: float) -> None:
    made = Spread.of_buckets({0.01: 0.0, 0.025: 960.0, 0.5: 960.0, 1.0: 1000.0}, 960 * 0.0105 + 40 * stall_s)
    assert made is not None
    assert made.share_above(0.5) == pytest.approx(0.04)


@pytest.mark.parametrize("total", [0.0, 1e-9, 90.0, math.inf])
def test_a_sum_that_cannot_be_moves_nothing_out_of_its_bucket(total: float) -> None:
    """Scraped between a bucket and its sum, or a sum that began again."""
    made = Spread.of_buckets({0.5: 6.0, 1.0: 10.0}, total)
    assert made is not None
    assert [made.share_above(edge) for edge in (0.0, 0.5, 1.0)] == pytest.approx([1.0, 0.4, 0.0])


def test_what_is_beyond_the_last_bucket_keeps_its_sum() -> None:
    made = Spread.of_buckets({1.0: 8.0, math.inf: 10.0}, 4.0 + 2 * 60.0)
    assert made is not None
    assert made.quantile(0.95) > 30


def test_shares() -> None:
    made = Spread.of([1.0] * 9 + [91.0])
    assert made is not None
    assert made.share_above(1.0) == pytest.approx(0.1)
    assert made.part_above(1.0) == pytest.approx(0.91)
    assert made.tail_part == pytest.approx(0.91)


def test_nothing_is_none() -> None:
    assert Spread.of([]) is None
    assert Spread.of([math.nan]) is None
    assert Spread.of_buckets({1.0: 0.0, math.inf: 0.0}, 0.0) is None
