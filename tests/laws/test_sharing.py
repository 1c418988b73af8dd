"""Gateways that share limits give out together what one may, whatever gets lost between them and whoever is killed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.core.errors import QuotaExceeded, QuotaStoreLost
from headway.core.front.ledger import Amounts
from headway.core.front.sharing import MAX_WANTS, Loss, Mode
from headway.core.front.tenants import TenantLimits
from tests.laws.gateways import LEASE_NS, TENANT, Gateways, S

MS = 1_000_000
places = st.integers(0, 2)
fates = st.sampled_from(["well", "well", "well", "lost", "unanswered", "late"])
limits = st.builds(
    TenantLimits,
    max_concurrency=st.sampled_from([1, 2, 5, 40]),
    requests_per_minute=st.sampled_from([0, 3, 60, 900]),
    tokens_per_minute=st.sampled_from([100, 997, 60_000]),
)
moves = st.one_of(
    st.tuples(st.just("request"), places, st.integers(1, 60), fates),
    st.tuples(st.just("tick"), places, fates),
    st.tuples(st.just("settle"), places, st.integers(0, 60)),
    st.tuples(st.just("wait"), st.sampled_from([MS, 50 * MS, 400 * MS, 2 * S, 4 * S, 20 * S])),
    st.tuples(st.just("kill"), places),
    st.tuples(st.just("leave"), places),
    st.tuples(st.just("late")),
)


def go(world: Gateways, move: tuple[Any, ...]) -> None:
    what, *how = move
    if what in ("wait", "kill", "leave"):
        getattr(world, what)(*how)
    elif what == "forget":
        world.store.forget()
    elif what == "late":
        if world.late:
            world.arrive_late()
    else:
        getattr(world, what)(world.all[how[0]], *how[1:])


@settings(max_examples=300, deadline=None)
@given(limits, st.lists(moves, max_size=80))
def test_closed_nothing_beyond_the_limits_is_ever_given_out(limits, story):
    """Slots: but for requests that outlive their gateway's lease. The minute: exactly, with all that is at hand."""
    world = Gateways(limits, Loss.CLOSED)
    for move in story:
        go(world, move)
        assert world.running <= limits.max_concurrency
        requests, tokens = world.out()
        assert not limits.requests_per_minute or requests <= world.most(limits.requests_per_minute)
        assert tokens <= world.most(limits.tokens_per_minute)


@settings(max_examples=200, deadline=None)
@given(limits, st.lists(st.one_of(moves, st.tuples(st.just("forget"))), max_size=80))
def test_closed_a_store_that_forgets_gives_nothing_out_twice(limits, story):
    """As long as who tells it first knows of another one before: so nobody is born here."""
    world = Gateways(limits, Loss.CLOSED)
    for move in story:
        if move[0] not in ("kill", "leave"):
            go(world, move)
        assert world.running <= limits.max_concurrency
        requests, tokens = world.out()
        assert not limits.requests_per_minute or requests <= world.most(limits.requests_per_minute)
        assert tokens <= world.most(limits.tokens_per_minute)


