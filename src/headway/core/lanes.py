"""`Lanes`: the waiting room and its order.

A lane is a class of work, by input and by output length, with its own share of slots, so that no class can take
them all. Across lanes, requests stand in one order:

1. by priority (lower first); those that have waited longer than `age_bound_ns` stand at the best that anybody waits at;
2. within one priority by tenant, the one that was served least first (`fairness.py`): so that ageing lifts a request
   over its tenant's own, and over lower priorities, but never over another tenant's fair share;
3. of one tenant, the aged, oldest first: the bound on every wait; then
4. those whose TTFT can still be kept, the one that must start soonest first;
5. those without a promise, and those whose promise is lost (*relegated*): serving them sooner would only lose others.

With one tenant, no promises and one priority this is first come, first served.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from heapq import heappop, heappush
from operator import attrgetter

from headway.core.alarms import NEVER, Alarms
from headway.core.decisions import Decision, Listener
from headway.core.fairness import Fairness
from headway.core.request import Request, RequestId

# A request that an engine has no KV for may be passed by this many others before all must wait for it.
MAX_OVERTAKES = 16
# How many are tried behind one that does not fit, in one go.
MAX_TRIES = 8


class Fit(Enum):
    """An engine's answer to a request it is offered."""

    START = "start"
    NO_KV = "no kv"  # this one is too big for what is free; a smaller one may do
    FULL = "full"  # nobody can start now
    OTHER = "other"  # not this one, by choice; the next may do, and has not overtaken it
    OTHER_KIND = "other kind"  # nobody of this one's model and pool, and the next of another may do


Accepts = Callable[[Request], Fit]
# Called with an engine's answers and `now`; returns a request it accepts, taken out of the waiting room, or None.
Pull = Callable[[Accepts, int], Request | None]


@dataclass(frozen=True, slots=True)
class LaneLimits:
    """One class of work: what belongs to it and how many slots it may take."""

    name: str
    min_prompt_tokens: int = 0
    min_output_tokens: int = 0  # of `max_tokens`: what it may produce
    slots: int = 1 << 30
    tokens: int = 1 << 60  # that its running requests may come to, prompts and outputs at their longest
    pool: str = ""  # only requests for this pool; empty for all

    def admits(self, request: Request) -> bool:
        if self.pool:
            return request.pool == self.pool
        return request.prompt_tokens >= self.min_prompt_tokens and request.max_tokens >= self.min_output_tokens


ONE_LANE = (LaneLimits("all"),)


# Where a request stands: aged or not, priority, promise kept or not, time. The smaller goes first.
Standing = tuple[int, int, int, int]
AGED, YOUNG = 0, 1
PROMISED, OTHERS = 0, 1


def standing(request: Request, now: int) -> Standing:
    """The order of one tenant's requests, as a key. Waiting and half-fed ones stand in the same one."""
    if request.aged_at_ns and now >= request.aged_at_ns:
        return (AGED, 0, 0, request.arrival_ns)
    if request.latest_start_ns and request.latest_start_ns >= now:
        return (YOUNG, request.priority, PROMISED, request.latest_start_ns)
    return (YOUNG, request.priority, OTHERS, request.arrival_ns)


@dataclass(slots=True, eq=False)
class _Place:
    """A waiting request. `rank` is where it stands in its queue, as far as time has not changed that yet."""

    request: Request
    queue: _Queue
    number: int  # of arrival
    rank: tuple[Standing, int]
    overtaken: int = 0


_RANK = attrgetter("rank")
_FIRST_YOUNG = ((YOUNG,),)


class _Lane:
    """How many slots are taken, and how many wait for one."""

    __slots__ = ("limits", "running", "running_tokens", "waiting")

    def __init__(self, limits: LaneLimits) -> None:
        self.limits = limits
        self.waiting = 0
        self.running = 0
        self.running_tokens = 0

    @property
    def open(self) -> bool:
        """May one more of its requests run? The last one in may pass the token limit: else it could be impossible."""
        return self.running < self.limits.slots and self.running_tokens < self.limits.tokens

    def take(self, request: Request) -> None:
        self.running += 1
        self.running_tokens += request.total_tokens

    def give_back(self, request: Request) -> None:
        self.running -= 1
        self.running_tokens -= request.total_tokens


# What workers may tell apart: a tenant's requests for different ones do not wait behind each other.
Kind = tuple[str, str]


class _Queue:
    """Those of one tenant and one kind that wait in one lane, in order of rank. It is never empty for long."""

    __slots__ = ("kind", "lane", "places", "tenant")

    def __init__(self, lane: _Lane, tenant: str, kind: Kind) -> None:
        self.lane = lane
        self.tenant = tenant
        self.kind = kind
        self.places: list[_Place] = []

    def add(self, place: _Place) -> None:
        insort(self.places, place, key=_RANK)

    def remove(self, place: _Place) -> None:
        del self.places[bisect_left(self.places, place.rank, key=_RANK)]

    def best_young(self) -> int | None:
        """The best priority of those that have not aged."""
        places = self.places
        at = 0 if places[0].rank[0][0] == YOUNG else bisect_left(places, _FIRST_YOUNG, key=_RANK)
        return places[at].rank[0][1] if at < len(places) else None

    def promises_lost_ns(self) -> Iterator[int]:
        """When the first promise of each priority will be lost."""
        places = self.places
        at = bisect_left(places, _FIRST_YOUNG, key=_RANK)
        while at < len(places):
            _, priority, group, latest_start_ns = places[at].rank[0]
            if group == PROMISED:
                yield latest_start_ns
            at = bisect_left(places, ((YOUNG, priority + 1),), at, key=_RANK)


