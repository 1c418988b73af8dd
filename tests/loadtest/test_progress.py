"""What is told of a run as it goes: every first token once, and nothing kept of what nobody asks for."""

from __future__ import annotations

from headway.loadtest.runner.progress import RECENT_S, Meter, Tick, Times


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
