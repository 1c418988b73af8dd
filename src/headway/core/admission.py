"""`Admission`: what a request must hold before it costs anything, and the one `Reservation` that holds it.

A reservation is settled exactly once, on every way out: finished, refused, cancelled while queued or running,
expired, failed. Counters are kept incrementally; tests/laws recount them.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from headway.core.errors import ContextLengthExceeded, QueueFull
from headway.core.request import Request

NS_PER_S = 1_000_000_000
MAX_RETRY_AFTER_S = 60.0
# How many recent starts the drain rate looks back on: enough to smooth a batch that starts at once.
DRAIN_WINDOW = 64


@dataclass(frozen=True, slots=True)
class AdmissionLimits:
    """What may be inside at all. Tokens are prompt tokens: what the queue still has to prefill."""

    max_model_len: int  # positions: prompt and output together
    kv_capacity_tokens: int  # what all KV blocks hold
    max_waiting: int = 1024  # requests
    max_waiting_tokens: int = 1_000_000


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
        self._starts: deque[tuple[int, int]] = deque(maxlen=DRAIN_WINDOW)  # (now, prompt tokens)

    def reserve(self, request: Request, now: int) -> Reservation:
        """Raises `ContextLengthExceeded` for what can never fit and `QueueFull` for what does not fit now."""
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
        self.check_waiting(now)
        # An empty waiting room takes any prompt that fits the model: a limit must never make one impossible.
        if self.waiting and self.waiting_tokens + request.prompt_tokens > limits.max_waiting_tokens:
            raise QueueFull(
                f"{self.waiting_tokens} prompt tokens are waiting; with {request.prompt_tokens} more the limit of "
                f"{limits.max_waiting_tokens} (--max-waiting-tokens) would be passed.",
                retry_after_s=self.retry_after_s(now),
            )
        self.requests += 1
        self.waiting += 1
        self.waiting_tokens += request.prompt_tokens
        return Reservation(request)

    def check_waiting(self, now: int) -> None:
        """Raises `QueueFull` when not one more request may wait, whatever it is."""
        if self.waiting >= self.limits.max_waiting:
            raise QueueFull(
                f"{self.waiting} requests are waiting, which is the limit of this server (--max-waiting).",
                retry_after_s=self.retry_after_s(now),
            )

    def start(self, reservation: Reservation, now: int) -> None:
        """The request leaves the waiting room for an engine."""
        self._leave_waiting(reservation)
        self._starts.append((now, reservation.request.prompt_tokens))

    def settle(self, reservation: Reservation) -> None:
        """Give everything back. A second call is a defect of the caller."""
        if reservation.settled:
            raise AssertionError(f"request {reservation.request.id} was settled twice")
        if reservation.waiting:
            self._leave_waiting(reservation)
        reservation.settled = True
        self.requests -= 1

    def retry_after_s(self, now: int) -> float:
        """When the waiting room, at the rate of the recent starts, will have drained; 1 s when nothing is known."""
        if len(self._starts) < 2:
            return 1.0
        started_tokens = sum(tokens for _, tokens in self._starts)
        elapsed_ns = max(1, now - self._starts[0][0])
        drain_s = self.waiting_tokens * elapsed_ns / (started_tokens * NS_PER_S)
        return min(MAX_RETRY_AFTER_S, max(1.0, drain_s))

    def _leave_waiting(self, reservation: Reservation) -> None:
        assert reservation.waiting, f"request {reservation.request.id} is not waiting"
        reservation.waiting = False
        self.waiting -= 1
        self.waiting_tokens -= reservation.request.prompt_tokens
