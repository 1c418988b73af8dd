"""Where requests go: no herds on late signals, silence is not idleness, favourites yield."""

from __future__ import annotations

import math
import random
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.core.errors import ConfigError
from headway.core.fleet.fleet import Dispatch
from headway.core.fleet.routing import BURST_SLACK
from headway.core.fleet.shares import PRESENT_NS, Shares
from headway.core.fleet.worker import (
    AHEAD_NS,
    FORGOTTEN_NS,
    LOAD_FIELDS,
    Signal,
    WorkerLoad,
    WorkerSpec,
    WorkerState,
    belief,
)
from headway.core.front.admission import AdmissionLimits
from headway.core.front.front import Front, FrontLimits
from headway.core.request import PREFIX_TOKENS, Request, Slo, State, Usage

MS = 1_000_000
S = 1_000 * MS
LIMITS = AdmissionLimits(1 << 20, 1 << 50, max_waiting=1 << 40, max_waiting_tokens=1 << 50)


def fleet(*specs: WorkerSpec) -> Front:
    front = Front(LIMITS, FrontLimits(), remote=True)
    for spec in specs:
        front.add_worker(spec, 0)
    return front


def wide(count: int, weights: list[float] | None = None) -> Front:
    """Windows that take a whole burst: only the score and its bound decide."""
    given_ = weights or [1.0] * count
    return fleet(*(WorkerSpec(f"w{i}", weight=given_[i], first_sequences=1_000) for i in range(count)))


def send(front: Front, now: int, *requests: Request) -> list[str]:
    """Where each went."""
    for request in requests:
        front.submit(request, now)
    return [dispatch.worker for dispatch in front.plan(now)]  # type: ignore[union-attr]


loads = st.builds(
    lambda **values: values,
    running=st.sampled_from([None, 0, 5, 100]),
    waiting=st.sampled_from([None, 0, 30]),
    kv_used_ratio=st.sampled_from([None, 0.0, 0.5, 1.0]),
    kv_capacity_tokens=st.sampled_from([None, 100_000_000]),
    batch_tokens=st.sampled_from([None, 10, 2_000]),
    ttft_s=st.sampled_from([None, 0.01, 5.0]),
    itl_s=st.sampled_from([None, 0.01, 1.0]),
    memory_headroom_ratio=st.sampled_from([None, 0.0, 0.9]),
)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(loads, st.sampled_from([0, 100, 1_000, 5_000])), min_size=2, max_size=5),
    st.lists(st.sampled_from([0.5, 1.0, 1.0, 2.0]), min_size=5, max_size=5),
    st.lists(st.tuples(st.integers(1, 4_000), st.integers(0, 3)), min_size=64, max_size=64),
)
def test_a_burst_of_64_gives_nobody_more_than_its_fair_share_and_2_whatever_was_said(said, weights, asks):
    """Complaints 14 to 17: the last signals, however old, wrong or missing, and a prefix that all of them share."""
    front, now = wide(len(said), weights), 10 * S
    for number, (values, age_ms) in enumerate(said):
        front.observe(f"w{number}", WorkerLoad.at(now - age_ms * MS, **values), now)
    for worker in front.fleet.workers.values():
        worker.window.sequences = 1_000.0  # a queue would close them, which is another law
    requests = [
        Request(f"r{i}", range(prompt), 10, prefix=tuple(range(blocks))) for i, (prompt, blocks) in enumerate(asks)
    ]
    where = Counter(worker for request in requests for worker in send(front, now, request))
    total = sum(weights[: len(said)])
    fair = {name: 64 * state.spec.weight / total for name, state in front.fleet.workers.items()}
    for name, share in fair.items():
        assert where[name] <= math.ceil(share) + BURST_SLACK
    # And so nobody is left out either: what is missing at one, the others have beyond their shares.
    for name in fair:
        others = sum(math.ceil(fair[other]) + BURST_SLACK for other in fair if other != name)
        assert where[name] >= 64 - others
    assert where.total() == 64


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 4_000), min_size=30, max_size=120), st.integers(2, 4))
def test_without_any_signal_own_work_is_balanced_by_its_tokens(prompts, workers):
    front = wide(workers)
    for number, prompt in enumerate(prompts):
        send(front, number * S, Request(f"r{number}", range(prompt), 10))
        work = [state.work_tokens for state in front.fleet.workers.values()]
        assert max(work) - min(work) <= 2 * (4_000 + 10)


