"""Fairness between tenants: shares as the weights say, a bounded wait for the quiet ones, ageing within one's own."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.core.fairness import CREDIT_TOKENS, Fairness
from headway.core.front.admission import AdmissionLimits
from headway.core.front.front import Front, FrontLimits
from headway.core.front.tenants import TenantLimits, Tenants
from headway.core.lanes import Fit, LaneLimits
from headway.core.request import Request, Usage

MS = 1_000_000
LIMITS = AdmissionLimits(10_000, 1 << 50, max_waiting=1 << 40, max_waiting_tokens=1 << 50)
TWO_LANES = (LaneLimits("short"), LaneLimits("long", 200, slots=2))
MOST_TOKENS = 400 + 200


@dataclass
class Shop:
    """So many slots, each of which is filled again as soon as its request has ended, as real engines do."""

    weights: dict[str, float]
    slots: int = 4
    age_bound_ns: int = 0
    lanes: tuple[LaneLimits, ...] = FrontLimits().lanes
    seed: int = 0
    now: int = 1
    count: int = 0
    served: dict[str, int] = field(default_factory=dict)  # real tokens of those started
    starts: list[Request] = field(default_factory=list)
    running: list[Request] = field(default_factory=list)
    waits: Counter[tuple[str, str]] = field(default_factory=Counter)  # by tenant and lane

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        tenants = Tenants(TenantLimits(), {name: TenantLimits(weight=weight) for name, weight in self.weights.items()})
        self.front = Front(LIMITS, FrontLimits(age_bound_ns=self.age_bound_ns, lanes=self.lanes), tenants=tenants)
        self.served = dict.fromkeys(self.weights, 0)

    def ask(self, tenant: str, prompt: int, output: int, priority: int = 0) -> Request:
        self.count += 1
        request = Request(f"r{self.count}", range(prompt), output, tenant=tenant, priority=priority)
        self.front.submit(request, self.now)
        self.waits[tenant, self.front.lanes.lane_of(request)] += 1
        return request

    def step(self) -> None:
        """Somebody ends, after any output that it may have, and the slots are filled."""
        self.now += MS
        if self.running:
            request = self.running.pop(self.rng.randrange(len(self.running)))
            output = self.rng.randint(1, request.max_tokens)
            self.served[request.tenant] += request.prompt_tokens + output
            self.front.settle(request.id, Usage(request.prompt_tokens, output), self.now)
        while len(self.running) < self.slots:
            taken = self.front.pull(lambda _: Fit.START, self.now)
            if taken is None:
                return
            self.waits[taken.tenant, self.front.lanes.lane_of(taken)] -= 1
            self.running.append(taken)
            self.starts.append(taken)


lengths = st.tuples(st.integers(1, 400), st.integers(1, 200))
shops = st.builds(
    Shop,
    st.lists(st.sampled_from([0.5, 1.0, 1.0, 2.0, 3.0]), min_size=2, max_size=4).map(
        lambda weights: {f"t{number}": weight for number, weight in enumerate(weights)}
    ),
    slots=st.integers(1, 6),
    age_bound_ns=st.sampled_from([0, 20 * MS, 10**6 * MS]),
    lanes=st.sampled_from([TWO_LANES, TWO_LANES[:1]]),
    seed=st.integers(0, 2**32),
)


@settings(max_examples=15, deadline=None)
@given(shops, st.data())
def test_while_all_have_work_waiting_each_gets_its_share_by_weight_within_5_percent(shop, data):
    """For any weights, lengths (each tenant its own), lanes, ages, and ways to arrive, a flood among them."""
    usual = {name: data.draw(lengths) for name in shop.weights}
    least = {name: data.draw(st.sampled_from([1, 2, 5, 300])) for name in shop.weights}  # how many it keeps waiting
    whole, laned = sum(shop.weights.values()), len(shop.lanes) > 1
    enough = 50 * MOST_TOKENS * whole / min(shop.weights.values())
    while sum(shop.served.values()) < enough:
        for name, (prompt, output) in usual.items():
            for lane in shop.lanes:
                while shop.waits[name, lane.name] < least[name]:
                    own = shop.rng.randint(1, prompt)
                    shop.ask(
                        name, max(lane.min_prompt_tokens, own) if laned and lane.min_prompt_tokens else own, output
                    )
                    if laned and own >= 200 and not lane.min_prompt_tokens:
                        break  # it went to the other lane
        shop.step()
    for name, weight in shop.weights.items():
        share = shop.served[name] / sum(shop.served.values())
        assert share == pytest.approx(weight / whole, rel=0.05)


def flooded(weight: float, flood: int, seed: int) -> tuple[Shop, Request]:
    """A tenant with very much waiting, for a while; then another asks for something, once."""
    shop = Shop({"loud": 1.0, "quiet": weight}, seed=seed)
    for number in range(flood):
        shop.ask("loud", shop.rng.randint(1, 400), 200)
        if number % 7 == 0:
            shop.step()
    return shop, shop.ask("quiet", 100, 50)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from([0.1, 1.0, 5.0]), st.sampled_from([50, 500, 2_000]), st.integers(0, 2**32))
def test_a_quiet_tenant_is_next_however_much_a_loud_one_has_waiting(weight, flood, seed):
    """Those of the loud one that were overestimated may come first, and they are at most as many as there are slots."""
    shop, request = flooded(weight, flood, seed)
    before = len(shop.starts)
    while request not in shop.starts[before:]:
        shop.step()
    assert len(shop.starts) - before <= 1 + shop.slots


def test_a_quiet_tenant_that_asks_again_and_again_waits_no_longer_for_a_louder_neighbour():
    def waits(flood: int) -> list[int]:
        shop = Shop({"loud": 1.0, "quiet": 1.0}, seed=1)
        waited = []
        for _ in range(50):
            while shop.waits["loud", "all"] < flood:
                shop.ask("loud", 300, 100)
            request = shop.ask("quiet", 50, 20)
            before = len(shop.starts)
            while request not in shop.starts[before:]:
                shop.step()
            waited.append(len(shop.starts) - before)
            for _ in range(4):
                shop.step()
        return waited

    assert waits(200) == waits(20)
    assert max(waits(20)[1:]) <= 2  # at first the slots are filled


def test_who_was_idle_has_earned_nothing():
    """After a long absence a tenant gets its share from then on, not what it did not ask for."""
    shop = Shop({"steady": 1.0, "back": 1.0}, slots=2)
    for _ in range(400):
        shop.ask("steady", 100, 100)
    for _ in range(300):
        shop.step()
    for _ in range(400):
        shop.ask("back", 100, 100)
        shop.ask("steady", 100, 100)
    first = len(shop.starts)
    for _ in range(100):
        shop.step()
    tenants = [request.tenant for request in shop.starts[first:]]
    assert abs(tenants.count("back") - tenants.count("steady")) <= 6
    assert abs(tenants[:20].count("back") - 10) <= 3


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 2), st.integers(1, 300)), max_size=80), st.integers(0, 99)
)
def test_within_a_tenant_the_aged_come_first_and_oldest_first(asks, seed):
    """Whatever priorities its later ones have: nobody of a tenant is started before its oldest aged one."""
    shop = Shop({"a": 1.0, "b": 1.0}, slots=2, age_bound_ns=10 * MS, seed=seed)
    waiting: dict[str, list[Request]] = {"a": [], "b": []}
    for tenant, priority, prompt in asks:
        waiting[tenant].append(shop.ask(tenant, prompt, 20, priority))
        first = len(shop.starts)
        shop.step()
        for started in shop.starts[first:]:
            mine = waiting[started.tenant]
            aged = [request for request in mine if request.aged_at_ns <= shop.now]
            assert not aged or started is aged[0]
            mine.remove(started)


def test_ageing_lifts_over_a_better_priority_but_not_over_anothers_share():
    """An endless stream of better priorities holds a low one up until it is old; then it takes turns as an equal."""
    shop = Shop({"high": 1.0, "low": 1.0}, slots=1, age_bound_ns=20 * MS)
    low = [shop.ask("low", 100, 100, priority=5) for _ in range(300)]
    for _ in range(200):
        while shop.waits["high", "all"] < 5:
            shop.ask("high", 100, 100)
        shop.step()
    order = [request.tenant for request in shop.starts]
    assert "low" not in order[:19]
    assert low[0] in shop.starts[:26]
    # It is owed what it was not served before; never more than as much as the other.
    for end in range(len(order)):
        assert order[:end].count("low") <= order[:end].count("high") + 4
    assert abs(order[100:].count("low") - order[100:].count("high")) <= 8


def test_a_claim_from_being_held_back_is_bounded():
    """Priorities kept a tenant out for long. What it is owed for that is bounded, however long it was."""
    fairness = Fairness()
    fairness.enter("out")
    fairness.enter("in")
    for _ in range(1_000):
        fairness.charge("in", 1_000)
    assert fairness.service("in") - fairness.service("out") <= CREDIT_TOKENS + 1_000


def test_the_expected_output_follows_what_a_tenant_really_produces():
    fairness = Fairness()
    request = Request("a", range(5), 500, tenant="t")
    for _ in range(200):
        fairness.learn("t", 20)
    assert fairness.expected_output_tokens(request) == 20
    assert fairness.expected_output_tokens(Request("b", range(5), 10, tenant="t")) == 10  # never beyond its limit


def test_cached_tokens_are_not_charged():
    shop = Shop({"a": 1.0, "b": 1.0}, slots=1)
    for tenant in "ab":
        shop.ask(tenant, 100, 100)
    for _ in range(2):
        taken = shop.front.pull(lambda _: Fit.START, 1)
        assert taken is not None
        shop.front.settle(taken.id, Usage(100, 20, 90 if taken.tenant == "a" else 0), 1)
    fairness = shop.front.fairness
    assert fairness.service("b") - fairness.service("a") == 90
