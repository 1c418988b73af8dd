"""A front before remote workers: every request ends exactly once, whatever the workers, the clients and the load do."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.core.errors import NotFound, NoWorker, TtftUnreachable, WorkerLost
from headway.core.fleet.breaker import FAILURES, FIRST_REST_NS, Trust
from headway.core.fleet.worker import WorkerLoad, WorkerSpec
from headway.core.front.admission import AdmissionLimits
from headway.core.front.front import MAX_ATTEMPTS, Front, FrontLimits
from headway.core.front.tenants import TenantLimits
from headway.core.request import Request, Slo, State, Usage
from tests.laws.fleet import MS, TENANTS, FleetWorld, S, stories

ROOMY = AdmissionLimits(10_000, 1 << 40, max_waiting=1_000, max_waiting_tokens=1 << 40)


@settings(max_examples=400, deadline=None)
@given(stories)
def test_every_request_ends_exactly_once_and_nothing_is_left(story):
    FleetWorld().tell(story).finish()


@settings(max_examples=60, deadline=None)
@given(stories)
def test_the_same_stimuli_give_the_same_decisions(story):
    """Also when they have been written down and read again."""
    one, other = FleetWorld().tell(story), FleetWorld().tell(json.loads(json.dumps(story)))
    assert one.decisions == other.decisions
    assert one.sent == other.sent


@settings(max_examples=60, deadline=None)
@given(stories, st.sampled_from([1, 10**18]))
def test_it_does_not_matter_what_o_clock_it_is(story, later):
    story = [one for one in story if one[0] != "observe" or one[2] == 0]  # nothing is older than the beginning
    one, other = FleetWorld().tell(story), FleetWorld(now=MS + later).tell(story)
    assert one.sent == other.sent
    assert [replace(each, numbers={}, now_ns=0) for each in one.decisions] == [
        replace(each, numbers={}, now_ns=0) for each in other.decisions
    ]


@settings(max_examples=150, deadline=None)
@given(stories)
def test_a_tenant_never_spends_more_than_its_bucket_held(story):
    """Over any time t: limit + limit × t / minute, of tokens and of requests, counted from what it really used."""
    world = FleetWorld().tell(story).finish()
    for tenant, limits in TENANTS.items():
        mine = sorted((at_ns, tokens) for name, at_ns, tokens in world.spent if name == tenant)
        accepted = sorted(request.arrival_ns for request in world.requests.values() if request.tenant == tenant)
        check_bucket(limits.tokens_per_minute, mine)
        check_bucket(limits.requests_per_minute, [(at_ns, 1) for at_ns in accepted])


def check_bucket(per_minute: int, spent: list[tuple[int, int]]) -> None:
    if not per_minute:
        return
    for first, (from_ns, _) in enumerate(spent):
        total = 0
        for at_ns, amount in spent[first:]:
            total += amount
            assert total <= per_minute + per_minute * (at_ns - from_ns) / (60 * S) + 1e-6


# -- lost workers ------------------------------------------------------------------------------------------------------


def world_of(workers: int, first_sequences: int = 4) -> FleetWorld:
    limits = FrontLimits(queue_timeout_ns=0)
    return FleetWorld(admission=ROOMY, limits=limits, workers=workers, first_sequences=first_sequences)


@pytest.mark.parametrize("apart_ms", [0, 1])
def test_a_lost_request_keeps_its_place_among_its_tenants(apart_ms):
    world = world_of(2, first_sequences=1)
    for _ in range(4):
        world.tell([("submit", "", 10, 5, 0, 0), ("wait", apart_ms)])
    first, second, third, _ = world.requests
    world.tell([("plan",)])
    assert set(world.at) == {first, second}
    world.tell([("wait", 5), ("lost", 0)])
    assert first not in world.at
    front = world.front
    assert front.cancel(second, world.now) is False
    front.settle(second, Usage(0, 0), world.now, end=State.CANCELLED)
    went = [dispatch.request.id for dispatch in front.plan(world.now)]
    assert went[:2] == [first, third]  # before those that came after it, and not where it failed
    assert front.fleet.flights[first].worker.spec.id == world.sent[1][1]


def test_a_request_is_tried_on_each_worker_once_and_given_up_after_some():
    world = world_of(MAX_ATTEMPTS + 1)
    world.tell([("submit", "", 10, 5, 0, 0)])
    for _ in range(MAX_ATTEMPTS):
        world.tell([("plan",), ("lost", 0)])
    assert list(world.ends.values()) == ["lost"]
    tried = [worker for _, worker in world.sent]
    assert len(set(tried)) == len(tried) == MAX_ATTEMPTS


def test_nothing_is_tried_again_after_its_first_byte():
    world = world_of(3)
    world.tell([("submit", "", 10, 5, 0, 0), ("plan",), ("began", 0)])
    (name,) = world.at
    error = world.front.lost(name, world.now, usage=Usage(10, 2))
    assert isinstance(error, WorkerLost)
    assert error.status == 502
    assert world.requests[name].state is State.FAILED
    assert world.front.admission.requests == 0


def test_a_lonely_worker_is_tried_again():
    world = world_of(1)
    world.tell([("submit", "", 10, 5, 0, 0), ("plan",), ("lost", 0), ("plan",)])
    assert [worker for _, worker in world.sent] == ["w0", "w0"]


# -- breakers ----------------------------------------------------------------------------------------------------------


def test_a_breaker_opens_lets_one_find_out_and_closes():
    world = world_of(1)
    breaker = world.front.fleet.workers["w0"].breaker
    world.tell([*[("submit", "", 10, 5, 0, 0)] * FAILURES, ("plan",)])
    for _ in range(FAILURES):
        assert breaker.trust(world.now) is Trust.CLOSED
        world.tell([("lost", 0)])
    assert breaker.trust(world.now) is Trust.OPEN
    assert world.front.admission.waiting == FAILURES
    with pytest.raises(NoWorker) as refused:
        world.front.submit(Request("late", range(10), 5), world.now)
    assert refused.value.status == 503
    assert 1.0 <= refused.value.retry_after_s <= 60.0
    world.tell([("plan",)])
    assert not world.at
    world.now += FIRST_REST_NS
    world.tell([("plan",)])
    assert len(world.at) == 1  # one finds out, the others wait
    world.tell([("plan",), ("submit", "", 10, 5, 0, 0), ("plan",)])
    assert len(world.at) == 1
    world.tell([("began", 0), ("plan",)])
    assert breaker.trust(world.now) is Trust.CLOSED
    assert len(world.at) > 1
    world.finish()


def test_an_open_breaker_rests_longer_each_time_and_a_health_check_ends_it():
    world = world_of(2)
    breaker = world.front.fleet.workers["w0"].breaker
    for _ in range(FAILURES):
        world.front.fleet.health("w0", world.now, well=False)
    first = breaker.retry_after_ns(world.now)
    world.now += first
    world.front.fleet.health("w0", world.now, well=False)
    assert breaker.retry_after_ns(world.now) == 2 * first
    world.front.fleet.health("w0", world.now, well=True)
    assert breaker.trust(world.now) is Trust.HALF_OPEN
    assert [one.why for one in world.decisions if one.kind == "worker"][-2:] == ["w0: open", "w0: half-open"]


def test_a_probe_that_is_taken_back_does_not_keep_the_worker_out():
    world = world_of(1)
    for _ in range(FAILURES):
        world.front.fleet.health("w0", world.now, well=False)
    world.now += FIRST_REST_NS
    world.tell([("submit", "", 10, 5, 0, 0), ("plan",)])
    assert len(world.at) == 1
    world.tell([("cancel", 0), ("submit", "", 10, 5, 0, 0), ("plan",)])
    assert len(world.at) == 1


# -- who may go where --------------------------------------------------------------------------------------------------


def fleet(*specs: WorkerSpec) -> Front:
    front = Front(ROOMY, FrontLimits(), remote=True)
    for spec in specs:
        front.add_worker(spec, 0)
    return front


def sent(front: Front, now: int = 0) -> dict[str, str]:
    return {one.request.id: one.worker for one in front.plan(now)}  # type: ignore[union-attr]


def test_models_and_pools_say_who_may_serve_whom():
    front = fleet(
        WorkerSpec("chat", models=frozenset({"m"}), first_sequences=1),
        WorkerSpec("other", models=frozenset({"n"}), first_sequences=2),
        WorkerSpec("batch", pool="batch", models=frozenset({"m"})),
    )
    for number in range(3):
        front.submit(Request(f"m{number}", range(10), 5, model="m"), 0)
    front.submit(Request("n", range(10), 5, model="n", pool="batch"), 0)  # a pool that does not serve it
    front.submit(Request("b", range(10), 5, model="m", pool="batch"), 0)
    assert sent(front) == {"m0": "chat", "n": "other", "b": "batch"}  # who waits for a full worker holds up nobody
    with pytest.raises(NotFound, match="model 'x'"):
        front.submit(Request("x", range(10), 5, model="x"), 0)


def test_a_drained_worker_gets_nothing_and_keeps_what_it_has():
    front = fleet(WorkerSpec("one"), WorkerSpec("two"))
    front.fleet.drain("one", 0)
    for number in range(4):
        front.submit(Request(f"r{number}", range(10), 5), 0)
    assert set(sent(front).values()) == {"two"}
    front.fleet.drain("two", 0)
    with pytest.raises(NoWorker):
        front.submit(Request("late", range(10), 5), 0)
    assert len(front.fleet.workers["two"].flights) == 4
    front.fleet.drain("one", 0, draining=False)
    front.submit(Request("late", range(10), 5), 0)
    assert sent(front) == {"late": "one"}


def test_a_front_without_any_worker_refuses_at_once():
    with pytest.raises(NoWorker):
        fleet().submit(Request("a", range(10), 5), 0)


def test_the_predicted_first_token_of_a_fleet_is_what_waits_over_what_drains():
    front = fleet(WorkerSpec("one", first_sequences=1, most_sequences=1))
    for number in range(40):
        front.submit(Request(f"r{number}", range(100), 5), 0)
    now = 0
    for number in range(30):  # 100 tokens every 100 ms
        assert sent(front, now) == {f"r{number}": "one"}
        front.began(f"r{number}", now + 20 * MS)
        now += 100 * MS
        front.settle(f"r{number}", Usage(100, 5), now, end=State.FINISHED)
    front.plan(now)
    assert front.predicted_ttft_ns(Request("next", range(100), 5, arrival_ns=now), now) / S == pytest.approx(0.92, 0.05)
    with pytest.raises(TtftUnreachable):
        front.submit(Request("hurried", range(100), 5, slo=Slo(ttft_limit_ns=S // 2)), now)
    front.submit(Request("patient", range(100), 5, slo=Slo(ttft_limit_ns=2 * S)), now)


def test_the_limit_on_what_runs_holds_over_all_workers():
    front = Front(replace(ROOMY, max_running=3), FrontLimits(), remote=True)
    for name in ("one", "two"):
        front.add_worker(WorkerSpec(name), 0)
    for number in range(8):
        front.submit(Request(f"r{number}", range(10), 5), 0)
    assert len(sent(front)) == 3
    front.settle("r0", Usage(10, 5), 1, end=State.FINISHED)
    assert len(sent(front)) == 1


def test_the_claim_on_kv_follows_what_the_workers_say_they_have():
    front = Front(replace(ROOMY, kv_claim_ratio=2.0), FrontLimits(), remote=True)
    front.add_worker(WorkerSpec("one"), 0)
    front.observe("one", WorkerLoad.at(0, kv_capacity_tokens=100), 0)
    for number in range(2):
        front.submit(Request(f"r{number}", range(50), 50), 0)
    with pytest.raises(Exception, match="kv-claim-ratio"):
        front.submit(Request("more", range(1), 1), 0)
    assert front.cancel("r0", 0)
    front.submit(Request("more", range(1), 1), 0)


def test_limits_can_be_changed_for_everybody_at_once():
    world = world_of(1)
    world.tell([("submit", "a", 10, 5, 0, 0)])
    world.tenants.set(TenantLimits(max_input_tokens=5), {})
    world.tell([("submit", "a", 10, 5, 0, 0), ("submit", "x", 10, 5, 0, 0), ("submit", "x", 5, 5, 0, 0)])
    assert [request.tenant for request in world.requests.values()] == ["a", "x"]
