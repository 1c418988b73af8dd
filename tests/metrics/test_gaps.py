"""Gaps that are sorted later are the same gaps, whenever somebody reads."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from headway.metrics.gaps import BATCH, AllGaps, Gaps
from headway.metrics.histogram import Histogram
from headway.metrics.names import ITL_BUCKETS_S

gaps_s = st.one_of(st.sampled_from(ITL_BUCKETS_S), st.floats(0.0, 10.0))
# Of which of three requests, and of how many tokens; None: somebody reads.
steps = st.lists(st.one_of(st.none(), st.tuples(st.integers(0, 2), gaps_s, st.integers(1, 5))), max_size=60)


@given(steps)
def test_all_are_the_sum_of_each_at_any_moment(steps: list[tuple[int, float, int] | None]) -> None:
    told, each, true = AllGaps(), dict[int, Gaps](), dict[int, Histogram]()
    whole = Histogram(ITL_BUCKETS_S)
    for step in steps:
        if step is None:
            assert told.histogram.counts == whole.counts
            assert math.isclose(told.histogram.sum, whole.sum, abs_tol=1e-9)
            continue
        whose, gap_s, times = step
        told.note(each.setdefault(whose, Gaps(told)), gap_s, times)
        true.setdefault(whose, Histogram(ITL_BUCKETS_S)).observe(gap_s, times)
        whole.observe(gap_s, times)
    for whose, gaps in each.items():
        assert gaps.counts == true[whose].counts
        assert gaps.count == true[whose].count
        assert math.isclose(gaps.sum, true[whose].sum, abs_tol=1e-9)
    assert told.histogram.counts == whole.counts


def test_no_more_than_a_batch_is_kept() -> None:
    told = AllGaps()
    gaps = Gaps(told)
    for _ in range(3 * BATCH + 1):
        told.note(gaps, 0.02, 1)
    assert len(told._new) == 1
    assert gaps.count == told.histogram.count == 3 * BATCH + 1