def test_a_fresh_signal_of_work_that_is_not_ours_is_heeded():
    front = wide(3)
    for name, running in (("w0", 40), ("w1", 0), ("w2", 40)):
        front.observe(name, WorkerLoad.at(S, running=running, waiting=0, kv_used_ratio=0.3), S)
        front.fleet.workers[name].window.sequences = 50.0
    where = Counter(send(front, S, *(Request(f"r{i}", range(100), 10) for i in range(4))))
    assert where["w1"] == 4


def test_what_is_sent_is_counted_at_once_not_when_the_next_signal_comes():
    """Complaint 14: signals of 50 ms ago, requests each ms. The idle one of then is not idle any more."""
    front = wide(4)
    for number in range(4):
        front.observe(f"w{number}", WorkerLoad.at(0, running=0, waiting=0, kv_used_ratio=0.0), 0)
    where = Counter(send(front, i * MS, Request(f"r{i}", range(100), 10))[0] for i in range(40))
    assert set(where.values()) == {10}


def test_own_requests_seen_by_a_signal_are_not_counted_twice():
    front = wide(1)
    send(front, 0, *(Request(f"r{i}", range(100), 10) for i in range(5)))
    state = front.fleet.workers["w0"]
    front.observe("w0", WorkerLoad.at(10 * MS, running=7, waiting=1), 20 * MS)
    assert state.foreign(20 * MS) == 3
    send(front, 30 * MS, Request("more", range(100), 10))
    assert state.foreign(30 * MS) == 3
    for i in range(3):
        front.settle(f"r{i}", Usage(100, 5), 40 * MS, end=State.CANCELLED)
    assert state.foreign(40 * MS) == 3
    front.observe("w0", WorkerLoad.at(35 * MS, running=8, waiting=1), 50 * MS)  # late: from before those three ended
    assert state.foreign(50 * MS) == 3


def test_a_signal_fades_into_what_is_known_of_our_own():
    signal = Signal(1.0, S)
    beliefs = [belief(signal, S + age * 100 * MS) for age in range(120)]
    assert beliefs[0] == beliefs[2] == 1.0
    assert all(left >= right for left, right in pairwise(beliefs))
    assert belief(signal, S + FORGOTTEN_NS) == belief(None, S) == 0.0
    front = wide(1)
    front.observe("w0", WorkerLoad.at(0, running=50, waiting=0), 0)
    state = front.fleet.workers["w0"]
    foreign = [state.foreign(age * S) for age in range(12)]
    assert foreign[0] == 50
    assert foreign[-1] == 0
    assert all(left >= right for left, right in pairwise(foreign))


loads_with_times = st.builds(
    WorkerLoad,
    **{name: st.none() | st.builds(Signal, st.floats(0, 1), st.integers(0, 5)) for name in LOAD_FIELDS},
)


@settings(max_examples=100, deadline=None)
@given(st.lists(loads_with_times, max_size=8))
def test_neither_silence_nor_an_older_answer_overwrites_what_is_known(answers):
    """Complaint 15."""
    state = WorkerState(WorkerSpec("w"))
    for answer in answers:
        state.observe(answer, 10)
    for name in LOAD_FIELDS:
        known = getattr(state.load, name)
        said = [signal for answer in answers if (signal := getattr(answer, name)) is not None]
        assert (known is None) is (not said)
        if said:
            newest = max(signal.at_ns for signal in said)
            assert known == [signal for signal in said if signal.at_ns == newest][-1]


