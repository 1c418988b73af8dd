"""`Admission`: what a request must hold before it costs anything, and the one `Reservation` that holds it.

A reservation is settled exactly once, on every way out: finished, refused, cancelled while queued or running,
expired, failed. Counters are kept incrementally; tests/laws recount them.
"""

from __future__ import annotations

from collections.abc import Sequence as ReadOnlySequence
from dataclasses import dataclass

from headway.core.errors import ContextLengthExceeded, InvalidRequest, QueueFull
from headway.core.request import Request

NS_PER_S = 1_000_000_000
MAX_RETRY_AFTER_S = 60.0
# What each later start leaves of an earlier one in the drain rate: about the last fifty matter.
DRAIN_MEMORY = 0.98


@dataclass(frozen=True, slots=True)
class AdmissionLimits:
    """What may be inside at all. Tokens are prompt tokens: what the queue still has to prefill."""

    max_model_len: int  # positions: prompt and output together
    kv_capacity_tokens: int  # what all KV blocks hold
    max_waiting: int = 1024  # requests
    max_waiting_tokens: int = 1_000_000


class _DrainRate:
    """How fast the waiting room empties *while there is somebody in it*: idle time says nothing about the rate."""

    __slots__ = ("_elapsed_ns", "_since_ns", "_tokens")

    def __init__(self) -> None:
        self._since_ns: int | None = None  # of the last start, if it left somebody waiting
        self._tokens = 0.0
        self._elapsed_ns = 0.0

    @property
    def tokens_per_ns(self) -> float:
        return self._tokens / self._elapsed_ns if self._elapsed_ns else 0.0

    def started(self, prompt_tokens: int, now: int, *, still_waiting: bool) -> None:
        if self._since_ns is not None:
            self._tokens = self._tokens * DRAIN_MEMORY + prompt_tokens
            self._elapsed_ns = self._elapsed_ns * DRAIN_MEMORY + (now - self._since_ns)
        self._since_ns = now if still_waiting else None


class Reservation:
    """One request's hold on the limits: first a place in the waiting room, then, once started, only its presence."""

    __slots__ = ("request", "settled", "waiting")

    def __init__(self, request: Request) -> None:
        self.request = request
        self.waiting = True
        self.settled = False


class Admission:
    """Grants, moves and settles reservations, and knows how fast the waiting room drains."""

    def __init__(self, limits: AdmissionLimits) -> None:
        self.limits = limits
        self.requests = 0  # inside the service: waiting or running
        self.waiting = 0
        self.waiting_tokens = 0
        self._drain = _DrainRate()

    def reserve(self, requests: ReadOnlySequence[Request]) -> list[Reservation]:
        """A hold for each of `requests`, or for none of them.

        Raises `InvalidRequest` for what can never be let in, `QueueFull` for what cannot be now.
        """
        for request in requests:
            self._check_fits(request)
        limits, count = self.limits, len(requests)
        if count > limits.max_waiting:
            raise InvalidRequest(
                f"One call asks for {count} outputs; this server lets at most {limits.max_waiting} requests wait "
                "(--max-waiting). Ask for fewer in one call.",
                param="n",
            )
        self.check_waiting(count)
        tokens = sum(request.prompt_tokens for request in requests)
        # An empty waiting room takes any call whose prompts fit the model: a limit must never make one impossible.
        if self.waiting and self.waiting_tokens + tokens > limits.max_waiting_tokens:
            raise QueueFull(
                f"{self.waiting_tokens} prompt tokens are waiting; with {tokens} more the limit of "
                f"{limits.max_waiting_tokens} (--max-waiting-tokens) would be passed.",
                retry_after_s=self.retry_after_s(),
            )
        self.requests += count
        self.waiting += count
        self.waiting_tokens += tokens
        return [Reservation(request) for request in requests]

    def check_waiting(self, more: int = 1) -> None:
        """Raises `QueueFull` when not so many `more` requests may wait, whatever they are."""
        if self.waiting + more > self.limits.max_waiting:
            raise QueueFull(
                f"{self.waiting} requests are waiting, and this server lets at most {self.limits.max_waiting} wait "
                "(--max-waiting).",
                retry_after_s=self.retry_after_s(),
            )

    def _check_fits(self, request: Request) -> None:
        limits = self.limits
        if request.total_tokens > limits.max_model_len:
            raise ContextLengthExceeded(
                f"This model's maximum context length is {limits.max_model_len} tokens; the prompt has "
                f"{request.prompt_tokens} and {request.max_tokens} were asked for in the output. "
                "Shorten the prompt or lower max_tokens.",
                param="max_tokens" if request.prompt_tokens < limits.max_model_len else "prompt",
            )
        if request.total_tokens > limits.kv_capacity_tokens:
            raise ContextLengthExceeded(
                f"The KV cache of this server holds {limits.kv_capacity_tokens} tokens; prompt and output could need "
                f"{request.total_tokens}. Lower max_tokens, or start the server with a larger --kv-cache-gib.",
                param="max_tokens",
            )

    def start(self, reservation: Reservation, now: int) -> None:
        """The request leaves the waiting room for an engine."""
        self._leave_waiting(reservation)
        self._drain.started(reservation.request.prompt_tokens, now, still_waiting=self.waiting > 0)

    def settle(self, reservation: Reservation) -> None:
        """Give everything back. A second call is a defect of the caller."""
        if reservation.settled:
            raise AssertionError(f"request {reservation.request.id} was settled twice")
        if reservation.waiting:
            self._leave_waiting(reservation)
        reservation.settled = True
        self.requests -= 1

    def retry_after_s(self) -> float:
        """When the waiting room will have drained, at the rate it drains; 1 s when nothing is known."""
        rate = self._drain.tokens_per_ns
        drain_s = self.waiting_tokens / rate / NS_PER_S if rate else 0.0
        return min(MAX_RETRY_AFTER_S, max(1.0, drain_s))

    @property
    def drain_tokens_per_ns(self) -> float:
        """Prompt tokens started per ns while others waited; 0 when nothing has been measured."""
        return self._drain.tokens_per_ns

    def _leave_waiting(self, reservation: Reservation) -> None:
        assert reservation.waiting, f"request {reservation.request.id} is not waiting"
        reservation.waiting = False
        self.waiting -= 1
        self.waiting_tokens -= reservation.request.prompt_tokens
