"""The front door: who is let in, who is refused and why, and that every hold is given back exactly once."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.core.errors import (
    ContextLengthExceeded,
    Draining,
    HeadwayError,
    InvalidRequest,
    QueueFull,
    TtftUnreachable,
)
from headway.core.front.admission import NS_PER_S, AdmissionLimits
from headway.core.front.front import Front, FrontLimits
from headway.core.lanes import Fit
from headway.core.pace import StepTime, StepTimeModel
from headway.core.request import Request, Slo, State, Usage
from headway.core.scheduler.policies import HEADWAY, VLLM, Policy

TOKEN_NS = NS_PER_S // 100  # a prompt is fed at 100 tokens a second
STEP_TIME = StepTime(0.0, float(TOKEN_NS), 0.0, 0.0, 0.0)
NOTHING = Usage(0, 0)


def request(name: str = "a", prompt: int = 4, max_tokens: int = 4, **slo_s: float) -> Request:
    slo = Slo(**{key: int(value * NS_PER_S) for key, value in slo_s.items()})
    return Request(name, range(prompt), max_tokens, slo=slo)


def front(  # noqa: PLR0917 -- a story names what it needs
    max_waiting: int = 8,
    max_waiting_tokens: int = 1000,
    timeout_s: float = 0.0,
    kv: int = 500,
    max_model_len: int = 100,
    policy: Policy = HEADWAY,
) -> Front:
    admission = AdmissionLimits(max_model_len, kv, max_waiting, max_waiting_tokens)
    limits = FrontLimits(queue_timeout_ns=int(timeout_s * NS_PER_S))
    return Front(admission, limits, model=StepTimeModel(STEP_TIME, frozen=True), policy=policy)


def start(_: Request) -> Fit:
    return Fit.START


def up_to(prompt_tokens: int) -> Callable[[Request], Fit]:
    return lambda one: Fit.START if one.prompt_tokens <= prompt_tokens else Fit.NO_KV


def pulled(door: Front, now: int = 1, accepts: Callable[[Request], Fit] = start) -> str | None:
    taken = door.pull(accepts, now)
    return taken.id if taken else None


def test_first_come_first_served():
    door = front()
    for name in "abc":
        door.submit(request(name), 0)
    assert [pulled(door) for _ in range(4)] == ["a", "b", "c", None]


def test_a_head_that_does_not_fit_keeps_its_place():
    door = front()
    door.submit(request("big", prompt=50), 0)
    door.submit(request("small"), 0)
    assert pulled(door, accepts=up_to(10)) == "small"
    assert pulled(door, accepts=up_to(10)) is None
    assert pulled(door) == "big"


def test_under_fcfs_nobody_passes_a_head_that_does_not_fit():
    door = front(policy=VLLM)
    door.submit(request("big", prompt=50), 0)
    door.submit(request("small"), 0)
    assert pulled(door, accepts=up_to(10)) is None


@pytest.mark.parametrize(
    ("bad", "error", "param", "words"),
    [
        (request(prompt=0), InvalidRequest, "prompt", "empty"),
        (request(max_tokens=0), InvalidRequest, "max_tokens", "at least 1"),
        (request(prompt=98, max_tokens=3), ContextLengthExceeded, "max_tokens", "98"),
        (request(prompt=200, max_tokens=1), ContextLengthExceeded, "prompt", "200"),
    ],
)
def test_what_can_never_run_is_refused_at_once_and_holds_nothing(bad, error, param, words):
    door = front()
    with pytest.raises(error, match=words) as caught:
        door.submit(bad, 0)
    assert caught.value.param == param
    assert caught.value.status == 400
    assert (door.admission.requests, door.admission.waiting, len(door.lanes)) == (0, 0, 0)
    assert sum(door.refused.values()) == 1


def test_more_than_the_kv_cache_holds_is_refused_not_queued_for_ever():
    door = front(kv=60)
    with pytest.raises(ContextLengthExceeded, match="KV cache of this server holds 60 tokens"):
        door.submit(request(prompt=50, max_tokens=20), 0)


def test_a_full_waiting_room_says_when_to_come_back():
    door = front(max_waiting=2)
    door.submit(request("a"), 0)
    door.submit(request("b"), 0)
    with pytest.raises(QueueFull) as caught:
        door.submit(request("c"), 0)
    assert caught.value.status == 429
    assert 1.0 <= (caught.value.retry_after_s or 0) <= 60.0
    pulled(door)
    door.submit(request("c"), 2)


def test_a_refusal_for_everybody_is_known_before_anybody_s_text_is_read():
    door = front(max_waiting=1)
    door.check_door(0)
    door.submit(request("a"), 0)
    with pytest.raises(QueueFull):
        door.check_door(0)
    door.draining = True
    with pytest.raises(Draining):
        door.check_door(0)
    assert sum(door.refused.values()) == 2


def test_retry_after_follows_the_measured_drain_rate():
    door = front(max_waiting=1000, max_waiting_tokens=10_000)
    for i in range(100):
        door.submit(request(f"r{i}", prompt=10), 0)
    for i in range(50):  # ten requests of ten tokens a second
        pulled(door, i * NS_PER_S // 10)
    # 500 tokens wait, and 100 are started in a second.
    assert door.admission.retry_after_s() == pytest.approx(5.0, rel=0.01)


def test_idle_time_does_not_slow_the_measured_drain_rate():
    door = front(max_waiting=1000, max_waiting_tokens=10_000)
    for round_ in range(4):
        at = round_ * 1000 * NS_PER_S
        for i in range(20):
            door.submit(request(f"r{round_}.{i}", prompt=10), at)
        for i in range(20):
            pulled(door, at + i * NS_PER_S // 10)
    for i in range(100):
        door.submit(request(f"w{i}", prompt=10), 5000 * NS_PER_S)
    assert door.admission.retry_after_s() == pytest.approx(10.0, rel=0.01)


# -- predicted TTFT ----------------------------------------------------------------------------------------------------


def test_a_first_token_that_cannot_come_in_time_is_refused_now():
    door = front()
    door.submit(request("before", prompt=50), 0)  # 0.5 s
    door.submit(request("in time", prompt=40, ttft_limit_ns=1.0), 0)  # 0.9 s
    with pytest.raises(TtftUnreachable, match=r"1\.\d s, beyond this request's limit of 1\.0 s") as caught:
        door.submit(request("too late", prompt=40, ttft_limit_ns=1.0), 0)  # 1.3 s
    assert caught.value.retry_after_s
    assert [one.id for one in door.lanes] == ["before", "in time"]
    assert door.admission.requests == 2


def test_only_those_who_stand_before_it_count():
    door = front()
    door.submit(request("unpromised", prompt=90), 0)
    promised = request("promised", prompt=10, ttft_ns=5.0, ttft_limit_ns=0.2)
    door.submit(promised, 0)  # it goes before the long one
    assert pulled(door) == "promised"


def test_the_prediction_uses_the_real_rate_once_there_is_one():
    door = front(max_waiting=100)
    for i in range(30):
        door.submit(request(f"r{i}", prompt=10), 0)
    for i in range(20):  # 10 tokens a second: ten times slower than the model says
        pulled(door, i * NS_PER_S)
    predicted_s = door.predicted_ttft_ns(request("next", prompt=10), 20 * NS_PER_S) / NS_PER_S
    assert predicted_s == pytest.approx(10.0 + 0.1, rel=0.05)  # 100 tokens before it, and its own


# -- expiry ------------------------------------------------------------------------------------------------------------


def test_a_wait_beyond_the_timeout_expires_oldest_first_and_only_then():
    door = front(timeout_s=10)
    door.submit(request("a"), 0)
    door.submit(request("b"), 5 * NS_PER_S)
    assert door.expire(10 * NS_PER_S - 1) == []
    (expire,) = door.expire(10 * NS_PER_S)
    assert (expire.request.id, expire.request.state) == ("a", State.EXPIRED)
    assert expire.error.status == 503
    assert (expire.error.retry_after_s or 0) >= 1
    assert len(door.lanes) == 1


def test_a_hopeless_wait_expires_when_its_prompt_could_not_be_fed_in_time_any_more():
    door = front()
    door.submit(request("a", prompt=40, ttft_limit_ns=1.0), 0)  # 0.4 s of prefill
    assert door.expire(6 * NS_PER_S // 10 - 1) == []
    (expire,) = door.expire(6 * NS_PER_S // 10)
    assert expire.request.id == "a"


def test_what_was_started_does_not_expire():
    door = front(timeout_s=1)
    door.submit(request("a"), 0)
    pulled(door)
    assert door.expire(5 * NS_PER_S) == []


def test_an_id_used_again_waits_its_own_time():
    door = front(timeout_s=10)
    door.submit(request("a"), 0)
    assert door.cancel("a", NS_PER_S)
    door.submit(request("a"), 9 * NS_PER_S)
    assert door.expire(10 * NS_PER_S) == []
    assert len(door.expire(19 * NS_PER_S)) == 1


# -- holds -------------------------------------------------------------------------------------------------------------


def test_the_token_limit_of_the_waiting_room_never_makes_a_prompt_impossible():
    door = front(max_waiting_tokens=10)
    door.submit(request("long", prompt=50), 0)
    with pytest.raises(QueueFull, match="50 prompt tokens are waiting"):
        door.submit(request("next"), 0)


def test_the_same_id_twice_is_refused():
    door = front()
    door.submit(request("a"), 0)
    with pytest.raises(InvalidRequest, match="already in the service"):
        door.submit(request("a"), 0)


def test_a_group_is_let_in_whole_or_not_at_all():
    door = front(max_waiting=3)
    door.submit(request("before"), 0)
    with pytest.raises(HeadwayError):
        door.submit_all([request("a"), request("b"), request("c", max_tokens=0)], 0)
    with pytest.raises(HeadwayError):
        door.submit_all([request("a"), request("b"), request("c")], 0)
    assert (door.admission.requests, door.admission.waiting, len(door.lanes)) == (1, 1, 1)
    door.submit_all([request("a"), request("b")], 0)
    assert [pulled(door) for _ in range(3)] == ["before", "a", "b"]


def test_draining_takes_nothing_new_and_keeps_what_waits():
    door = front()
    door.submit(request("a"), 0)
    door.draining = True
    with pytest.raises(Draining):
        door.submit(request("b"), 0)
    assert pulled(door) == "a"


def test_when_no_engine_will_come_those_who_wait_fail_and_hold_nothing():
    door = front()
    door.submit(request("a"), 0)
    door.submit(request("b"), 0)
    pulled(door)
    assert [one.id for one in door.fail_waiting(1)] == ["b"]
    assert (door.admission.requests, door.admission.waiting) == (1, 0)


def test_a_reservation_cannot_be_settled_twice():
    door = front()
    door.submit(request("a"), 0)
    pulled(door, 0)
    door.settle("a", NOTHING, 1)
    with pytest.raises(KeyError):
        door.settle("a", NOTHING, 2)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("submit"), st.integers(0, 9), st.integers(0, 60)),
            st.tuples(st.just("pull"), st.just(0), st.integers(0, 60)),
            st.tuples(st.just("cancel"), st.integers(0, 9), st.just(0)),
            st.tuples(st.just("settle"), st.integers(0, 9), st.just(0)),
            st.tuples(st.just("plan"), st.just(0), st.just(0)),
        ),
        max_size=80,
    )
)
def test_counters_equal_a_recount_whatever_happens(moves):
    door = front(max_waiting=4, max_waiting_tokens=100, timeout_s=5)
    waiting: dict[str, Request] = {}
    running: dict[str, Request] = {}
    for now, (what, who, size) in enumerate(moves):
        now *= NS_PER_S
        name = str(who)
        if what == "submit":
            new = request(name, prompt=size)
            try:
                door.submit(new, now)
                assert name not in waiting
                assert name not in running
                waiting[name] = new
            except HeadwayError:
                pass
        elif what == "pull":
            got = door.pull(up_to(size), now)
            if got is not None:
                running[got.id] = waiting.pop(got.id)
        elif what == "cancel":
            assert door.cancel(name, now) is (name in waiting)
            waiting.pop(name, None)
        elif what == "settle" and name in running:
            door.settle(name, NOTHING, now)
            del running[name]
        elif what == "plan":
            for expire in door.expire(now):
                assert now - expire.request.arrival_ns >= 5 * NS_PER_S
                del waiting[expire.request.id]
            assert all(now - one.arrival_ns < 5 * NS_PER_S for one in waiting.values())
        assert set(waiting) == {one.id for one in door.lanes}
        assert door.admission.waiting == len(waiting) <= 4
        assert door.admission.waiting_tokens == sum(one.prompt_tokens for one in waiting.values())
        assert door.admission.requests == len(waiting) + len(running)


def test_a_call_enters_whole_or_not_at_all_and_never_waits_for_the_impossible():
    door = front(max_waiting=3, max_waiting_tokens=10)
    group = [request(f"g{i}", prompt=8) for i in range(3)]
    door.submit_all(group, 0)  # into an empty room, whatever its tokens
    assert (door.admission.waiting, door.admission.waiting_tokens) == (3, 24)
    with pytest.raises(QueueFull):
        door.submit_all([request("late")], 0)
    for one in group:
        assert door.cancel(one.id, 1)
    with pytest.raises(InvalidRequest, match="at most 3") as caught:
        door.submit_all([request(f"h{i}") for i in range(4)], 2)
    assert caught.value.param == "n"
    with pytest.raises(InvalidRequest, match="same id"):
        door.submit_all([request("twin"), request("twin")], 2)
    assert (door.admission.requests, door.admission.waiting, len(door.lanes)) == (0, 0, 0)


def test_a_promise_nobody_could_keep_is_not_made():
    model = StepTimeModel(StepTime(9e6, 480e3, 680e3, 1e3, 280.0), frozen=True)
    door = Front(AdmissionLimits(100, 500), FrontLimits(), model=model)
    hopeless, tight = request("hopeless", itl_ns=0.001), request("tight", itl_ns=0.02)
    door.submit_all([hopeless, tight], 0)
    assert hopeless.slo.itl_ns == 0  # a lone stream takes 9.7 ms a step; keeping everybody else out would not help
    assert tight.slo.itl_ns == 20_000_000
