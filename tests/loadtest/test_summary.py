"""From records to figures: what belongs to the window, and what must not change the figures."""

from __future__ import annotations

import random
import tracemalloc
from array import array
from dataclasses import replace
from math import isclose
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.loadtest.record import CountedBy, Fate, Record
from headway.loadtest.result import Load, Slo, Summary
from headway.loadtest.summary import client_figures, summarise
from headway.loadtest.table import measured_window, tabulate
from tests.loadtest import queues
from tests.loadtest.runs import SLO, load

S = queues.NS_PER_S
MS = 1_000_000


def record(index: int, at_s: float, **changes: Any) -> Record:
    """A good request: first of three tokens after 100 ms, 20 ms between them, end after 150 ms."""
    at = round(at_s * S)
    made = Record(
        index,
        changes.pop("kind", ""),
        changes.pop("tenant", ""),
        10,
        3,
        scheduled_ns=at,
        sent_ns=at + MS,
        first_ns=at + 100 * MS,
        last_ns=at + 140 * MS,
        ended_ns=at + 150 * MS,
        gaps_ns=array("q", [20 * MS, 20 * MS]),
        gap_tokens=array("H", [1, 1]),
        first_tokens=1,
        chunks=3,
        fate=Fate.OK,
        status=200,
        input_tokens=12,
        output_tokens=3,
        counted=CountedBy.USAGE,
    )
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def refused(index: int, at_s: float, fate: Fate = Fate.LIMITED, **changes: Any) -> Record:
    at = round(at_s * S)
    made = Record(index, "", "", 10, 3, scheduled_ns=at, sent_ns=at, ended_ns=at + MS, fate=fate, status=429)
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def told(records: list[Record], what: Load, slo: Slo = SLO, **more: Any) -> Summary:
    return summarise(tabulate(records), what, slo, **more)


# -- the window ----------------------------------------------------------------------------------------------------


def test_a_warm_up_that_is_the_whole_tail_is_left_out():
    """The first 10 of 100 requests take 5 s each, the others 0.15: with them p90 is 5 s, without them nobody waits."""
    requests = [record(i, i, ended_ns=round((i + 5) * S) if i < 10 else round((i + 0.15) * S)) for i in range(110)]
    cold = told(requests, load(100.0)).overall.distributions["e2e"]
    warm = told(requests, load(110.0, warmup_s=10.0)).overall.distributions["e2e"]
    assert cold.max == pytest.approx(5)
    assert warm.max == pytest.approx(0.15)
    assert warm.samples == 100
    assert warm.percentiles["90"].value == pytest.approx(0.15)


def test_a_request_belongs_to_the_window_by_when_it_was_due():
    requests = [record(0, 9.999), record(1, 10.0), record(2, 19.999, ended_ns=30 * S), record(3, 20.0)]
    summary = told(requests, load(25.0, warmup_s=10.0, cooldown_s=5.0))
    assert summary.window_s == (10.0, 20.0)
    assert summary.overall.requests == 2
    assert summary.overall.distributions["e2e"].max == pytest.approx(10.001)


@given(st.integers(0, 10**14), st.integers(1, 10**12))
def test_a_request_on_a_windows_edge_belongs_to_it_at_the_beginning_only(start_ns, length_ns):
    """The edges are seconds, the requests nanoseconds: a product that is rounded must not move one across."""
    at_ns = [start_ns, start_ns + length_ns]
    table = tabulate(Record(i, "", "", 1, 1, scheduled_ns=one) for i, one in enumerate(at_ns))
    window_s = (at_ns[0] * 1e-9, at_ns[1] * 1e-9)
    assert table.scheduled_within(window_s).tolist() == [True, False]
    assert table.timings.due_within(window_s).scheduled_ns.tolist() == at_ns[:1]


def test_rates_count_what_left_the_server_in_the_window():
    """Two a second are offered, one a second is finished, and the rest is worked off later: that is one a second."""
    requests = [
        record(i, i / 2, first_ns=(i + 1) * S, last_ns=(i + 1) * S + 40 * MS, ended_ns=(i + 1) * S + 50 * MS)
        for i in range(200)
    ]
    overall = told(requests, load(100.0)).overall
    assert overall.requests == 200
    assert overall.request_rate == pytest.approx(1.0, rel=0.02)
    assert overall.output_token_rate == pytest.approx(3.0, rel=0.02)
    assert overall.input_token_rate == pytest.approx(12.0, rel=0.02)


