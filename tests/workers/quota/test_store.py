"""The contract of a store of quotas, for the one in memory and the one in Redis; and that they are the same."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.core.front.ledger import Amounts
from headway.core.front.sharing import Answer, Ask, Got, Want
from headway.workers.quota_redis import RedisStore
from headway.workers.quota_store import MemoryStore, QuotaStore, QuotaStoreFault
from tests.redis_server import RedisServer

S = 1_000_000  # of the store's clock, in µs
LIMIT = Amounts(4, 60, 6_000)
_prefixes = (f"test:{number}" for number in itertools.count())


class Told:
    """Speaks with a store for many gateways, with a clock that is just a number."""

    def __init__(self, make: Callable[[Callable[[], int]], QuotaStore], runner: asyncio.Runner) -> None:
        self.now_us = 1_700_000_000 * S
        self.store = make(lambda: self.now_us)
        self.runner = runner
        self.numbers: dict[str, int] = {}

    def ask(self, gateway: str, *wants: Want, number: int = 0, epoch: str = "", leaves: bool = False) -> Answer:
        self.numbers[gateway] = number or self.numbers.get(gateway, 0) + 1
        ask = Ask(gateway, self.numbers[gateway], 5_000_000_000, epoch, wants, leaves)
        return self.runner.run(self.store.exchange(ask))

    def want(self, gateway: str, held: int = 0, slots: int = 0, requests: int = 0, tokens: int = 0) -> Got:
        (got,) = self.ask(gateway, Want("t", LIMIT, held, slots, Amounts(0, requests, tokens))).got
        return got


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


def in_redis(server: RedisServer) -> Callable[[Callable[[], int]], QuotaStore]:
    return lambda clock_us: RedisStore(server.url, prefix=next(_prefixes), clock_us=clock_us, timeout_s=5.0)


@pytest.fixture(params=["memory", "redis"])
def told(request: pytest.FixtureRequest, runner: asyncio.Runner) -> Iterator[Told]:
    make = MemoryStore if request.param == "memory" else in_redis(request.getfixturevalue("redis_server"))
    told = Told(make, runner)
    yield told
    runner.run(told.store.close())


def test_slots_are_given_up_to_the_limit_of_all(told: Told) -> None:
    assert told.want("a", slots=3).slots == 3
    assert told.want("b", slots=3).slots == 1
    assert told.want("a", held=2, slots=2).left.slots == 1
    assert told.want("b", held=1, slots=3).slots == 2


def test_what_a_gateway_holds_is_its_own_even_beyond_the_limit_and_then_nobody_gets_more(told: Told) -> None:
    assert told.want("a", slots=4).slots == 4
    assert told.want("b", held=3, slots=5).slots == 3
    assert told.want("a", held=2, slots=4).slots == 2
    assert told.want("a", held=0, slots=4).slots == 1


def test_a_lease_that_is_not_renewed_ends(told: Told) -> None:
    assert told.want("a", slots=4).slots == 4
    told.now_us += 4 * S
    assert told.ask("a").gateways == 1  # renewed for all tenants, without a word about them
    told.now_us += 5 * S - 1
    assert told.want("b", slots=4).slots == 0
    told.now_us += 1
    assert told.want("b", slots=4).slots == 4
    assert told.ask("b").gateways == 1
    assert told.ask("a").gateways == 2


def test_who_leaves_leaves_nothing_behind(told: Told) -> None:
    assert told.want("a", slots=4, requests=10).slots == 4
    answer = told.ask("a", Want("t", LIMIT, 0, 0, Amounts(0, -10, 0)), leaves=True)
    assert answer.gateways == 0
    got = told.want("b", slots=4, requests=60)
    assert (got.slots, got.more.requests) == (4, 60)


def test_a_minute_is_given_out_once_and_refills_evenly(told: Told) -> None:
    assert told.want("a", tokens=5_000).more.tokens == 5_000
    got = told.want("b", tokens=5_000, requests=1)
    assert (got.more.tokens, got.left.tokens, got.left.requests) == (1_000, 0, 59)
    told.now_us += 10 * S
    assert told.want("b", tokens=5_000).more.tokens == 1_000
    assert told.want("a", tokens=-500).left.tokens == 500
    told.now_us += 1_000 * S
    assert told.want("a", tokens=-500).left.tokens == 6_000  # never more than a minute's worth


def test_what_is_owed_is_charged_once_however_often_it_is_told_and_beyond_what_is_left(told: Told) -> None:
    def owing(since: int) -> int:
        want = Want("t", LIMIT, 0, 0, Amounts(), Amounts(0, 0, 4_000), since)
        return told.ask("a", want).got[0].left.tokens

    assert owing(1) == 2_000
    assert owing(1) == 2_000
    assert owing(3) == -2_000
    assert owing(1) == -2_000
    assert told.want("b", tokens=10).more.tokens == 0
    told.now_us += 20 * S
    assert told.want("b", tokens=10).more.tokens == 0
    told.now_us += S
    assert told.want("b", tokens=10).more.tokens == 10


def test_who_got_less_than_it_wanted_is_heard_by_the_others_for_a_second(told: Told) -> None:
    assert not told.want("a", slots=4).others_short
    assert not told.want("b", slots=1).others_short
    assert told.want("a", held=4, slots=4).others_short
    assert not told.want("b", slots=0).others_short
    told.now_us += S
    assert not told.want("a", held=4, slots=4).others_short


def test_an_ask_that_comes_after_a_later_one_changes_nothing(told: Told) -> None:
    told.ask("a", number=7)
    for number in (3, 7):
        with pytest.raises(QuotaStoreFault, match="after a later one"):
            told.ask("a", Want("t", LIMIT, 0, 4, Amounts(0, 60, 0)), number=number)
    answer = told.ask("a", number=9)
    assert answer.before == 7
    assert told.want("b", slots=4, requests=60) == Got("t", 4, Amounts(0, 60, 0), Amounts(0, 0, 6_000))


def test_a_store_that_knows_nothing_of_what_others_hold_waits_for_them(told: Told) -> None:
    want = Want("t", LIMIT, 2, 4, Amounts(0, 30, 0))
    answer = told.ask("a", want, epoch="of a store before this one")
    assert answer.wait_ns == 5_000_000_000
    assert answer.got[0] == Got("t", 2, Amounts(), Amounts(2, 0, 0))
    told.now_us += 2 * S
    assert told.ask("b", want, epoch="another").wait_ns == 3_000_000_000  # once for all
    told.now_us += 3 * S
    answer = told.ask("b", want, epoch=answer.epoch)
    assert answer.wait_ns == 0
    assert answer.got[0].slots == 4  # the lease of the first has ended
    assert answer.got[0].more.requests == 5  # what refilled since; it did not begin full
    told.now_us += 60 * S
    other = Want("u", LIMIT, 0, 0, Amounts(0, 60, 0))
    assert told.ask("b", other, epoch=answer.epoch).got[0].more.requests == 60


def test_a_clock_that_is_set_back_or_ahead_locks_nobody_out(told: Told) -> None:
    assert told.want("dead", slots=4, tokens=6_000).slots == 4
    told.now_us -= 3_600 * S
    assert told.want("b", slots=4, tokens=10).slots == 0
    told.now_us += 6 * S
    got = told.want("b", slots=4, tokens=10)
    assert (got.slots, got.more.tokens) == (4, 10)
    told.now_us += 7_200 * S
    got = told.want("b", held=4, slots=4, tokens=9_000)
    assert (got.slots, got.more.tokens) == (4, 6_000)


def test_limits_may_change_come_and_go(told: Told) -> None:
    def ask(limit: Amounts, tokens: int) -> Got:
        return told.ask("a", Want("t", limit, 0, 4, Amounts(0, 0, tokens))).got[0]

    assert ask(Amounts(4, 0, 100), 90).more.tokens == 90
    assert ask(Amounts(2, 0, 1_000), 90).slots == 2
    assert ask(Amounts(2, 0, 5), 90).more.tokens == 0  # what was left went with the first two
    got = ask(Amounts(0, 0, 0), -5)
    assert (got.slots, got.more.tokens) == (0, -5)
    assert ask(Amounts(0, 0, 1_000), 2_000).more.tokens == 1_000  # what was not limited begins full


# -- the same, whatever is asked ---------------------------------------------------------------------------------------

amounts = st.builds(Amounts, st.integers(0, 9), st.sampled_from([0, 1, 60]), st.sampled_from([0, 7, 1_000, 90_000_000]))
changes = st.builds(Amounts, st.just(0), st.integers(-70, 70), st.integers(-1_200, 100_000))
owed = st.builds(Amounts, st.just(0), st.integers(0, 9), st.integers(0, 999))
wants = st.builds(
    lambda tenant, limit, held, slots, *rest: Want(tenant, limit, held, held + slots, *rest),
    *(st.sampled_from("tu"), amounts, st.integers(0, 3), st.integers(0, 9), changes, owed, st.integers(0, 9)),
)
asks = st.tuples(
    st.sampled_from("abc"),
    st.lists(wants, max_size=2, unique_by=lambda want: want.tenant),
    st.sampled_from([0, 0, 0, 1, 4]),  # number
    st.sampled_from(["", "", "known", "another"]),
    st.sampled_from([False] * 9 + [True]),
)
stories = st.lists(st.one_of(asks, st.integers(-4_000 * S, 4_000 * S), st.integers(0, 6 * S)), max_size=25)


@settings(max_examples=150, deadline=None)
@given(stories)
def test_redis_answers_what_memory_answers(redis_server: RedisServer, runner: asyncio.Runner, story: list[Any]) -> None:
    both = Told(MemoryStore, runner), Told(in_redis(redis_server), runner)
    epochs = ["", ""]
    for one in story:
        if isinstance(one, int):
            for told in both:
                told.now_us += one
            continue
        gateway, what, number, epoch, leaves = one
        answers: list[object] = []
        for place, told in enumerate(both):
            known = epochs[place] if epoch == "known" else epoch
            try:
                answer = told.ask(gateway, *what, number=number, epoch=known, leaves=leaves)
            except QuotaStoreFault as fault:
                answers.append(str(fault))
            else:
                epochs[place] = answer.epoch
                answers.append((answer.before, answer.gateways, answer.got, answer.wait_ns))
        assert answers[0] == answers[1]
    runner.run(both[1].store.close())
