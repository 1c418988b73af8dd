"""`Front`: decides before an engine is touched: who is let in, who waits and in what order, who is turned away.

A request enters by `submit` and leaves by exactly one of: `settle` (an engine took it and it ended there), `cancel`
while it waits, or an `Expire` from `plan`. Engines pull (`pull`): the waiting room is here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as ReadOnlySequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from heapq import heappop, heappush

from headway.core.admission import NS_PER_S, Admission, AdmissionLimits, Reservation
from headway.core.decisions import Decision, Listener, ignore
from headway.core.errors import Draining, Expired, HeadwayError, InvalidRequest, TtftUnreachable
from headway.core.lanes import ONE_LANE, Accepts, LaneLimits, Lanes, standing
from headway.core.pace import Shape, StepTimeModel
from headway.core.policies import HEADWAY, Policy
from headway.core.request import Request, RequestId, State, Usage, move

# A restart takes a few seconds, and so does another server's taking over.
RETRY_WHEN_CLOSED_S = 5.0


@dataclass(frozen=True, slots=True)
class Expire:
    """The request waited too long; tell its owner."""

    request: Request
    error: Expired


@dataclass(frozen=True, slots=True)
class FrontLimits:
    """How long requests wait, and in which lanes. Times are ns; 0 is no bound."""

    queue_timeout_ns: int = 0
    age_bound_ns: int = 30 * NS_PER_S  # after this a request goes before everybody younger
    lanes: tuple[LaneLimits, ...] = ONE_LANE


class Front:
    """Admission and the waiting room, composed. `model` tells how long a prompt takes to feed."""

    def __init__(
        self,
        admission: AdmissionLimits,
        limits: FrontLimits,
        *,
        model: StepTimeModel,
        policy: Policy = HEADWAY,
        listener: Listener = ignore,
    ) -> None:
        self.admission = Admission(admission)
        self.limits = limits
        self.lanes = Lanes(limits.lanes, max_overtakes=policy.max_overtakes, listener=listener)
        self.draining = False
        self.closed = ""  # why nobody is let in at the moment; empty when open
        self.refused: dict[str, int] = {}  # by error code, since start
        self.ended: dict[str, int] = {}  # requests that ended here, never started, by state, since start
        self._model = model
        self._listener = listener
        self._policy = policy
        self._reservations: dict[RequestId, Reservation] = {}
        self._give_up: list[tuple[int, RequestId]] = []  # a heap; ids that no longer wait are skipped when met

    def submit(self, request: Request, now: int) -> None:
        """Let `request` into the waiting room, or raise the `HeadwayError` that says why not.

        A request that raised was never inside: nothing is to be settled for it.
        """
        self.submit_all([request], now)

    def submit_all(self, requests: ReadOnlySequence[Request], now: int) -> None:
        """Let all of them in, or none: the samples and prompts of one call stand or fall together."""
        with self._counting_refusals(requests[0].id, now):
            if len({request.id for request in requests}) < len(requests):
                raise InvalidRequest("Two requests of one call have the same id.", param="request_id")
            for request in requests:
                self._check(request)
                self._stamp(request, now)
                self._check_ttft(request, now)
            reservations = self.admission.reserve(requests)
        for reservation in reservations:
            self._admit(reservation, now)

    def _admit(self, reservation: Reservation, now: int) -> None:
        request = reservation.request
        request.state = State.WAITING
        self._reservations[request.id] = reservation
        numbers = {
            "prompt_tokens": request.prompt_tokens,
            "max_tokens": request.max_tokens,
            "priority": request.priority,
            "slo_ttft_ns": request.slo.ttft_ns,
            "slo_itl_ns": request.slo.itl_ns,
            "ttft_limit_ns": request.slo.ttft_limit_ns,
            "latest_start_ns": request.latest_start_ns,
        }
        self._listener(Decision(now, "submit", request.id, self.lanes.lane_of(request), numbers))
        self.lanes.add(request, now)
        if (at_ns := self._gives_up_at(request)) is not None:
            heappush(self._give_up, (at_ns, request.id))

    def check_door(self, now: int) -> None:
        """Raise what `submit` would raise for any request at all: so that a refusal comes before its text is read."""
        with self._counting_refusals("", now):
            self._check_open()
            self.admission.check_waiting()

    def pull(self, accepts: Accepts, now: int) -> Request | None:
        """The next request for an engine that `accepts` it, or None. The caller must start what it is given."""
        request = self.lanes.take(accepts, now)
        if request is not None:
            self.admission.start(self._reservations[request.id], now)
            self._listener(Decision(now, "start", request.id, numbers={"waited_ns": now - request.arrival_ns}))
        return request

    def cancel(self, request_id: RequestId, now: int) -> bool:
        """Take a waiting request out. False when it does not wait here: its engine must be told instead."""
        reservation = self._reservations.get(request_id)
        if reservation is None or not reservation.waiting:
            return False
        self._leave_waiting(reservation.request, State.CANCELLED)
        self._listener(Decision(now, "cancel", request_id, "waiting"))
        return True

    def fail_waiting(self, now: int) -> list[Request]:
        """No engine will ever take those who wait. Returns them; they are out of the waiting room, and settled."""
        failed = list(self.lanes)
        for request in failed:
            self._leave_waiting(request, State.FAILED)
            self._listener(Decision(now, "end", request.id, "failed"))
        return failed

    def settle(self, request_id: RequestId, usage: Usage, now: int) -> None:
        """A started request ended, however it ended, at this cost. Exactly once per pulled request, else KeyError."""
        reservation = self._reservations.pop(request_id)
        self._listener(Decision(now, "settle", request_id, numbers={"output_tokens": usage.output_tokens}))
        self.admission.settle(reservation)
        self.lanes.give_back(reservation.request)

    def holds(self, request_id: RequestId) -> bool:
        """Is it inside, waiting or started?"""
        return request_id in self._reservations

    def expires(self, now: int) -> bool:
        """May `plan` have somebody to turn away at `now`? Cheap, and wrong at most about those who left already."""
        return bool(self._give_up) and self._give_up[0][0] <= now

    def plan(self, now: int) -> list[Expire]:
        """What should happen to waiting requests at `now`. They are out of the waiting room when this returns."""
        expired = []
        while self._give_up and self._give_up[0][0] <= now:
            _, request_id = heappop(self._give_up)
            reservation = self._reservations.get(request_id)
            if reservation is None or not reservation.waiting:
                continue
            gives_up_at = self._gives_up_at(reservation.request)
            if gives_up_at is not None and gives_up_at <= now:  # the entry may be of an earlier one of the same id
                expired.append(self._expire(reservation.request, now))
        return expired

    def predicted_ttft_ns(self, request: Request, now: int) -> float:
        """How long until a first token: the prompts that stand before it, at the rate they drain, and its own."""
        ahead = sum(other.prompt_tokens for other in self.lanes if standing(other, now) <= standing(request, now))
        prefill_ns = self._model.coefficients.prefill_ns
        rate = self.admission.drain_tokens_per_ns
        wait_ns = ahead / rate if rate else prefill_ns(0, ahead)
        return wait_ns + prefill_ns(0, request.prompt_tokens)

    @property
    def not_ready_reason(self) -> str:
        """Why nobody is let in; empty when somebody would be."""
        return self.closed or ("The server is shutting down and takes no new requests." if self.draining else "")

    def _check_open(self) -> None:
        if self.not_ready_reason:
            raise Draining(self.not_ready_reason, retry_after_s=RETRY_WHEN_CLOSED_S)

    def _check(self, request: Request) -> None:
        self._check_open()
        if request.id in self._reservations:
            raise InvalidRequest(f"A request with the id {request.id!r} is already in the service.", param="request_id")
        if request.prompt_tokens < 1:
            raise InvalidRequest("The prompt is empty; at least one token is needed.", param="prompt")
        if request.max_tokens < 1:
            raise InvalidRequest(f"max_tokens is {request.max_tokens}; at least 1 is needed.", param="max_tokens")

    def _stamp(self, request: Request, now: int) -> None:
        """Write down what its place in the order follows from."""
        request.arrival_ns = now
        # A promise that not even a lone stream could be kept would only keep everybody else out.
        if 0 < request.slo.itl_ns < self._model.coefficients.predict_ns(Shape(0, 1, request.prompt_tokens)):
            request.slo = replace(request.slo, itl_ns=0)
        if self.limits.age_bound_ns:
            request.aged_at_ns = now + self.limits.age_bound_ns
        if request.slo.ttft_ns and self._policy.by_promise:
            prefill_ns = self._model.coefficients.prefill_ns(0, request.prompt_tokens)
            # 0 says that nothing was promised; a moment sooner changes nothing.
            request.latest_start_ns = (now + request.slo.ttft_ns - int(prefill_ns)) or -1

    def _check_ttft(self, request: Request, now: int) -> None:
        limit_ns = request.slo.ttft_limit_ns
        if not limit_ns:
            return
        predicted_ns = self.predicted_ttft_ns(request, now)
        if predicted_ns > limit_ns:
            raise TtftUnreachable(
                f"The first token is predicted in {predicted_ns / NS_PER_S:.1f} s, beyond this request's limit of "
                f"{limit_ns / NS_PER_S:.1f} s.",
                retry_after_s=self.admission.retry_after_s(),
            )

    def _gives_up_at(self, request: Request) -> int | None:
        """When it has waited out its time, or could not meet its limit any more if it started then; None for never."""
        ends = []
        if self.limits.queue_timeout_ns:
            ends.append(request.arrival_ns + self.limits.queue_timeout_ns)
        if request.slo.ttft_limit_ns:
            prefill_ns = int(self._model.coefficients.prefill_ns(0, request.prompt_tokens))
            ends.append(request.arrival_ns + request.slo.ttft_limit_ns - prefill_ns)
        return min(ends, default=None)

    def _expire(self, request: Request, now: int) -> Expire:
        self._leave_waiting(request, State.EXPIRED)
        waited_s = (now - request.arrival_ns) / NS_PER_S
        error = Expired(
            f"The request waited {waited_s:.1f} s without being started, and is turned away "
            f"(--queue-timeout, or its own limit on TTFT).",
            retry_after_s=self.admission.retry_after_s(),
        )
        self._listener(Decision(now, "expire", request.id, numbers={"waited_ns": now - request.arrival_ns}))
        return Expire(request, error)

    def _leave_waiting(self, request: Request, to: State) -> None:
        self.lanes.remove(request.id)
        request.state = move(request.state, to)
        self.ended[to.value] = self.ended.get(to.value, 0) + 1
        self.admission.settle(self._reservations.pop(request.id))

    @contextmanager
    def _counting_refusals(self, request_id: RequestId, now: int) -> Iterator[None]:
        try:
            yield
        except HeadwayError as refusal:
            code = refusal.code or refusal.type
            self.refused[code] = self.refused.get(code, 0) + 1
            self._listener(Decision(now, "refuse", request_id, code))
            raise
