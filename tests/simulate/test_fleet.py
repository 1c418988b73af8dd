"""A virtual gateway before virtual servers: what holds of one server holds of it, and nothing is left inside."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.core.errors import ConfigError
from headway.core.fleet.worker import WorkerSpec
from headway.core.front.admission import AdmissionLimits
from headway.core.front.front import FrontLimits
from headway.core.front.ladder import Level, Mode
from headway.core.front.tenants import TenantLimits
from headway.core.lanes import LaneLimits
from headway.core.request import NO_SLO
from headway.core.scheduler.policies import HEADWAY, VLLM
from headway.simulate import Stuck, VirtualFleet, VirtualRequest, VirtualSettings, simulate
from headway.simulate.fleet import Sending
from tests.simulate import worlds
from tests.simulate.worlds import COST, MS, arrivals, single_steps, told

S = 1_000 * MS
PROMPT_NS = COST.step_ns + 8 * COST.prefill_token_ns + 32 * COST.prefill_attention_ns


def gateway(workers: int = 1, fleet: VirtualFleet | None = None, **changes: object) -> VirtualSettings:
    given_ = {"workers": (worlds.worker(),) * workers, "log_steps": True, **changes}
    return VirtualSettings(fleet=fleet or VirtualFleet(), **given_)  # type: ignore[arg-type]


def asked(name: str, at_ns: int, prompt: int = 8, output: int = 5, **changes: object) -> VirtualRequest:
    return VirtualRequest(name, at_ns, prompt, 50, output, **changes)  # type: ignore[arg-type]


fleets = st.builds(
    VirtualFleet,
    scrape_every_ns=st.sampled_from([40 * MS, 1_000 * MS]),
    scrape_late_ns=st.sampled_from([0, 30 * MS]),
    levels=st.sampled_from([{}, {Level.CLAMP_OUTPUT: Mode.ON, Level.SHORTEN_CONTEXT: Mode.ON}]),
    route=st.sampled_from([None, None, lambda _, in_flight: min(in_flight, key=in_flight.__getitem__)]),
)
settings_ = st.builds(lambda services, fleet: replace(services, fleet=fleet), worlds.settings, fleets)


# -- laws --------------------------------------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(settings_, arrivals())
def test_every_request_ends_once_and_nothing_is_left_inside(services, requests):
    body = Sending(requests, services)
    run = body.run()
    assert sorted(r.id for r in run.records) == sorted(r.id for r in requests)
    outputs = {r.id: r.output_tokens for r in requests}
    for r in run.records:
        assert r.end in {"stop", "length", "cancelled", "expired", "failed", "refused"}
        if r.finished:
            assert r.end == "length" or r.output_tokens == outputs[r.id]
            assert r.arrival_ns <= r.sent_ns <= r.started_ns < r.first_token_ns <= r.ended_ns <= run.ended_ns
    front = body.front
    admission = front.admission
    assert (admission.requests, admission.waiting, admission.waiting_tokens, admission.claimed_tokens) == (0, 0, 0, 0)
    assert not front.fleet.flights
    assert not len(front.lanes)
    assert not body._requests_inside
    for worker in front.fleet.workers.values():
        assert (worker.tokens, worker.work_tokens, len(worker.flights)) == (0, 0, 0)
    for server in body.servers:
        assert server._front.admission.requests == 0
        assert not server.engine.scheduler.busy
        assert not server._arrived_ns
    tokens = sum(s.decode_tokens + s.prefill_tokens for s in single_steps(run, services))
    assert tokens == sum(c.decode_tokens + c.prefill_tokens for c in run.counters)


@settings(max_examples=100, deadline=None)
@given(settings_, arrivals())
def test_leaps_are_single_steps(services, requests):
    leaping = simulate(requests, replace(services, log_tokens=True))
    walking = simulate(requests, replace(services, log_tokens=True, leaps=False))
    assert told(leaping) == told(walking)
    assert [r.token_ns for r in leaping.records] == [r.token_ns for r in walking.records]
    assert single_steps(leaping, services) == single_steps(walking, services)
    assert leaping.samples == walking.samples


@settings(max_examples=50, deadline=None)
@given(settings_, arrivals())
def test_the_same_again_is_the_same(services, requests):
    one, other = simulate(requests, services), simulate(requests, services)
    assert told(one) == told(other)
    assert (one.steps, one.samples, one.shifts) == (other.steps, other.samples, other.shifts)


@settings(max_examples=100, deadline=None)
@given(worlds.workers, arrivals())
def test_one_worker_that_takes_all_serves_as_a_server_of_its_own(worker, requests):
    """Where the gateway holds nobody back and promises nothing, the second queue changes nothing."""
    requests = [replace(request, slo=NO_SLO, priority=0) for request in requests]
    fleet = VirtualFleet(route=lambda _, in_flight: next(iter(in_flight)))
    services = VirtualSettings(workers=(worker,), log_steps=True)
    routed = replace(services, fleet=fleet)
    sent, pulled = simulate(requests, routed), simulate(requests, services)
    if not any(request.cancel_ns is not None for request in requests):
        assert single_steps(sent, routed) == single_steps(pulled, services)
        assert told(sent) == told(pulled)
    assert Counter(r.id for r in sent.records) == Counter(r.id for r in pulled.records)


@settings(max_examples=100, deadline=None)
@given(settings_, arrivals())
def test_tokens_come_when_the_records_say(services, requests):
    for record in simulate(requests, replace(services, log_tokens=True)).records:
        if not record.finished:
            continue
        assert record.token_ns is not None
        assert len(record.token_ns) == record.output_tokens
        assert (record.token_ns[0], record.token_ns[-1]) == (record.first_token_ns, record.ended_ns)
        assert all(a < b for a, b in zip(record.token_ns, record.token_ns[1:], strict=False))


# -- by hand -----------------------------------------------------------------------------------------------------------


def test_a_lone_request_takes_what_the_formula_says():
    [record] = simulate([asked("a", 5 * MS)], gateway(3)).records
    decode_ns = COST.of_decode(1, 8, 4)
    assert (record.sent_ns, record.started_ns, record.ttft_ns) == (5 * MS, 5 * MS, PROMPT_NS)
    assert record.ended_ns == 5 * MS + PROMPT_NS + decode_ns


def test_two_workers_share_two_requests():
    run = simulate([asked("a", 0), asked("b", 0)], gateway(2))
    assert {r.worker for r in run.records} == {0, 1}


def test_what_a_window_does_not_hold_waits_in_the_gateway_and_not_in_the_worker():
    fleet = VirtualFleet(specs=(WorkerSpec("w", first_sequences=1, most_sequences=1),))
    run = simulate([asked("a", 0), asked("b", 1)], gateway(1, fleet))
    first, second = run.records
    assert second.sent_ns == second.started_ns == first.ended_ns


def test_a_signal_counts_from_when_it_was_true_and_comes_when_it_is_late():
    body = Sending(
        [asked("a", 0, output=40)], gateway(1, VirtualFleet(scrape_every_ns=50 * MS, scrape_late_ns=20 * MS))
    )
    heard = []
    observe = body.front.observe

    def listening(worker_id, load, now):
        heard.append((now, load.running.at_ns, load.running.value))
        observe(worker_id, load, now)

    body.front.observe = listening  # type: ignore[method-assign]
    body.run()
    assert heard[:2] == [(20 * MS, 0, 0.0), (70 * MS, 50 * MS, 1.0)]


def test_a_client_that_obeys_retry_after_gets_in():
    door = AdmissionLimits(100, 160, max_waiting=1)
    fleet = VirtualFleet(specs=(WorkerSpec("w", first_sequences=1, most_sequences=1),))
    requests = [asked("a", 0), asked("b", 1), asked("c", 2), asked("d", 3, retries=5)]
    run = simulate(requests, gateway(1, fleet, admission=door))
    assert [r.end for r in run.records] == ["stop", "stop", "refused", "stop"]
    patient = run.records[3]
    assert patient.asked == 2
    assert patient.sent_ns >= 3 + S


def test_who_leaves_between_two_tries_has_left():
    door = AdmissionLimits(100, 160, max_waiting=1)
    fleet = VirtualFleet(specs=(WorkerSpec("w", first_sequences=1, most_sequences=1),))
    requests = [asked("a", 0), asked("b", 1), asked("c", 2, retries=5, cancel_ns=500 * MS)]
    run = simulate(requests, gateway(1, fleet, admission=door))
    assert (run.records[2].end, run.records[2].ended_ns, run.records[2].asked) == ("cancelled", 500 * MS, 1)


def test_tenants_limits_hold():
    limits = {"small": TenantLimits(max_concurrency=1)}
    requests = [asked("a", 0, tenant="small"), asked("b", 1, tenant="small"), asked("c", 2)]
    run = simulate(requests, gateway(1, tenants=limits))
    assert [r.end for r in run.records] == ["stop", "refused", "stop"]


def test_a_level_in_force_is_felt_and_told():
    fleet = VirtualFleet(
        levels={Level.CLAMP_OUTPUT: Mode.ON}, degradation=replace(VirtualFleet().degradation, clamp_output_tokens=3)
    )
    [record] = simulate([asked("a", 0, output=20)], gateway(1, fleet)).records
    assert (record.end, record.output_tokens, record.degraded) == ("length", 3, "output-clamped")


def test_a_route_of_somebody_else_decides():
    names = []

    def second(request, in_flight):
        names.append((request.id, dict(in_flight)))
        return "w1"

    run = simulate([asked("a", 0), asked("b", 1)], gateway(2, VirtualFleet(route=second)))
    assert [r.worker for r in run.records] == [1, 1]
    assert names == [("a", {"w0": 0, "w1": 0}), ("b", {"w0": 0, "w1": 1})]


def test_a_worker_of_vllm_hears_of_no_promise_and_ours_does():
    workers = worlds.worker(policy=HEADWAY), worlds.worker(policy=VLLM)
    body = Sending([], VirtualSettings(workers=workers, fleet=VirtualFleet()))
    promised = asked("a", 0, priority=1, slo=worlds.PROMISES[1])
    for server, kept in zip(body.servers, (True, False), strict=True):
        server.take(promised.request(1), 0)
        [waiting] = server._front.lanes
        assert bool(waiting.slo.ttft_ns) is bool(waiting.priority) is kept


def test_limits_that_let_nobody_start_are_said_to():
    shut = FrontLimits(lanes=(LaneLimits("all", slots=0),))
    with pytest.raises(Stuck, match="1 requests wait"):
        simulate([asked("a", 0)], gateway(1, front=shut))


def test_specs_that_fit_no_workers_are_refused():
    with pytest.raises(ConfigError, match="2 specs are given for 1 workers"):
        gateway(1, VirtualFleet(specs=(WorkerSpec("a"), WorkerSpec("b"))))


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 60), min_size=64, max_size=64), st.integers(0, 30), st.integers(2, 4))
def test_a_burst_of_64_never_leaves_more_than_a_fair_share_and_two_on_one_worker(prompts, before, workers):
    """Signals are a second old, and workers differently busy; a request is on a worker until its first token."""
    specs = tuple(WorkerSpec(f"w{number}", first_sequences=1_000) for number in range(workers))
    background = [asked(f"a{number}", number * 20 * MS, prompt=1 + number % 50) for number in range(before)]
    at_ns = 10 * S - 1  # every worker was asked since the last of those before
    burst = [asked(f"b{number}", at_ns, prompt=prompt) for number, prompt in enumerate(prompts)]
    run = simulate([*background, *burst], gateway(workers, VirtualFleet(specs=specs)))
    marks = [(r.sent_ns, 1, r.worker) for r in run.records if r.id.startswith("b")]
    marks += [(r.first_token_ns, -1, r.worker) for r in run.records if r.id.startswith("b")]
    out: Counter[int | None] = Counter()
    for _, change, number in sorted(marks, key=lambda mark: mark[:2]):
        out[number] += change
        assert out[number] <= -(-64 // workers) + 2