def test_tokens_are_counted_when_they_arrive():
    """A stream of 1 + 9 tokens, one a second, of which the window holds five."""
    long = record(
        0,
        0.0,
        first_ns=1 * S,
        last_ns=10 * S,
        ended_ns=10 * S,
        gaps_ns=array("q", [S] * 9),
        gap_tokens=array("H", [1] * 9),
    )
    window = load(8.5, warmup_s=3.5)
    assert told([long], window).overall.output_token_rate == pytest.approx(5 / 5)


@pytest.mark.parametrize(
    ("what", "elapsed_s", "window"),
    [
        (load(60.0, warmup_s=10.0, cooldown_s=5.0), None, (10.0, 55.0)),
        (load(60.0, warmup_s=10.0), 30.0, (10.0, 30.0)),  # ended early
        (load(None, requests=11), None, (0.0, 11.0)),  # due at 0 … 10: the next would have been at 11
        (load(None, requests=11, loop="closed"), None, (0.0, 10.001)),  # the last one is sent
        (load(None, requests=11, loop="closed", warmup_requests=1), None, (1.0, 10.001)),
        (load(None, requests=11, loop="closed", concurrency=16), None, (0.0, 10.15)),  # all at once: the last one ends
        (load(60.0, warmup_s=70.0), None, (70.0, 70.0)),
    ],
)
def test_windows(what, elapsed_s, window):
    table = tabulate([record(i, i) for i in range(11)])
    assert measured_window(what, table, elapsed_s=elapsed_s) == pytest.approx(window)


def test_a_load_of_all_requests_at_once_has_a_window_too():
    table = tabulate([record(i, 0.0) for i in range(5)])
    assert measured_window(load(None, requests=5), table) == pytest.approx((0.0, 0.15))
    assert measured_window(load(None, requests=1), tabulate([record(0, 0.0)])) == pytest.approx((0.0, 0.15))
    assert measured_window(load(None), tabulate([])) == (0.0, 0.0)


# -- goodput -------------------------------------------------------------------------------------------------------


def test_refusals_and_errors_stay_in_the_denominator():
    requests = [record(i, i) for i in range(6)] + [refused(6, 6), refused(7, 7, Fate.SERVER_ERROR)]
    overall = told(requests, load(8.0), Slo(ttft_s=0.2)).overall
    assert overall.fates == {"ok": 6, "limited": 1, "server_error": 1}
    assert overall.good_requests == 6
    assert overall.good_ratio is not None
    assert overall.good_ratio.value == 6 / 8
    assert overall.slo_ratios == {"ttft": 6 / 8}
    assert overall.goodput == pytest.approx(6 / 8)


def test_every_promise_has_to_be_kept():
    late, slow = record(1, 1, first_ns=round(1.9 * S)), record(2, 2, ended_ns=round(9.0 * S))
    overall = told([record(0, 0), late, slow, record(3, 3)], load(10.0), Slo(ttft_s=0.5, e2e_s=1.0)).overall
    assert overall.slo_ratios == {"ttft": 0.75, "e2e": 0.75}
    assert overall.good_requests == 2


def test_without_promises_there_is_no_goodput():
    overall = told([record(0, 0)], load(1.0), Slo()).overall
    assert (overall.good_requests, overall.good_ratio, overall.goodput, overall.slo_ratios) == (None, None, None, {})


# -- groups and counts -----------------------------------------------------------------------------------------------


def test_kinds_and_tenants_are_groups_when_there_are_several():
    requests = [record(i, i, kind="short" if i % 3 else "long", tenant="one") for i in range(30)]
    summary = told(requests, load(30.0))
    assert summary.by_tenant == {}
    assert {name: group.requests for name, group in summary.by_kind.items()} == {"long": 10, "short": 20}
    assert sum(group.request_rate for group in summary.by_kind.values()) == pytest.approx(summary.overall.request_rate)
    assert sum(group.output_token_rate for group in summary.by_kind.values()) == pytest.approx(
        summary.overall.output_token_rate
    )


def test_how_tokens_were_counted_and_where_counts_disagree():
    requests = [
        record(0, 0, recounted_tokens=3),
        record(1, 1, output_tokens=500, recounted_tokens=510),  # 2 %: cut-off ends
        record(2, 2, output_tokens=500, recounted_tokens=511),
        record(3, 3, output_tokens=3, recounted_tokens=6),
        record(4, 4, counted=CountedBy.CHUNKS),
        refused(5, 5),
    ]
    summary = told(requests, load(6.0))
    assert summary.counting == {"usage": 4, "chunks": 1}
    assert summary.count_mismatches == 2


