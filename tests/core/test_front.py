"""The front door: who is let in, who is refused and why, and that every hold is given back exactly once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.admission import NS_PER_S, AdmissionLimits
from headway.core.errors import ContextLengthExceeded, Draining, HeadwayError, InvalidRequest, QueueFull
from headway.core.front import Front
from headway.core.request import Request, State


def request(name="a", prompt=4, max_tokens=4):
    return Request(name, range(prompt), max_tokens)


def front(max_waiting=8, max_waiting_tokens=1000, timeout_s=0.0, kv=500, max_model_len=100):
    limits = AdmissionLimits(max_model_len, kv, max_waiting, max_waiting_tokens)
    return Front(limits, queue_timeout_ns=int(timeout_s * NS_PER_S))


def take_all(_):
    return True


def test_first_come_first_served():
    door = front()
    for name in "abc":
        door.submit(request(name), 0)
    assert [door.pull(take_all, 1).id for _ in range(3)] == ["a", "b", "c"]
    assert door.pull(take_all, 1) is None


def test_a_head_that_does_not_fit_keeps_its_place():
    door = front()
    door.submit(request("big", prompt=50), 0)
    door.submit(request("small"), 0)
    assert door.pull(lambda r: r.prompt_tokens < 10, 1) is None
    assert door.pull(take_all, 1).id == "big"


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
    assert 1.0 <= caught.value.retry_after_s <= 60.0
    door.pull(take_all, 1)
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
    assert door.refused == {"queue_full": 1, "not_ready": 1}


def test_retry_after_follows_the_measured_drain_rate():
    door = front(max_waiting=1000, max_waiting_tokens=10_000)
    for i in range(100):
        door.submit(request(f"r{i}", prompt=10), 0)
    for i in range(50):  # ten requests of ten tokens a second
        door.pull(take_all, i * NS_PER_S // 10)
    # 50 requests of 10 tokens wait, 50 were started in 4.9 s: as much again drains in about 4.9 s.
    assert door.admission.retry_after_s(49 * NS_PER_S // 10) == pytest.approx(4.9, rel=0.01)


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


def test_draining_takes_nothing_new_and_keeps_what_waits():
    door = front()
    door.submit(request("a"), 0)
    door.draining = True
    with pytest.raises(Draining):
        door.submit(request("b"), 0)
    assert door.pull(take_all, 1).id == "a"


def test_a_wait_beyond_the_timeout_expires_oldest_first_and_only_then():
    door = front(timeout_s=10)
    door.submit(request("a"), 0)
    door.submit(request("b"), 5 * NS_PER_S)
    assert door.plan(10 * NS_PER_S - 1) == []
    (expire,) = door.plan(10 * NS_PER_S)
    assert (expire.request.id, expire.request.state) == ("a", State.EXPIRED)
    assert expire.error.status == 503
    assert expire.error.retry_after_s >= 1
    assert len(door.lanes) == 1


def test_a_reservation_cannot_be_settled_twice():
    door = front()
    door.submit(request("a"), 0)
    door.pull(take_all, 0)
    door.settle("a")
    with pytest.raises(KeyError):
        door.settle("a")


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
            got = door.pull(lambda r, most=size: r.prompt_tokens <= most, now)
            if got is not None:
                running[got.id] = waiting.pop(got.id)
        elif what == "cancel":
            assert door.cancel(name) is (name in waiting)
            waiting.pop(name, None)
        elif what == "settle" and name in running:
            door.settle(name)
            del running[name]
        elif what == "plan":
            for expire in door.plan(now):
                assert now - expire.request.arrival_ns >= 5 * NS_PER_S
                del waiting[expire.request.id]
        assert set(waiting) == {r.id for r in door.lanes}
        assert door.admission.waiting == len(waiting) <= 4
        assert door.admission.waiting_tokens == sum(r.prompt_tokens for r in waiting.values())
        assert door.admission.requests == len(waiting) + len(running)
