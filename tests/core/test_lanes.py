"""The order of the waiting room, against a reference that knows no trick: sort everybody, ask one after another."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from headway.core.fairness import Fairness
from headway.core.lanes import MAX_TRIES, Accepts, Fit, LaneLimits, Lanes
from headway.core.request import Request

LANES = (LaneLimits("short"), LaneLimits("long", 10, slots=2, tokens=60), LaneLimits("long both", 10, 10, slots=1))


@dataclass
class Reference:
    """What the docstring of `lanes.py` says, said again as plainly as possible."""

    max_overtakes: int
    waiting: list[Request] = field(default_factory=list)  # in order of arrival
    taken: list[Request] = field(default_factory=list)
    overtaken: dict[str, int] = field(default_factory=dict)

    @staticmethod
    def key(request: Request, now: int) -> tuple[int, ...]:
        if request.aged_at_ns and request.aged_at_ns <= now:
            return (0, 0, 0, request.arrival_ns)
        if request.latest_start_ns and now <= request.latest_start_ns:
            return (1, request.priority, 0, request.latest_start_ns)
        return (1, request.priority, 1, request.arrival_ns)

    @staticmethod
    def lane(request: Request) -> LaneLimits:
        long_prompt, long_output = request.prompt_tokens >= 10, request.max_tokens >= 10
        return LANES[(1 + long_output) if long_prompt else 0]

    def open(self, lane: LaneLimits) -> bool:
        there = [request for request in self.taken if self.lane(request) is lane]
        return len(there) < lane.slots and sum(request.total_tokens for request in there) < lane.tokens

    def in_order(self, able: list[Request], now: int) -> list[Request]:
        """Of one tenant. Sorting is stable: arrival breaks ties."""
        return sorted(able, key=lambda request: self.key(request, now))

    def take(self, fits: dict[str, Fit], now: int) -> str | None:
        able = [request for request in self.waiting if self.open(self.lane(request))]
        passed: list[str] = []
        shut: set[str] = set()
        for request in self.in_order(able, now):
            if request.model in shut:
                continue
            fit = fits[request.id]
            if fit is Fit.START:
                for name in passed:
                    self.overtaken[name] = self.overtaken.get(name, 0) + 1
                self.waiting.remove(request)
                self.taken.append(request)
                return request.id
            if fit is Fit.OTHER_KIND:
                shut.add(request.model)
            if fit in {Fit.OTHER, Fit.OTHER_KIND}:
                continue
            bound = self.overtaken.get(request.id, 0) >= self.max_overtakes or len(passed) >= MAX_TRIES
            if fit is Fit.FULL or bound:
                return None
            passed.append(request.id)
        return None


class Tenants(Reference):
    """The same with tenants: by level, where the aged stand at the best there is; then by what each was served."""

    served: dict[str, float]
    floor: float

    def in_order(self, able: list[Request], now: int) -> list[Request]:
        young = [request.priority for request in able if self.key(request, now)[0]]

        def level(request: Request) -> int:
            return request.priority if self.key(request, now)[0] else min(young, default=0)

        return sorted(able, key=lambda one: (level(one), self.served[one.tenant], self.key(one, now)))

    def come(self, request: Request) -> None:
        if all(other.tenant != request.tenant for other in self.waiting):
            self.served[request.tenant] = max(self.served.get(request.tenant, 0.0), self.floor)
        self.waiting.append(request)

    def charge(self, request: Request, tokens: int) -> None:
        self.floor = max(self.floor, self.served[request.tenant])
        self.served[request.tenant] += tokens / WEIGHTS[request.tenant]


WEIGHTS = {"": 1.0, "t": 1.0, "u": 2.0, "v": 0.5}

arrivals = st.tuples(
    st.just("add"),
    st.integers(1, 20),  # prompt
    st.integers(1, 20),  # output
    st.integers(0, 2),  # priority
    st.sampled_from([0, 0, 1, 3, 10]),  # latest start, from now
    st.sampled_from("mn"),  # model
    st.sampled_from("tuv"),  # tenant
)
takes = st.tuples(st.just("take"), st.lists(st.sampled_from([*Fit, Fit.START, Fit.NO_KV]), min_size=12, max_size=12))
moves = st.one_of(
    arrivals,
    arrivals,
    takes,
    st.tuples(st.just("remove"), st.integers(0, 30)),
    st.tuples(st.just("give back"), st.integers(0, 30)),
    st.tuples(st.just("wait"), st.integers(1, 6)),
)


def answering(fits: dict[str, Fit]) -> Accepts:
    return lambda request: fits[request.id]


def asked(name: str, now: int, age_bound: int, *given_: object, tenant: str = "") -> Request:
    prompt, output, priority, start, model = given_[:5]
    assert isinstance(prompt, int)
    assert isinstance(output, int)
    assert isinstance(priority, int)
    assert isinstance(start, int)
    request = Request(name, range(prompt), output, now, tenant=tenant, priority=priority, model=str(model))
    request.latest_start_ns = now + start if start else 0
    request.aged_at_ns = now + age_bound if age_bound else 0
    return request


@settings(max_examples=300, deadline=None)
@given(st.lists(moves, max_size=60), st.integers(0, 2), st.sampled_from([0, 5, 12]))
def test_the_order_is_the_documented_one(story, max_overtakes, age_bound):
    lanes, reference = Lanes(LANES, max_overtakes=max_overtakes), Reference(max_overtakes)
    now, count = 0, 0
    for what, *given_ in story:
        if what == "add":
            request = asked(str(count), now, age_bound, *given_)
            count += 1
            lanes.add(request, now)
            reference.waiting.append(request)
        elif what == "take":
            fits = {request.id: given_[0][i % 12] for i, request in enumerate(reference.waiting)}
            expected = reference.take(fits, now)
            got = lanes.take(answering(fits), now)
            assert (got.id if got else None) == expected
        elif what == "remove" and reference.waiting:
            request = reference.waiting.pop(given_[0] % len(reference.waiting))
            lanes.remove(request.id)
        elif what == "give back" and reference.taken:
            lanes.give_back(reference.taken.pop(given_[0] % len(reference.taken)))
        elif what == "wait":
            now += given_[0]
        assert [request.id for request in lanes] == [request.id for request in reference.waiting]
        assert len(lanes) == len(reference.waiting) == sum(lanes.waiting_by_lane().values())


@settings(max_examples=300, deadline=None)
@given(st.lists(moves, max_size=60), st.integers(0, 2), st.sampled_from([0, 5, 12]))
def test_the_order_among_tenants_is_the_documented_one(story, max_overtakes, age_bound):
    fairness = Fairness(lambda tenant: WEIGHTS[tenant])
    lanes, reference = Lanes(LANES, max_overtakes=max_overtakes, fairness=fairness), Tenants(max_overtakes)
    reference.served, reference.floor = {}, 0.0
    now, count = 0, 0
    for what, *given_ in story:
        if what == "add":
            request = asked(str(count), now, age_bound, *given_, tenant=given_[5])
            count += 1
            lanes.add(request, now)
            reference.come(request)
        elif what == "take":
            fits = {request.id: given_[0][i % 12] for i, request in enumerate(reference.waiting)}
            expected = reference.take(fits, now)
            got = lanes.take(answering(fits), now)
            assert (got.id if got else None) == expected
            if got:
                tokens = got.total_tokens
                fairness.charge(got.tenant, tokens)
                reference.charge(got, tokens)
        elif what == "remove" and reference.waiting:
            request = reference.waiting.pop(given_[0] % len(reference.waiting))
            lanes.remove(request.id)
        elif what == "give back" and reference.taken:
            lanes.give_back(reference.taken.pop(given_[0] % len(reference.taken)))
        elif what == "wait":
            now += given_[0]


def request(name: str, *, latest: int = 0, aged: int = 0, priority: int = 0, arrival: int = 0) -> Request:
    made = Request(name, range(4), 4, arrival_ns=arrival, priority=priority)
    made.latest_start_ns, made.aged_at_ns = latest, aged
    return made


def order(lanes: Lanes, now: int) -> str:
    taken = iter(lambda: lanes.take(lambda _: Fit.START, now), None)
    return "".join(one.id for one in taken)


def test_without_promises_and_priorities_it_is_first_come_first_served():
    lanes = Lanes()
    for i, name in enumerate("abc"):
        lanes.add(request(name, arrival=i), i)
    assert order(lanes, 5) == "abc"
    assert lanes.relegations == 0


def test_relegation_a_lost_promise_stands_behind_those_that_can_be_kept():
    lanes = Lanes()
    for name, latest in (("a", 10), ("b", 30), ("c", 20), ("d", 0)):
        lanes.add(request(name, latest=latest), 0)
    assert lanes.relegations == 0
    assert order(lanes, 15) == "cbad"  # a is lost: with the unpromised, by arrival
    assert lanes.relegations == 1


def test_what_was_never_promised_is_never_relegated_even_when_the_clock_starts_at_nought():
    lanes = Lanes()
    lanes.add(request("a"), 0)
    lanes.add(request("b", latest=3), 0)
    assert order(lanes, 0) == "ba"
    assert lanes.relegations == 0


def test_age_comes_before_priority_and_promise():
    lanes = Lanes()
    lanes.add(request("low", aged=50, priority=9), 0)
    lanes.add(request("high", aged=60, latest=45, arrival=10), 10)
    assert order(lanes, 40) == "highlow"
    lanes.add(request("low", aged=50, priority=9), 40)
    lanes.add(request("high", aged=60, latest=55, arrival=10), 40)
    assert order(lanes, 50) == "lowhigh"


def test_a_request_without_kv_is_passed_so_often_and_no_oftener():
    lanes = Lanes(max_overtakes=3)
    lanes.add(request("big"), 0)
    for i in range(5):
        lanes.add(request(str(i), arrival=1 + i), 1 + i)
    fits = answering({"big": Fit.NO_KV} | {str(i): Fit.START for i in range(5)})
    taken = [lanes.take(fits, 9) for _ in range(4)]
    assert [one.id if one else None for one in taken] == ["0", "1", "2", None]


def test_caps_change_and_classes_do_not():
    lanes = Lanes(LANES)
    for name in "abc":
        lanes.add(Request(name, range(12), 2), 0)
    assert order(lanes, 0) == "ab"  # two slots
    lanes.set_limits((LANES[0], LaneLimits("long", 10, slots=3), LANES[2]))
    assert order(lanes, 0) == "c"
