"""What batch work leaves to others: times of the day, tokens a minute, and promises that it must not break."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.core.batch.allowance import Allowance
from headway.core.batch.climb import ROUND_NS, Climb
from headway.core.batch.dispatch import Dispatcher, Fault, GiveUp
from headway.core.batch.hours import DAY_S, Hours
from headway.core.batch.lookahead import Lookahead, Place
from headway.core.batch.promises import Promises

S = 1_000_000_000
MINUTE = 60 * S

clock = st.builds(lambda hour, minute: f"{hour:02d}:{minute:02d}", st.integers(0, 23), st.integers(0, 59))


# -- times of the day --------------------------------------------------------------------------------------------------


@given(begin=clock, end=clock, second=st.integers(0, DAY_S - 1))
def test_a_window_opens_when_it_says_and_so_does_its_complement(begin, end, second):
    """Every second of the day lies in a span or in the one that it leaves out, and waiting leads into it."""
    if begin == end:
        return
    inside, outside = Hours.parse((f"{begin}-{end}",)), Hours.parse((f"{end}-{begin}",))
    waits = opens(inside, second), opens(outside, second)
    assert min(waits) == 0 < max(waits) <= DAY_S
    assert opens(inside, second + waits[0]) == 0
    if waits[0]:
        assert opens(inside, second + waits[0] - 1) == 1, "not sooner"


def test_windows_by_hand():
    nights = Hours.parse(("22:00-06:00", "12:00-13:00"))
    hours = [0, 5, 6, 11, 12, 13, 21, 22, 23]
    assert [nights.opens_in_s(hour) / 3600 for hour in hours] == [0, 0, 6, 1, 0, 9, 1, 0, 0]
    assert Hours().opens_in_s(1) == 0, "without a window it is always open"
    assert Hours.parse(("20:00-24:00",)).opens_in_s(23, 59, 59) == 0


@pytest.mark.parametrize(
    "text", ["", "1-6", "01:00", "25:00-02:00", "01:60-02:00", "24:01-02:00", "03:00-03:00", "a:b-c:d"]
)
def test_what_is_no_window_is_named(text):
    with pytest.raises(ValueError, match=r"no time of day|begins when it ends") as caught:
        Hours.parse(("01:00-02:00", text))
    assert repr(text) in str(caught.value)


def test_nothing_begins_outside_and_what_runs_goes_on():
    dispatcher = dispatcher_of(Climb(8, 8), items=4)
    assert len(dispatcher.plan(0)) == 4
    dispatcher.add(Place(9))
    dispatcher.not_before_ns = 100 * S
    assert dispatcher.plan(99 * S) == []
    assert dispatcher.wake_ns(99 * S) == 100 * S
    assert dispatcher.finished(0, "w", 5, 99 * S) == 1
    assert [start.place.number for start in dispatcher.plan(100 * S)] == [9]


# -- tokens a minute ---------------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(
    per_minute=st.integers(1, 100_000),
    items=st.lists(st.tuples(st.integers(1, 5000), st.integers(0, 20 * S)), min_size=1, max_size=60),
)
def test_no_minute_has_more_than_its_allowance(per_minute, items):
    """Every span of time holds its share, a sixth of a minute's worth, and the item that was let in last."""
    allowance, now, began = Allowance(per_minute), 0, []
    for tokens, later in items:
        now = max(now + later, allowance.opens_at_ns(now + later))
        assert allowance.opens_at_ns(now) == now, "it opens when it said"
        allowance.take(tokens)
        began.append((now, tokens))
    largest = max(tokens for tokens, _ in items)
    for first in range(len(began)):
        for last in range(first, len(began)):
            used = sum(tokens for _, tokens in began[first : last + 1])
            seconds = (began[last][0] - began[first][0]) / S
            assert used <= per_minute * seconds / 60 + per_minute / 6 + largest + 1


