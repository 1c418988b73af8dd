"""Many values into few, and what may not be lost on the way."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from headway.loadtest.report.bins import (
    MOST_BINS,
    TimeBins,
    class_quantiles,
    classes,
    fair_sample,
    time_bins,
    token_times,
)
from headway.loadtest.report.columns import columns
from headway.loadtest.report.plot import told
from headway.metrics.latency import chunk_times_ns, token_gaps
from headway.metrics.percentiles import percentile
from tests.loadtest.report.sample_run import Sample


@given(st.floats(1e-3, 1e6))
def test_time_bins_cover_the_run_in_round_steps(elapsed_s: float) -> None:
    bins = time_bins(elapsed_s)
    assert 1 <= bins.count <= MOST_BINS
    assert bins.width_s * bins.count >= elapsed_s * (1 - 1e-6)
    assert bins.width_s * (bins.count - 1) <= elapsed_s
    assert f"{bins.width_s:e}"[0] in "125"


@given(st.lists(st.floats(0, 100), min_size=1, max_size=200))
def test_binning_counts_everything_once(at: list[float]) -> None:
    times = np.array([*at, np.nan])
    assert time_bins(100).counts(times).sum() == len(at)


@given(st.lists(st.tuples(st.floats(0, 9.99), st.floats(0, 1e3)), min_size=1, max_size=100), st.floats(0, 1))
def test_quantiles_by_time_are_those_of_each_bin(pairs: list[tuple[float, float]], ratio: float) -> None:
    bins = TimeBins(1.0, 10)
    times, values = np.array(pairs).T
    found = bins.quantiles(times, values, ratio)
    for place in range(10):
        inside = values[np.floor(times + 1e-9) == place]
        if inside.size:
            assert found[place] == pytest.approx(np.quantile(inside, ratio))
        else:
            assert np.isnan(found[place])


@given(st.lists(st.floats(2e-6, 5000), min_size=1, max_size=300), st.floats(0, 1))
def test_percentiles_from_classes_are_true_to_half_a_percent(values: list[float], ratio: float) -> None:
    seconds = np.array(values)
    counts = np.bincount(classes(seconds), minlength=1).astype(float)
    place = int(np.floor(ratio * (len(values) - 1)))
    exact = np.sort(seconds)[place]
    assert class_quantiles(counts, np.array([ratio]))[0] == pytest.approx(exact, rel=0.005)


def test_token_times_are_those_of_the_definitions(made: Sample) -> None:
    seen = columns(made.records, made.run.summary.window_s)
    bins = time_bins(made.run.elapsed_s)
    found = token_times(seen, bins)
    assert found.tokens.sum() == sum(record.chunks for record in made.records)
    gaps, at_s = token_gaps(seen.table.timings), chunk_times_ns(seen.table.timings) / 1e9
    for place in (3, 40, 80):
        inside = (at_s >= place * bins.width_s) & (at_s < (place + 1) * bins.width_s)
        for ratio in (0.5, 0.99):
            exact = np.quantile(gaps.seconds[inside], ratio, method="lower")
            assert found.quantiles(ratio)[place] == pytest.approx(exact, rel=0.005)
    measured = seen.measured[gaps.owner]
    p99 = percentile(gaps.seconds[measured], 99)
    assert class_quantiles(found.measured, np.array([0.99]))[0] == pytest.approx(p99, rel=0.01)


def test_gaps_of_a_long_run_are_taken_in_parts(made: Sample, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = columns(made.records, made.run.summary.window_s)
    whole = token_times(seen, time_bins(made.run.elapsed_s))
    monkeypatch.setattr("headway.loadtest.report.columns.BATCH", 7)
    parts = token_times(seen, time_bins(made.run.elapsed_s))
    assert (whole.tokens == parts.tokens).all()
    assert (whole.by_time == parts.by_time).all()
    assert (whole.measured == parts.measured).all()


@given(st.integers(1, 400), st.integers(40, 200), st.integers(0, 2**32 - 1))
def test_a_fair_sample_keeps_every_extreme_and_the_proportions(count: int, limit: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, y = rng.integers(0, 100, count).astype(float), rng.random(count)
    kept = fair_sample(x, y, limit)
    assert len(kept) == min(count, limit)
    assert (np.diff(kept) > 0).all(), "each once, in order"
    assert {int(np.argmax(y)), int(np.argmin(y))} <= set(kept.tolist())
    assume(count > limit)
    # What is left out is left out everywhere alike: no long stretch is missing.
    longest = np.diff(np.concatenate(([-1], kept, [count]))).max()
    assert longest <= count / (limit - 2 * (limit // 8) - 1) + 2


def test_what_a_plot_is_told() -> None:
    assert told([0.123456789, np.nan, 3, np.inf]) == [0.12346, None, 3.0, None]
