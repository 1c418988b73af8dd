"""`Front`: decides before an engine is touched: who is let in, who waits, who is turned away.

A request enters by `submit` and leaves by exactly one of: `settle` (an engine took it and it ended there), `cancel`
while it waits, or an `Expire` from `plan`. Engines pull (`pull`): the waiting room is here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from headway.core.admission import NS_PER_S, Admission, AdmissionLimits, Reservation
from headway.core.errors import Draining, Expired, HeadwayError, InvalidRequest
from headway.core.lanes import Lanes
from headway.core.request import Request, RequestId, State, move


@dataclass(frozen=True, slots=True)
class Expire:
    """The request waited longer than the queue timeout; tell its owner."""

    request: Request
    error: Expired


class Front:
    """Admission and the waiting room, composed. `queue_timeout_ns` 0 lets requests wait for ever."""

    def __init__(self, limits: AdmissionLimits, *, queue_timeout_ns: int = 0) -> None:
        self.admission = Admission(limits)
        self.lanes = Lanes()
        self.queue_timeout_ns = queue_timeout_ns
        self.draining = False
        self.refused: dict[str, int] = {}  # by error code, since start
        self.ended: dict[str, int] = {}  # requests that ended here, never started, by state, since start
        self._reservations: dict[RequestId, Reservation] = {}

    def submit(self, request: Request, now: int) -> None:
        """Let `request` into the waiting room, or raise why not (`InvalidRequest`, `QueueFull`, `Draining`).

        A request that raised was never inside: nothing is to be settled for it.
        """
        with self._counting_refusals():
            reservation = self._reserve(request, now)
        request.arrival_ns = now
        request.state = State.WAITING
        self._reservations[request.id] = reservation
        self.lanes.add(request)

    def check_door(self, now: int) -> None:
        """Raise what `submit` would raise for any request at all: so that a refusal comes before its text is read."""
        with self._counting_refusals():
            if self.draining:
                raise Draining("The server is shutting down and takes no new requests.", retry_after_s=5.0)
            self.admission.check_waiting(now)

    @contextmanager
    def _counting_refusals(self) -> Iterator[None]:
        try:
            yield
        except HeadwayError as refusal:
            code = refusal.code or refusal.type
            self.refused[code] = self.refused.get(code, 0) + 1
            raise

    def _reserve(self, request: Request, now: int) -> Reservation:
        if self.draining:
            raise Draining("The server is shutting down and takes no new requests.", retry_after_s=5.0)
        if request.id in self._reservations:
            raise InvalidRequest(f"A request with the id {request.id!r} is already in the service.", param="request_id")
        if request.prompt_tokens < 1:
            raise InvalidRequest("The prompt is empty; at least one token is needed.", param="prompt")
        if request.max_tokens < 1:
            raise InvalidRequest(f"max_tokens is {request.max_tokens}; at least 1 is needed.", param="max_tokens")
        return self.admission.reserve(request, now)

    def pull(self, accepts: Callable[[Request], bool], now: int) -> Request | None:
        """The next request for an engine that `accepts` it, or None. The caller must start what it is given."""
        request = self.lanes.take(accepts)
        if request is not None:
            self.admission.start(self._reservations[request.id], now)
        return request

    def cancel(self, request_id: RequestId) -> bool:
        """Take a waiting request out. False when it does not wait here: its engine must be told instead."""
        reservation = self._reservations.get(request_id)
        if reservation is None or not reservation.waiting:
            return False
        self._leave_waiting(reservation.request, State.CANCELLED)
        return True

    def settle(self, request_id: RequestId) -> None:
        """A started request ended, however it ended. Exactly once per pulled request; KeyError otherwise."""
        self.admission.settle(self._reservations.pop(request_id))

    def plan(self, now: int) -> list[Expire]:
        """What should happen to waiting requests at `now`. They are out of the waiting room when this returns."""
        if not self.queue_timeout_ns:
            return []
        expired: list[Request] = []
        for request in self.lanes:  # oldest first, so the first that may stay ends the search
            if now - request.arrival_ns < self.queue_timeout_ns:
                break
            expired.append(request)
        return [self._expire(request, now) for request in expired]

    def _expire(self, request: Request, now: int) -> Expire:
        self._leave_waiting(request, State.EXPIRED)
        waited_s = (now - request.arrival_ns) / NS_PER_S
        error = Expired(
            f"The request waited {waited_s:.1f} s without being started; the limit is "
            f"{self.queue_timeout_ns / NS_PER_S:.1f} s (--queue-timeout).",
            retry_after_s=self.admission.retry_after_s(now),
        )
        return Expire(request, error)

    def _leave_waiting(self, request: Request, to: State) -> None:
        self.lanes.remove(request.id)
        request.state = move(request.state, to)
        self.ended[to.value] = self.ended.get(to.value, 0) + 1
        self.admission.settle(self._reservations.pop(request.id))