def test_an_item_pays_what_it_took_and_not_what_was_feared():
    def started(real: int) -> int:
        """How many of a long row of items begin within ten minutes."""
        dispatcher = Dispatcher(Lookahead("input", 10_000), allowance=Allowance(6000))
        dispatcher.add_worker("w", Climb(1, 1))
        for number in range(2000):
            dispatcher.add(Place(number, 0, 100, 900))
        now, begun = 0, 0
        while now < 10 * MINUTE:
            for start in dispatcher.plan(now):
                begun += 1
                dispatcher.finished(start.place.number, "w", real, now)
            wake = dispatcher.wake_ns(now)
            now = now + S if wake is None else min(now + S, max(wake, now + 1))
        return begun

    # The bucket gives 1,000 more, and an item may begin when anything is left.
    assert started(1000) == pytest.approx(61, abs=2)
    assert started(100) == pytest.approx(610, abs=20)


def test_who_was_refused_has_taken_nothing():
    allowance = Allowance(600)
    dispatcher = Dispatcher(Lookahead("input", 10), allowance=allowance)
    dispatcher.add_worker("w", Climb(1, 1))
    dispatcher.add(Place(1, 0, 500, 500))
    [start] = dispatcher.plan(0)
    assert allowance.opens_at_ns(0) > 0
    assert not isinstance(dispatcher.failed(start.place.number, "w", Fault.REFUSED, 0), GiveUp)
    assert allowance.opens_at_ns(0) == 0


# -- promises to others ------------------------------------------------------------------------------------------------


def test_strain_is_the_worst_of_what_was_promised():
    promises = Promises(ttft_s=1.0, itl_s=0.05)
    assert promises.strain(ttft_s=0.5, itl_s=0.1) == 2.0
    assert promises.strain(ttft_s=0.5, itl_s=None) == 0.5
    assert promises.strain(ttft_s=None, itl_s=None) == 0.0
    assert Promises(itl_s=0.05).strain(ttft_s=99.0, itl_s=0.01) == pytest.approx(0.2)
    assert promises
    assert not Promises()


class Neighbour:
    """A server whose ITL rises with the batch items on it: 20 ms and 2 ms for each, and what others bring."""

    def __init__(self, climb: Climb) -> None:
        self.climb = climb
        self.now = 0
        self.limits: list[int] = []

    def seconds(self, count: int, others: int, promised_ms: float = 60.0) -> list[float]:
        """Strain, second by second."""
        told = []
        for _ in range(count):
            running = self.climb.most_at_once if self.now >= self.climb.not_before_ns else 0
            self.climb.began(running, self.now)
            self.now += ROUND_NS
            for _ in range(running + 1):
                self.climb.done(10, ROUND_NS, self.now)
            strain = (20 + 2 * (running + others)) / promised_ms if others else 0.0
            self.climb.strained(strain, self.now)
            told.append(strain)
            self.limits.append(running)
        return told


def test_it_backs_off_before_a_promise_is_broken_and_comes_back():
    neighbour = Neighbour(Climb(8, 1024))
    neighbour.seconds(30, others=0)
    alone = neighbour.limits[-1]
    assert alone > 100, "nobody is disturbed, so it climbs"
    strains = neighbour.seconds(120, others=4)
    assert sum(strain > 1 for strain in strains[20:]) <= 2, "others have what they were promised"
    assert max(neighbour.limits[-20:]) >= 4, "and the batch has what is left of it"
    neighbour.seconds(120, others=0)
    assert neighbour.limits[-1] > 50, "when they have gone, it takes the place again"


def test_where_nothing_is_left_nothing_begins():
    neighbour = Neighbour(Climb(8, 64))
    neighbour.seconds(40, others=30)
    assert max(neighbour.limits[10:]) <= 1
    assert sum(neighbour.limits[10:]) <= 15, "not even one at a time"


def opens(hours: Hours, second: int) -> int:
    minutes, second = divmod(second % DAY_S, 60)
    return hours.opens_in_s(*divmod(minutes, 60), second)


def dispatcher_of(climb: Climb, items: int) -> Dispatcher:
    dispatcher = Dispatcher(Lookahead("input", 100))
    dispatcher.add_worker("w", climb)
    for number in range(items):
        dispatcher.add(Place(number))
    return dispatcher
