"""The parts of a batch's decisions alone: order, concurrency, suspicion."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.core.batch.climb import Climb
from headway.core.batch.lookahead import LEAD, PATIENCE_WINDOWS, Lookahead, Place

S = 1_000_000_000

places = st.builds(
    Place,
    number=st.just(0),
    group=st.integers(0, 4),
    input_tokens=st.integers(1, 500),
    output_tokens=st.sampled_from([1, 32, 64, 128]),
)


def slide(lookahead, items, batch=1):
    """Take everything through the window. Returns the batches, in order, and how many were taken while each waited."""
    coming = iter(items)
    batches, waited, came, taken = [], {}, {}, 0
    while True:
        while not lookahead.full and (place := next(coming, None)) is not None:
            lookahead.add(place)
            came[place.number] = taken
        got = lookahead.take_batch(batch) if batch > 1 else [lookahead.take()]
        if not got or got == [None]:
            break
        for place in got:
            waited[place.number] = taken - came[place.number]
        taken += len(got)
        batches.append(got)
    assert len(lookahead) == lookahead.tokens == 0
    return batches, waited


@settings(deadline=None)
@given(
    drawn=st.lists(places, max_size=200),
    order=st.sampled_from(["grouped", "static", "input"]),
    capacity=st.integers(1, 30),
    batch=st.integers(1, 9),
)
def test_everything_is_taken_once_and_nothing_waits_without_bound(drawn, order, capacity, batch):
    items = [Place(number, one.group, one.input_tokens, one.output_tokens) for number, one in enumerate(drawn)]
    batches, waited = slide(Lookahead(order, capacity), items, batch)
    assert sorted(place.number for got in batches for place in got) == list(range(len(items)))
    bound = (PATIENCE_WINDOWS + 1) * capacity + (capacity + 1) * batch
    assert all(passed <= bound for passed in waited.values())
    if order == "input":
        assert [place.number for got in batches for place in got] == list(range(len(items)))


def test_items_that_begin_alike_run_together():
    draw = random.Random(3)
    items = [Place(number, 1 + draw.randrange(4), 100, 50) for number in range(2000)]
    order = [place.group for got in slide(Lookahead("grouped", 512), items)[0] for place in got]
    changes = sum(a != b for a, b in pairwise(order))
    assert changes < 30, "among four groups an order that does not care changes 1,500 times"


def test_within_a_group_the_longest_go_first():
    items = [Place(number, 7, 10, output) for number, output in enumerate([5, 90, 20, 70])]
    order = [place.output_tokens for got in slide(Lookahead("grouped", 10), items)[0] for place in got]
    assert order == [90, 70, 20, 5]


@pytest.mark.parametrize("size", [2, 3, 20])
def test_the_first_of_a_group_has_begun_well_before_the_second(size):
    """Who begins beside it finds nothing in the prefix cache yet, and computes the same again."""
    items = [Place(number, 1 + number // size, 100, 50) for number in range(20 * size)]
    order = [place.group for got in slide(Lookahead("grouped", 1000), items)[0] for place in got]
    places = {group: [at for at, one in enumerate(order) if one == group] for group in set(order)}
    # Before the first group there was none to put between, and after the last there is none.
    led = [at[1] - at[0] for at in sorted(places.values())]
    assert min(led[1:-LEAD]) >= min(LEAD, size) > 1
    assert max(at[-1] - at[0] for at in places.values()) <= 2 * (size + LEAD), "and the last soon after"


def test_items_that_share_nothing_do_not_stop_those_that_do_from_running_together():
    items = [Place(number, 0) for number in range(50)] + [Place(number, 1 + number % 2) for number in range(50, 70)]
    order = [place.group for got in slide(Lookahead("grouped", 1000), items)[0] for place in got]
    assert set(order[:20]) == {1, 2}
    assert sum(a != b for a, b in pairwise(order)) <= 4


def padding(batches):
    computed = useful = 0
    for batch in batches:
        longest = max(one.input_tokens for one in batch) + max(one.output_tokens for one in batch)
        computed += len(batch) * longest
        useful += sum(one.tokens for one in batch)
    return 1 - useful / computed


@pytest.mark.parametrize(("outputs", "at_most"), [((32, 64, 128), 0.1), (range(16, 257), 0.25)])
def test_static_batches_have_nearly_one_length(outputs, at_most):
    draw = random.Random(5)
    items = [Place(number, 0, int(2 ** draw.uniform(5, 9)), draw.choice(outputs)) for number in range(2000)]
    with_buckets, _ = slide(Lookahead("static", 1024), items, 32)
    without, _ = slide(Lookahead("input", 1024), items, 32)
    assert padding(without) > 0.4
    assert padding(with_buckets) < at_most


# -- Climb -------------------------------------------------------------------------------------------------------------


def serve(climb, *, seconds, rate_of, refuse_above=1 << 30, retry_after_s=0, token=100):
    """A closed loop against a server whose items take `n / rate_of(n)` seconds when n run. Limits, second by second."""
    now, refused_before = 0, 0
    limits: list[int] = []
    ends: list[int] = []
    while now < seconds * S:
        room = climb.room(len(ends), now)
        for _ in range(room):
            if len(ends) >= refuse_above:
                assert now >= refused_before, "it was asked to wait"
                climb.refused(retry_after_s * S, now)
                refused_before = now + retry_after_s * S
                break
            ends.append(now + int((len(ends) + 1) / rate_of(len(ends) + 1) * S))
            climb.began(len(ends), now)
        limits.append(climb.most_at_once)
        ends.sort()
        step = ends[0] if ends else climb.not_before_ns
        now = max(now + 1, step)
        while ends and ends[0] <= now:
            ends.pop(0)
            climb.done(token, S, now)
    return limits


def knee(at, per_second):
    """Throughput grows with concurrency up to `at`, and not beyond."""
    return lambda n: min(n, at) * per_second


@pytest.mark.parametrize("at", [3, 16, 64, 200])
def test_it_climbs_to_where_throughput_stops_rising(at):
    limits = serve(Climb(4, 1024), seconds=120, rate_of=knee(at, 2.0))
    settled = limits[len(limits) // 2 :]
    assert min(settled) >= 0.7 * at, "throughput was left on the table"
    assert sorted(settled)[len(settled) // 2] <= max(8, 2.6 * at), "a queue was built up for nothing"


def test_it_yields_to_refusals_and_stays_near_what_is_taken():
    limits = serve(Climb(4, 1024), seconds=120, rate_of=knee(1000, 1.0), refuse_above=50)
    settled = limits[len(limits) // 2 :]
    assert sum(limit > 50 for limit in settled) < 0.3 * len(settled)
    assert sorted(settled)[len(settled) // 2] > 20


def test_retry_after_is_honoured():
    climb = Climb(8, 64)
    climb.began(8, 0)
    climb.refused(7 * S, S)
    assert climb.room(0, 8 * S - 1) == 0
    assert climb.room(0, 8 * S) > 0
    assert climb.most_at_once < 8


def test_pauses_double_where_the_server_does_not_say():
    climb, now, pauses = Climb(8, 64), 0, []
    for _ in range(9):
        climb.refused(0, now)
        pauses.append(climb.not_before_ns - now)
        now = climb.not_before_ns
    assert pauses[:4] == [S // 2, S, 2 * S, 4 * S]
    assert max(pauses) == 60 * S


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from("bdrtm"), st.integers(0, 3 * S)), max_size=200), st.integers(1, 50))
def test_the_limit_keeps_its_bounds(moves, most):
    climb, now, flying = Climb(8, most), 0, 0
    for what, wait in moves:
        now += wait
        assert 1 <= climb.most_at_once <= most
        if what == "b" and climb.room(flying, now):
            flying += 1
            climb.began(flying, now)
        elif what == "d" and flying:
            flying -= 1
            climb.done(10, wait, now)
        elif what == "r":
            before = climb.limit
            climb.refused(0, now)
            assert climb.limit <= before
        elif what == "t":
            climb.timed_out(now)
        elif what == "m":
            climb.out_of_memory(max(1, flying), flying // 2, now)
    assert climb.room(climb.most_at_once, now) == 0


def test_equal_first_and_most_never_climb():
    assert set(serve(Climb(16, 16), seconds=30, rate_of=knee(100, 2.0))) == {16}


def test_counts_of_groups_are_kept():
    lookahead = Lookahead("grouped", 10)
    for number in range(6):
        lookahead.add(Place(number, number % 2))
    assert Counter(place.group for _ in range(6) if (place := lookahead.take())) == {0: 3, 1: 3}
    assert lookahead.take() is None
