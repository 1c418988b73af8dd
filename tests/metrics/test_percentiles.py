"""Percentiles: numpy's values, intervals that hold on correlated samples, and silence where there are too few."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.metrics.blocks import blocks, deviations, student_t95
from headway.metrics.figures import Interval
from headway.metrics.percentiles import (
    PERCENTILES,
    distribution,
    key,
    percentile,
    percentile_draws,
    quantiles,
    samples_needed,
)

values = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=60).map(lambda some: np.array(some, np.float64))
weighted = st.lists(st.tuples(st.floats(0, 1e6), st.integers(1, 5)), min_size=1, max_size=40)


def autoregressive(rng: np.random.Generator, n: int, memory: float) -> np.ndarray:
    """A series of unit variance in which neighbours are correlated by `memory`."""
    noise = rng.normal(size=n) * np.sqrt(1 - memory**2)
    series = np.empty(n)
    series[0] = rng.normal()
    for i in range(1, n):
        series[i] = memory * series[i - 1] + noise[i]
    return series


# -- values ------------------------------------------------------------------------------------------------------


@given(values, st.floats(0, 100))
def test_a_percentile_is_numpys(sample, q):
    assert percentile(sample, q) == pytest.approx(np.percentile(sample, q), rel=1e-9, abs=1e-6)


@given(weighted, st.floats(0, 100))
def test_a_weight_is_a_value_repeated(pairs, q):
    sample, weights = np.array([v for v, _ in pairs]), np.array([w for _, w in pairs])
    repeated = np.repeat(sample, weights)
    assert percentile(sample, q, weights) == pytest.approx(np.percentile(repeated, q), rel=1e-9, abs=1e-6)
    told, plain = distribution(sample, weights), distribution(repeated)
    assert told.samples == plain.samples
    assert told.mean == pytest.approx(plain.mean, abs=1e-6)
    assert told.std == pytest.approx(plain.std, abs=1e-3)
    assert (told.min, told.max) == (plain.min, plain.max)


@given(values)
def test_percentiles_rise(sample):
    at = [percentile(sample, q) for q in (0, 10, 50, 90, 99, 99.9, 100)]
    assert all(a <= b + 1e-9 * abs(b) for a, b in pairwise(at))
    assert (at[0], at[-1]) == (sample.min(), sample.max())


@settings(max_examples=20)
@given(st.integers(0, 1000), st.floats(1e-3, 1e3), st.integers(100, 3000))
def test_scaling_the_samples_scales_every_figure(seed, factor, n):
    sample = np.random.default_rng(seed).exponential(size=n)
    plain, scaled = distribution(sample), distribution(sample * factor)
    assert scaled.mean == pytest.approx(plain.mean * factor)
    for name, figure in plain.percentiles.items():
        for part in ("value", "low", "high"):
            was, now = getattr(figure, part), getattr(scaled.percentiles[name], part)
            assert (now is None) == (was is None)
            if was is not None:
                assert now == pytest.approx(was * factor)


def test_undefined_samples_are_left_out():
    sample = np.array([1.0, np.nan, 3.0, np.nan, 2.0])
    assert distribution(sample) == distribution(np.array([1.0, 3.0, 2.0]))
    assert distribution(np.array([np.nan])) == distribution(np.array([]))


# -- how many there must be --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("q", "needed"), [(50, 20), (90, 100), (95, 200), (99, 1000), (99.9, 10_000)])
def test_ten_samples_are_expected_beyond_a_percentile_that_is_told(q, needed):
    assert samples_needed(q) == needed
    sample = np.random.default_rng(0).exponential(size=needed)
    assert distribution(sample).percentiles[key(q)].value is not None
    few = distribution(sample[:-1]).percentiles[key(q)]
    assert (few.value, few.low, few.high) == (None, None, None)


def test_nothing_measured_is_nothing_told():
    nothing = distribution(np.array([]))
    assert (nothing.samples, nothing.mean, nothing.std, nothing.min, nothing.max) == (0, None, None, None, None)
    assert list(nothing.percentiles) == ["50", "90", "95", "99", "99.9"]
    assert all(figure.value is None for figure in nothing.percentiles.values())


def test_many_equal_chunks_are_no_more_samples_than_few():
    """99 chunks of 100 tokens are 9,900 gaps, but only 99 things happened."""
    told = distribution(np.arange(99.0), np.full(99, 100))
    assert told.samples == 9900
    assert told.percentiles["90"].value is None


def test_ten_requests_that_are_the_whole_tail_set_no_upper_bound():
    """A single stall is the whole of p99: it happened, so it is told; how bad the next one is, nobody knows."""
    sample = np.random.default_rng(0).uniform(0.1, 0.2, size=1000)
    sample[:20] = np.linspace(2, 1, 20)
    stalled = distribution(sample).percentiles["99"]
    assert stalled.value is not None
    assert stalled.value > 1
    assert stalled.high is None
    assert stalled.low is not None
    assert stalled.low < 0.2  # and it may as well not have happened


# -- intervals ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("memory", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("q", [50, 90, 99])
def test_an_interval_covers_the_truth_about_as_often_as_it_says(memory, q):
    """Of 150 runs each, nominally 95 % cover. Correlation eats into that, as in every bootstrap, but not much."""
    truth = {50: 0.0, 90: 1.281552, 99: 2.326348}[q]
    covered = asked = 0
    for seed in range(150):
        figure = distribution(autoregressive(np.random.default_rng(seed), 2000, memory), percentiles=(q,), seed=seed)
        interval = figure.percentiles[key(q)]
        low = -np.inf if interval.low is None else interval.low
        high = np.inf if interval.high is None else interval.high
        covered += low <= truth <= high
        asked += 1
    assert 0.9 <= covered / asked <= 0.995


def test_single_requests_drawn_again_would_have_lied():
    """The same samples without their order: the interval of correlated ones is several times as long, and right so."""
    series = autoregressive(np.random.default_rng(1), 4000, 0.95)
    shuffled = np.random.default_rng(2).permutation(series)
    length = {}
    for name, sample in (("ordered", series), ("shuffled", shuffled)):
        interval = distribution(sample).percentiles["90"]
        assert interval.low is not None
        assert interval.high is not None
        length[name] = interval.high - interval.low
    assert length["ordered"] > 2.5 * length["shuffled"]


@given(st.integers(0, 100), st.integers(20, 400))
@settings(max_examples=25)
def test_an_interval_holds_its_value(seed, n):
    told = distribution(np.random.default_rng(seed).exponential(size=n))
    for figure in told.percentiles.values():
        if figure.value is not None:
            assert figure.low is None or figure.low <= figure.value
            assert figure.high is None or figure.high >= figure.value


def test_the_same_seed_gives_the_same_interval_whichever_percentiles_are_asked_for():
    sample = np.random.default_rng(0).exponential(size=3000)
    whole = distribution(sample, seed=7).percentiles["99"]
    assert distribution(sample, percentiles=(99.0,), seed=7).percentiles["99"] == whole
    assert distribution(sample, seed=8).percentiles["99"] != whole


def test_equal_samples_are_known_exactly():
    told = distribution(np.full(5000, 3.0)).percentiles["99"]
    assert (told.value, told.low, told.high) == (3.0, 3.0, 3.0)


def test_draws_agree_with_the_interval():
    sample = np.random.default_rng(3).exponential(size=5000)
    interval = distribution(sample, seed=4).percentiles["95"]
    draws = percentile_draws(sample, 95, seed=4)
    assert draws is not None
    assert interval.low == pytest.approx(np.quantile(draws, 0.025), rel=1e-3)
    assert interval.high == pytest.approx(np.quantile(draws, 0.975), rel=1e-3)
    assert percentile_draws(sample[:100], 95) is None


def test_a_million_samples_need_no_million_draws():
    """Not its speed but its way: the resampling is over blocks, of which there are never more than a thousand."""
    sample = np.random.default_rng(0).exponential(size=1_000_000)
    assert blocks(sample > 2).length >= 1000
    told = distribution(sample)
    for q in PERCENTILES:
        figure = told.percentiles[key(q)]
        truth = -np.log(1 - q / 100)
        assert figure.low is not None
        assert figure.high is not None
        assert figure.value == pytest.approx(truth, rel=0.05)
        assert figure.high - figure.low < 0.2 * truth


# -- blocks ------------------------------------------------------------------------------------------------------


def test_blocks_of_independent_samples_are_short_and_of_correlated_ones_long():
    rng = np.random.default_rng(0)
    white = blocks(rng.normal(size=8000))
    assert white.length == 32  # the next power of two above (2n)^(1/3) = 25
    assert white.inflation < 1.3
    memory = 0.9
    red = blocks(autoregressive(rng, 8000, memory))
    assert red.length > 100
    assert red.inflation == pytest.approx((1 + memory) / (1 - memory), rel=0.5)  # 19, in theory


def test_a_trend_leaves_few_blocks():
    assert blocks(np.arange(4096.0)).length >= 256


@given(st.lists(st.booleans(), max_size=300))
def test_blocks_of_anything(series):
    length, inflation = blocks(np.array(series, np.bool_))
    assert 1 <= length <= max(len(series), 1)
    assert inflation >= 1
    assert np.isfinite(deviations(np.array(series, np.bool_), np.random.default_rng(0))).all()


def test_deviations_are_those_of_a_mean():
    """Of independent samples: around zero, as wide as the standard error."""
    sample = np.random.default_rng(0).normal(size=4000)
    drawn = deviations(sample, np.random.default_rng(1))
    assert abs(drawn.mean()) < 0.1 * drawn.std()
    assert drawn.std() == pytest.approx(1 / np.sqrt(4000), rel=0.2)


@pytest.mark.parametrize(("freedom", "t"), [(4, 2.7764), (7, 2.3646), (10, 2.2281), (30, 2.0423), (1000, 1.9623)])
def test_students_t(freedom, t):
    assert student_t95(freedom) == pytest.approx(t, rel=0.005)


# -- waits that were given up ------------------------------------------------------------------------------------


def test_what_lies_among_infinite_samples_is_bounded_from_below():
    rng = np.random.default_rng(0)
    whole = rng.exponential(size=5000)
    waited = np.full(5000, 3.0)
    seen = np.where(whole > waited, np.inf, whole)
    told, truth = distribution(seen, at_least=waited), distribution(whole)
    for q in ("50", "90"):  # not reached by them
        assert told.percentiles[q].value == pytest.approx(truth.percentiles[q].value)
    for q in ("99", "99.9") if truth.percentiles["99.9"].value else ("99",):
        figure = told.percentiles[q]
        assert (figure.value, figure.low, figure.high) == (None, 3.0, None)
    assert (told.samples, told.mean, told.std, told.max) == (5000, None, None, None)


@given(st.lists(st.booleans(), min_size=30, max_size=200), st.integers(0, 1000))
@settings(max_examples=30)
def test_giving_up_is_between_having_ended_then_and_never_ending(given_up, seed):
    reached = np.random.default_rng(seed).exponential(size=len(given_up))
    seen = np.where(given_up, np.inf, reached)
    one, best, worst = distribution(seen, at_least=reached), distribution(reached), distribution(seen)
    for q, figure in one.percentiles.items():
        least, most = best.percentiles[q].value, worst.percentiles[q].value
        if figure.value is not None:
            assert least is not None
            assert figure.value >= least - 1e-12
            assert most is None or figure.value <= most + 1e-12
        else:
            assert figure.low == least


@pytest.mark.parametrize("q", [50, 90])
def test_samples_that_were_cut_short_at_random_do_not_bias_a_percentile(q):
    """Exponential times of mean 10, of which a third is cut off at a time of its own: the truth is in 95 of 100."""
    truth, covered, values = -10 * np.log(1 - q / 100), 0, []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        times, until = rng.exponential(10, 2000), rng.uniform(0, 30, 2000)
        seen, at_least = np.where(times <= until, times, np.inf), np.where(times <= until, np.nan, until)
        [figure] = distribution(seen, None, at_least, percentiles=(q,), seed=seed).percentiles.values()
        assert figure.value is not None
        values.append(figure.value)
        covered += (figure.low or 0) <= truth <= (figure.high or np.inf)
    assert np.mean(values) == pytest.approx(truth, rel=0.01)
    assert covered >= 53


def test_kaplan_and_meiers_estimate_by_hand():
    """Of 6, 2+, 3, 5+, 4 (+: given up then): what is left is 1 up to 3, 3/4 up to 4, 1/2 up to 6."""
    seen, at_least = np.array([6, np.inf, 3, np.inf, 4]), np.array([np.nan, 2, np.nan, 5, np.nan])
    told = quantiles(seen, np.array([0.0, 0.25, 0.5, 0.75, 1.0]), None, at_least)
    # The k-th of 5 in order (from 0) is the first up to which more than k/5 lie: 3, 3, 4, 6, 6.
    assert told == pytest.approx([3, 3, 4, 6, 6])
    twice = quantiles(np.repeat(seen, 2), np.linspace(0, 1, 7), None, np.repeat(at_least, 2))
    assert twice == pytest.approx(quantiles(seen, np.linspace(0, 1, 7), np.full(5, 2), at_least))
    assert distribution(seen, None, at_least).mean == pytest.approx(3 / 4 + 4 / 4 + 6 / 2)


def test_one_gap_that_was_given_up_takes_nothing_from_chunks_of_many_tokens():
    """1,000 chunks, of which the nine longest hold many tokens: as told without it as with it."""
    gaps, tokens = np.linspace(0.01, 0.02, 1000), np.where(np.arange(1000) < 991, 1, 50)
    with_one = (np.append(gaps, np.inf), np.append(tokens, 1), np.append(np.full(1000, np.nan), 0.005))
    told, plain = distribution(*with_one).percentiles["99"], distribution(gaps, tokens).percentiles["99"]
    assert plain.value is not None
    assert told.value == pytest.approx(plain.value, rel=0.01)


def test_a_percentile_that_few_were_waited_for_is_not_told():
    """10,000 samples would do for p99, but of those that reach it all but a few had been given up before."""
    times = np.random.default_rng(0).exponential(size=10_000)
    cut = np.arange(10_000) % 500 > 0
    found = distribution(np.where(cut, np.inf, times), None, np.where(cut, np.minimum(times, 0.01), np.nan))
    # From 0.01 on, the 20 that are known stand for all others in equal parts.
    assert found.percentiles["50"].value == pytest.approx(np.median(times[~cut]), rel=0.02)
    assert found.percentiles["99"].value is None
    assert found.percentiles["99"].low == pytest.approx(0.01)


def test_blocks_that_are_all_alike_by_chance_give_no_interval():
    """22 samples in blocks of two, of which each holds one below the median: that is not certainty."""
    found = distribution(np.where(np.arange(22) % 2, 1.0, 2.0) + np.arange(22) / 1000).percentiles["50"]
    assert found.value is not None
    if found.low is not None and found.high is not None:
        assert found.low < found.high
    else:
        assert found.low is found.high is None
    assert distribution(np.full(22, 3.0)).percentiles["50"] == Interval(value=3.0, low=3.0, high=3.0)


# -- waits that may have been given up for what they were ----------------------------------------------------------


@pytest.mark.parametrize(("doubtful", "told"), [(1, {"50", "90", "99"}), (30, {"50", "90"}), (1500, set())])
def test_where_doubt_is_more_than_noise_there_is_only_a_lower_bound(doubtful, told):
    """Of 10,000, so many broke at once. Any of them might have been the slowest of all."""
    rng = np.random.default_rng(0)
    times, broke = rng.exponential(size=10_000), np.zeros(10_000, np.bool_)
    broke[rng.choice(10_000, doubtful, replace=False)] = True
    seen, at_least = np.where(broke, np.inf, times), np.where(broke, 0.001, np.nan)
    plain, found = distribution(seen, None, at_least), distribution(seen, None, at_least, broke)
    assert (found.mean, found.std, found.max) == (None, None, None)
    assert plain.mean is not None
    for name in ("50", "90", "99"):
        if name in told:
            assert found.percentiles[name] == plain.percentiles[name]
            continue
        least = np.quantile(np.where(broke, 0.001, times), float(name) / 100)
        assert found.percentiles[name].value is None
        assert found.percentiles[name].low == pytest.approx(least)


def test_what_was_given_up_by_chance_is_no_doubt():
    """A third was cut by chance, one broke: as if it had been cut as well, but for its mean."""
    rng = np.random.default_rng(0)
    times, until = rng.exponential(10, 3000), rng.uniform(0, 30, 3000)
    cut, broke = times > until, np.arange(3000) == 7
    seen, at_least = np.where(cut | broke, np.inf, times), np.where(cut | broke, np.minimum(until, times), np.nan)
    found = distribution(seen, None, at_least, broke, percentiles=(50, 90))
    assert found.percentiles == distribution(seen, None, at_least, percentiles=(50, 90)).percentiles
    assert distribution(seen, None, at_least, cut | broke).percentiles["50"].value is None
    assert distribution(seen, None, at_least, ~cut & ~broke).percentiles["50"].value is not None, "those are known"
