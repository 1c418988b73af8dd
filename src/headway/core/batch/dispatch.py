"""`Dispatcher`: decides, for one batch job, which item begins where and when, and what becomes of one that failed.

It is told what happened (`add`, `finished`, `failed`) and asked what to do (`plan`). Every item that is added ends in
exactly one `finished`, or one `failed` that was answered with a `GiveUp`.

A failure says whose fault it is. The item's own (`BAD`) ends it at once. Those that come and go (`TIMEOUT`, `SERVER`)
are tried again after a rest that doubles, a bounded number of times. A refusal (`REFUSED`) rests the worker and costs
the item nothing but patience. A worker that is not there (`UNREACHABLE`), or fails item after item, rests as well, is
asked again with one item, and is given up when that has lasted for `patience_ns`; one that will never take us
(`FORBIDDEN`) is given up at once. Who was running when a worker was lost (`LOST`, `OUT_OF_MEMORY`) is suspected:
`suspects` finds the guilty.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from heapq import heappop, heappush

from headway.core.batch.allowance import Allowance
from headway.core.batch.climb import Climb
from headway.core.batch.lookahead import Lookahead, Place
from headway.core.batch.suspects import Suspects

NS_PER_S = 1_000_000_000
# Static batches are composed when so many of them wait, or all that ever will: from fewer, none would be of one length.
BATCHES_AHEAD = 8
# A worker that fails so many items in a row is not well, whatever it says.
SICK_AFTER = 8
# Who says when to come back, and then refuses again, is believed so many times, however long that takes.
BELIEVED = 2


class Fault(Enum):
    BAD = "bad"
    TIMEOUT = "timeout"
    SERVER = "server"
    REFUSED = "refused"
    UNREACHABLE = "unreachable"
    FORBIDDEN = "forbidden"
    LOST = "lost"
    OUT_OF_MEMORY = "out of memory"


class ErrorClass(Enum):
    """Why an item has no answer, as the errors file says it."""

    LIMIT = "limit"
    TIMEOUT = "timeout"
    OOM = "oom"
    BAD_ITEM = "bad_item"
    SERVER = "server"


CLASS_OF = {
    Fault.BAD: ErrorClass.BAD_ITEM,
    Fault.TIMEOUT: ErrorClass.TIMEOUT,
    Fault.SERVER: ErrorClass.SERVER,
    Fault.REFUSED: ErrorClass.LIMIT,
    Fault.LOST: ErrorClass.SERVER,
    Fault.OUT_OF_MEMORY: ErrorClass.OOM,
}
# Whoever is given up for one of these was never tried.
_NOT_A_TRY = {Fault.REFUSED, Fault.UNREACHABLE, Fault.FORBIDDEN}


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryLimits:
    """`tries` of an item that fails, `refusals` of one that is refused; the rests between them double."""

    tries: int = 4
    refusals: int = 50
    alone_tries: int = 2
    first_rest_ns: int = NS_PER_S
    longest_rest_ns: int = 60 * NS_PER_S
    patience_ns: int = 600 * NS_PER_S  # with a worker that is not there
    losses: int = 24  # of a worker in a row, with nothing finished between them

    def rest_ns(self, times: int) -> int:
        """After so many failures."""
        return min(self.longest_rest_ns, self.first_rest_ns << min(times - 1, 16))


@dataclass(frozen=True, slots=True)
class Start:
    place: Place
    worker: str


@dataclass(frozen=True, slots=True)
class Retry:
    """The item is kept, and begins again in its time."""


@dataclass(frozen=True, slots=True)
class GiveUp:
    error_class: ErrorClass
    tries: int


class _Life:
    """An item from its first start to its end."""

    __slots__ = ("began_ns", "place", "refusals", "tries")

    def __init__(self, place: Place) -> None:
        self.place = place
        self.tries = 0
        self.refusals = 0
        self.began_ns = 0


class _Worker:
    def __init__(self, worker_id: str, climb: Climb, alone_tries: int, batch: int) -> None:
        self.id = worker_id
        self.climb = climb
        self.batch = batch  # items that begin together; 0 where each begins for itself
        self.suspects = Suspects(alone_tries)
        self.in_flight: set[int] = set()
        self.absences = 0  # in a row
        self.absent_since_ns: int | None = None
        self.losses = 0  # in a row
        self.failures = 0  # in a row
        self.too_many = 0  # that were in flight when memory ran out, while it is not known who or what was guilty
        self.gone = ""  # why it is given up

    @property
    def ready_at_ns(self) -> int:
        return self.climb.not_before_ns

    def room(self, now: int) -> int:
        room = self.climb.room(len(self.in_flight), now)
        if self.absences:
            room = min(room, max(0, 1 - len(self.in_flight)))  # one item finds out whether it is back
        if self.batch:  # the next one begins when the last has ended: the scheduler takes who is there as one batch
            room = 0 if self.in_flight else min(self.batch, room)
        return room


class Dispatcher:
    """Add workers, then items; ask `plan` whenever something has changed, and at `wake_ns`."""

    def __init__(
        self, lookahead: Lookahead, limits: RetryLimits = RetryLimits(), allowance: Allowance | None = None
    ) -> None:
        self.lookahead = lookahead
        self.limits = limits
        self.not_before_ns = 0  # nothing begins sooner: it is not the time of the day for it
        self._allowance = allowance or Allowance()
        self.closed = False  # nothing more will be added
        self._workers: dict[str, _Worker] = {}
        self._lives: dict[int, _Life] = {}  # of items that have begun, and not ended
        self._again: list[tuple[int, int]] = []  # (when, number): those that rest

    # -- what it is told -----------------------------------------------------------------------------------------------

    def add_worker(self, worker_id: str, climb: Climb, *, batch: int = 0) -> None:
        """`batch`: items begin so many at a time, when those before have ended."""
        self._workers[worker_id] = _Worker(worker_id, climb, self.limits.alone_tries, batch)

    def add(self, place: Place) -> None:
        self.lookahead.add(place)

    def finished(self, number: int, worker_id: str, tokens: int, now: int) -> int:
        """It has an answer of so many tokens. Returns how many tries it took."""
        worker, life = self._land(number, worker_id)
        worker.suspects.cleared(number)
        self._acquit(worker, now)
        self._is_well(worker)
        worker.climb.done(tokens, now - life.began_ns, now)
        self._allowance.take(tokens - life.place.tokens)
        del self._lives[number]
        return life.tries

    def failed(
        self,
        number: int,
        worker_id: str,
        fault: Fault,
        now: int,
        *,
        retry_after_ns: int = 0,
        final: bool = False,
        why: str = "",
    ) -> Retry | GiveUp:
        """It has no answer, for that reason. Says what becomes of it.

        `final`: the next try would fail as well. `why`: in words, where that gives up a worker.
        """
        worker, life = self._land(number, worker_id)
        if fault in _NOT_A_TRY:
            life.tries -= 1
            self._allowance.take(-life.place.tokens)
        if fault not in (Fault.LOST, Fault.OUT_OF_MEMORY):
            worker.suspects.cleared(number)
        match fault:
            case Fault.BAD:
                self._is_well(worker)
                return self._give_up(life, fault)
            case Fault.TIMEOUT | Fault.SERVER:
                self._is_failing(worker, fault, now)
                return self._give_up(life, fault) if final else self._later(life, fault, now)
            case Fault.REFUSED:
                worker.climb.refused(retry_after_ns, now)
                self._is_away(worker, now, "it has refused everything for", BELIEVED * retry_after_ns)
                life.refusals += 1
                return self._at_once(life) if life.refusals < self.limits.refusals else self._give_up(life, fault)
            case Fault.UNREACHABLE:
                self._is_absent(worker, now)
                return self._at_once(life)
            case Fault.FORBIDDEN:
                self._is_gone(worker, why or "it does not let us in")
                return self._at_once(life)
            case _:
                return self._suspect(worker, life, fault)

    def returned(self, number: int, worker_id: str) -> None:
        """It was taken back before it ended: as if it had not begun, and nobody's fault."""
        worker, life = self._land(number, worker_id)
        worker.suspects.cleared(number)
        life.tries -= 1
        self._allowance.take(-life.place.tokens)
        self._at_once(life)

    def strained(self, worker_id: str, strain: float, now: int) -> None:
        """How near the promises to others on that worker are to being broken."""
        self._workers[worker_id].climb.strained(strain, now)

    # -- what it is asked ----------------------------------------------------------------------------------------------

    def plan(self, now: int) -> list[Start]:
        """Who begins, and where. Each of them has begun when this returns."""
        starts: list[Start] = []
        if now < self.not_before_ns:
            return starts
        there = [worker for worker in self._workers.values() if not worker.gone]
        room = sum(worker.room(now) for worker in there)
        waiting = len(self.lookahead) + len(self._again)
        for worker in sorted(there, key=lambda one: len(one.in_flight) / one.climb.most_at_once):
            # What is too little for all is shared by room, or the first would have it and the others nothing.
            share = -(-worker.room(now) * waiting // room) if waiting < room and not worker.batch else room
            starts += self._begin(worker, share, now)
        return starts

    def wake_ns(self, now: int) -> int | None:
        """When `plan` may have more to say though nothing happens; None for never."""
        times = [self.not_before_ns, self._allowance.opens_at_ns(now)]
        times += [self._again[0][0]] if self._again else []
        times += [one.ready_at_ns for one in self._workers.values() if not one.gone and one.ready_at_ns > now]
        return min((at for at in times if at > now), default=None)

    @property
    def in_flight(self) -> int:
        return sum(len(worker.in_flight) for worker in self._workers.values())

    @property
    def left(self) -> int:
        """Items that were added and have not ended."""
        return len(self.lookahead) + len(self._lives)

    def tries(self, number: int) -> int:
        return self._lives[number].tries

    def in_flight_of(self, worker_id: str) -> int:
        return len(self._workers[worker_id].in_flight)

    def limit_of(self, worker_id: str) -> int:
        """How many items it may have at once."""
        return self._workers[worker_id].climb.most_at_once

    @property
    def stuck(self) -> str:
        """Why nothing will ever begin again; empty while something may."""
        if not self._workers or any(not worker.gone for worker in self._workers.values()):
            return ""
        return "; ".join(f"{worker.id}: {worker.gone}" for worker in self._workers.values())

    def give_up_worker(self, worker_id: str, why: str) -> None:
        """It will never work again. What is still in flight there is to be `failed` or `returned`."""
        self._is_gone(self._workers[worker_id], why)

    # -- beginning -----------------------------------------------------------------------------------------------------

    def _begin(self, worker: _Worker, share: int, now: int) -> Iterable[Start]:
        if worker.suspects.pending:
            if worker.in_flight or now < worker.ready_at_ns:
                return []
            places = [self._lives[number].place for number in worker.suspects.next_group()]
        else:
            places = self._next_places(min(share, worker.room(now)), worker, now)
        return [self._start(place, worker, now) for place in places]

    def _next_places(self, room: int, worker: _Worker, now: int) -> list[Place]:
        places: list[Place] = []
        while len(places) < room and self._again and self._again[0][0] <= now and self._allowed(now):
            places.append(self._charged(self._lives[heappop(self._again)[1]].place))
        if worker.batch:
            room = room - len(places) if self._may_compose(worker.batch) and self._allowed(now) else 0
            return places + [self._charged(place) for place in self.lookahead.take_batch(room)] if room > 0 else places
        while len(places) < room and self._allowed(now) and (place := self.lookahead.take()) is not None:
            places.append(self._charged(place))
        return places

    def _allowed(self, now: int) -> bool:
        return self._allowance.opens_at_ns(now) <= now

    def _charged(self, place: Place) -> Place:
        self._allowance.take(place.tokens)
        return place

    def _may_compose(self, batch: int) -> bool:
        return self.closed or self.lookahead.full or len(self.lookahead) >= BATCHES_AHEAD * batch

    def _start(self, place: Place, worker: _Worker, now: int) -> Start:
        life = self._lives.setdefault(place.number, _Life(place))
        life.tries += 1
        life.began_ns = now
        worker.in_flight.add(place.number)
        worker.climb.began(len(worker.in_flight), now)
        return Start(place, worker.id)

    # -- ending --------------------------------------------------------------------------------------------------------

    def _land(self, number: int, worker_id: str) -> tuple[_Worker, _Life]:
        worker = self._workers[worker_id]
        worker.in_flight.remove(number)
        return worker, self._lives[number]

    def _give_up(self, life: _Life, fault: Fault) -> GiveUp:
        del self._lives[life.place.number]
        return GiveUp(CLASS_OF[fault], life.tries)

    def _at_once(self, life: _Life) -> Retry:
        heappush(self._again, (0, life.place.number))
        return Retry()

    def _later(self, life: _Life, fault: Fault, now: int) -> Retry | GiveUp:
        if life.tries >= self.limits.tries:
            return self._give_up(life, fault)
        heappush(self._again, (now + self.limits.rest_ns(life.tries), life.place.number))
        return Retry()

    def _suspect(self, worker: _Worker, life: _Life, fault: Fault) -> Retry | GiveUp:
        if fault is Fault.OUT_OF_MEMORY and not worker.suspects.pending:
            worker.too_many = len(worker.in_flight) + 1
            worker.suspects.largest_cleared = 0
        if worker.suspects.lost(life.place.number):
            worker.too_many = 0  # it was this one
            self._count_loss(worker)
            return self._give_up(life, fault)
        if not worker.in_flight:  # the last of those that were lost together
            self._count_loss(worker)
        if worker.gone:
            self._release(worker)
        return Retry()

    def _count_loss(self, worker: _Worker) -> None:
        worker.losses += 1
        if worker.losses >= self.limits.losses:
            self._is_gone(worker, f"it was lost {worker.losses} times in a row with nothing finished between them")

    @staticmethod
    def _acquit(worker: _Worker, now: int) -> None:
        """Every suspect is cleared: if memory ran out, it was because they were so many."""
        if worker.too_many and not worker.suspects.pending:
            worker.climb.out_of_memory(worker.too_many, worker.suspects.largest_cleared, now)
            worker.too_many = 0

    # -- workers -------------------------------------------------------------------------------------------------------

    @staticmethod
    def _is_well(worker: _Worker) -> None:
        worker.absences = worker.losses = worker.failures = 0
        worker.absent_since_ns = None

    def _is_failing(self, worker: _Worker, fault: Fault, now: int) -> None:
        if fault is Fault.TIMEOUT:
            worker.climb.timed_out(now)
        worker.failures += 1
        if worker.failures >= SICK_AFTER:
            self._is_absent(worker, now, f"it failed {worker.failures} times in a row, for")

    def _is_absent(self, worker: _Worker, now: int, what: str = "it has not been there for") -> None:
        """Those that were sent together miss it together: that counts once."""
        self._is_away(worker, now, what)
        if now >= worker.climb.not_before_ns:
            worker.absences += 1
            worker.climb.not_before_ns = now + self.limits.rest_ns(worker.absences)

    def _is_away(self, worker: _Worker, now: int, what: str, asked_ns: int = 0) -> None:
        """Somebody who asked us to wait for so long is waited for."""
        if worker.absent_since_ns is None:
            worker.absent_since_ns = now
        away_ns = now - worker.absent_since_ns
        if away_ns >= max(self.limits.patience_ns, asked_ns):
            self._is_gone(worker, f"{what} {away_ns / NS_PER_S:.0f} s")

    def _is_gone(self, worker: _Worker, why: str) -> None:
        worker.gone = worker.gone or why
        self._release(worker)

    def _release(self, worker: _Worker) -> None:
        """Whoever was kept apart there runs elsewhere."""
        for number in worker.suspects.all():
            heappush(self._again, (0, number))
