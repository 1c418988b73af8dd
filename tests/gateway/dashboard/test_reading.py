"""What two readings say of the time between them, and what is kept of many."""

from __future__ import annotations

from bisect import bisect_left

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.gateway.dashboard.history import POINT_S, History
from headway.gateway.dashboard.reading import NS_PER_S, Between, Counts, Reading

BOUNDS = (0.01, 0.1, 0.5, 1.0, 5.0)


def counts(*seconds: float) -> Counts:
    buckets = [0] * (len(BOUNDS) + 1)
    for one in seconds:
        buckets[bisect_left(BOUNDS, one)] += 1
    return Counts.of(BOUNDS, buckets, sum(seconds))


def reading(second: int, gauges: dict[str, float | None] | None = None, **totals: float) -> Reading:
    return Reading(1000.0 + second, second * NS_PER_S, gauges or {}, totals)


seconds = st.lists(st.floats(1e-4, 20), min_size=1, max_size=50)


@given(seconds, st.sampled_from([50, 90, 99]))
def test_a_percentile_lies_in_the_bucket_of_the_sample_it_is(samples: list[float], q: int) -> None:
    found = counts(*samples).percentile(q)
    real = float(np.percentile(samples, q, method="inverted_cdf"))
    assert found is not None
    if real > BOUNDS[-1]:
        assert found == BOUNDS[-1]
    else:
        bucket = bisect_left(BOUNDS, real)
        assert (BOUNDS[bucket - 1] if bucket else 0.0) <= found <= BOUNDS[bucket] * (1 + 1e-9)


@given(seconds, seconds)
def test_what_came_since_is_what_came_since(before: list[float], after: list[float]) -> None:
    since = counts(*before, *after).since(counts(*before))
    assert list(since.counts) == list(counts(*after).counts)
    assert since.samples == len(after)
    assert since.mean == pytest.approx(np.mean(after))


def test_of_nothing_nothing_is_told() -> None:
    told = counts().told()
    assert told == {"count": 0, "mean": None, "p50": None, "p90": None, "p99": None}


def test_figures_of_a_window() -> None:
    first = Reading(0, 0, {}, {"ended.stop": 5, "output_tokens": 100}, {"ttft": counts(0.3)})
    last = Reading(
        10,
        10 * NS_PER_S,
        {},
        {"ended.stop": 9, "ended.length": 1, "ended.failed": 2, "refused.queue_full": 3, "output_tokens": 300},
        {"ttft": counts(0.3, 0.2, 0.4), "part.queue": counts(0.05, 0.07)},
    )
    told = Between(first, last).figures()
    assert (told["seconds"], told["ok"]) == (10, 5)
    assert told["ended"] == {"stop": 4, "length": 1, "failed": 2}
    assert told["refused"] == {"queue_full": 3}
    assert (told["output_tokens"], told["output_tokens_per_s"], told["ok_per_s"]) == (200, 20, 0.5)
    assert told["ttft"]["count"] == 2
    assert told["ttft"]["mean"] == pytest.approx(0.3)
    assert told["parts"] == {"part.queue": pytest.approx(0.06)}
    assert told["prefill_tokens"] is None, "who does not count them has not prefilled none"


def test_what_was_served_as_promised_is_of_all_that_were_due() -> None:
    """Who was turned away was not; who left, or asked for what there is not, was promised nothing."""
    first = Reading(0, 0, {}, {"outcome.good": 4})
    ends = {"good": 10, "late": 1, "failed": 1, "expired": 1, "limited": 2, "refused": 1, "invalid": 9, "cancelled": 5}
    last = Reading(5, 5 * NS_PER_S, {}, {f"outcome.{how}": count for how, count in ends.items()})
    told = Between(first, last).figures()
    assert (told["attainment"], told["good_per_s"]) == (0.5, 1.2)
    assert told["unserved"] == {"failed": 1, "expired": 1, "limited": 2, "refused": 1}, "of the same"
    nothing = Between(first, first).figures()
    assert (nothing["attainment"], nothing["good_per_s"]) == (None, None), "nobody was due"


def test_a_point_tells_the_ten_seconds_before_it() -> None:
    history = History()
    for second in range(30):
        history.add(reading(second, decode_tokens=second * second))
    place = history.columns.index("rate.decode_tokens")
    assert history.rows(0, 100)[29][place] == (29**2 - (29 - POINT_S) ** 2) / POINT_S


def test_rows_are_told_once_and_the_oldest_are_forgotten() -> None:
    history = History(kept_s=5)
    for second in range(9):
        history.add(reading(second))
    assert history.number == 9
    assert [row[0] for row in history.rows(7, 100)] == [1007.0, 1008.0]
    assert history.rows(9, 100) == []
    assert len(history.rows(0, 100)) == 6
    assert len(history.rows(0, 2)) == 2
    assert len(history.rows(1_000_000, 3)) == 3, "rows of another run: all anew"
    between = history.last(3)
    assert between is not None
    assert (between.first.now_ns, between.last.now_ns) == (5 * NS_PER_S, 8 * NS_PER_S)


def test_columns_stay_where_they_are_when_lanes_come_and_go() -> None:
    history = History()
    history.add(reading(0, {"lane.a": 1}))
    history.add(reading(1, {"lane.b": 2}))
    history.add(reading(2, {"lane.a": 3, "lane.b": None}))
    assert history.columns == ["t", "lane.a", "lane.b"]
    assert history.rows(0, 9) == [[1000.0, 1], [1001.0, None, 2], [1002.0, 3, None]]


def test_names_without_end_do_not_take_memory_without_end() -> None:
    history = History(kept_s=10)
    for second in range(400):
        history.add(reading(second, {f"lane.{second}": 1}))
    assert len(history.columns) < 200
