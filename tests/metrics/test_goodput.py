"""Goodput: every promise, every request, and refusals in the denominator."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.metrics.goodput import judged, promises_met, share, wilson
from tests.metrics.test_latency import timings

FAST = {"first": 50, "gaps": [(10, 1)] * 4, "ended": 100}


def test_every_promise_counts():
    t = timings(
        FAST,
        FAST | {"first": 600, "ended": 700},  # late first token
        FAST | {"gaps": [(10, 1), (400, 1)], "ended": 600},  # one long gap
        FAST | {"ended": 5000},  # late end
    )
    met = promises_met(t, ttft_s=0.5, itl_s=0.1, e2e_s=1.0)
    assert {name: list(kept) for name, kept in met.items()} == {
        "ttft": [True, False, True, True],
        "itl": [True, True, False, True],
        "e2e": [True, True, True, False],
    }


def test_a_limit_that_is_just_reached_is_kept():
    assert promises_met(timings(FAST), ttft_s=0.05, e2e_s=0.1)["ttft"].all()


def test_no_promise_no_goodput():
    assert promises_met(timings(FAST)) == {}


def test_refused_and_failed_requests_are_not_good_whatever_the_promise():
    t = timings(FAST, {"ok": False}, FAST | {"ok": False})
    for limits in ({"ttft_s": 10.0}, {"itl_s": 10.0}, {"e2e_s": 10.0}):
        [kept] = promises_met(t, **limits).values()
        assert list(kept) == [True, False, False]


def test_one_token_breaks_no_promise_about_gaps_and_who_shows_none_keeps_no_promise_about_tokens():
    t = timings({"first": 5, "ended": 6}, {"first": -1, "ended": 30_000})
    assert list(promises_met(t, itl_s=0.1)["itl"]) == [True, False]
    assert list(promises_met(t, ttft_s=0.1)["ttft"]) == [True, False]


CUT = {"ok": False, "given_up": True, "cut": True}


def test_a_stream_that_was_cut_keeps_what_it_had_kept_until_then():
    t = timings(
        {"ended": 90} | CUT,
        {"first": 50, "gaps": [(10, 1)] * 3, "ended": 95} | CUT,
        {"first": 50, "gaps": [(10, 1)] * 3, "ended": 220} | CUT,  # 140 ms without a token
        {"first": 150, "gaps": [(50, 1)] * 3, "ended": 310} | CUT,
        {"first": 50, "gaps": [(10, 1)] * 3, "ended": 95} | CUT | {"cut": False},  # it broke
    )
    met = {name: list(each) for name, each in promises_met(t, ttft_s=0.1, itl_s=0.04, e2e_s=0.2).items()}
    assert met == {
        "ttft": [False, True, True, False, False],
        "itl": [False, True, False, False, False],
        "e2e": [False] * 5,
    }


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({"ttft_s": 0.1}, [True, True, True, False, False]),
        ({"ttft_s": 0.1, "e2e_s": 0.4}, [True, False, False, False, False]),
        ({"itl_s": 0.1}, [True, True, False, True, True]),
        ({}, [True] * 5),
    ],
)
def test_who_was_due_too_shortly_before_the_cut_is_not_judged_whatever_became_of_him(limits, expected):
    """Cut at 1 s: which of those due at 0.5, 0.7, 0.8, 0.9 and 0.95 s had the time to break each promise."""
    t = timings(
        FAST | {"scheduled": 500},
        FAST | {"scheduled": 700},
        {"scheduled": 800, "ended": 1000} | CUT,
        FAST | {"scheduled": 900, "ended": 930},
        {"scheduled": 950, "first": 990, "ended": 1001} | CUT,  # by another process, a little later
    )
    assert list(judged(t, **limits)) == expected
    assert judged(t.select(t.ok), **limits).all(), "nothing was cut"


@pytest.mark.parametrize(
    ("good", "n", "low", "high"),
    # Known values of the score interval without correction (Newcombe 1998, Stat. Med. 17:857, table I, method 3).
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilsons_interval(good, n, low, high):
    assert wilson(good / n, n) == pytest.approx((low, high), abs=1e-4)


@given(st.lists(st.booleans(), min_size=1, max_size=400))
def test_a_share_lies_in_its_interval_and_that_between_zero_and_one(good):
    figure = share(np.array(good))
    assert figure.value == pytest.approx(sum(good) / len(good))
    assert figure.value is not None
    assert figure.low is not None
    assert figure.high is not None
    assert 0 <= figure.low <= figure.value <= figure.high <= 1


def test_all_good_is_not_certain():
    figure = share(np.ones(100, np.bool_))
    assert (figure.value, figure.high) == (1.0, 1.0)
    assert figure.low == pytest.approx(0.963, abs=1e-3)


def test_failures_that_come_together_count_as_fewer():
    """Fifty bad requests in a row are one event; fifty spread over the run are fifty."""
    together, spread = np.ones(2000, np.bool_), np.ones(2000, np.bool_)
    together[1000:1050] = False
    spread[::40] = False
    one, many = share(together), share(spread)
    assert one.value == many.value
    assert one.low is not None
    assert one.high is not None
    assert many.low is not None
    assert many.high is not None
    assert one.high - one.low > 3 * (many.high - many.low)


def test_nothing_due_has_no_share():
    assert share(np.zeros(0, np.bool_)).value is None
