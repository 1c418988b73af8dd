"""The stable region: the SLO-crossing load of queues whose law is known, and a search that is not fooled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import log
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.loadtest import steady
from headway.loadtest.bench.options import WindowOptions
from headway.loadtest.bench.search import outlook
from headway.loadtest.errors import InvalidPlan
from headway.loadtest.probe import Probe, Requirements, opinion, pooled, probe_of
from headway.loadtest.report import curve
from headway.loadtest.result import Interval, Signals, Slo, Word
from headway.loadtest.stable import NextProbe, Search, Stable, next_step
from headway.loadtest.verdict import DEFAULT
from headway.metrics import goodput, latency
from tests.loadtest import queues
from tests.loadtest.runs import load, run

WARMUP = 0.1  # of each probe, left out
CLIENT_LIMITED, UNSTEADY, VALID = Word.CLIENT_LIMITED, Word.UNSTEADY, Word.VALID


def find(search: Search, probe: Callable[[NextProbe], Probe], earlier: Sequence[Probe] = ()) -> Stable:
    probes = list(earlier)
    while isinstance(step := next_step(search, probes), NextProbe):
        probes.append(probe(step))
    return step


class VirtualServer:
    """A queue in virtual time, probed like a server: fresh arrivals for every probe, and a promise about TTFT."""

    def __init__(self, seed: int, service: Callable[[np.random.Generator, int], np.ndarray], limit_s: float) -> None:
        self.rng = np.random.default_rng(seed)
        self.service = service
        self.limit_s = limit_s

    def __call__(self, ask: NextProbe) -> Probe:
        start_s, end_s = ask.window_s * WARMUP, ask.window_s * (1 + WARMUP)
        arrived = queues.poisson(self.rng, ask.load, end_s)
        times = queues.timings(queues.single(arrived, self.service(self.rng, len(arrived))), prefill=0.0)
        due = times.select(times.scheduled_ns >= start_s * 1e9)
        kept = goodput.promises_met(due, ttft_s=self.limit_s)["ttft"]
        queue = steady.queue(times, (start_s, end_s))
        assert queue is not None
        grew = queue.trend.real() and queue.trend.change > DEFAULT.queue_growth * queue.arrivals
        ttft_s = latency.ttft_s(due)
        return Probe(
            load=ask.load,
            window_s=ask.window_s,
            requests=len(due),
            good=goodput.share(kept),
            slo_ratios={"ttft": float(kept.mean())},
            request_rate=len(due) / ask.window_s,
            goodput=float(kept.sum()) / ask.window_s,
            p99_s={"ttft": Interval(value=float(np.percentile(ttft_s, 99)))},
            error_ratio=0.0,
            verdict=UNSTEADY if grew else VALID,
            evidence="it grew" if grew else "",
        )


def scripted(load: float, good: float, margin: float = 0.002, **changes: Any) -> Probe:
    return Probe(
        **{
            "load": load,
            "window_s": 60.0,
            "requests": 1000,
            "good": Interval(value=good, low=max(good - margin, 0), high=min(good + margin, 1)),
            "slo_ratios": {"ttft": good, "itl": 1.0},
            "request_rate": load,
            "goodput": load * good,
            "p99_s": {"ttft": Interval(value=load)},
            "error_ratio": 0.0,
            "verdict": VALID,
            **changes,
        }
    )


def searched(
    answer: Callable[[NextProbe], Probe], search: Search, earlier: Sequence[Probe] = ()
) -> tuple[Stable, list[NextProbe]]:
    asks: list[NextProbe] = []

    def probe(ask: NextProbe) -> Probe:
        asks.append(ask)
        return msgspec.structs.replace(answer(ask), load=ask.load, window_s=ask.window_s)

    return find(search, probe, earlier), asks


def breaking_at(border: float, **changes: Any) -> Callable[[NextProbe], Probe]:
    return lambda ask: scripted(ask.load, 1.0 if ask.load <= border else 0.5, **changes)


# -- truth -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_the_load_at_which_an_mm1_queue_breaks_its_promise(seed):
    """Waiting longer than t has probability ρ·exp(−(μ − λ)t)."""
    service_rate, limit_s = 10.0, 1.5
    truth = queues.crossing(lambda rate: queues.mmk_wait_beyond(rate, service_rate, 1, limit_s), 0.01, service_rate)
    server = VirtualServer(seed, lambda rng, n: rng.exponential(1 / service_rate, n), limit_s)
    found = find(Search(start=2.0, window_s=6000.0), server)
    assert found.load == pytest.approx(truth, rel=0.05)
    assert found.converged
    assert found.sustained
    assert found.bound in {"promise", "unsteady"}


@pytest.mark.parametrize("seed", range(20))
def test_the_load_at_which_an_md1_queue_breaks_its_promise(seed):
    service_s, limit_s = 0.1, 0.8
    truth = queues.crossing(lambda rate: queues.md1_wait_beyond(rate, service_s, limit_s), 0.01, 1 / service_s)
    server = VirtualServer(seed, lambda _, n: np.full(n, service_s), limit_s)
    found = find(Search(start=40.0, window_s=6000.0), server)
    assert found.load == pytest.approx(truth, rel=0.05)
    assert found.converged


def test_the_scripted_queues_follow_their_laws():
    """What the search is held against is itself held against long simulations."""
    rng = np.random.default_rng(0)
    arrived = queues.poisson(rng, 7.0, 60_000)
    n = len(arrived)
    for service, law in (
        (rng.exponential(0.1, n), lambda t: queues.mmk_wait_beyond(7, 10, 1, t)),
        (np.full(n, 0.1), lambda t: queues.md1_wait_beyond(7, 0.1, t)),
    ):
        served = queues.single(arrived, service)
        wait = served.started - served.arrived
        for limit_s in (0.0001, 0.2, 0.5, 1.0):
            assert (wait > limit_s).mean() == pytest.approx(law(limit_s), rel=0.08, abs=2e-4)
    sojourn = queues.single(arrived, rng.exponential(0.1, n))
    assert (sojourn.ended - arrived > 1.0).mean() == pytest.approx(queues.mm1_sojourn_beyond(7, 10, 1), rel=0.1)
    few = arrived[:60_000]
    three = queues.several(few, rng.exponential(0.35, len(few)), 3)
    assert (three.started - few > 0.5).mean() == pytest.approx(queues.mmk_wait_beyond(7, 1 / 0.35, 3, 0.5), rel=0.15)
    alone = rng.exponential(0.1, len(few))
    assert queues.several(few, alone, 1).started == pytest.approx(queues.single(few, alone).started)
    assert queues.mm1_crossing(10, 1.0, 0.01) == pytest.approx(10 + log(0.01))


# -- the search ----------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.floats(0.05, 5000), st.floats(0.05, 5000), st.sampled_from([0.01, 0.03, 0.1]))
def test_a_clear_border_is_found_from_wherever_the_search_starts(border, start, tolerance):
    found, asks = searched(breaking_at(border), Search(start=start, tolerance=tolerance))
    assert found.load is not None
    assert found.load <= border * 1.001  # loads have four digits
    assert found.load >= border * (1 - tolerance) * 0.999
    assert found.converged
    assert found.sustained
    assert max(ask.window_s for ask in asks) == 180.0
    assert len(asks) < 40


@given(st.integers(1, 600), st.integers(1, 300))
@settings(max_examples=60, deadline=None)
def test_a_concurrency_is_a_whole_number(border, start):
    found, asks = searched(breaking_at(border), Search(start=float(start), whole=True, tolerance=0.001))
    assert found.load == border
    assert all(ask.load == int(ask.load) for ask in asks)


def test_nothing_holds():
    found, _ = searched(breaking_at(0.0), Search(start=4.0, lowest=0.5))
    assert (found.load, found.breaks_at, found.sustained) == (None, 0.5, False)
    assert "50.00% of the requests kept every promise, 99.00% must (TTFT broke first" in found.reason
    one, _ = searched(breaking_at(0.0), Search(start=4.0, whole=True))
    assert (one.load, one.breaks_at) == (None, 1.0)


def test_everything_holds():
    found, _ = searched(breaking_at(1e9), Search(start=1.0, highest=100.0))
    assert (found.load, found.breaks_at, found.bound) == (100.0, None, "limit")
    assert found.reason == "100 is the highest load the search was allowed (--highest)"


def test_a_search_is_taken_up_where_it_was_broken_off():
    whole, asks = searched(breaking_at(33.3), Search(start=2.0))
    for done in range(len(asks) + 1):
        again, rest = searched(breaking_at(33.3), Search(start=2.0), whole.probes[:done])
        assert again == whole
        assert len(rest) == len(asks) - done
    stored = msgspec.json.decode(msgspec.json.encode(whole.probes), type=list[Probe])
    assert searched(breaking_at(33.3), Search(start=2.0), stored)[1] == []


@pytest.mark.parametrize(
    ("changes", "bound", "words"),
    [
        ({"error_ratio": 0.2}, "errors", "20.0% of the requests failed"),
        ({"kv_used_ratio": 0.97}, "memory", "KV use 97%"),
        ({"preempted_ratio": 0.4}, "memory", "40.0% preemptions"),
        ({"verdict": UNSTEADY, "evidence": "the queue grew"}, "unsteady", "the queue grew"),
        ({"verdict": CLIENT_LIMITED, "evidence": "97% of a core"}, "client", "this machine cannot offer that load"),
    ],
)
def test_it_says_what_is_in_the_way_of_more(changes, bound, words):
    def answer(ask: NextProbe) -> Probe:
        return scripted(ask.load, 1.0, **(changes if ask.load > 20 else {}))

    found, _ = searched(answer, Search(start=1.0))
    assert found.bound == bound
    assert words in found.reason
    assert found.load == pytest.approx(20, rel=0.03)


def test_a_hiccup_of_the_client_is_not_its_limit():
    seen: list[float] = []

    def answer(ask: NextProbe) -> Probe:
        seen.append(ask.load)
        hiccup = ask.load == 8.0 and seen.count(8.0) == 1
        return scripted(ask.load, 1.0 if ask.load <= 20 else 0.5, verdict=CLIENT_LIMITED if hiccup else VALID)

    found, _ = searched(answer, Search(start=2.0))
    assert found.load == pytest.approx(20, rel=0.03)


def test_an_unlucky_probe_does_not_cut_off_what_lies_above_it():
    """The first probe at 16 just breaks, by chance. The border is at 50, and it is found."""
    seen: list[float] = []

    def answer(ask: NextProbe) -> Probe:
        seen.append(ask.load)
        if ask.load == 16.0 and seen.count(16.0) == 1:
            return scripted(ask.load, 0.985, margin=0.003)
        return scripted(ask.load, 0.5 if ask.load > 50 else 0.9995, margin=0.0005)

    found, _ = searched(answer, Search(start=2.0))
    assert found.load == pytest.approx(50, rel=0.04)


def test_an_undecided_load_is_probed_again_and_no_other_until_then():
    asks_at_border: list[float] = []

    def answer(ask: NextProbe) -> Probe:
        if 9 < ask.load < 11:
            asks_at_border.append(ask.load)
            return scripted(ask.load, 0.9895, margin=0.004)
        return scripted(ask.load, 1.0 if ask.load <= 9 else 0.9)

    found, _ = searched(answer, Search(start=8.0, tolerance=0.1))
    assert asks_at_border
    assert all(asks_at_border.count(load) == 3 for load in set(asks_at_border))
    assert "too close to call after 3 probes" in found.reason


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000))
def test_whatever_the_answers_the_search_ends(seed):
    rng = np.random.default_rng(seed)
    verdicts = [VALID, VALID, VALID, UNSTEADY, CLIENT_LIMITED]

    def answer(ask: NextProbe) -> Probe:
        good = float(rng.uniform(0.9, 1))
        return scripted(ask.load, good, margin=float(rng.uniform(0, 0.1)), verdict=str(rng.choice(verdicts)))

    found, asks = searched(answer, Search(start=3.0, most_probes=60))
    assert len(asks) <= 60
    assert found.converged or len(asks) == 60
    assert found.probes
    if found.load is not None and found.breaks_at is not None:
        assert found.load < found.breaks_at


def test_a_probe_too_many_is_not_made():
    found, asks = searched(breaking_at(33.0), Search(start=2.0, most_probes=3))
    assert len(asks) == 3
    assert not found.converged
    assert found.bound == "probes"
    assert found.reason == (
        "the search ended after its 3 probes (--most-probes). 8 req/s held once; more was not tried"
    )


def test_the_limit_that_ended_a_search_is_told_and_no_other():
    """4 holds twice by its share of good requests, and its interval decides nothing yet."""

    def answer(ask: NextProbe) -> Probe:
        return scripted(ask.load, 0.995, margin=0.01) if ask.load == 4 else scripted(ask.load, 1.0)

    found, _ = searched(answer, Search(start=1.0, most_probes=4))
    assert (found.load, found.bound, found.converged) == (2.0, "probes", False)
    assert found.reason == (
        "the search ended after its 4 probes (--most-probes). "
        "2 req/s held once; 4 req/s held twice and was not finished"
    )
    told = run(queues.records(queues.single(np.array([1.0]), np.array([0.1]))), load(10.0), slo=Slo(ttft_s=1.0))
    said = " ".join(map(str, curve.stable_headline(found, told, Requirements())))
    assert "raise --most-probes" in said
    assert "highest" not in said
    points = curve.of_stable(found, told, Requirements())
    assert [(point.load, point.holds) for point in points.points] == [(1, True), (2, True), (4, None), (4, None)]
    assert "open: not decided; chosen: the load of the answer." in curve.table(points).note


def test_a_border_above_which_too_few_probes_were_left_is_told_with_what_breaks():
    found, _ = searched(breaking_at(33.0), Search(start=32.0, most_probes=2))
    assert (found.load, found.breaks_at, found.bound) == (32.0, 64.0, "promise")
    assert found.reason.startswith(
        "the search ended after its 2 probes (--most-probes). 32 req/s held once; at 64: 50.00%"
    )


def test_nothing_that_held_before_the_probes_were_used_up_is_not_that_nothing_holds():
    found, _ = searched(breaking_at(1.0), Search(start=32.0, most_probes=2))
    told = run(queues.records(queues.single(np.array([1.0]), np.array([0.1]))), load(10.0), slo=Slo(ttft_s=1.0))
    assert curve.stable_headline(found, told, Requirements())[:2] == ("warn", "No load was seen to hold")


def test_a_search_that_ends_with_its_last_probe_has_ended_by_itself():
    whole, asks = searched(breaking_at(33.3), Search(start=2.0))
    assert searched(breaking_at(33.3), Search(start=2.0, most_probes=len(asks)))[0] == whole
    assert not searched(breaking_at(33.3), Search(start=2.0, most_probes=len(asks) - 1))[0].converged


def test_how_long_a_search_takes_is_told_from_its_settings():
    assert outlook(Search(start=1.0), WindowOptions()) == (
        "each probe takes about 72 s (192 s where a load must hold for longer); at most 60 of them (--most-probes)"
    )
    short = outlook(Search(start=1.0, window_s=2.0, sustain=1, most_probes=8), WindowOptions(warmup=0.5, cooldown=0.0))
    assert short == "each probe takes about 2.5 s; at most 8 of them (--most-probes)"


def test_the_next_step_depends_on_the_probes_and_nothing_else():
    search = Search(start=2.0)
    assert next_step(search, []) == NextProbe(2.0, 60.0)
    probes = [scripted(2.0, 1.0), scripted(4.0, 0.5)]
    assert next_step(search, probes) == next_step(search, probes[::-1]) == NextProbe(2.828, 60.0)


@pytest.mark.parametrize(
    "changes",
    [{"start": 0.0}, {"start": 1.0, "lowest": 2.0}, {"start": 1.0, "tolerance": 0.0}, {"start": 1.0, "repeats": 0}],
)
def test_a_search_that_makes_no_sense_is_refused(changes):
    with pytest.raises(InvalidPlan):
        Search(**changes)


# -- probes --------------------------------------------------------------------------------------------------------


def test_pooled_probes_know_more_than_each():
    one = scripted(1.0, 0.99, margin=0.01)
    good = pooled([one, one, one, one])
    assert good.value == pytest.approx(0.99)
    assert good.low == pytest.approx(0.985)
    assert pooled([]).value is None


def test_a_majority_decides_between_probes_that_broke_and_did_not():
    fine, broke = scripted(1.0, 1.0), scripted(1.0, 1.0, error_ratio=0.5)
    answers: tuple[tuple[list[Probe], str], ...] = (
        ([], "breaks"),
        ([fine], "open"),
        ([fine, fine], "holds"),
        ([broke, fine], "breaks"),
    )
    for others, answer in answers:
        assert opinion([broke, *others], Requirements(), repeats=3).answer.value == answer


def test_a_run_becomes_a_probe():
    rng = np.random.default_rng(0)
    due = queues.poisson(rng, 5, 300)
    records = queues.records(queues.single(due, rng.exponential(0.1, len(due))))
    signals = Signals(
        times_s=[0.0, 100.0, 200.0, 299.0, 500.0],
        series={"kv_used_ratio": [0.1, 0.5, None, 0.8, 1.0], "preemptions_total": [3.0, 3.0, 10.0, 18.0, 99.0]},
    )
    told = run(records, load(300.0), slo=Slo(ttft_s=0.5, itl_s=1.0), signals=signals)
    probe = probe_of(told, 5.0)
    assert (probe.load, probe.window_s, probe.requests) == (5.0, 300.0, len(due))
    assert probe.good == told.summary.overall.good_ratio
    assert set(probe.slo_ratios) == {"ttft", "itl"}
    assert probe.kv_used_ratio == pytest.approx(0.77)  # what lies in the window
    assert probe.preempted_ratio == pytest.approx(15 / len(due))
    assert probe.p99_s["ttft"] == told.summary.overall.distributions["ttft"].percentiles["99"]
    with pytest.raises(InvalidPlan, match="--slo-ttft"):
        probe_of(run(records, load(300.0), slo=Slo()), 5.0)


def test_a_server_that_was_restarted_counts_from_zero():
    """Preemptions and KV use are read in one way, by searches and reports alike."""
    signals = Signals(
        times_s=[0.0, 1.0, 2.0, 3.0, 4.0],
        series={"preemptions_total": [10.0, 14.0, 1.0, 3.0, 99.0], "kv_used_ratio": [0.5, 0.5, None, 0.5, 1.0]},
    )
    assert signals.preemptions((0.0, 3.0)) == 4 + 1 + 2
    assert signals.kv_used_ratio((0.0, 3.0)) == 0.5
    assert Signals().preemptions((0.0, 3.0)) is None
    assert Signals().kv_used_ratio((0.0, 3.0)) is None
