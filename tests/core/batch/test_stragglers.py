"""Who is so slow that nobody waits for it: only compared with enough others, and never with a factor of 0."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headway.core.batch.stragglers import ENOUGH, Stragglers


@given(st.lists(st.integers(1, 10**12), max_size=100), st.floats(1.0, 100.0))
def test_nearly_all_others_are_below_the_limit(times, factor):
    stragglers = Stragglers(factor)
    for took_ns in times:
        stragglers.ended(took_ns)
    limit_ns = stragglers.limit_ns
    if len(times) < ENOUGH:
        assert limit_ns is None
    else:
        assert limit_ns is not None
        assert sum(took_ns <= limit_ns for took_ns in times) >= 0.9 * len(times)
        assert limit_ns <= factor * max(times)


def test_a_factor_of_0_is_never():
    stragglers = Stragglers(0.0)
    for _ in range(100):
        stragglers.ended(1)
    assert stragglers.limit_ns is None
