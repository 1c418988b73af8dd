"""Whatever comes: it is stored as it was, or refused with a `BadValue`; never anything else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.store import BadValue
from headway.store.values import identifier, pairs, seconds, text, whole, window_s

ANYTHING = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.lists(st.integers())
    | st.dictionaries(st.text(), st.text() | st.integers())
)  # fmt: skip


@pytest.mark.parametrize(
    "check",
    [
        identifier,
        lambda value: text(value, "field"),
        lambda value: whole(value, "field"),
        lambda value: seconds(value, "field"),
        lambda value: pairs(value, "field"),
        window_s,
    ],
    ids=["identifier", "text", "whole", "seconds", "pairs", "window_s"],
)
@given(value=ANYTHING)
def test_anything_passes_or_is_refused(check, value):
    try:
        passed = check(value)
    except BadValue as refusal:
        assert refusal.param
        assert len(refusal.message) < 300
    else:
        assert passed == value or check is window_s or value is None


@given(st.text())
def test_a_text_that_passes_can_be_written(value):
    try:
        text(value, "field")
    except BadValue:
        assert not 1 <= len(value) <= 512 or "\0" in value or any("\ud800" <= c <= "\udfff" for c in value)
    else:
        assert value.encode().decode() == value


@given(st.integers(1, 999_999), st.sampled_from("smhd"))
def test_a_window_is_its_number_of_units(number, unit):
    assert window_s(f"{number}{unit}") == number * {"s": 1, "m": 60, "h": 3600, "d": 86400}[unit]
