"""What counts as better: noise does not, and a difference that is there does."""

from __future__ import annotations

import functools

import msgspec
import numpy as np
import pytest

from headway.loadtest.record import Fate, Record
from headway.loadtest.result import Run, Slo
from headway.metrics.goodput import share as share_of
from headway.tune.judge import gain, good_share, order_of_tests
from tests.loadtest.runs import load, run


@functools.cache
def any_run() -> Run:
    """Of one request: all but its share of good ones is beside the point."""
    record = Record(0, "", "", 10, 1, 0, 0, first_ns=1_000_000, last_ns=1_000_000, ended_ns=1_000_000)
    record.fate, record.first_tokens, record.chunks, record.output_tokens = Fate.OK, 1, 1, 1
    return run([record], load(1.0), slo=Slo(ttft_s=2.0))


def judged(share: float, seed: int, count: int = 150) -> Run:
    """A run in which each request is good by chance."""
    good = share_of(np.random.default_rng(seed).random(count) < share)
    summary = any_run().summary
    group = msgspec.structs.replace(summary.overall, requests=count, good_ratio=good)
    return msgspec.structs.replace(any_run(), summary=msgspec.structs.replace(summary, overall=group))


def test_the_share_is_of_those_who_kept_every_promise() -> None:
    assert good_share(judged(1.0, 1)) == 1.0
    assert good_share(judged(0.0, 1)) == 0.0
    assert good_share(judged(0.7, 1)) == pytest.approx(0.7, abs=0.12)


@pytest.mark.parametrize("share", [0.2, 0.8, 0.97])
def test_settings_that_are_alike_are_almost_never_told_apart(share: float) -> None:
    wins = 0
    for seed in range(60):
        before = [judged(share, 4 * seed), judged(share, 4 * seed + 1)]
        after = [judged(share, 4 * seed + 2), judged(share, 4 * seed + 3)]
        wins += gain(before, after, [before, after]).certain
    assert wins <= 4  # one in forty by the interval alone


def test_what_differs_clearly_is_told() -> None:
    before, after = [judged(0.6, 1), judged(0.6, 2)], [judged(0.95, 3), judged(0.95, 4)]
    found = gain(before, after, [before, after])
    assert found.certain
    assert found.low <= found.change <= found.high
    assert not gain(after, before, [before, after]).certain


def test_tests_that_disagree_among_themselves_prove_nothing() -> None:
    """Within each run the figures are sure; from one run to the next the machine changed."""
    before, after = [judged(0.5, 1, 4000), judged(0.9, 2, 4000)], [judged(0.6, 3, 4000), judged(0.95, 4, 4000)]
    assert not gain(before, after, [before, after]).certain


def test_one_round_in_which_the_old_was_better_is_enough_against_the_new() -> None:
    before, after = [judged(0.2, 1), judged(0.8, 2)], [judged(0.9, 3), judged(0.79, 4)]
    assert not gain(before, after).certain


@pytest.mark.parametrize("most", range(2, 30))
@pytest.mark.parametrize("candidates", [0, 1, 2, 9])
def test_never_more_tests_than_allowed(most: int, candidates: int) -> None:
    tried, rounds = order_of_tests(candidates, most)
    assert 1 + tried + 2 * rounds <= most
    assert tried <= candidates
    assert (tried > 0) == (candidates > 0)


def test_one_test_compares_nothing() -> None:
    with pytest.raises(ValueError, match="one test"):
        order_of_tests(1, 1)