@pytest.mark.parametrize("name", ["waiting", "kv_used_ratio", "batch_tokens", "ttft_s", "itl_s"])
def test_unknown_is_not_zero(name):
    """Complaint 16: beside workers that say how busy they are, one that says nothing is no bargain, nor an outcast."""
    values = {"waiting": 2.0, "kv_used_ratio": 0.6, "batch_tokens": 500.0, "ttft_s": 1.0, "itl_s": 0.1}
    front = wide(3)
    for worker, factor in (("w0", 1.0), ("w1", 1.4)):
        front.observe(worker, WorkerLoad.at(S, **{name: values[name] * factor}), S)
    front.submit(Request("a", range(100), 10), S)
    (dispatch,) = front.plan(S)
    assert dispatch.worker == "w0"  # type: ignore[union-attr]
    others = dispatch.choice.others  # type: ignore[union-attr]
    assert dispatch.choice.score < others["w2"] < others["w1"]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("running", 1, 30),
        ("waiting", 0, 1.4),
        ("kv_used_ratio", 0.2, 0.95),
        ("batch_tokens", 100, 900),
        ("ttft_s", 0.1, 2.0),
        ("itl_s", 0.02, 0.2),
        ("memory_headroom_ratio", 0.5, 0.01),
    ],
)
def test_each_signal_counts_and_its_term_says_so(name, good, bad):
    front = wide(2)
    front.observe("w0", WorkerLoad.at(S, **{name: bad}), S)
    front.observe("w1", WorkerLoad.at(S, **{name: good}), S)
    front.submit(Request("a", range(100), 10), S)
    (dispatch,) = front.plan(S)
    assert dispatch.worker == "w1"  # type: ignore[union-attr]
    choice = dispatch.choice  # type: ignore[union-attr]
    term = {"kv_used_ratio": "kv", "batch_tokens": "batch", "ttft_s": "ttft", "itl_s": "itl"}.get(name, name)
    term = "memory" if name == "memory_headroom_ratio" else term
    assert choice.score == pytest.approx(sum(choice.terms.values()))
    assert choice.others["w0"] > choice.score
    assert term in choice.terms


# -- prefix affinity ---------------------------------------------------------------------------------------------------


def chat(name: str, shared: int = 32, own: int = 100) -> Request:
    return Request(name, range(shared * PREFIX_TOKENS + own), 10, prefix=tuple(range(shared)))


def test_a_prompt_goes_where_its_beginning_is():
    front = wide(4)
    (first,) = send(front, 0, chat("first"))
    front.began("first", MS)
    front.settle("first", Usage(100, 5), 2 * MS, end=State.CANCELLED)
    assert send(front, 10 * S, chat("again")) == [first]
    assert front.fleet.flights["again"].prompt_tokens == 100


def test_a_favourite_yields_when_it_has_more_to_do_than_the_prefix_saves():
    """Complaint 17: one system prompt for everybody, and requests without end. Nobody stays the only favourite."""
    front, now = wide(4), 0
    running: list[str] = []
    peak: Counter[str] = Counter()
    for number in range(400):
        now += 20 * MS
        name = f"r{number}"
        send(front, now, chat(name))
        running.append(name)
        if len(running) > 24:
            done = running.pop(0)
            front.began(done, now)
            front.settle(done, Usage(100, 10), now, end=State.FINISHED)
        for worker, state in front.fleet.workers.items():
            peak[worker] = max(peak[worker], len(state.flights))
    assert max(peak.values()) <= 24 / 4 + 4
    assert min(peak.values()) >= 2


def test_what_has_not_been_used_for_long_is_not_expected_to_be_cached():
    state = WorkerState(WorkerSpec("w"))
    state.send(chat("first", shared=64), 10, 0)
    for number in range(100):
        own = tuple(range(1_000 + 64 * number, 1_000 + 64 * (number + 1)))
        state.send(Request(f"r{number}", range(5_000), 5, prefix=own), 10, 0)
    assert state.cached_tokens(chat("again", shared=64)) == 0
    assert state.cached_tokens(Request("last", range(5_000), 5, prefix=own)) == 64 * PREFIX_TOKENS


