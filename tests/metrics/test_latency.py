"""The definitions, by hand and as laws."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.metrics import latency
from headway.metrics.latency import Timings
from headway.metrics.percentiles import percentile

MS = 1_000_000


def timings(*requests: Mapping[str, Any]) -> Timings:
    """Each: scheduled, sent, first, ended, gaps [(ms, tokens)], all in ms; `last` follows from the gaps."""

    def column(name: str, default: int) -> np.ndarray:
        return np.array([request.get(name, default) for request in requests], np.int64)

    gaps = [list(request.get("gaps", [])) for request in requests]
    first = column("first", -1)
    span = np.array([sum(ms for ms, _ in some) for some in gaps], np.int64)
    last = np.where(first < 0, -1, first + span)
    tokens = np.array([1 + sum(n for _, n in some) for some in gaps], np.int64)
    flat = [gap for some in gaps for gap in some]

    def ns(ms: np.ndarray) -> np.ndarray:
        return np.where(ms < 0, -1, ms * MS)

    return Timings(
        scheduled_ns=ns(column("scheduled", 0)),
        sent_ns=ns(column("sent", 0)),
        first_ns=ns(first),
        last_ns=ns(column("last", -1)) if any("last" in request for request in requests) else ns(last),
        ended_ns=ns(column("ended", -1)),
        ok=np.array([bool(request.get("ok", True)) for request in requests]),
        given_up=np.array([bool(request.get("given_up", False)) for request in requests]),
        input_tokens=column("input_tokens", 10),
        output_tokens=np.array([request.get("n", n) for request, n in zip(requests, tokens, strict=True)], np.int64),
        first_tokens=np.ones(len(requests), np.int64),
        gap_counts=np.array([len(some) for some in gaps], np.int64),
        gaps_ns=np.array([ms * MS for ms, _ in flat], np.int64),
        gap_tokens=np.array([n for _, n in flat], np.uint16),
        hidden_tokens=column("hidden", 0),
        choices=column("choices", 1),
        cut=np.array([bool(request.get("cut", False)) for request in requests]),
    )


gap_lists = st.lists(st.lists(st.tuples(st.integers(0, 500), st.integers(0, 4)), max_size=8), min_size=1, max_size=8)


# -- by hand -----------------------------------------------------------------------------------------------------


def test_a_request_by_hand():
    t = timings({"scheduled": 100, "sent": 130, "first": 180, "gaps": [(10, 1), (30, 3)], "ended": 225})
    assert latency.lag_s(t) == pytest.approx([0.030])
    assert latency.ttft_s(t) == pytest.approx([0.080])
    assert latency.ttft_from_send_s(t) == pytest.approx([0.050])
    assert latency.e2e_s(t) == pytest.approx([0.125])
    assert latency.e2e_from_send_s(t) == pytest.approx([0.095])
    assert latency.tpot_s(t) == pytest.approx([0.040 / 4])
    assert latency.chunk_gaps_s(t) == pytest.approx([0.010, 0.030])
    gaps = latency.token_gaps(t)
    assert gaps.seconds == pytest.approx([0.010, 0.010])
    assert list(gaps.tokens) == [1, 3]
    assert list(latency.chunk_times_ns(t)) == [190 * MS, 220 * MS]


def test_one_token_has_no_tpot_and_it_is_not_zero():
    t = timings({"first": 10, "ended": 20})
    assert np.isnan(latency.tpot_s(t)).all()
    assert np.isnan(latency.request_gap_s(t)).all()


def test_what_never_happened_is_undefined():
    t = timings({"sent": -1, "ok": False}, {"first": 5, "ok": False, "ended": 9})
    assert np.isnan(latency.ttft_s(t)[0])
    assert np.isnan(latency.lag_s(t)[0])
    assert latency.ttft_s(t)[1] == pytest.approx(0.005)  # its first token came, whatever happened then
    assert np.isnan(latency.e2e_s(t)).all()
    assert np.isnan(latency.tpot_s(t)).all()


def test_gaps_are_put_in_order_of_time_across_requests():
    t = timings({"first": 0, "gaps": [(10, 1), (30, 1)]}, {"first": 15, "gaps": [(5, 1)]})
    assert latency.chunk_gaps_s(t) == pytest.approx([0.010, 0.005, 0.030])  # they end at 10, 20 and 40 ms
    seconds, weights, at_least = latency.token_gaps_in_time(t)
    assert seconds == pytest.approx([0.010, 0.005, 0.030])
    assert (weights, at_least) == (None, None)
    t = timings({"first": 0, "gaps": [(10, 1), (30, 2)]}, {"first": 15, "gaps": [(5, 1), (7, 0)]})
    seconds, weights, _ = latency.token_gaps_in_time(t)
    assert seconds == pytest.approx([0.010, 0.005, 0.015])
    assert weights is not None
    assert list(weights) == [1, 1, 2]


def test_streams_within_one_another_are_placed_within_their_request():
    """Two choices of 20 ms each: their gaps add up to 40 ms, in a request that streamed for 20."""
    t = timings({"first": 100, "last": 120, "gaps": [(10, 1), (10, 1), (10, 1), (10, 1)]})
    assert list(latency.chunk_times_ns(t)) == [105 * MS, 110 * MS, 115 * MS, 120 * MS]


def test_tpot_of_several_choices_is_that_of_each():
    """Two choices of three tokens each, 10 ms apart: not a fifth of 20 ms. A saved run has no gaps, and cannot tell."""
    some = {"first": 100, "last": 120, "gaps": [(10, 1)] * 4, "n": 6, "ended": 130}
    assert latency.tpot_s(timings(some | {"choices": 2}, some | {"gaps": [], "choices": 2}, some)) == pytest.approx(
        [0.010, np.nan, 0.020 / 5], nan_ok=True
    )


def test_tokens_that_were_not_shown_are_none_of_tpot():
    """900 of 1,000 were thought in silence; the other 100 came 20 ms apart."""
    t = timings({"first": 100, "gaps": [(20, 1)] * 99, "n": 1000, "hidden": 900, "ended": 2100})
    assert latency.tpot_s(t) == pytest.approx([0.020])


def test_a_stream_that_hangs_has_a_gap_that_is_as_long_as_it_was_waited_for():
    t = timings(
        {"first": 0, "gaps": [(20, 1)], "ended": 5020, "ok": False, "given_up": True},
        {"first": 0, "gaps": [(30, 2)], "ended": 30},
        {"first": -1, "ended": 9000, "ok": False, "given_up": True},  # that is a TTFT
    )
    for seconds, weights, at_least in (latency.token_gaps_in_time(t), latency.chunk_gaps_in_time(t)):
        assert seconds[[0, 2]] == pytest.approx([0.020, np.inf])
        assert weights is None or list(weights) == [1, 2, 1]
        assert at_least == pytest.approx([np.nan, np.nan, 5.0], nan_ok=True)


def test_a_chunk_without_tokens_lends_its_gap_to_the_next():
    t = timings({"first": 0, "gaps": [(10, 0), (20, 2), (5, 0)]}, {"first": 0, "gaps": [(8, 1)]})
    gaps = latency.token_gaps(t)
    assert gaps.seconds == pytest.approx([0.015, 0.008])  # (10 + 20) / 2; the last 5 ms brought nothing
    assert list(gaps.owner) == [0, 1]


# -- laws --------------------------------------------------------------------------------------------------------


@given(gap_lists)
def test_token_gaps_add_up_to_the_stream_however_it_is_cut_into_chunks(lists):
    whole = [[(ms, max(n, 1)) for ms, n in some] for some in lists]
    t = timings(*({"first": 3, "gaps": some} for some in whole))
    gaps = latency.token_gaps(t)
    sums = np.bincount(gaps.owner, weights=gaps.seconds * gaps.tokens, minlength=len(t))
    assert sums == pytest.approx((t.last_ns - t.first_ns) / 1e9)
    one_each = [[(ms * n, 1) for ms, n in some for _ in range(n)] for some in whole]
    split = latency.token_gaps(timings(*({"first": 3, "gaps": some} for some in one_each)))
    joined = [[(ms * n * n, n) for ms, n in some] for some in whole]
    together = latency.token_gaps(timings(*({"first": 3, "gaps": some} for some in joined)))
    assert np.sort(split.seconds) == pytest.approx(np.sort(np.repeat(together.seconds, together.tokens)))


@given(gap_lists)
def test_a_requests_own_percentile_is_that_of_its_gaps(lists):
    t = timings(*({"first": 3, "gaps": some} for some in lists))
    found, gaps = latency.request_gap_s(t, 99), latency.token_gaps(t)
    for index in range(len(t)):
        mine = gaps.owner == index
        if mine.any():
            assert found[index] == pytest.approx(percentile(gaps.seconds[mine], 99, gaps.tokens[mine]))
        else:
            assert np.isnan(found[index])


@given(gap_lists, st.integers(2, 1000))
def test_scaling_times_scales_every_latency(lists, factor):
    one = timings(*({"scheduled": 1, "sent": 2, "first": 5, "gaps": some, "ended": 9999} for some in lists))
    other = timings(
        *(
            {
                "scheduled": factor,
                "sent": 2 * factor,
                "first": 5 * factor,
                "gaps": [(ms * factor, n) for ms, n in some],
                "ended": 9999 * factor,
            }
            for some in lists
        )
    )
    for figure in (latency.ttft_s, latency.ttft_from_send_s, latency.e2e_s, latency.tpot_s, latency.request_gap_s):
        assert figure(other) == pytest.approx(figure(one) * factor, nan_ok=True)


@given(gap_lists, st.data())
def test_a_selection_has_the_figures_of_its_requests(lists, data):
    t = timings(*({"first": 3, "gaps": some, "ended": 5000} for some in lists))
    rows = np.array(data.draw(st.lists(st.booleans(), min_size=len(t), max_size=len(t))), np.bool_)
    assert len(t.select(rows)) == rows.sum()
    few = t.due_within((-1.0, 1.0))  # all are due at 0
    assert [len(few), len(t.due_within((1.0, 2.0)))] == [len(t), 0]
    assert latency.tpot_s(few) == pytest.approx(latency.tpot_s(t), nan_ok=True)
    for figure in (latency.ttft_s, latency.tpot_s, latency.request_gap_s):
        assert figure(t.select(rows)) == pytest.approx(figure(t)[rows], nan_ok=True)
