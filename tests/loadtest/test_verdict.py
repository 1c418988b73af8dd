"""The verdict on scripted queues: right in every situation, whatever the seed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from headway.loadtest import verdict
from headway.loadtest.record import Fate, Record
from headway.loadtest.result import Load, Verdict, Word
from tests.loadtest import queues
from tests.loadtest.runs import load, run

SEEDS = [*range(5), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(5, 20))]
CLIENT_LIMITED, SERVER_ERRORS, UNSTEADY, TOO_FEW_SAMPLES, VALID = Word
DURATION_S = 400.0


def served(seed: int, utilisation: float, duration_s: float = DURATION_S) -> queues.Served:
    """M/M/1 with a service of 0.1 s, run for a while before the load test began to look."""
    rng = np.random.default_rng(seed)
    arrived = queues.poisson(rng, 10 * utilisation, duration_s)
    return queues.single(arrived, rng.exponential(0.1, len(arrived)))


def judged(records: list[Record], what: Load | None = None, **client: Any) -> Verdict:
    return run(records, what or load(DURATION_S, warmup_s=50.0), **client).verdict


# -- the five situations, twenty seeds each ------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_a_steady_server_and_an_idle_client_are_valid(seed):
    found = judged(queues.records(served(seed, 0.6)))
    assert (found.name, found.findings) == (VALID, [])


@pytest.mark.parametrize("seed", SEEDS)
def test_a_client_that_cannot_keep_the_schedule_is_limited(seed):
    """Each request is sent when the client comes to it: it needs 0.18 s for one, and every 0.17 s one is due."""
    rng = np.random.default_rng(seed)
    due = queues.poisson(rng, 1 / 0.17, DURATION_S)
    sent = queues.single(due, np.full(len(due), 0.18)).ended
    answered = queues.single(sent, rng.exponential(0.1, len(due)))
    late = queues.records(queues.Served(due, answered.started, answered.ended), lag_s=sent - due)
    found = judged(late)
    assert found.name == CLIENT_LIMITED
    assert any("late at p99" in finding.evidence for finding in found.findings)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_server_that_is_offered_more_than_it_can_do_is_unsteady(seed):
    found = judged(queues.records(served(seed, 1.15)))
    assert found.name == UNSTEADY
    assert "the queue grew by" in found.findings[0].evidence or "Little's law" in found.findings[0].evidence


@pytest.mark.parametrize("seed", SEEDS)
def test_a_short_run_has_too_few_samples(seed):
    what = load(40.0, warmup_s=5.0)
    found = judged(queues.records(served(seed, 0.4, 40.0)), what)
    assert [finding.verdict for finding in found.findings] == [TOO_FEW_SAMPLES]
    assert "p99 needs 1,000" in found.findings[0].evidence


@pytest.mark.parametrize("seed", SEEDS)
def test_a_server_that_fails_has_server_errors(seed):
    calm = served(seed, 0.6)
    failing = np.flatnonzero(np.random.default_rng(seed).uniform(size=len(calm.arrived)) < 0.03)
    found = judged(queues.records(calm, fates=dict.fromkeys(failing.tolist(), Fate.SERVER_ERROR)))
    assert [finding.verdict for finding in found.findings] == [SERVER_ERRORS]
    assert "server_error; most often: the server said no" in found.findings[0].evidence


# -- each reason by itself -----------------------------------------------------------------------------------------


def test_a_capped_client_is_seen_from_the_schedule_and_hidden_from_the_send():
    """At most 16 requests at a time, and no word of it: from the send the server looks fast, its users know better."""
    rng = np.random.default_rng(0)
    due = queues.poisson(rng, 10, 100)
    slots = queues.several(due, rng.exponential(2.0, len(due)), 16)  # 20 at a time would be needed
    told = run(queues.records(slots, lag_s=slots.started - due), load(100.0))
    distributions = told.summary.overall.distributions
    from_send, from_schedule = distributions["e2e_from_send"].mean, distributions["e2e"].mean
    assert from_send == pytest.approx(2.0, rel=0.1)
    assert from_schedule is not None
    assert from_schedule > 3 * 2.0
    assert told.verdict.name == CLIENT_LIMITED
    assert "missed" in told.verdict.findings[0].evidence


@pytest.mark.parametrize(
    ("client", "evidence"),
    [
        ({"cpu_ratio": 0.97}, "97% of a core"),
        ({"loop_lags_s": np.full(2000, 0.02)}, "the client's event loop was 20 ms late at p99, 5 ms allowed"),
    ],
)
def test_a_client_at_its_limit_is_limited_though_it_kept_the_schedule(client, evidence):
    calm = queues.records(queues.single(np.arange(0, 400, 0.2), np.full(2000, 0.01)))
    found = judged(calm, **client)
    assert found.name == CLIENT_LIMITED
    assert evidence in found.findings[0].evidence
    advice = found.findings[-1].evidence
    assert advice.startswith("to do: --processes 2" if "cpu_ratio" in client else "to do: look for other work"), advice


def test_what_lag_is_allowed_depends_on_what_is_measured():
    """3 ms of lag are nothing beside a TTFT of 50 ms, and much beside one of 5 ms."""
    due = np.arange(0, 400, 0.2)
    slow = queues.records(queues.single(due, np.full(2000, 0.1)), lag_s=0.003)
    fast = queues.records(queues.single(due, np.full(2000, 0.016)), lag_s=0.003)
    assert judged(slow).name == VALID
    assert judged(fast).name == CLIENT_LIMITED


def test_refusals_by_a_limit_are_no_errors():
    calm = served(1, 0.6)
    limited = dict.fromkeys(range(0, len(calm.arrived), 3), Fate.LIMITED)
    found = judged(queues.records(calm, fates=limited), load(DURATION_S))
    assert SERVER_ERRORS not in {finding.verdict for finding in found.findings}


def test_a_few_errors_are_allowed():
    calm = served(1, 0.6)
    assert judged(queues.records(calm, fates={100: Fate.TIMEOUT, 900: Fate.CONNECTION})).name == VALID


def test_a_closed_loop_that_slows_down_is_unsteady():
    """Its queue cannot grow; its latency can: a server that gets 60 % slower over the run."""
    rng = np.random.default_rng(0)
    at = np.arange(0, 400, 0.2)
    service = 0.1 * (1 + 0.6 * at / 400) * rng.uniform(0.7, 1.3, len(at))
    slower = queues.records(queues.Served(at, at, at + service))
    what = load(400.0, loop="closed", profile="concurrency", concurrency=1, settings={"think": "0.1 s"})
    found = judged(slower, what)
    assert found.name == UNSTEADY
    assert "E2E drifted by +0.0" in found.findings[0].evidence


@pytest.mark.parametrize(("empty_s", "word"), [(0.001, VALID), (0.01, VALID), (0.08, CLIENT_LIMITED)])
def test_a_closed_loop_whose_slots_stand_empty_is_not_the_load_that_was_asked_for(empty_s, word):
    """A server that does not tell the end of its answers: the figures are of fewer at a time than the report says."""
    rng = np.random.default_rng(0)
    records = []
    for _ in range(4):
        taken = rng.uniform(0.08, 0.12, 4000)
        ended = np.cumsum(taken + empty_s)
        records += queues.records(queues.Served(ended - taken, ended - taken, ended))
    records = [record for record in records if record.ended_ns < 100e9]
    found = judged(records, load(100.0, loop="closed", profile="concurrency", concurrency=4))
    assert found.name == word
    if word is CLIENT_LIMITED:
        assert found.findings[0].evidence.startswith("2.23 requests were in flight on average, and 4 were asked for")


def test_a_queue_that_begins_to_grow_at_the_end_is_unsteady():
    """A server that all but stops for the last tenth of the run: too late for a trend, not for Little's law."""
    rng = np.random.default_rng(3)
    due = queues.poisson(rng, 6, 400)
    service = rng.exponential(0.1, len(due)) * np.where(due > 365, 6, 1)
    found = judged(queues.records(queues.single(due, service)))
    assert found.name == UNSTEADY
    assert "Little's law expects" in found.findings[0].evidence