class Lanes:
    """Holds waiting requests and counts, by lane, what was taken and has not been given back."""

    def __init__(
        self,
        lanes: tuple[LaneLimits, ...] = ONE_LANE,
        *,
        max_overtakes: int = MAX_OVERTAKES,
        fairness: Fairness | None = None,
        listener: Listener | None = None,
    ) -> None:
        self._listener = listener
        self.max_overtakes = max_overtakes
        self.fairness = fairness or Fairness()
        self.relegations = 0  # promises found lost while waiting, since start
        self._lanes = [_Lane(limits) for limits in lanes]
        self._queues: dict[tuple[_Lane, str, Kind], _Queue] = {}
        self._tenants: dict[str, int] = {}  # how many of each wait
        self._tokens: dict[str, int] = {}  # of their prompts
        self._places: dict[RequestId, _Place] = {}
        self._ageing = Alarms()
        self._arrivals = 0
        self._taken: dict[RequestId, _Place] = {}  # they may come back

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[Request]:
        """In order of arrival; those that were put back come last."""
        return (place.request for place in self._places.values())

    @property
    def limits(self) -> tuple[LaneLimits, ...]:
        return tuple(lane.limits for lane in self._lanes)

    def set_limits(self, limits: tuple[LaneLimits, ...]) -> None:
        """Change caps. The lanes themselves, and who belongs to which, stay."""
        assert [(one.name, one.min_prompt_tokens, one.min_output_tokens) for one in limits] == [
            (lane.limits.name, lane.limits.min_prompt_tokens, lane.limits.min_output_tokens) for lane in self._lanes
        ], "reconfigure changes caps, not classes"
        for lane, limit in zip(self._lanes, limits, strict=True):
            lane.limits = limit

    def waiting_by_lane(self) -> dict[str, int]:
        return {lane.limits.name: lane.waiting for lane in self._lanes}

    def running_by_lane(self) -> dict[str, int]:
        """Of those that were taken and have not been given back."""
        return {lane.limits.name: lane.running for lane in self._lanes}

    def running_in(self, name: str) -> int:
        """Requests of a lane that were taken and have not been given back; 0 where there is no such lane."""
        return sum(lane.running for lane in self._lanes if lane.limits.name == name)

    def waiting_by_tenant(self) -> dict[str, int]:
        """Of those that have somebody waiting."""
        return dict(self._tenants)

    def tokens_by_tenant(self) -> dict[str, int]:
        """Prompt tokens, of those that have somebody waiting."""
        return dict(self._tokens)

    def newest_of(self, tenant: str) -> list[Request]:
        """Those of a tenant that wait, the latest first."""
        places = [place for place in self._places.values() if place.request.tenant == tenant]
        return [place.request for place in sorted(places, key=lambda place: -place.number)]

    def lane_of(self, request: Request) -> str:
        return self._lane(request).limits.name

    def add(self, request: Request, now: int) -> None:
        """Let a request wait, from `now` on."""
        self._arrivals += 1
        self._seat(request, self._arrivals, now)

    def put_back(self, request: Request, now: int) -> None:
        """One that was taken waits again, where it stood among its tenant's."""
        self._seat(request, self._give_back(request).number, now)

    def remove(self, request_id: RequestId) -> None:
        """Raises KeyError when the request does not wait here."""
        place = self._places.pop(request_id)
        self._ageing.drop(request_id)
        queue = place.queue
        queue.remove(place)
        queue.lane.waiting -= 1
        if not queue.places:
            del self._queues[queue.lane, queue.tenant, queue.kind]
        self._tenants[queue.tenant] -= 1
        self._tokens[queue.tenant] -= place.request.prompt_tokens
        if not self._tenants[queue.tenant]:
            del self._tenants[queue.tenant], self._tokens[queue.tenant]

    def take(self, accepts: Accepts, now: int) -> Request | None:
        """Remove and return the first request in order that is accepted, holding a slot of its lane.

        One that finds no KV may be overtaken, a bounded number of times; then nobody passes it, and what is freed is
        kept for it.
        """
        passed: list[_Place] = []
        shut: set[Kind] = set()
        for place in self._in_order(now, shut):
            fit = accepts(place.request)
            if fit is Fit.START:
                for other in passed:
                    other.overtaken += 1
                    if self._listener is not None:
                        self._listener(Decision(now, "overtake", other.request.id, f"by {place.request.id}"))
                self.remove(place.request.id)
                place.queue.lane.take(place.request)
                self._taken[place.request.id] = place
                return place.request
            if fit is Fit.OTHER_KIND:
                shut.add(place.queue.kind)
            if fit is Fit.OTHER or fit is Fit.OTHER_KIND:
                continue
            if fit is Fit.FULL or place.overtaken >= self.max_overtakes or len(passed) >= MAX_TRIES:
                return None
            passed.append(place)
        return None

    @property
    def stands_until_ns(self) -> int:
        """Until when those who wait stand as they do: until somebody has aged, or a promise is lost."""
        lost = (at_ns for queue in self._queues.values() for at_ns in queue.promises_lost_ns())
        return min(self._ageing.next_ns, min(lost, default=NEVER))

    def give_back(self, request: Request) -> None:
        """A request that was taken has ended."""
        self._give_back(request)

    def tokens_before(self, request: Request, now: int) -> float:
        """Prompt tokens that will probably be started before `request`, if it came now and nobody else did.

        Those of its own tenant that stand before it; of the others, what they are owed until its tenant's turn.
        """
        fairness, rank = self.fairness, standing(request, now)
        own = better = 0
        others: dict[str, int] = {}
        for other in self:
            if other.tenant == request.tenant or not fairness.apart:
                own += other.prompt_tokens if standing(other, now) <= rank else 0
            elif other.priority < request.priority:
                better += other.prompt_tokens
            elif other.priority == request.priority or standing(other, now)[0] == AGED:
                others[other.tenant] = others.get(other.tenant, 0) + other.prompt_tokens
        turn = fairness.entering(request.tenant) + own / fairness.weight(request.tenant)
        owed = {tenant: (turn - fairness.service(tenant)) * fairness.weight(tenant) for tenant in others}
        return own + better + sum(min(tokens, max(0.0, owed[tenant])) for tenant, tokens in others.items())

    def _seat(self, request: Request, number: int, now: int) -> None:
        lane, kind = self._lane(request), (request.model, request.pool)
        if request.tenant not in self._tenants:
            self._tenants[request.tenant] = self._tokens[request.tenant] = 0
            self.fairness.enter(request.tenant)
        self._tenants[request.tenant] += 1
        self._tokens[request.tenant] += request.prompt_tokens
        key = (lane, request.tenant, kind)
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = _Queue(lane, request.tenant, kind)
        place = _Place(request, queue, number, (standing(request, now), number))
        self._places[request.id] = place
        queue.add(place)
        lane.waiting += 1
        if request.aged_at_ns > now:
            self._ageing.set(request.id, request.aged_at_ns)

    def _in_order(self, now: int, shut: set[Kind]) -> Iterator[_Place]:
        """Everybody who may start, in order; nobody of a kind that has been `shut` on the way.

        A heap of the first of each queue: what waits behind them costs nothing.
        """
        for request_id in self._ageing.due(now):
            self._restand(self._places[request_id], now)
        queues = [queue for queue in self._queues.values() if queue.lane.open]
        if len(queues) == 1:  # as nearly always while nobody has to wait: there is nothing to compare
            queue, index = queues[0], 0
            while queue.kind not in shut and (index := self._walk(queue, index, now)) < len(queue.places):
                yield queue.places[index]
                index += 1
            return
        best = 0
        if any(queue.places[0].rank[0][0] == AGED for queue in queues):
            best = min((level for queue in queues if (level := queue.best_young()) is not None), default=0)
        heads: list[tuple[int, float, tuple[Standing, int], int, _Queue]] = []

        def offer(queue: _Queue, index: int) -> None:
            index = self._walk(queue, index, now)
            if index < len(queue.places):
                rank = queue.places[index].rank
                level = best if rank[0][0] == AGED else rank[0][1]
                heappush(heads, (level, self.fairness.service(queue.tenant), rank, index, queue))

        for queue in queues:
            offer(queue, 0)
        while heads:
            _, _, _, index, queue = heappop(heads)
            if queue.kind not in shut:
                yield queue.places[index]
                offer(queue, index + 1)

    def _restand(self, place: _Place, now: int) -> None:
        place.queue.remove(place)
        place.rank = (standing(place.request, now), place.number)
        place.queue.add(place)

    def _walk(self, queue: _Queue, index: int, now: int) -> int:
        """Where the next place of a queue is, from `index` on: promises found lost there are relegated, further on."""
        while index < len(queue.places):
            place = queue.places[index]
            aged, _, group, latest_start_ns = place.rank[0]
            if aged != YOUNG or group != PROMISED or latest_start_ns >= now:
                break
            self._restand(place, now)
            self.relegations += 1
            if self._listener is not None:
                self._listener(Decision(now, "relegate", place.request.id))
        return index

    def _give_back(self, request: Request) -> _Place:
        place = self._taken.pop(request.id)
        place.queue.lane.give_back(request)
        return place

    def _lane(self, request: Request) -> _Lane:
        """The last lane whose conditions the request meets: lanes are listed from the widest to the narrowest."""
        for lane in reversed(self._lanes):
            if lane.limits.admits(request):
                return lane
        raise AssertionError("the widest lane takes anything")