def test_the_most_frequent_errors_first():
    requests = [record(0, 0)]
    requests += [refused(i, 1, Fate.SERVER_ERROR, error="boom") for i in (1, 2, 3)]
    requests += [refused(4, 1, Fate.LIMITED), refused(5, 1, Fate.CANCELLED, status=0)]
    assert list(told(requests, load(10.0)).errors.items()) == [("boom", 3), ("HTTP 429", 1)]


def test_what_was_not_waited_for_is_no_error_of_its_status():
    requests = [record(0, 1.0, fate=Fate.CANCELLED, status=200), record(1, 2.0, fate=Fate.SERVER_ERROR, error="broke")]
    assert told(requests, load(10.0)).errors == {"broke": 1}


def test_tokens_that_the_server_does_not_count_are_those_that_came_and_those_that_were_asked_for():
    silent = record(0, 0, output_tokens=-1, input_tokens=-1)
    overall = told([silent], load(1.0)).overall
    assert overall.distributions["output_tokens"].max == 3
    assert overall.distributions["input_tokens"].max == 10


def test_a_request_of_one_token_has_no_tpot():
    single = record(0, 0, gaps_ns=array("q"), gap_tokens=array("H"), output_tokens=1, last_ns=100 * MS)
    distributions = told([single], load(1.0)).overall.distributions
    assert (distributions["tpot"].samples, distributions["tpot"].mean) == (0, None)
    assert distributions["itl"].samples == 0
    assert distributions["ttft"].samples == 1


def test_rivals_are_told_on_request():
    summary = told([record(i, i) for i in range(5)], load(5.0), rival_tools=("vllm", "aiperf"))
    assert set(summary.rivals) == {"vllm", "aiperf"}
    assert summary.rivals["vllm"]["Mean TTFT (ms)"] == pytest.approx(99)


def test_profiles_fill_what_they_are_for():
    rng = np.random.default_rng(0)
    arrived = np.sort(np.concatenate([rng.uniform(0, 100, 500), rng.uniform(40, 50, 300)]))
    requests = queues.records(queues.single(arrived, rng.exponential(0.1, len(arrived))))
    burst = told(requests, load(100.0, profile="burst"), bursts_s=[(40.0, 50.0)])
    assert burst.recovery_s is not None
    assert burst.recovery_s > 5
    assert burst.knee is None
    ramp = told(requests, load(100.0, profile="ramp"))
    assert ramp.knee is not None
    assert "highest_load" in ramp.knee
    assert ramp.recovery_s is None


def test_nothing_measured_is_told_as_nothing():
    summary = told([], load(10.0), rival_tools=("guidellm",))
    assert (summary.overall.requests, summary.overall.request_rate) == (0, 0.0)
    assert summary.overall.distributions["ttft"].samples == 0
    assert summary.errors == {}
    msgspec.json.encode(summary)


# -- laws ------------------------------------------------------------------------------------------------------------

fates = st.sampled_from([Fate.OK, Fate.OK, Fate.OK, Fate.LIMITED, Fate.TIMEOUT, Fate.CANCELLED])


@st.composite
def loads(draw: Any) -> list[Record]:
    made = []
    for index in range(draw(st.integers(1, 30))):
        at = draw(st.integers(0, 20_000)) * MS
        if draw(fates) is not Fate.OK:
            made.append(refused(index, at / S, tenant=draw(st.sampled_from("ab"))))
            continue
        gaps = draw(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 3)), max_size=6))
        first = at + draw(st.integers(0, 3000)) * MS
        last = first + sum(ms for ms, _ in gaps) * MS
        made.append(
            record(
                index,
                at / S,
                kind=draw(st.sampled_from(["long", "short"])),
                tenant=draw(st.sampled_from("ab")),
                first_ns=first,
                last_ns=last,
                ended_ns=last + draw(st.integers(0, 50)) * MS,
                gaps_ns=array("q", [ms * MS for ms, _ in gaps]),
                gap_tokens=array("H", [n for _, n in gaps]),
                output_tokens=1 + sum(n for _, n in gaps),
                chunks=1 + len(gaps),
            )
        )
    return made


WINDOW = load(20.0, warmup_s=2.0, cooldown_s=3.0)


@settings(max_examples=30, deadline=None)
@given(loads(), st.randoms(use_true_random=False))
def test_the_order_of_merged_records_does_not_matter(records, shuffler):
    """Several client processes give theirs in any order: the report is the same, to the last bit."""
    whole = told(records, WINDOW, rival_tools=("aiperf",))
    shuffled = list(records)
    shuffler.shuffle(shuffled)
    assert msgspec.json.encode(told(shuffled, WINDOW, rival_tools=("aiperf",)), order="sorted") == msgspec.json.encode(
        whole, order="sorted"
    )


