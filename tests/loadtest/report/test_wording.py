"""Numbers lose no more than a reader can spare, and never claim all or nothing falsely."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.loadtest.report.wording import clock, count, duration, percent, printable, significant, size, within
from headway.loadtest.result import Interval


@given(st.floats(0.01, 1e12))
def test_three_digits_are_kept(value: float) -> None:
    assert float(significant(value).replace(",", "")) == pytest.approx(value, rel=0.0051)


@given(st.floats(1e-12, 1e12))
def test_something_is_never_nothing(value: float) -> None:
    assert significant(value).strip("0.,") != ""


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (12345.6, "12,346"), (123.45, "123"), (9.999, "10.0"), (0.01234, "0.0123")]
)
def test_significant(value: float, text: str) -> None:
    assert significant(value) == text


@given(st.floats(0, 1))
def test_all_and_nothing_mean_it(ratio: float) -> None:
    said = percent(ratio)
    assert (said == "100%") is (ratio == 1)
    assert (said == "0%") is (ratio == 0)
    assert said.strip("<>%") not in {"0.0", "100.0", "0.00", "100.00"}
    if said[0] not in "<>":
        assert float(said.strip("%")) / 100 == pytest.approx(ratio, abs=0.0011)


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, "–"), (float("nan"), "–"), (0.0123, "12.3 ms"), (0.9996, "1,000 ms"), (1.5, "1.50 s")]
)
def test_duration(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


def test_other_words() -> None:
    assert [clock(s) for s in (7.9, 750, 3723)] == ["0:07", "12:30", "1:02:03"]
    assert [size(b) for b in (None, 512, 80 * 2**30)] == ["–", "512 B", "80.0 GiB"]
    assert [count(n, "request") for n in (0, 1, 1200)] == ["0 requests", "1 request", "1,200 requests"]


def test_an_interval_says_which_side_is_open() -> None:
    assert within(Interval(value=1.0, low=0.5, high=2.0), 1e3) == "500–2,000"
    assert within(Interval(value=1.0, low=0.5)) == "≥ 0.500"
    assert within(Interval(value=1.0, high=2.0)) == "≤ 2.00"
    assert within(Interval(value=None)) == ""


@given(st.text())
def test_a_servers_words_cannot_steer_a_terminal(text: str) -> None:
    said = printable(text)
    assert len(said) == len(text)
    assert not [sign for sign in said if unicodedata.category(sign) in {"Cc", "Cf"}]
    assert len(printable(text, 10)) <= 10
