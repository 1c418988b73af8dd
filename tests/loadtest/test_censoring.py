"""Figures that must not look better than the run was: waits given up, loops that emptied, rates as if exact."""

from __future__ import annotations

import numpy as np
import pytest

from headway.loadtest.record import Fate
from tests.loadtest import queues
from tests.loadtest.runs import load
from tests.loadtest.test_summary import S, record, refused, told


def test_requests_that_were_given_up_are_in_the_tail_they_made():
    """A tenth of 2,000 timed out after 30 s: p99 was not better for it, and nobody knows how bad it was."""
    requests = [
        refused(i, i, Fate.TIMEOUT, ended_ns=round((i + 30) * S), status=0) if i % 10 == 0 else record(i, i)
        for i in range(2000)
    ]
    distributions = told(requests, load(2000.0)).overall.distributions
    for name in ("ttft", "ttft_from_send", "e2e", "e2e_from_send"):
        found = distributions[name]
        assert found.samples == 2000
        assert found.percentiles["50"].value is not None
        assert (found.percentiles["99"].value, found.percentiles["99"].high) == (None, None)
        assert found.percentiles["99"].low == pytest.approx(30)
        assert (found.mean, found.max) == (None, None)


def test_a_closed_loop_of_some_requests_is_measured_while_it_is_full():
    """64 slots, 640 requests of 1 s: the first tenth left out, and not the second in which the slots fall empty."""
    requests = [record(i, i // 64, ended_ns=(i // 64 + 1) * S) for i in range(640)]
    summary = told(requests, load(None, requests=640, loop="closed", concurrency=64, warmup_requests=64))
    assert summary.window_s == pytest.approx((1.0, 9.001))
    assert summary.overall.request_rate == pytest.approx(64, rel=0.13)  # those that end at both edges
    assert summary.overall.requests == 576


@pytest.mark.slow
def test_rates_say_how_sure_they_are():
    """Of 80 runs of a Poisson process of 5/s over 100 s, the intervals hold the truth in about 95 of 100."""
    held = []
    for seed in range(80):
        due = queues.poisson(np.random.default_rng(seed), 5, 100)
        rates = told(queues.records(queues.Served(due, due, due + 0.01)), load(100.0)).overall.rates
        assert set(rates) == {"request_rate", "output_token_rate", "input_token_rate", "goodput"}
        interval = rates["request_rate"]
        assert interval.low is not None
        assert interval.high is not None
        held.append(interval.low <= 5 <= interval.high)
    assert np.mean(held) > 0.9
