"""How long a prompt takes, from first bytes: the line that was drawn is found, what is not evident is not claimed."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.core.fleet.line import Line

MS = 1_000_000
waits = st.lists(st.tuples(st.integers(0, 100_000), st.integers(0, 10**11)), max_size=80)


def learnt(*pairs: tuple[int, int]) -> Line:
    time = Line()
    for tokens, wait_ns in pairs:
        time.observe(tokens, wait_ns)
    return time


def test_nothing_is_known_at_first():
    time = Line()
    assert not time
    assert time.at(1_000) == 0.0


@pytest.mark.parametrize(("constant_ms", "token_ns"), [(0, 120_000), (40, 120_000), (500, 3_000)])
def test_a_line_is_found(constant_ms, token_ns):
    draws = random.Random(1)
    pairs = [
        (tokens, constant_ms * MS + token_ns * tokens) for tokens in (draws.randrange(10, 9_000) for _ in range(60))
    ]
    time = learnt(*pairs)
    assert time.slope == pytest.approx(token_ns, rel=1e-3)
    assert time.at(5_000) == pytest.approx(constant_ms * MS + 5_000 * token_ns, rel=1e-3)


def test_a_wait_that_has_nothing_to_do_with_prompts_is_a_constant():
    draws = random.Random(2)
    worst = max(
        learnt(*((draws.randrange(100, 2_000), int(draws.gauss(1_000, 300) * MS)) for _ in range(80))).slope
        for _ in range(50)
    )
    assert worst * 2_000 < 250 * MS  # no window would close over it


def test_it_follows_a_worker_that_changes():
    draws = random.Random(3)
    tokens = [draws.randrange(10, 5_000) for _ in range(600)]
    time = learnt(*((one, 100_000 * one) for one in tokens[:200]), *((one, 300_000 * one) for one in tokens[200:]))
    assert time.slope == pytest.approx(300_000, rel=0.05)


@settings(max_examples=200, deadline=None)
@given(waits, st.integers(0, 100_000))
def test_more_to_read_never_takes_less_time_and_nothing_less_than_none(pairs, tokens):
    time = learnt(*pairs)
    assert time.slope >= 0
    assert time.constant >= 0
    assert 0 <= time.at(tokens) <= time.at(tokens + 1) < 1e30