def test_a_ramp_is_meant_to_change():
    found = judged(queues.records(served(0, 1.3)), load(DURATION_S, profile="ramp"))
    assert UNSTEADY not in {finding.verdict for finding in found.findings}


def test_nothing_at_all_is_too_few_samples():
    assert judged([], load(10.0)).name == TOO_FEW_SAMPLES


def test_the_worst_is_named_and_all_are_told():
    overloaded = served(2, 1.2, 60.0)
    failing = dict.fromkeys(range(0, len(overloaded.arrived), 10), Fate.SERVER_ERROR)
    found = judged(queues.records(overloaded, fates=failing), load(60.0), cpu_ratio=1.0)
    assert [finding.verdict for finding in found.findings] == sorted(
        (finding.verdict for finding in found.findings), key=list(Word).index
    )
    assert {finding.verdict for finding in found.findings} == {CLIENT_LIMITED, SERVER_ERRORS, UNSTEADY, TOO_FEW_SAMPLES}
    assert found.name == CLIENT_LIMITED


def test_a_server_that_is_gone_is_not_the_clients_lateness():
    """Most were refused a connection, and those few that were served were sent some ms late."""
    records = queues.records(served(0, 0.6))
    for record in records[len(records) // 5 :]:
        record.fate, record.error, record.first_ns = Fate.CONNECTION, "connection refused", -1
    found = judged(records, loop_lags_s=np.full(100, 0.02))
    assert [found.name, found.findings[0].verdict] == [SERVER_ERRORS, SERVER_ERRORS]
    assert "connection refused" in found.findings[0].evidence
    assert CLIENT_LIMITED in {finding.verdict for finding in found.findings}, "that is told as well"


def test_how_late_the_client_may_be_is_judged_by_what_was_waited_at_least():
    """Of most requests it is only known that they took longer than the run."""
    records = queues.records(served(0, 0.6), lag_s=np.full(len(served(0, 0.6).arrived), 0.006))
    for record in records[::3] + records[1::3]:
        record.fate, record.first_ns = Fate.CANCELLED, -1
        record.ended_ns = record.scheduled_ns + 9_000_000_000
    found = judged(records)
    assert found.name == SERVER_ERRORS
    assert not any("late at" in finding.evidence for finding in found.findings), "6 ms of 9 s"


def test_a_large_change_that_is_not_quite_certain_is_told():
    """A few hundred requests, of which the last fifth take three times as long."""
    rng = np.random.default_rng(3)
    due = np.arange(260, dtype=np.float64)
    ended = due + np.where(due < 208, 5.0, 14.0) * rng.lognormal(0.0, 0.8, len(due))
    found = judged(queues.records(queues.Served(due, due, ended)), load(260.0, loop="closed", concurrency=8))
    told = [*(finding.evidence for finding in found.findings), *found.remarks]
    assert any("E2E" in line and "stepped from" in line for line in told), told


def test_every_verdict_has_an_exit_code_of_its_own():
    codes = [word.exit_code for word in Word]
    assert len(set(codes)) == len(codes)
    assert VALID.exit_code == 0
    assert not {1, 2} & set(codes)
    for word in Word:  # and the table at the top says the same
        assert any(word in line and f"| {word.exit_code} |" in line for line in (verdict.__doc__ or "").splitlines())


# -- what must not pass as VALID -----------------------------------------------------------------------------------


def test_requests_that_were_not_waited_for_are_no_finished_run():
    calm = served(1, 0.6)
    left = dict.fromkeys(range(0, len(calm.arrived), 20), Fate.CANCELLED)
    found = judged(queues.records(calm, fates=left), load(DURATION_S))
    assert found.name == SERVER_ERRORS
    assert "not ended when the run stopped waiting for them" in found.findings[0].evidence
    assert judged(queues.records(calm, fates=left), load(DURATION_S), interrupted=True).name == VALID


def test_many_refusals_by_a_limit_are_told_and_most_of_all_are_no_valid_run():
    calm = served(1, 0.6)
    some = judged(queues.records(calm, fates=dict.fromkeys(range(0, len(calm.arrived), 5), Fate.LIMITED)))
    assert some.name == VALID
    assert "turned away by a limit (20" in some.remarks[0]
    most = {index: Fate.LIMITED for index in range(len(calm.arrived)) if index % 10}
    found = judged(queues.records(calm, fates=most))
    assert found.name == SERVER_ERRORS
    assert "turned away by a limit (90" in found.findings[0].evidence


@pytest.mark.parametrize(("client_failed", "word"), [(True, CLIENT_LIMITED), (False, SERVER_ERRORS)])
def test_a_load_that_ended_early_is_not_valid(client_failed, word):
    found = judged(queues.records(served(1, 0.6)), ended_early="it broke", client_failed=client_failed)
    assert found.name == word
    assert found.findings[0].evidence == "the load ended early: it broke"


def rising(rng: np.random.Generator, lowest: float, highest: float) -> np.ndarray:
    """Arrivals whose rate rises over the run, as a trace's may."""
    count = round((lowest + highest) / 2 * DURATION_S)
    share = np.sort(rng.uniform(size=count))
    ratio = lowest / highest
    # The moment until which that share of all arrives, where the rate is a line.
    return DURATION_S * (np.sqrt(ratio**2 + share * (1 - ratio**2)) - ratio) / (1 - ratio)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_load_that_rises_is_no_server_that_falls_behind(seed):
    """Every request takes 10 s whatever the load: more are in flight because more came."""
    rng = np.random.default_rng(seed)
    due = rising(rng, 1, 8)
    records = queues.records(queues.Served(due, due, due + rng.uniform(8, 12, len(due))))
    assert judged(records, load(DURATION_S)).name == UNSTEADY
    assert judged(records, load(DURATION_S, profile="trace", stationary=False)).name == VALID


@pytest.mark.parametrize("seed", SEEDS)
def test_a_load_that_rises_beyond_the_server_leaves_a_queue(seed):
    rng = np.random.default_rng(seed)
    due = rising(rng, 1, 16)
    records = queues.records(queues.single(due, rng.exponential(0.1, len(due))))
    found = judged(records, load(DURATION_S, profile="trace", stationary=False))
    assert found.name == UNSTEADY
    assert "Little's law expects" in found.findings[0].evidence


def test_a_late_loop_is_held_against_the_gaps_it_is_in():
    """20 ms are little beside a TTFT of 500 ms, and all there is of a gap of 20 ms."""
    due = np.arange(0, 400, 0.2)
    records = queues.records(queues.Served(due, due, due + 0.58), prefill=0.5 / 0.58)
    found = judged(records, load(400.0), loop_lags_s=np.full(2000, 0.02))
    assert found.name == CLIENT_LIMITED
    assert "the client's event loop was 20 ms late at p99, 5 ms allowed" in found.findings[0].evidence


def test_answers_in_one_piece_are_samples_too():
    whole = queues.records(served(1, 0.6))
    for record in whole:
        record.first_ns = record.last_ns = -1
        record.first_tokens = record.chunks = 0
        record.gaps_ns, record.gap_tokens = record.gaps_ns[:0], record.gap_tokens[:0]
    told = run(whole, load(DURATION_S, warmup_s=50.0, settings={"stream": "no"}))
    assert (told.verdict.name, told.verdict.findings) == (VALID, [])
    assert told.summary.overall.distributions["ttft"].samples == 0
    assert told.summary.overall.output_token_rate == pytest.approx(5 * told.summary.overall.request_rate)
    assert told.summary.overall.input_token_rate == pytest.approx(100 * told.summary.overall.request_rate)


def stalled(slots: int, at_s: float, seconds: float, until_s: float) -> list[Record]:
    """A closed loop of requests that take 0.1 s each, on a server that stands still once."""
    made = []
    for slot in range(slots):
        due = [slot * 0.01]
        while due[-1] < until_s:
            ended = due[-1] + 0.1
            due.append(ended + seconds if due[-1] <= at_s < ended else ended)
        start, end = np.array(due[:-1]), np.array(due[1:])
        made += queues.records(queues.Served(start, np.maximum(start, end - 0.1), end))
    return made


@pytest.mark.parametrize("at_s", [9.0, 15.0])
def test_a_closed_loop_that_stands_still_is_unsteady(at_s):
    """Across the end of the warm-up too, where no request that waits is due in the window."""
    what = load(30.0, loop="closed", profile="concurrency", concurrency=8, warmup_s=10.0)
    found = judged(stalled(8, at_s, 5.0, 30.0), what)
    assert found.name == UNSTEADY
    assert "while 8 requests were in flight" in found.findings[0].evidence
    assert judged(stalled(8, at_s, 0.5, 30.0), what).name == VALID


def test_a_closed_loop_that_stands_still_is_unsteady_without_streams_too():
    """Six of more than a thousand answers take 5 s: no percentile shows it, and nobody else came to wait."""
    what = load(30.0, loop="closed", profile="concurrency", concurrency=6, warmup_s=5.0, settings={"stream": "no"})
    for seconds, word in ((5.0, UNSTEADY), (0.5, VALID)):
        records = stalled(6, 15.0, seconds, 30.0)
        for record in records:
            record.first_ns = record.last_ns = -1
            record.first_tokens = record.chunks = 0
            record.gaps_ns, record.gap_tokens = record.gaps_ns[:0], record.gap_tokens[:0]
        assert judged(records, what).name == word


def test_requests_that_this_machine_could_not_send_are_not_the_servers_errors():
    calm = served(1, 0.6)
    failed = dict.fromkeys(range(0, len(calm.arrived), 10), Fate.CONNECTION)
    records = queues.records(calm, fates=failed)
    for index in failed:
        records[index].error, records[index].status = "client: Too many open files (see ulimit -n)", 0
    found = judged(records, load(DURATION_S))
    assert found.name == CLIENT_LIMITED
    assert SERVER_ERRORS not in {finding.verdict for finding in found.findings}
    assert (
        "failed here, not at the server (10.0%, 1% allowed): client: Too many open files" in found.findings[0].evidence
    )


def test_of_those_that_stand_still_is_told_how_many_never_ended():
    records = stalled(8, 15.0, 100.0, 30.0)
    for record in records:
        if record.ended_ns > 100e9:
            record.fate, record.ended_ns, record.first_ns, record.last_ns = Fate.CANCELLED, int(60e9), -1, -1
            record.gaps_ns, record.gap_tokens, record.chunks = record.gaps_ns[:0], record.gap_tokens[:0], 0
    what = load(30.0, loop="closed", profile="concurrency", concurrency=8, warmup_s=10.0)
    evidence = [finding.evidence for finding in judged(records, what).findings if finding.verdict == UNSTEADY]
    assert "8 requests were in flight, of which 8 never ended" in evidence[0]


@pytest.mark.parametrize(("span_s", "word"), [(0.2, TOO_FEW_SAMPLES), (2.0, CLIENT_LIMITED)])
def test_a_moment_says_nothing_about_the_client(span_s, word):
    """A share of a core, and how many of few requests were sent in time: noise over a fifth of a second."""
    due = np.linspace(0, span_s, 20, endpoint=False)
    lag_s = np.where(due < 0.8 * span_s, 0.0, 0.05 + 0.2 * span_s)
    records = queues.records(queues.Served(due, due + lag_s, due + lag_s + 0.1))
    for record, late_s in zip(records, lag_s.tolist(), strict=True):
        record.sent_ns += round(late_s * 1e9)
    made = run(records, load(span_s), cpu_ratio=0.99)
    said = [finding.evidence for finding in made.verdict.findings]
    assert any("missed" in line for line in said) == (word == CLIENT_LIMITED)
    quick = run(queues.records(queues.single(due, np.full(20, 0.005))), load(span_s), cpu_ratio=0.99)
    assert quick.verdict.name == word


def test_a_client_that_its_host_kept_from_running_says_so():
    """More processes would not help, and there is no other work to be found on this machine."""
    records = queues.records(queues.single(np.linspace(0, 20, 400, endpoint=False), np.full(400, 0.005)))
    for record in records:
        record.sent_ns += 40_000_000
    for stolen_ratio, cpu_ratio, word in ((0.0, 0.9, "--processes"), (0.0, 0.1, "other work"), (0.14, 0.9, "14%")):
        made = run(records, load(20.0), cpu_ratio=cpu_ratio, stolen_ratio=stolen_ratio)
        assert made.verdict.name == CLIENT_LIMITED
        (to_do,) = [one.evidence for one in made.verdict.findings if one.evidence.startswith("to do")]
        assert word in to_do


def test_a_warm_up_that_leaves_nothing_is_told_as_that():
    requests = queues.records(queues.Served(*(np.arange(30) / 10 + later for later in (0, 0, 0.05))))
    found = judged(requests, load(None, loop="closed", requests=30, concurrency=1, warmup_s=5.0))
    assert found.name == TOO_FEW_SAMPLES
    [told] = [finding.evidence for finding in found.findings if finding.verdict == TOO_FEW_SAMPLES]
    assert told.startswith("a warm-up of 5 s and a cool-down of 0 s leave nothing of 2.95 s")


def test_a_run_that_was_interrupted_at_once_is_told_as_that():
    one = queues.records(queues.Served(*(np.array([later]) for later in (0.0, 0.0, 0.05))))
    for records, sent in (([], "no requests were sent"), (one, "1 request was sent")):
        found = judged(records, load(0.0), interrupted=True)
        [told] = [finding.evidence for finding in found.findings if finding.verdict == TOO_FEW_SAMPLES]
        assert told == f"the run ended before anything was measured: {sent}"
