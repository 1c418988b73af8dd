"""Batch dispatch against workers on virtual time that refuse, fail, vanish and die: every item ends, exactly once."""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import dataclass, field
from itertools import count

from hypothesis import given, settings
from hypothesis import strategies as st

from headway.core.batch.climb import Climb
from headway.core.batch.dispatch import Dispatcher, ErrorClass, Fault, GiveUp, RetryLimits
from headway.core.batch.lookahead import Lookahead, Place

S = 1_000_000_000


@dataclass
class World:
    """Workers that lose everything when an item of `deadly` runs, or more than `memory` items do."""

    items: int
    workers: int = 1
    slots: int = 8
    deadly: frozenset[int] = frozenset()
    memory: int = 1 << 30
    capacity: int = 1 << 30  # of items; more are refused
    sour: dict[int, Fault] = field(default_factory=dict)  # what becomes of some, always
    absent_until_ns: int = 0
    batch: int = 0
    limits: RetryLimits = field(default_factory=RetryLimits)

    def __post_init__(self):
        self.now = 1
        self.ended: Counter[int] = Counter()
        self.given_up: dict[int, GiveUp] = {}
        self.starts: Counter[int] = Counter()
        self.crashes = 0
        self.most_at_once = 0
        self.events: list[tuple[int, int, int, str]] = []
        self.running: dict[str, dict[int, int]] = {}  # worker -> number -> when it began
        self.ids = count()
        self.dispatcher = Dispatcher(Lookahead("static" if self.batch else "grouped", 50), self.limits)
        for number in range(self.workers):
            self.dispatcher.add_worker(f"w{number}", Climb(self.slots, 4 * self.slots), batch=self.batch)
            self.running[f"w{number}"] = {}

    def run(self):
        coming = iter(range(1, self.items + 1))
        more = True
        for _ in range(200_000):
            while more and not self.dispatcher.lookahead.full:
                number = next(coming, None)
                if number is None:
                    more, self.dispatcher.closed = False, True
                    break
                self.dispatcher.add(Place(number, number % 3, 1 + number % 7, 1 + number % 5))
            self.begin()
            if not self.dispatcher.left and not more:
                return self
            if self.dispatcher.stuck:
                return self
            times = [self.events[0][0]] if self.events else []
            wake = self.dispatcher.wake_ns(self.now)
            times += [wake] if wake is not None else []
            assert times, "nothing runs, and nothing will: items are left over"
            self.now = max(self.now, min(times))
            self.end()
        raise AssertionError("it does not come to an end")

    def begin(self):
        for start in self.dispatcher.plan(self.now):
            number, running = start.place.number, self.running[start.worker]
            assert number not in running
            running[number] = self.now
            self.starts[number] += 1
            self.most_at_once = max(self.most_at_once, len(running))
            lasts = S // 4 + number % 5 * S // 10
            heapq.heappush(self.events, (self.now + lasts, next(self.ids), number, start.worker))

    def end(self):
        while self.events and self.events[0][0] <= self.now:
            _, _, number, worker = heapq.heappop(self.events)
            if number not in self.running[worker]:
                continue  # lost before
            if self.deadly & self.running[worker].keys() or len(self.running[worker]) > self.memory:
                self.crash(worker)
            else:
                self.answer(number, worker)

    def crash(self, worker):
        self.crashes += 1
        fault = Fault.LOST if self.deadly & self.running[worker].keys() else Fault.OUT_OF_MEMORY
        running, self.running[worker] = self.running[worker], {}
        self.events = [event for event in self.events if event[3] != worker]
        heapq.heapify(self.events)
        for number in running:
            self.fail(number, worker, fault)

    def answer(self, number, worker):
        running = self.running[worker]
        if self.now < self.absent_until_ns:
            del running[number]
            self.fail(number, worker, Fault.UNREACHABLE)
        elif len(running) > self.capacity:
            del running[number]
            self.fail(number, worker, Fault.REFUSED)
        elif number in self.sour:
            del running[number]
            self.fail(number, worker, self.sour[number])
        else:
            del running[number]
            tries = self.dispatcher.finished(number, worker, 10, self.now)
            assert 1 <= tries <= self.starts[number]
            self.ended[number] += 1

    def fail(self, number, worker, fault):
        verdict = self.dispatcher.failed(number, worker, fault, self.now)
        if isinstance(verdict, GiveUp):
            self.ended[number] += 1
            self.given_up[number] = verdict


def all_once(world):
    assert world.ended == Counter(range(1, world.items + 1))
    assert world.dispatcher.in_flight == 0


sour_items = st.dictionaries(st.integers(1, 120), st.sampled_from([Fault.BAD, Fault.TIMEOUT, Fault.SERVER]), max_size=6)
worlds = st.builds(
    World,
    items=st.integers(0, 120),
    workers=st.integers(1, 3),
    slots=st.integers(1, 16),
    deadly=st.frozensets(st.integers(1, 120), max_size=4),
    capacity=st.integers(1, 40),
    sour=sour_items,
    absent_until_ns=st.integers(0, 120).map(lambda seconds: seconds * S),
    batch=st.sampled_from([0, 0, 4]),
)


