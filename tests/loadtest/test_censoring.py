"""Figures that must not look better than the run was: waits given up, loops that emptied, rates as if exact."""

from __future__ import annotations

from array import array

import numpy as np
import pytest

from headway.loadtest.record import Fate
from headway.loadtest.result import Interval, Slo, Word
from tests.loadtest import queues
from tests.loadtest.runs import load, run
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


def test_failures_that_took_long_are_in_the_tail_and_are_told():
    """0.9 % of 10,000 got HTTP 504 after 60 s, the others 200 after 0.15 s: too few to fail the run, not to be told."""
    requests = [
        refused(i, i / 10, Fate.SERVER_ERROR, ended_ns=round((i / 10 + 60) * S), status=504, error="HTTP 504: gateway")
        if i % 111 == 7
        else record(i, i / 10)
        for i in range(10_000)
    ]
    found = run(requests, load(1000.0))
    e2e = found.summary.overall.distributions["e2e"].percentiles
    assert e2e["99"].value == pytest.approx(0.15)
    assert e2e["99.9"].value is None
    assert e2e["99.9"].low == pytest.approx(60)
    assert found.verdict.name == Word.VALID
    [remark] = found.verdict.remarks
    assert remark == "91 of 10000 requests failed (0.9%): 91 server_error; most often: HTTP 504: gateway"


@pytest.mark.parametrize("fate", [Fate.REFUSED, Fate.LIMITED])
def test_refusals_took_as_long_as_they_took(fate):
    """What was wrong with the request, or a limit, was told at once; it would not have been answered later."""
    requests = [refused(i, i, fate) if i % 10 == 0 else record(i, i) for i in range(200)]
    e2e = told(requests, load(200.0)).overall.distributions["e2e"]
    assert e2e.samples == 180
    assert e2e.max == pytest.approx(0.15)


def test_a_stream_that_hangs_is_in_the_tail_of_the_gaps():
    """2 % of all gaps are of streams that hung for 60 s after their second token, until the client's timeout."""
    requests = [record(i, i) for i in range(2000)]
    for hung in requests[::25]:
        hung.fate, hung.ended_ns = Fate.TIMEOUT, hung.last_ns + 60 * S
    distributions = told(requests, load(2000.0)).overall.distributions
    for name in ("itl", "icl"):
        found = distributions[name]
        assert (found.samples, found.max, found.percentiles["99"].value) == (4080, None, None)
        assert found.percentiles["99"].low == pytest.approx(60)
        assert found.percentiles["90"].value == pytest.approx(0.02)


@pytest.mark.parametrize("slo", [Slo(ttft_s=0.05), Slo(e2e_s=0.2), Slo(ttft_s=0.2, itl_s=0.03)])
def test_what_the_user_cancelled_inside_its_promise_is_in_no_share_of_kept_promises(slo):
    """Of 100, 20 were cancelled after 40 ms without a token, and 20 after 10 s."""
    requests = [record(i, i) for i in range(100)]
    for place, waited_s in ((0, 0.04), (1, 10)):
        for cancelled in requests[place::5]:
            cancelled.fate, cancelled.first_ns, cancelled.last_ns = Fate.CANCELLED, -1, -1
            cancelled.gaps_ns, cancelled.gap_tokens = array("q"), array("H")
            cancelled.ended_ns = cancelled.scheduled_ns + round(waited_s * S)
    overall = told(requests, load(100.0), slo).overall
    kept = 0 if slo.ttft_s == 0.05 else 60  # the first token of all others took 100 ms
    assert (overall.undecided_requests, overall.good_requests) == (20, kept)
    assert overall.good_ratio is not None
    assert overall.good_ratio.value == pytest.approx(kept / 80)
    assert overall.slo_ratios["e2e" if slo.e2e_s else "ttft"] == pytest.approx(kept / 80)


def test_where_nothing_could_be_judged_no_share_is_told():
    cancelled = [refused(i, i, Fate.CANCELLED) for i in range(20)]
    overall = told(cancelled, load(20.0), Slo(e2e_s=1.0)).overall
    assert (overall.good_ratio, overall.slo_ratios, overall.undecided_requests) == (Interval(value=None), {}, 20)


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
