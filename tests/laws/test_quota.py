"""Quotas: all of it or nothing, exact, given back once; nobody spends what was not allowed, however many try."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.core.errors import ConfigError, InvalidRequest, QuotaExceeded
from headway.core.front.admission import AdmissionLimits
from headway.core.front.front import Front, FrontLimits
from headway.core.front.ledger import NS_PER_MINUTE, Amounts, Lease, Ledger
from headway.core.front.tenants import TenantLimits, Tenants
from headway.core.lanes import Fit
from headway.core.request import Request, Usage

S = 1_000_000_000

limits = st.builds(
    TenantLimits,
    max_concurrency=st.sampled_from([0, 1, 3]),
    requests_per_minute=st.sampled_from([0, 1, 7, 60]),
    tokens_per_minute=st.sampled_from([0, 10, 97, 1_000]),
)
moves = st.one_of(
    st.tuples(st.just("take"), st.lists(st.integers(0, 60), min_size=1, max_size=3)),
    st.tuples(st.just("settle"), st.tuples(st.integers(0, 9), st.integers(0, 80))),
    st.tuples(st.just("wait"), st.integers(0, 100 * S)),
)


@settings(max_examples=300, deadline=None)
@given(limits, st.lists(moves, max_size=60))
def test_nothing_beyond_the_limits_is_ever_granted_by_recount(given_limits, story):
    """Spending counts from when it was granted, at its worst until it has ended and at what it was from then on."""
    ledger = Ledger(lambda _: given_limits)
    now = 0
    held: list[tuple[Lease, int]] = []  # what each may still come to, or came to
    done: list[tuple[Lease, int]] = []
    for what, how in story:
        if what == "wait":
            now += how
        elif what == "take":
            amounts = [Amounts(1, int(number == 0), tokens) for number, tokens in enumerate(how)]
            before = state(ledger, now)
            possible = not ledger.missing("t", total(amounts), now)
            try:
                held += [(lease, lease.amounts.tokens) for lease in ledger.take("t", amounts, now)]
                assert possible
            except QuotaExceeded as refused:
                assert not possible
                assert state(ledger, now) == before
                assert refused.status == 429
                assert 0 < refused.retry_after_s <= 60
        elif held:
            lease, worst = held.pop(how[0] % len(held))
            used = min(how[1], worst)  # an answer is never longer than `max_tokens`
            ledger.settle(lease, used, now)
            done.append((lease, used))
        assert ledger.held("t") == len(held)
        assert not given_limits.max_concurrency or len(held) <= given_limits.max_concurrency
        spent = sorted([(lease.taken_ns, used) for lease, used in held + done])
        asked = sorted([(lease.taken_ns, lease.amounts.requests) for lease, _ in held + done])
        assert within(given_limits.tokens_per_minute, spent)
        assert within(given_limits.requests_per_minute, asked)
    for lease, _ in held:
        ledger.settle(lease, 0, now)
        with pytest.raises(AssertionError, match="twice"):
            ledger.settle(lease, 0, now)
    assert ledger.held("t") == 0
    for quota in ledger.quotas("t", now + NS_PER_MINUTE).values():
        assert quota.remaining == quota.limit
        assert quota.reset_s == 0


@pytest.mark.parametrize("idle_minutes", [1, 2, 24 * 60])
def test_idleness_saves_up_a_minutes_worth_and_no_more(idle_minutes):
    ledger = Ledger(lambda _: TenantLimits(requests_per_minute=10, tokens_per_minute=100))
    [lease] = ledger.take("t", [Amounts(1, 10, 100)], 0)
    ledger.settle(lease, 100, 0)
    now = idle_minutes * NS_PER_MINUTE
    assert not ledger.missing("t", Amounts(1, 10, 100), now)
    assert ledger.missing("t", Amounts(1, 11, 101), now) == Amounts(0, 1, 1)


def total(amounts: list[Amounts]) -> Amounts:
    return Amounts(*(sum(getattr(one, name) for one in amounts) for name in ("slots", "requests", "tokens")))


def state(ledger: Ledger, now: int) -> object:
    return ledger.held("t"), ledger.quotas("t", now)


def within(per_minute: int, spent: list[tuple[int, int]]) -> bool:
    """Between any two grants: what was spent is at most one minute's worth and what refilled between them."""
    if not per_minute:
        return True
    for first, (from_ns, _) in enumerate(spent):
        sums = 0
        for at_ns, amount in spent[first:]:
            sums += amount
            if sums * NS_PER_MINUTE > per_minute * (NS_PER_MINUTE + at_ns - from_ns):
                return False
    return True


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 40), st.integers(0, 40)), min_size=1, max_size=8))
def test_after_the_wait_it_was_told_a_client_succeeds(calls):
    """By itself: what refills meanwhile is its own. Beyond a minute nobody is told, and nothing needs longer."""
    ledger = Ledger(lambda _: TenantLimits(tokens_per_minute=40, requests_per_minute=3))
    now = 0
    for tokens, used in calls:
        try:
            (lease,) = ledger.take("t", [Amounts(1, 1, tokens)], now)
        except QuotaExceeded as refused:
            now += round(refused.retry_after_s * S) + 1
            try:
                (lease,) = ledger.take("t", [Amounts(1, 1, tokens)], now)
            except QuotaExceeded as again:  # of the other of the two
                assert again.code != refused.code
                now += round(again.retry_after_s * S) + 1
                (lease,) = ledger.take("t", [Amounts(1, 1, tokens)], now)
        ledger.settle(lease, min(used, tokens), now)


