"""Figures that must not look better than the run was: waits given up, loops that emptied, rates as if exact."""

from __future__ import annotations

import numpy as np
import pytest

from headway.loadtest.record import Fate, Record
from headway.loadtest.result import Interval, Slo, Word
from headway.loadtest.table import tabulate
from headway.metrics import latency
from headway.metrics.percentiles import distribution
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


def cut(records: list[Record], at_s: float) -> list[Record]:
    """Those that were due, as they are when a user ends the run and nobody waits: with the tokens until then."""
    at_ns = round(at_s * S)
    due = [one for one in records if one.scheduled_ns < at_ns]
    for late in due:
        if late.ended_ns <= at_ns:
            continue
        shown = int((late.first_ns + np.cumsum(late.gaps_ns) <= at_ns).sum())
        late.fate, late.ended_ns, late.output_tokens = Fate.CANCELLED, at_ns, -1
        late.gaps_ns, late.gap_tokens = late.gaps_ns[:shown], late.gap_tokens[:shown]
        late.last_ns, late.chunks = late.first_ns + sum(late.gaps_ns), 1 + shown
        if late.first_ns > at_ns:
            late.first_ns, late.last_ns, late.first_tokens, late.chunks = -1, -1, 0, 0
    return due


def independent(seed: int, rate: float = 5, lasts_s: float = 120) -> queues.Served:
    """Everybody is served at once, for 8 s in the mean, exponentially: one answer says nothing about another."""
    rng = np.random.default_rng(seed)
    due = queues.poisson(rng, rate, lasts_s)
    return queues.Served(due, due, due + rng.exponential(8, len(due)))


def test_ctrl_c_makes_no_steady_server_unsteady():
    """Of those due in the last seconds only the quick ones are known; that is no step, and no trend."""
    for seed in range(8):
        found = run(cut(queues.records(independent(seed)), 120), load(120.0, warmup_s=30.0), interrupted=True).verdict
        said = [finding.evidence for finding in found.findings if finding.verdict == Word.UNSTEADY] + found.remarks
        assert not [line for line in said if "stepped" in line or "drifted" in line]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("slo", [Slo(e2e_s=6.0), Slo(ttft_s=3.0), Slo(ttft_s=3.0, e2e_s=6.0)])
def test_a_cut_does_not_change_the_share_of_kept_promises(seed, slo):
    """It is that of those due a limit before, as if they had been waited for: half of all, and not two thirds."""
    served = independent(seed)
    overall = told(cut(queues.records(served), 120), load(120.0), slo).overall
    e2e_s = served.ended - served.arrived
    kept = (e2e_s <= (slo.e2e_s or np.inf)) & (e2e_s / 2 <= (slo.ttft_s or np.inf))
    judged = served.arrived < 120 - (slo.e2e_s or slo.ttft_s or 0)
    assert overall.undecided_requests == (~judged).sum() > 0
    assert overall.good_requests == kept[judged].sum()
    assert overall.good_ratio is not None
    assert overall.good_ratio.value == pytest.approx(kept[judged].mean())
    assert min(overall.slo_ratios.values()) == pytest.approx(kept[judged].mean())
    assert overall.goodput == pytest.approx((kept & (served.ended < 120)).sum() / 120)


def test_a_run_that_was_cut_knows_its_percentiles_as_well_as_its_intervals_say():
    """Of 40 that were cut after 60 s, which a seventh of the answers did not live to see."""
    truth = {"50": 8 * np.log(2), "90": 8 * np.log(10)}
    held: dict[str, list[bool]] = {name: [] for name in truth}
    for seed in range(40):
        times = tabulate(cut(queues.records(independent(seed, 5, 60), tokens=2), 60)).timings
        found = distribution(latency.e2e_s(times), None, latency.waited_s(times), percentiles=(50, 90), seed=seed)
        for name, at in truth.items():
            interval = found.percentiles[name]
            if interval.value is None:  # one that it does not reach
                continue
            held[name].append((interval.low or 0) <= at <= (interval.high or np.inf))
    for name, each in held.items():
        assert len(each) > 20
        assert np.mean(each) > 0.85, name


@pytest.mark.parametrize("drain_s", [0, 30])
def test_a_queue_that_grew_until_the_cut_is_not_told_shorter_than_it_was(drain_s):
    """Offered 20 of 14 a second, first come first served: the last to come wait longest, and are cut soonest."""
    rng = np.random.default_rng(0)
    due = queues.poisson(rng, 20, 120)
    served = queues.single(due, rng.exponential(1 / 14, len(due)))
    e2e = told(cut(queues.records(served, tokens=2), 120 + drain_s), load(120.0)).overall.distributions["e2e"]
    for name in ("90", "99"):
        interval = e2e.percentiles[name]
        truth = float(np.quantile(served.ended - served.arrived, float(name) / 100))
        assert interval.value is None
        assert interval.low is not None
        assert 0.6 * truth < interval.low < truth
    assert (e2e.mean, e2e.max) == (None, None)


def test_connections_that_break_at_once_hide_no_tail():
    """A tenth breaks after 1 ms: had it been the slowest tenth, p90 would be anything."""
    served = independent(0)
    fates = dict.fromkeys(range(0, len(served.arrived), 10), Fate.CONNECTION)
    records = queues.records(served, fates=fates)
    for index in fates:
        records[index].ended_ns = records[index].scheduled_ns + S // 1000
    found = told(records, load(120.0)).overall.distributions["e2e"]
    whole = told(queues.records(served), load(120.0)).overall.distributions["e2e"]
    assert found.percentiles["90"].value is None
    assert whole.percentiles["90"].value is not None
    assert (found.percentiles["90"].low or 0) < whole.percentiles["90"].value


def test_where_nothing_could_be_judged_no_share_is_told():
    cancelled = [refused(i, 20, Fate.CANCELLED) for i in range(20)]
    overall = told(cancelled, load(21.0), Slo(e2e_s=1.0)).overall
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