# -- tokens in flight --------------------------------------------------------------------------------------------------


def test_tokens_in_flight_are_bounded_by_what_the_worker_can_hold():
    front = fleet(WorkerSpec("w", first_sequences=50))
    front.observe("w", WorkerLoad.at(0, kv_capacity_tokens=1_000), 0)
    for number in range(20):
        front.submit(Request(f"r{number}", range(150), 10), 0)
    front.plan(0)
    state = front.fleet.workers["w"]
    assert 0 < state.tokens <= 1_000
    assert len(state.flights) == 6


def test_a_request_larger_than_a_window_goes_when_the_worker_is_empty_and_is_not_passed_for_ever():
    front = fleet(WorkerSpec("w", first_sequences=50))
    front.observe("w", WorkerLoad.at(0, kv_capacity_tokens=1_000), 0)
    now = 0
    assert send(front, now, Request("small", range(100), 10)) == ["w"]
    front.submit(Request("big", range(2_000), 10), now)
    running, count = ["small"], 0
    while "big" not in front.fleet.flights:
        front.submit(Request(f"s{count}", range(100), 10), now)
        count += 1
        now += 10 * MS
        running += [dispatch.request.id for dispatch in front.plan(now)]
        done = running.pop(0)
        front.settle(done, Usage(100, 5), now, end=State.CANCELLED)
        front.plan(now)
        assert count < 100


# -- prompts that are to be read ---------------------------------------------------------------------------------------


def reading(token_ns: int, first: int = 50) -> tuple[Front, int]:
    """A worker that reads prompts one after another at a known speed, after a while; and the time."""
    front, now, draws = fleet(WorkerSpec("w", first_sequences=first)), 0, random.Random(0)
    for number in range(40):
        tokens = draws.randrange(50, 2_000)
        assert send(front, now, Request(f"p{number}", range(tokens), 10)) == ["w"]
        now += tokens * token_ns
        front.began(f"p{number}", now)
        front.settle(f"p{number}", Usage(tokens, 10), now, end=State.FINISHED)
    return front, now