@settings(max_examples=30, deadline=None)
@given(loads(), st.integers(2, 50))
def test_scaling_all_times_scales_latencies_and_rates(records, factor):
    slower = [_slowed(one, factor) for one in records]
    what = replace_load(WINDOW, factor)
    one, other = told(records, WINDOW, Slo()).overall, told(slower, what, Slo()).overall
    assert other.requests == one.requests
    assert other.fates == one.fates
    assert other.request_rate == pytest.approx(one.request_rate / factor)
    assert other.output_token_rate == pytest.approx(one.output_token_rate / factor)
    for name in ("ttft", "itl", "icl", "tpot", "e2e", "lag"):
        a, b = one.distributions[name], other.distributions[name]
        assert a.samples == b.samples
        if a.mean is not None and b.mean is not None and b.max is not None and a.max is not None:
            assert isclose(b.mean, a.mean * factor, rel_tol=1e-6, abs_tol=1e-9)
            assert isclose(b.max, a.max * factor, rel_tol=1e-6, abs_tol=1e-9)


@settings(max_examples=30, deadline=None)
@given(loads())
def test_the_parts_add_up_to_the_whole(records):
    summary = told(records, WINDOW, Slo(ttft_s=1.0, itl_s=0.1))
    for groups in (summary.by_kind, summary.by_tenant):
        if groups:
            assert sum(group.requests for group in groups.values()) == summary.overall.requests
            assert sum(group.good_requests or 0 for group in groups.values()) == (summary.overall.good_requests or 0)
            rates = sum(group.request_rate for group in groups.values())
            assert rates == pytest.approx(summary.overall.request_rate)
    assert sum(summary.overall.fates.values()) == summary.overall.requests


@settings(max_examples=30, deadline=None)
@given(loads())
def test_a_report_survives_json(records):
    summary = told(records, WINDOW, rival_tools=("aiperf", "guidellm", "vllm"))
    assert msgspec.json.decode(msgspec.json.encode(summary), type=Summary) == summary


def replace_load(what: Load, factor: int) -> Load:
    return msgspec.structs.replace(
        what,
        duration_s=(what.duration_s or 0) * factor,
        warmup_s=what.warmup_s * factor,
        cooldown_s=what.cooldown_s * factor,
    )


def _slowed(one: Record, factor: int) -> Record:
    times = {
        name: getattr(one, name)
        for name in ("scheduled_ns", "sent_ns", "headers_ns", "first_ns", "last_ns", "ended_ns")
    }
    slowed = {name: at * factor if at >= 0 else at for name, at in times.items()}
    return replace(one, **slowed, gaps_ns=array("q", [gap * factor for gap in one.gaps_ns]))


# -- the client ------------------------------------------------------------------------------------------------------


def test_how_well_the_load_was_made():
    """Of 100 requests due at even distances, those of the last second are sent after the window."""
    requests = [record(i, i / 10, sent_ns=round((i / 10 + (1.5 if i >= 90 else 0)) * S)) for i in range(100)]
    table, what = tabulate(requests), load(10.0)
    made = client_figures(table, what, (0.0, 10.0), processes=2, cpu_ratio=0.5, loop_lags_s=[0.001] * 50)
    assert made.offered_rate == 10
    assert made.sent_rate == pytest.approx(9)
    assert made.lag.max == pytest.approx(1.5)
    assert made.loop_lag.mean == pytest.approx(0.001)
    closed = client_figures(table, load(10.0, loop="closed"), (0.0, 10.0), processes=1, cpu_ratio=0, loop_lags_s=[])
    assert closed.offered_rate is None
    assert closed.loop_lag.samples == 0


def test_a_hundred_thousand_requests_are_no_hundred_thousand_copies():
    """Memory beside the records: columns, and what is computed from them. 20,000 requests have 2.6 MB of gaps."""
    shuffler = random.Random(0)
    gaps, tokens = array("q", [20 * MS] * 16), array("H", [1] * 16)
    requests = [
        record(i, i / 500, gaps_ns=gaps, gap_tokens=tokens, last_ns=round(i / 500 * S) + 420 * MS, output_tokens=17)
        for i in range(20_000)
    ]
    shuffler.shuffle(requests)
    tracemalloc.start()
    told(requests, load(40.0), rival_tools=("aiperf",))
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 60_000_000  # a fifth of the size, and far less than a fifth of the 300 MB
