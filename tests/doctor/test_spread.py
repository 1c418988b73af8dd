"""`Spread`: of samples exact, of buckets exact in the sum and as fine as the buckets elsewhere."""

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
        # The sum may move all of them by up to a half.
        assert 0.5 * low <= made.quantile(share) <= 1.5 * high


@given(VALUES)
def test_the_mean_is_nearer_than_buckets_are(values: list[float]) -> None:
    mean = sum(values) / len(values)
    assert bucketed(values).mean == pytest.approx(mean, rel=0.5, abs=0.01)


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