def test_a_worker_that_has_prompts_to_read_for_a_while_gets_no_more_until_it_has_read_them():
    front, now = reading(token_ns=100_000)
    for number in range(20):  # 60 ms each
        front.submit(Request(f"r{number}", range(600), 10), now)
    sent = [dispatch.request.id for dispatch in front.plan(now)]
    assert sent == [f"r{number}" for number in range(-(-AHEAD_NS // (60 * MS)))]
    front.began("r0", now + 60 * MS)
    assert [dispatch.request.id for dispatch in front.plan(now + 60 * MS)] == [f"r{len(sent)}"]


def test_a_prompt_that_takes_longer_than_that_goes_where_nothing_is_to_be_read():
    front, now = reading(token_ns=100_000)
    assert send(front, now, Request("long", range(50_000), 10)) == ["w"]
    assert send(front, now, Request("short", range(10), 10)) == []
    front.began("long", now + 5 * S)
    assert [dispatch.request.id for dispatch in front.plan(now + 5 * S)] == ["short"]


def test_of_answers_in_one_piece_nobody_sees_what_is_read_so_they_hold_nobody_back():
    front, now = reading(token_ns=100_000)
    for number in range(20):
        front.submit(Request(f"r{number}", range(500), 10, streams=False), now)
    assert len(front.plan(now)) == 20


def test_a_promise_counts_from_when_its_prompt_must_be_sent():
    front, now = reading(token_ns=100_000)
    request = Request("r", range(1_000), 10, slo=Slo(ttft_ns=S))
    front.submit(request, now)
    assert 0 <= now + S - 100 * MS - request.latest_start_ns < 20 * MS, "the first predictions still count a little"


def test_a_promise_is_begun_so_early_that_it_is_kept_though_first_tokens_often_come_late():
    """Who starts at the last moment by what a prompt takes on average misses its promise every other time."""
    front, now = reading(token_ns=100_000)
    draws, late = random.Random(1), 0
    for number in range(300):
        request = Request(f"r{number}", range(1_000), 10, slo=Slo(ttft_ns=S))
        front.submit(request, now)
        now = request.latest_start_ns
        assert [dispatch.request.id for dispatch in front.plan(now)] == [request.id]
        now += int((100 + draws.expovariate(1 / 80)) * MS)
        late += number >= 100 and now - request.arrival_ns > S
        front.began(request.id, now)
        front.settle(request.id, Usage(1_000, 10), now, end=State.FINISHED)
    assert late <= 20
    assert request.latest_start_ns - request.arrival_ns > S / 2


def test_a_promise_that_is_shorter_than_first_tokens_are_late_still_waits_for_its_turn():
    """Else all of them would be lost when they come, and stand behind everybody."""
    front, now = reading(token_ns=100_000)
    for number in range(20):
        assert send(front, now, Request(f"s{number}", range(1_000), 10)) == ["w"]
        now += 400 * MS * (1 + number % 2)
        front.began(f"s{number}", now)
        front.settle(f"s{number}", Usage(1_000, 10), now, end=State.FINISHED)
    request = Request("r", range(1_000), 10, slo=Slo(ttft_ns=S))
    front.submit(request, now)
    assert now < request.latest_start_ns < now + S / 2


def test_two_workers_of_one_name_and_weights_of_nothing_are_refused():
    front = fleet(WorkerSpec("w"))
    with pytest.raises(ConfigError, match="'w'"):
        front.add_worker(WorkerSpec("w"), 0)
    with pytest.raises(ConfigError, match="weight"):
        WorkerSpec("x", weight=0.0)


# -- a flood and the others' room --------------------------------------------------------------------------------------

KV_TOKENS = 10_000


def flooded(front: Front, *, guest: bool) -> int:
    """Tokens in flight when one tenant has sent all that it is allowed to; `guest`: another one has been there."""
    front.observe("w0", WorkerLoad.at(0, kv_capacity_tokens=KV_TOKENS), 0)
    if guest:
        assert send(front, 0, Request("g", range(100), 10, tenant="guest")) == ["w0"]
        front.began("g", MS)
        front.settle("g", Usage(100, 10), 2 * MS, end=State.FINISHED)
    for number in range(40):
        front.submit(Request(f"f{number}", range(500), 10, tenant="flood"), 3 * MS)
    front.plan(3 * MS)
    return front.fleet.workers["w0"].tokens


def test_a_flood_leaves_room_for_whoever_has_less_than_its_share():
    front = wide(1)
    flood_tokens = flooded(front, guest=True)
    assert flood_tokens <= 0.7 * KV_TOKENS
    assert len(front.lanes) > 10
    assert [one.request.id for one in sent(front, Request("big", range(1_200), 10, tenant="guest"), 4 * MS)] == ["big"]


def test_a_tenant_that_is_alone_has_all_the_room():
    assert flooded(wide(1), guest=False) > 0.8 * KV_TOKENS


def sent(front: Front, request: Request, now: int) -> list[Dispatch]:
    front.submit(request, now)
    return [one for one in front.plan(now) if isinstance(one, Dispatch)]


def test_who_has_not_come_for_a_while_is_not_waited_for():
    shares = Shares({"flood": 1.0, "guest": 3.0}.__getitem__)
    shares.came("guest", 0)
    shares.came("flood", S)
    shares.sent("flood", 100)
    assert shares.beyond("flood")
    assert not shares.beyond("guest")
    shares.sent("guest", 200)  # of 300 in flight the flood's part is 75
    assert shares.beyond("flood")
    shares.sent("guest", 100)
    assert not shares.beyond("flood")
    shares.landed("guest", 300)
    shares.came("flood", PRESENT_NS)
    assert not shares.beyond("flood")