# -- what users report (FIELD.md) --------------------------------------------------------------------------------------


def front(**limits: Any) -> Front:
    return Front(AdmissionLimits(1_000, 100_000), FrontLimits(), tenants=Tenants(TenantLimits(**limits)))


def test_five_calls_at_a_time_do_not_spend_663_of_100_tokens_a_minute():
    door = front(tokens_per_minute=100)
    let_in = []
    for number in range(5):
        try:
            door.submit(Request(f"r{number}", range(30), 10, tenant="t"), 0)
            let_in.append(f"r{number}")
        except QuotaExceeded as refused:
            assert refused.code == "tokens_per_minute"
            assert refused.retry_after_s == pytest.approx(60 * 20 / 100)
    assert let_in == ["r0", "r1"]
    for name in let_in:
        assert door.pull(lambda _: Fit.START, 0)
        door.settle(name, Usage(30, 3), 1)
    assert door.admission.ledger.quotas("t", 1)["tokens"].remaining == 100 - 66


def test_a_refusal_for_tokens_burns_no_request_and_the_other_way_round():
    door = front(tokens_per_minute=50, requests_per_minute=2)
    for _ in range(10):
        with pytest.raises(InvalidRequest):  # more than there ever is
            door.submit(Request("a", range(40), 20), 0)
    door.submit(Request("b", range(30), 10), 0)
    for _ in range(10):
        with pytest.raises(QuotaExceeded, match="10 more would be needed"):
            door.submit(Request("c", range(10), 10), 0)
    assert door.admission.ledger.quotas("", 0)["requests"].remaining == 1
    door.submit(Request("d", range(5), 5), 0)
    with pytest.raises(QuotaExceeded, match="2 requests a minute") as refused:
        door.submit(Request("e", range(1), 1), 0)
    assert refused.value.code == "requests_per_minute"
    assert refused.value.retry_after_s == pytest.approx(30.0)


def test_a_call_of_several_outputs_is_one_request_and_stands_or_falls_as_one():
    door = front(max_concurrency=4, requests_per_minute=2)
    door.submit_all([Request(f"a{i}", range(5), 5) for i in range(3)], 0)
    with pytest.raises(QuotaExceeded) as refused:
        door.submit_all([Request(f"b{i}", range(5), 5) for i in range(2)], 0)
    assert refused.value.code == "concurrency_limit"
    assert door.admission.requests == 3
    door.submit(Request("c", range(5), 5), 0)
    with pytest.raises(InvalidRequest, match="4 at a time"):
        door.submit_all([Request(f"d{i}", range(5), 5) for i in range(5)], 0)


def test_what_was_cancelled_while_it_waited_has_cost_no_token():
    door = front(tokens_per_minute=100, max_concurrency=1)
    door.submit(Request("a", range(50), 50), 0)
    assert door.cancel("a", 0)
    door.submit(Request("b", range(50), 50), 0)


def test_a_free_slot_is_promised_for_when_one_will_be_free():
    """Two of two slots, held for ten seconds each until now: one comes back every five seconds."""
    ledger = Ledger(lambda _: TenantLimits(max_concurrency=2))
    leases = ledger.take("t", [Amounts(1)] * 2, 0)
    for lease in leases:
        ledger.settle(lease, 0, 10 * S)
    ledger.take("t", [Amounts(1)] * 2, 10 * S)
    with pytest.raises(QuotaExceeded) as refused:
        ledger.take("t", [Amounts(1)], 10 * S)
    assert refused.value.retry_after_s == pytest.approx(5.0)


