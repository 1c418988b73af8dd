"""Progress: a line now and then where nobody looks, a picture where somebody does."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from headway.loadtest.report.live import EVERY_S, Aim, drawn, shown
from headway.loadtest.runner.progress import Progress, Times

GOING = Progress(
    elapsed_s=30.0, offering=True, sent=310, in_flight=12, done=298, limited=0, errors=0, recent_rate=10.1,
    recent_output_rate=812.0, recent_ttft=Times(0.12, 1.9, 2.5), ok=303, output_tokens=24_360,
    new_ttft_s=(0.12,) * 98 + (1.9,) * 2,
)  # fmt: skip


def told(*progress: Progress, terminal: bool = False, last_error: str = "") -> str:
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=80, height=20)
    with shown(Aim(seconds=60.0), console=console) as report:
        for one in progress:
            report(replace(one, last_error=last_error))
    return out.getvalue()


def test_a_line_every_ten_seconds_where_nobody_looks() -> None:
    text = told(*(replace(GOING, elapsed_s=0.25 * tick) for tick in range(241)))
    lines = text.splitlines()
    assert len(lines) == 60 / EVERY_S + 1
    assert lines[3].startswith("0:30 of 1:00 · 298 done, 12 in flight")
    assert "\x1b" not in text


def test_the_line_says_all() -> None:
    line = told(replace(GOING, errors=2, limited=3), last_error="HTTP 500")
    assert line == (
        "0:30 of 1:00 · 298 done, 12 in flight · 10.1 req/s · 812 tokens/s · TTFT p50 120 ms, p99 1.90 s"
        " · 3 limited · 2 errors, last: HTTP 500\n"
    )


def test_a_line_tells_what_was_between_it_and_the_one_before() -> None:
    """Eight answers in ten seconds, none of them in the last five."""
    none = replace(
        GOING, recent_rate=0.0, recent_output_rate=0.0, recent_ttft=None, new_ttft_s=(), ok=0, output_tokens=0
    )
    slow = replace(none, elapsed_s=4.0, ok=8, output_tokens=160, new_ttft_s=(5.31, 0.2))
    later = [replace(slow, elapsed_s=at_s, new_ttft_s=()) for at_s in (9.0, 10.1, 15.0, 20.2)]
    first, second, third = told(replace(none, elapsed_s=0.1), slow, *later).splitlines()
    assert first.endswith("in flight"), "after a tenth of a second there is no rate to tell"
    assert second.endswith(" · 0.800 req/s · 16.0 tokens/s · TTFT p50 2.75 s, max 5.31 s")
    assert third.endswith(" · 0 req/s · 0 tokens/s")


@pytest.mark.parametrize(("values", "said"), [(1, "max 5.31 s"), (99, "max 5.31 s"), (100, "p99 5.31 s")])
def test_a_p99_takes_a_hundred_values(values: int, said: str) -> None:
    assert f"TTFT p50 5.31 s, {said}" in told(replace(GOING, recent_ttft=Times.of([5.31] * values)), terminal=True)
    assert told(replace(GOING, new_ttft_s=(5.31,) * values)).strip().endswith(said)


def test_a_run_that_drains_or_goes_on_is_not_told_as_if_it_were_on_its_way() -> None:
    draining = told(replace(GOING, elapsed_s=120.0, offering=False))
    assert draining.startswith("2:00 · draining · 298 done, 12 in flight")
    longer = told(replace(GOING, elapsed_s=90.0))
    assert longer.startswith("1:30 · 298 done")


def test_a_terminal_is_redrawn_only_when_told() -> None:
    text = told(GOING, replace(GOING, elapsed_s=31.0), terminal=True)
    assert "0:30" in text
    assert "0:31" in text
    assert "━" in text


def test_what_is_unknown_is_left_out() -> None:
    line = told(replace(GOING, elapsed_s=-2.0, recent_ttft=None))
    assert line.startswith("starts in 2 s")
    assert "TTFT" not in line
    assert "None" not in line


def test_the_last_error_steers_nothing() -> None:
    for terminal in (False, True):
        text = told(replace(GOING, errors=1), last_error="\x1b[2J no: bad\nnext", terminal=terminal)
        assert "\x1b[2J" not in text
        assert "no: bad next" in text


@given(
    elapsed_s=st.floats(-10, 1e6), seconds=st.none() | st.floats(0.1, 1e5), requests=st.none() | st.integers(1, 10**6)
)
def test_the_bar_has_one_length(elapsed_s: float, seconds: float | None, requests: int | None) -> None:
    text = drawn(replace(GOING, elapsed_s=elapsed_s), Aim(seconds=seconds, requests=requests)).plain
    assert text.count("━") in ({24} if seconds or requests else {0})


@pytest.mark.parametrize(("aim", "reached"), [(Aim(), None), (Aim(seconds=60.0), 0.5), (Aim(requests=596), 0.5)])
def test_how_far_it_is(aim: Aim, reached: float | None) -> None:
    assert aim.reached(GOING) == reached
