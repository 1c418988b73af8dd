"""A full waiting room: one tenant's flood never keeps another from its part, and whoever gives way is told, once."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.core.errors import QueueFull, Refused
from headway.core.front.admission import AdmissionLimits
from headway.core.front.front import Front, FrontLimits
from headway.core.front.tenants import TenantLimits, Tenants
from headway.core.lanes import Fit
from headway.core.request import Request, State, Usage

WEIGHTS = {"flood": 1.0, "quiet": 1.0, "heavy": 2.0}
COUNT, TOKENS = 12, 600


class Door:
    """A front that nothing is pulled from unless it is said; knows where everybody is."""

    def __init__(self, count: int = COUNT, tokens: int = TOKENS) -> None:
        tenants = Tenants(TenantLimits(), {name: TenantLimits(weight=weight) for name, weight in WEIGHTS.items()})
        limits = AdmissionLimits(10_000, 1 << 40, max_waiting=count, max_waiting_tokens=tokens)
        self.front = Front(limits, FrontLimits(), tenants=tenants)
        self.room = count, tokens
        self.waiting: dict[str, Request] = {}
        self.displaced: list[str] = []
        self.count = 0

    def ask(self, tenant: str, prompt: int = 10, priority: int = 0) -> Request | None:
        """None when it is refused. Everybody who gave way for it is told at once."""
        self.count += 1
        request = Request(f"r{self.count}", range(prompt), 5, tenant=tenant, priority=priority)
        before = self.held()
        try:
            self.front.submit(request, self.count)
        except QueueFull:
            assert not self.front.expire(self.count), "a refusal has thrown somebody out"
            assert self.held() == before
            self.check_refusal(request)
            return None
        told = self.front.expire(self.count)
        self.check_displaced(request, [one.request for one in told])
        for one in told:
            assert one.request.state is State.EXPIRED
            assert isinstance(one.error, QueueFull)
            assert one.error.retry_after_s >= 1
            del self.waiting[one.request.id]
            self.displaced.append(one.request.id)
        self.waiting[request.id] = request
        self.recount()
        return request

    def start(self) -> None:
        request = self.front.pull(lambda _: Fit.START, self.count)
        if request is not None:
            del self.waiting[request.id]
            self.front.settle(request.id, Usage(request.prompt_tokens, 1), self.count)

    def held(self) -> dict[str, tuple[int, int]]:
        counts: Counter[str] = Counter(one.tenant for one in self.waiting.values())
        return {
            name: (counts[name], sum(one.prompt_tokens for one in self.waiting.values() if one.tenant == name))
            for name in counts
        }

    def part(self, tenant: str, comer: str) -> tuple[float, float]:
        share = WEIGHTS[tenant] / sum(WEIGHTS[name] for name in {*self.held(), comer})
        return self.room[0] * share, self.room[1] * share

    @property
    def waiting_tokens(self) -> int:
        return sum(one.prompt_tokens for one in self.waiting.values())

    # -- laws ----------------------------------------------------------------------------------------------------

    def recount(self) -> None:
        admission = self.front.admission
        assert {one.id for one in self.front.lanes} == set(self.waiting)
        assert admission.waiting == admission.requests == len(self.waiting) <= self.room[0]
        assert admission.waiting_tokens == sum(one.prompt_tokens for one in self.waiting.values())
        assert admission.waiting_tokens <= max(self.room[1], *(one.prompt_tokens for one in self.waiting.values()))
        assert admission.claimed_tokens == sum(one.total_tokens for one in self.waiting.values())
        held = self.held()
        assert self.front.lanes.waiting_by_tenant() == {name: count for name, (count, _) in held.items()}
        assert self.front.lanes.tokens_by_tenant() == {name: tokens for name, (_, tokens) in held.items()}

    def check_refusal(self, request: Request) -> None:
        """Nobody is refused within its part while equals of somebody who is far beyond theirs wait."""
        count, tokens = self.held().get(request.tenant, (0, 0))
        part = self.part(request.tenant, request.tenant)
        if count and (count + 1 > part[0] or tokens + request.prompt_tokens > part[1]):
            return
        # What others would give up if all of them fell to their parts, one request more or less.
        spare = [0, 0]
        for name in self.held():
            mine = [one for one in self.waiting.values() if one.tenant == name and one.priority >= request.priority]
            if name != request.tenant and len(mine) > 1:
                theirs, most = self.part(name, request.tenant), max(one.prompt_tokens for one in mine)
                spare[0] += max(0, len(mine) - 1 - int(theirs[0]))
                spare[1] += max(0, sum(one.prompt_tokens for one in mine) - most - int(theirs[1]))
        short = len(self.waiting) + 1 - self.room[0]
        short_tokens = self.front.admission.waiting_tokens + request.prompt_tokens - self.room[1]
        assert short > spare[0] or short_tokens > spare[1]

    def check_displaced(self, comer: Request, gone: list[Request]) -> None:
        """Only who is beyond its part, the latest first; never for a tenant that is beyond its own."""
        if not gone:
            return
        held = {name: list(holds) for name, holds in self.held().items()}
        count, tokens = held.get(comer.tenant, (0, 0))
        part = self.part(comer.tenant, comer.tenant)
        short = len(self.waiting) + 1 > self.room[0], self.waiting_tokens + comer.prompt_tokens > self.room[1]
        assert not count or not short[0] or count + 1 <= part[0]
        assert not count or not short[1] or tokens + comer.prompt_tokens <= part[1]
        for one in gone:
            theirs = self.part(one.tenant, comer.tenant)
            assert held[one.tenant][0] > theirs[0] or held[one.tenant][1] > theirs[1]
            held[one.tenant][0] -= 1
            held[one.tenant][1] -= one.prompt_tokens
        for name in {one.tenant for one in gone}:
            assert name != comer.tenant
            assert held[name][0], "a tenant's last one was displaced"
            mine = [one for one in self.waiting.values() if one.tenant == name and one.priority >= comer.priority]
            left = [one for one in gone if one.tenant == name]
            assert left == list(reversed(mine))[: len(left)]


asks = st.tuples(
    st.sampled_from(["flood", "flood", "flood", "quiet", "heavy"]),
    st.sampled_from([5, 10, 60, 300]),
    st.sampled_from([0, 0, 1]),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.one_of(asks, st.none()), max_size=60), st.sampled_from([(12, 600), (5, 1 << 30), (1_000, 400)]))
def test_who_gives_way_is_beyond_its_part_and_whoever_stays_is_counted_right(story, room):
    door = Door(*room)
    for one in story:
        if one is None:
            door.start()
        else:
            door.ask(*one)
    while door.waiting:
        door.start()
    admission = door.front.admission
    assert (admission.requests, admission.waiting, admission.waiting_tokens, admission.claimed_tokens) == (0, 0, 0, 0)
    assert all(admission.ledger.held(name) == 0 for name in WEIGHTS)
    assert door.front.ended.get("expired", 0) == len(door.displaced)


@pytest.mark.parametrize("room", [(12, 1 << 30), (1 << 30, 120)], ids=["places", "tokens"])
def test_a_flood_that_fills_the_room_leaves_each_its_part(room):
    door = Door(*room)
    for _ in range(100):
        door.ask("flood")
    assert len(door.waiting) == 12
    for _ in range(100):
        door.ask("quiet")
    assert {name: count for name, (count, _) in door.held().items()} == {"flood": 6, "quiet": 6}
    for _ in range(100):
        door.ask("heavy")
        door.ask("flood")
    assert {name: count for name, (count, _) in door.held().items()} == {"flood": 3, "quiet": 3, "heavy": 6}


def test_the_door_lets_those_pass_for_whom_somebody_would_give_way():
    door = Door()
    while door.ask("flood"):
        pass
    with pytest.raises(QueueFull):
        door.front.check_door(1, "flood")
    door.front.check_door(1, "quiet")


def test_nobody_gives_way_to_a_worse_priority():
    door = Door()
    while door.ask("flood"):
        pass
    assert door.ask("quiet", priority=1) is None
    assert door.ask("quiet") is not None


def test_a_request_that_the_quota_refuses_has_displaced_nobody():
    door = Door()
    door.front.tenants.set(TenantLimits(), {"quiet": TenantLimits(requests_per_minute=1)})
    assert door.ask("quiet")
    while door.ask("flood"):
        pass
    before = set(door.waiting)
    with pytest.raises(Refused, match="a minute"):
        door.front.submit(Request("more", range(10), 5, tenant="quiet"), 10_000)
    assert not door.front.expires(10_000)
    assert {one.id for one in door.front.lanes} == before


def test_who_leaves_before_it_is_told_is_not_told_any_more():
    door = Door()
    last = ""
    while request := door.ask("flood"):
        last = request.id
    door.front.submit(Request("quiet", range(10), 5, tenant="quiet"), 1)
    assert not door.front.holds(last)
    assert door.front.expires(1)
    assert door.front.cancel(last, 1)
    assert door.front.expire(1) == []
    assert not door.front.cancel(last, 1)
