"""`Lanes`: the waiting room and its order.

A lane is a class of work, by input and by output length, with its own share of slots, so that no class can take
them all. Across lanes, requests stand in one order:

1. those that have waited longer than `age_bound_ns`, oldest first: the bound on every wait;
2. by priority (lower first); and within one priority
3. those whose TTFT can still be kept, the one that must start soonest first;
4. those without a promise, and those whose promise is lost (*relegated*): serving them sooner would only lose others.

With no promises and one priority this is first come, first served.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from heapq import merge
from operator import attrgetter

from headway.core.decisions import Decision, Listener, ignore
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

    def admits(self, request: Request) -> bool:
        return request.prompt_tokens >= self.min_prompt_tokens and request.max_tokens >= self.min_output_tokens


ONE_LANE = (LaneLimits("all"),)


# Where a request stands: aged or not, priority, promise kept or not, time. The smaller goes first.
Standing = tuple[int, int, int, int]
AGED, YOUNG = 0, 1
PROMISED, OTHERS = 0, 1


def standing(request: Request, now: int) -> Standing:
    """The order of this file's first lines, as a key. Waiting and half-fed requests stand in the same one."""
    if request.aged_at_ns and now >= request.aged_at_ns:
        return (AGED, 0, 0, request.arrival_ns)
    if request.latest_start_ns and request.latest_start_ns >= now:
        return (YOUNG, request.priority, PROMISED, request.latest_start_ns)
    return (YOUNG, request.priority, OTHERS, request.arrival_ns)


@dataclass(slots=True, eq=False)
class _Place:
    """A waiting request. `rank` is where it stands in its lane, as far as time has not changed that yet."""

    request: Request
    lane: _Lane
    number: int  # of arrival
    rank: tuple[Standing, int]
    overtaken: int = 0


class _Lane:
    """Places in order of rank, and how many slots are taken."""

    __slots__ = ("limits", "places", "running", "running_tokens")

    def __init__(self, limits: LaneLimits) -> None:
        self.limits = limits
        self.places: list[_Place] = []
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

    def add(self, place: _Place) -> None:
        insort(self.places, place, key=_RANK)

    def remove(self, place: _Place) -> None:
        del self.places[bisect_left(self.places, place.rank, key=_RANK)]


_RANK = attrgetter("rank")


class Lanes:
    """Holds waiting requests and counts, by lane, what was taken and has not been given back."""

    def __init__(
        self,
        lanes: tuple[LaneLimits, ...] = ONE_LANE,
        *,
        max_overtakes: int = MAX_OVERTAKES,
        listener: Listener = ignore,
    ) -> None:
        self._listener = listener
        self.max_overtakes = max_overtakes
        self.relegations = 0  # promises found lost while waiting, since start
        self._lanes = [_Lane(limits) for limits in lanes]
        self._places: dict[RequestId, _Place] = {}
        self._arrivals = 0

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[Request]:
        """In order of arrival."""
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
        return {lane.limits.name: len(lane.places) for lane in self._lanes}

    def lane_of(self, request: Request) -> str:
        return self._lane(request).limits.name

    def add(self, request: Request, now: int) -> None:
        """Let a request wait, from `now` on."""
        self._arrivals += 1
        place = _Place(request, self._lane(request), self._arrivals, (standing(request, now), self._arrivals))
        self._places[request.id] = place
        place.lane.add(place)

    def remove(self, request_id: RequestId) -> None:
        """Raises KeyError when the request does not wait here."""
        place = self._places.pop(request_id)
        place.lane.remove(place)

    def take(self, accepts: Accepts, now: int) -> Request | None:
        """Remove and return the first request in order that is accepted, holding a slot of its lane.

        One that finds no KV may be overtaken, a bounded number of times; then nobody passes it, and what is freed is
        kept for it.
        """
        passed: list[_Place] = []
        for place in self._in_order(now):
            fit = accepts(place.request)
            if fit is Fit.START:
                for other in passed:
                    other.overtaken += 1
                    self._listener(Decision(now, "overtake", other.request.id, f"by {place.request.id}"))
                self.remove(place.request.id)
                place.lane.take(place.request)
                return place.request
            if fit is Fit.OTHER:
                continue
            if fit is Fit.FULL or place.overtaken >= self.max_overtakes or len(passed) >= MAX_TRIES:
                return None
            passed.append(place)
        return None

    def give_back(self, request: Request) -> None:
        """A request that was taken has ended."""
        self._lane(request).give_back(request)

    def _in_order(self, now: int) -> Iterator[_Place]:
        self._restand_aged(now)
        return merge(*(self._walk(lane, now) for lane in self._lanes if lane.open), key=_RANK)

    def _restand_aged(self, now: int) -> None:
        """Those who have become old enough go to the front. They are the first to have arrived."""
        for place in self._places.values():
            if not place.request.aged_at_ns or place.request.aged_at_ns > now:
                break
            if place.rank[0][0] == YOUNG:
                self._restand(place, now)

    def _restand(self, place: _Place, now: int) -> None:
        place.lane.remove(place)
        place.rank = (standing(place.request, now), place.number)
        place.lane.add(place)

    def _walk(self, lane: _Lane, now: int) -> Iterator[_Place]:
        """A lane's places in order. Promises found lost on the way are relegated, which puts them further on."""
        index = 0
        while index < len(lane.places):
            place = lane.places[index]
            _, _, group, latest_start_ns = place.rank[0]
            if place.rank[0][0] == YOUNG and group == PROMISED and latest_start_ns < now:
                self._restand(place, now)
                self.relegations += 1
                self._listener(Decision(now, "relegate", place.request.id))
            else:
                yield place
                index += 1

    def _lane(self, request: Request) -> _Lane:
        """The last lane whose conditions the request meets: lanes are listed from the widest to the narrowest."""
        return next(lane for lane in reversed(self._lanes) if lane.limits.admits(request))