@settings(max_examples=200, deadline=None)
@given(limits, st.lists(moves, max_size=80))
def test_share_a_gateway_that_is_cut_off_has_its_share_and_no_more(limits, story):
    """Beyond the limits, at most: of slots a share each, of the minute a share each and what it refilled meanwhile."""
    world = Gateways(limits, Loss.SHARE)
    for move in story:
        before = [len(one.leases) for one in world.all]
        go(world, move)
        assert world.running <= limits.max_concurrency
        for one, had in zip(world.all, before, strict=True):
            if one.sharing.mode is Mode.SHARE and len(one.leases) > had:
                assert len(one.leases) <= max(1, limits.max_concurrency // one.sharing.gateways)
        # Alone when it was lost, a gateway's share is all of it.
        cut_off_ns = world.died_cut_off_ns + sum(one.cut_off_ns for one in world.all)
        _, tokens = world.out()
        slack = limits.tokens_per_minute * (world.born + cut_off_ns / (60 * S))
        assert tokens <= world.most(limits.tokens_per_minute) + slack


@settings(max_examples=100, deadline=None)
@given(limits, st.sampled_from(Loss), st.lists(moves, max_size=60), places)
def test_when_all_is_well_again_nothing_has_leaked(limits, loss, story, place):
    """Each gateway alone can have all of it: no slot is held by the dead, and the minute is full again."""
    world = Gateways(limits, loss)
    for move in story:
        go(world, move)
    world.all_well()
    one = world.all[place]
    for _ in range(limits.max_concurrency):
        if not limits.requests_per_minute or one.ledger.held(TENANT) < limits.requests_per_minute:
            assert world.request(one, 1)
    assert world.running == min(limits.max_concurrency, limits.requests_per_minute or limits.max_concurrency)
    world.all_well()
    assert world.request(one, limits.tokens_per_minute)
    assert not world.request(world.all[place - 1], limits.tokens_per_minute // 2)


# -- told one by one ---------------------------------------------------------------------------------------------------


def test_a_killed_gateway_gives_its_slots_back_within_its_lease():
    world = Gateways(TenantLimits(max_concurrency=4))
    first, second, _ = world.all
    assert [world.request(first, 1) for _ in range(5)] == [True] * 4 + [False]
    world.kill(0)
    waited_ns = 0
    while not world.request(second, 1):
        world.wait(S // 10)
        world.tick(second)
        waited_ns += S // 10
    assert waited_ns == LEASE_NS
    assert world.running == 1


def test_what_is_at_hand_spares_the_store_and_goes_to_whoever_needs_it():
    world = Gateways(TenantLimits(max_concurrency=120))
    first, second, _ = world.all
    assert world.request(first, 1)
    asked = first.sharing._number
    assert all(world.request(first, 1) for _ in range(6))
    assert first.sharing._number == asked
    while world.request(second, 1):
        pass
    assert world.running < 120  # the rest is at hand at the first, which hears that it is missed
    world.tick(first)  # it has taken slots, and asks for others: it is told that there are none
    world.wait(S // 10)
    world.tick(first)
    while world.request(second, 1):
        pass
    assert world.running == 120


def test_who_is_refused_hears_when_there_will_be_more():
    world = Gateways(TenantLimits(tokens_per_minute=60, max_concurrency=9))
    first, second, _ = world.all
    assert world.request(first, 60)
    amounts = Amounts(1, 1, 20)
    assert second.sharing.short(TENANT, amounts, world.now)
    world.tick(second)
    with pytest.raises(QuotaExceeded) as refused:
        second.ledger.take(TENANT, [amounts], world.now)
    assert refused.value.code == "tokens_per_minute"
    for _ in range(round(refused.value.retry_after_s)):
        world.wait(S)
        world.tick(second)
    assert world.request(second, 20)


def test_limits_that_a_store_keeps_are_told_as_a_whole():
    world = Gateways(TenantLimits(requests_per_minute=600))
    first, second, _ = world.all
    for _ in range(100):
        assert world.request(first, 1)
    world.tick(second)
    assert world.request(second, 1)
    world.tick(first)
    told = first.ledger.quotas(TENANT, world.now)["requests"]
    assert told.limit == 600
    assert 600 - 101 - 100 <= told.remaining <= 600 - 100  # but for what others have at hand


def test_a_lost_store_closes_before_the_lease_can_end_and_then_share_or_refuse():
    for loss in Loss:
        world = Gateways(TenantLimits(max_concurrency=30, tokens_per_minute=3_000), loss)
        one = world.all[0]
        assert world.request(one, 10)
        world.wait(LEASE_NS * 2 // 3 - MS)
        assert world.request(one, 10)
        world.tick(one, "lost")
        assert one.sharing.mode is Mode.STORE
        with pytest.raises(QuotaStoreLost):  # what it does not have at hand; it may be there
            one.ledger.take(TENANT, [Amounts(1, 1, 2_900)], world.now)
        world.wait(MS)
        if loss is Loss.CLOSED:
            assert not world.request(one, 10)
            with pytest.raises(QuotaStoreLost) as refused:
                one.ledger.take(TENANT, [Amounts(1, 1, 1)], world.now)
            assert refused.value.status == 503
            assert 0 < refused.value.retry_after_s <= 60
        else:
            assert [world.request(one, 10) for _ in range(10)] == [True] * 8 + [False] * 2
        assert one.sharing.losses == 1


@pytest.mark.parametrize("spends", [True, False])
@pytest.mark.parametrize("outage_s", [10, 300])
def test_what_was_granted_without_the_store_counts_once_it_is_back(spends, outage_s):
    """Not twice: neither what each refilled for itself nor what the store did meanwhile comes on top of the other."""
    world = Gateways(TenantLimits(tokens_per_minute=6_000), Loss.SHARE)
    for one in world.all:
        while world.request(one, 100):
            pass
    for _ in range(outage_s):
        world.wait(S)
        for one in world.all:
            world.tick(one, "lost")
            while spends and world.request(one, 100):
                pass
    assert all(one.sharing.mode is Mode.SHARE for one in world.all)
    for _ in range(3):
        for one in world.all:
            world.tick(one)
    assert all(one.sharing.mode is Mode.STORE for one in world.all)
    for one in world.all:
        while world.request(one, 10):
            pass
    _, tokens = world.out()
    if spends:
        assert tokens <= world.most(6_000)
    else:
        assert tokens <= 6_000 + 6_000 + 60  # what there was, and one minute's worth
    assert tokens > 6_000 + min(6_000, outage_s * 100) * 0.9 or spends


def test_what_is_held_without_the_store_is_told_before_it_gives_anything_out_again():
    world = Gateways(TenantLimits(max_concurrency=6), Loss.SHARE)
    first, second, third = world.all
    world.store.forget()
    world.wait(LEASE_NS)
    assert [world.request(third, 1) for _ in range(3)] == [True, True, False]
    for _ in range(30):
        world.wait(S // 4)
        for one in (first, second):
            world.tick(one)
            world.request(one, 1)
        world.tick(third)
        assert sum(len(one.leases) for one in world.all) <= 6
    assert sum(len(one.leases) for one in world.all) == 6


def test_what_comes_late_takes_nothing_back():
    world = Gateways(TenantLimits(max_concurrency=4))
    first, second, _ = world.all
    assert not world.request(first, 1, "late")
    world.tick(first)
    assert [world.request(first, 1) for _ in range(5)] == [True] * 4 + [False]
    world.arrive_late()
    assert not world.request(second, 1)


def test_however_many_tenants_there_are_all_are_told_before_the_store_counts_again():
    limits = TenantLimits(max_concurrency=2)
    world = Gateways(limits, Loss.CLOSED, count=2)
    one, other = world.all
    names = [f"t{number}" for number in range(3 * MAX_WANTS)]
    for name in names:
        if one.sharing.short(name, Amounts(2), world.now):
            world.tick(one)
        one.ledger.take(name, [Amounts(2)], world.now)
    world.wait(2 * LEASE_NS)
    asks = 0
    world.tick(one)
    while one.sharing.mode is not Mode.STORE:
        assert one.sharing.due(world.now)
        world.tick(one)
        asks += 1
    assert asks == 3
    world.tick(other)
    for name in names:
        assert other.sharing.short(name, Amounts(1), world.now)
    world.tick(other)
    for name in names:
        with pytest.raises(QuotaExceeded):
            other.ledger.take(name, [Amounts(1)], world.now)


def test_a_store_that_has_forgotten_gives_nothing_until_all_have_told():
    world = Gateways(TenantLimits(max_concurrency=6, tokens_per_minute=600))
    first, second, _ = world.all
    assert all(world.request(first, 50) for _ in range(5))
    world.store.forget()
    world.tick(second)
    assert not world.request(second, 50)
    with pytest.raises(QuotaStoreLost):
        second.ledger.take(TENANT, [Amounts(1, 1, 50)], world.now)
    for _ in range(11):
        world.wait(S // 2)
        for one in world.all:
            world.tick(one)
    assert world.request(second, 50)  # refilled meanwhile
    assert not world.request(second, 50)
    assert world.running == 6
