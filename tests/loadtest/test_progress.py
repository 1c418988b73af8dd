"""What is told of a run as it goes: every first token once, and nothing kept of what nobody asks for."""

from __future__ import annotations

from array import array

import pytest

from headway.loadtest.record import Fate, Record
from headway.loadtest.runner.progress import RECENT_S, Meter, Tally, Tick, Times


def test_every_first_token_is_new_once() -> None:
    meter = Meter(2)
    meter.note(0, Tick(ok=1, output_tokens=7, ttft_s=[0.1, 0.2]), 1.0)
    meter.note(1, Tick(ok=2, output_tokens=5, ttft_s=[0.3]), 1.1)
    first = meter.progress(1.1)
    assert (first.ok, first.output_tokens, first.new_ttft_s) == (3, 12, (0.1, 0.2, 0.3))
    meter.note(0, Tick(ok=3, output_tokens=9, ttft_s=[0.4]), 1.4)
    second = meter.progress(1.4)
    assert second.new_ttft_s == (0.4,)
    assert second.recent_ttft == Times(0.25, None, 0.4)
    assert meter.progress(1.4 + 2 * RECENT_S).recent_ttft is None


def test_a_run_that_nobody_watches_keeps_no_times() -> None:
    """A ramp with --quiet counts, for it may end early, and draws nothing."""
    meter = Meter(1)
    for tick in range(1000):
        meter.note(0, Tick(ttft_s=[0.1] * 10), 0.25 * tick)
        meter.counts(0.25 * tick)
    assert len(meter._ttft_s) <= 10 * (RECENT_S / 0.25 + 1)


@pytest.mark.parametrize(
    ("gaps_ms", "tokens", "late"),
    [
        ([10] * 100, [1] * 100, False),
        ([10] * 99 + [900], [1] * 100, False),  # the p99 of its own gaps, and not its longest
        ([10] * 97 + [900] * 3, [1] * 100, True),
        ([90] * 100, [2] * 100, False),  # 45 ms a token
        ([40] * 100, [0, 1] * 50, True),  # a chunk without a token lends its gap to the next
    ],
)
def test_tokens_that_come_too_late_break_a_promise(gaps_ms: list[int], tokens: list[int], late: bool) -> None:
    record = Record(0, "", "", 1, 101, 0, sent_ns=0, first_ns=1, ended_ns=10**10, fate=Fate.OK)
    record.gaps_ns, record.gap_tokens = array("q", [gap * 10**6 for gap in gaps_ms]), array("H", tokens)
    tally = Tally(slo_itl_s=0.05)
    tally.count(record)
    assert (tally.ok, tally.late) == (1, late)