@pytest.mark.parametrize(
    ("limit", "prompt", "output", "param"),
    [
        ({"max_input_tokens": 9}, 10, 5, "prompt"),
        ({"max_output_tokens": 4}, 10, 5, "max_tokens"),
        ({"tokens_per_minute": 14}, 10, 5, "max_tokens"),
        ({"lanes": ("long",)}, 10, 5, "max_tokens"),
    ],
)
def test_what_a_key_may_never_have_is_said_at_once_and_holds_nothing(limit, prompt, output, param):
    door = front(**limit)
    with pytest.raises(InvalidRequest) as refused:
        door.submit(Request("a", range(prompt), output), 0)
    assert refused.value.param == param
    assert door.admission.requests == 0
    assert door.admission.ledger.held("") == 0


@pytest.mark.parametrize("bad", [{"weight": 0.0}, {"weight": float("nan")}, {"max_concurrency": -1}])
def test_limits_that_mean_nothing_are_refused(bad):
    with pytest.raises(ConfigError, match=next(iter(bad))):
        TenantLimits(**bad)


# -- allowances --------------------------------------------------------------------------------------------------------

amounts = st.builds(Amounts, st.integers(0, 3), st.integers(0, 5), st.integers(0, 60))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["give", "back", "take", "settle", "wait"]), amounts), max_size=60))
def test_a_ledger_that_may_only_grant_what_it_was_given_grants_no_more(story):
    """And what it is asked for back it gives as far as it is free: nothing is made, nothing is lost."""
    limits = TenantLimits(max_concurrency=9, requests_per_minute=9, tokens_per_minute=900)
    ledger = Ledger(lambda _: limits, refill_ratio=0.0)
    given_, leases, used = Amounts(), [], Amounts()
    now = 0
    for what, more in story:
        if what == "wait":
            now += more.tokens * S
        elif what == "give":
            assert ledger.allow("t", more, now) == more
            given_ = total([given_, more])
        elif what == "back":
            back = ledger.allow("t", Amounts(-more.slots, -more.requests, -more.tokens), now)
            assert all(-asked <= got <= 0 for asked, got in zip(parts(more), parts(back), strict=True))
            given_ = total([given_, back])
        elif what == "take":
            one = Amounts(1, 1, more.tokens)
            missing = ledger.missing("t", one, now)
            try:
                leases += ledger.take("t", [one], now)
                assert not missing
            except QuotaExceeded as refused:
                assert missing
                assert refused.retry_after_s <= 60
                ledger.allow("t", missing, now)  # with what was missing it can be taken, and with no less
                given_ = total([given_, missing])
                assert not ledger.missing("t", one, now)
        elif leases:
            lease = leases.pop()
            tokens = min(lease.amounts.tokens, more.tokens)
            ledger.settle(lease, tokens, now)
            used = total([used, Amounts(0, 1, tokens)])
        out = total([used, *(Amounts(1, 1, lease.amounts.tokens) for lease in leases)])
        free = ledger.allow("t", Amounts(-99, -99, -9_999), now)
        ledger.allow("t", Amounts(-free.slots, -free.requests, -free.tokens), now)
        assert parts(given_) == tuple(a - b for a, b in zip(parts(out), parts(free), strict=True))


def parts(amounts: Amounts) -> tuple[int, int, int]:
    return amounts.slots, amounts.requests, amounts.tokens


def test_gateways_that_lost_their_store_have_a_share_each():
    ledger = Ledger(lambda _: TenantLimits(max_concurrency=6, tokens_per_minute=90), refill_ratio=1 / 3)
    leases: list[Lease] = ledger.take("t", [Amounts(1, 1, 15)] * 2, 0)
    with pytest.raises(QuotaExceeded):
        ledger.take("t", [Amounts(1, 1, 0)], 0)
    for lease in leases:
        ledger.settle(lease, 15, 0)
    with pytest.raises(QuotaExceeded):
        ledger.take("t", [Amounts(1, 1, 1)], 0)
    assert ledger.take("t", [Amounts(1, 1, 15)], 30 * S)


def test_a_limit_that_comes_with_a_reload_begins_full_and_owes_nothing():
    tenants = Tenants()
    ledger = Ledger(tenants.of)
    for lease in ledger.take("t", [Amounts(1, 1, 1_000_000)] * 3, 0):
        ledger.settle(lease, 1_000_000, 0)
    tenants.set(TenantLimits(tokens_per_minute=100), {})
    assert ledger.quotas("t", 0)["tokens"].remaining == 100
    tenants.set(TenantLimits(tokens_per_minute=50), {})
    assert ledger.quotas("t", 0)["tokens"].remaining == 50
    times = [ledger.quotas("t", at * S)["tokens"].remaining for at in range(5)]
    assert all(left <= right for left, right in pairwise(times))