@settings(deadline=None)
@given(worlds)
def test_every_item_ends_once_whatever_happens(world):
    items, deadly, sour = world.items, world.deadly, world.sour
    sour = {number: fault for number, fault in sour.items() if number not in deadly}
    world.sour = sour
    world.run()
    assert not world.dispatcher.stuck
    all_once(world)
    guilty = {number for number in deadly | sour.keys() if number <= items}
    assert world.given_up.keys() == guilty, "only those that are to blame are given up"
    for number in guilty & sour.keys():
        tries = 1 if sour[number] is Fault.BAD else world.limits.tries
        assert world.given_up[number].tries >= tries
    assert all(world.given_up[number].error_class is ErrorClass.SERVER for number in guilty & deadly)


@settings(deadline=None)
@given(slots=st.integers(1, 64), poison=st.integers(1, 200))
def test_one_poisoned_item_is_found_by_halving(slots, poison):
    world = World(200, slots=slots, deadly=frozenset({poison})).run()
    all_once(world)
    assert world.given_up.keys() == {poison}
    assert world.crashes <= (4 * slots).bit_length() + 1 + world.limits.alone_tries


@settings(deadline=None)
@given(slots=st.integers(1, 64), memory=st.integers(1, 70))
def test_out_of_memory_halves_until_it_fits_and_then_keeps_below(slots, memory):
    world = World(300, slots=slots, memory=memory, limits=RetryLimits(losses=1000)).run()
    all_once(world)
    assert not world.given_up
    # The tree of halves of one batch, and a few sizes between what fitted and what did not.
    assert world.crashes <= slots + 12


def test_out_of_memory_by_one_item_does_not_lower_the_concurrency_of_the_others():
    world = World(400, slots=32, deadly=frozenset({7}))
    fail = world.fail
    world.fail = lambda number, worker, _: fail(number, worker, Fault.OUT_OF_MEMORY)  # type: ignore[method-assign]
    world.run()
    all_once(world)
    assert {number: one.error_class for number, one in world.given_up.items()} == {7: ErrorClass.OOM}
    assert world.dispatcher.limit_of("w0") >= 32


def test_a_worker_that_is_never_there_is_given_up_and_keeps_nothing():
    world = World(30, absent_until_ns=1 << 62).run()
    assert "has not been there for" in world.dispatcher.stuck
    assert not world.ended
    assert world.dispatcher.in_flight == 0
    assert world.now >= world.limits.patience_ns


def test_a_worker_that_only_fails_is_given_up_before_the_items_are():
    world = World(5000, slots=16, sour=dict.fromkeys(range(1, 5001), Fault.SERVER)).run()
    assert "failed" in world.dispatcher.stuck
    assert len(world.given_up) < 40


def test_a_worker_that_dies_of_everything_is_given_up():
    world = World(5000, slots=16, deadly=frozenset(range(1, 5001))).run()
    assert "was lost 24 times in a row" in world.dispatcher.stuck
    assert len(world.given_up) < 24


def test_the_work_of_a_worker_that_is_given_up_is_done_by_the_other():
    world = World(200, workers=2, slots=8)
    world.begin()
    for number in list(world.running["w0"]):
        world.dispatcher.failed(number, "w0", Fault.FORBIDDEN, world.now)
    world.running["w0"].clear()
    world.events = [event for event in world.events if event[3] != "w0"]
    world.run()
    all_once(world)


def test_a_worker_that_says_when_to_come_back_is_waited_for():
    """Longer than the patience with one that says nothing; but not for ever."""
    dispatcher = Dispatcher(Lookahead("input", 10), RetryLimits(patience_ns=60 * S))
    dispatcher.add_worker("w", Climb(1, 1))
    dispatcher.add(Place(1))
    now, refused = 0, 0
    while not dispatcher.stuck:
        [start] = dispatcher.plan(now)
        dispatcher.failed(start.place.number, "w", Fault.REFUSED, now, retry_after_ns=1000 * S)
        refused += 1
        now += 1000 * S
    assert refused == 3
    assert "it has refused everything for 2000 s" in dispatcher.stuck


@given(rooms=st.lists(st.integers(1, 20), min_size=1, max_size=5), items=st.integers(1, 120))
def test_what_is_too_little_for_all_is_shared_by_room(rooms, items):
    dispatcher = Dispatcher(Lookahead("input", 1000))
    for number, room in enumerate(rooms):
        dispatcher.add_worker(f"w{number}", Climb(room, room))
    for number in range(items):
        dispatcher.add(Place(number))
    given_to = Counter(start.worker for start in dispatcher.plan(0))
    assert given_to.total() == min(items, sum(rooms)), "nothing waits while there is room"
    for number, room in enumerate(rooms):
        assert given_to[f"w{number}"] <= min(room, -(-room * items // sum(rooms)))
