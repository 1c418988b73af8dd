"""`Admission`: what a request must hold before it costs anything, and the one `Reservation` that holds it:

a place in the waiting room (by count and by tokens), a lease on its tenant's quota, a claim on KV. All of it or none.
A reservation is settled exactly once, on every way out: finished, refused, cancelled while queued or running,
expired, failed, its worker lost. Counters are kept incrementally; tests/laws recount them.
"""

from __future__ import annotations

from collections.abc import Sequence as ReadOnlySequence
from dataclasses import dataclass

from headway.core.errors import MAX_RETRY_AFTER_S, ContextLengthExceeded, InvalidRequest, KvClaimed, QueueFull
from headway.core.front.ledger import Amounts, Lease, Ledger
from headway.core.front.tenants import Tenants
from headway.core.request import Request

NS_PER_S = 1_000_000_000
# What each later start leaves of an earlier one in the drain rate: about the last fifty matter.
DRAIN_MEMORY = 0.98


@dataclass(frozen=True, slots=True)
class AdmissionLimits:
    """What may be inside at all. Tokens are prompt tokens: what the queue still has to prefill."""

    max_model_len: int  # positions: prompt and output together
    kv_capacity_tokens: int  # what all KV blocks hold
    max_waiting: int = 1024  # requests
    max_waiting_tokens: int = 1_000_000
    max_running: int = 0  # requests started and not ended, on all workers together; 0 is no limit
    kv_claim_ratio: float = 0.0  # of the KV capacity, what those inside may need at their worst; 0 is no limit


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
    """One request's hold on the limits: quota and KV until it ends, a place in the waiting room until it starts."""

    __slots__ = ("charged_tokens", "lease", "request", "settled", "tried", "waiting")

    def __init__(self, request: Request, lease: Lease) -> None:
        self.request = request
        self.lease = lease
        self.waiting = True
        self.settled = False
        self.charged_tokens = 0  # to its tenant's fair share, since it was started
        self.tried: tuple[str, ...] = ()  # workers that were lost under it


class Admission:
    """Grants, moves and settles reservations, and knows how fast the waiting room drains."""

    def __init__(self, limits: AdmissionLimits, tenants: Tenants | None = None, ledger: Ledger | None = None) -> None:
        self.limits = limits
        self.kv_capacity_tokens = limits.kv_capacity_tokens  # of a fleet: what its workers say they have
        self.tenants = tenants or Tenants()
        self.ledger = ledger or Ledger(self.tenants.of)
        self.requests = 0  # inside the service: waiting or running
        self.waiting = 0
        self.waiting_tokens = 0
        self.claimed_tokens = 0  # of KV, at worst
        self._drain = _DrainRate()

    def crowded(self, count: int, prompt_tokens: int) -> bool:
        """Is the waiting room too full for so much more?"""
        by_tokens = self.waiting > 0 and self.waiting_tokens + prompt_tokens > self.limits.max_waiting_tokens
        return by_tokens or self.waiting + count > self.limits.max_waiting

    def reserve(
        self, requests: ReadOnlySequence[Request], now: int, *, leaving: ReadOnlySequence[Request] = ()
    ) -> list[Reservation]:
        """A hold for each of `requests` of one call, or for none of them. `leaving` will then give up theirs.

        Raises `InvalidRequest` for what can never be let in, and what it is that is short for what cannot be now.
        """
        self.check_possible(requests)
        total_tokens = sum([request.total_tokens for request in requests])
        limits, count = self.limits, len(requests)
        if count > limits.max_waiting:
            raise InvalidRequest(
                f"One call asks for {count} outputs; this server lets at most {limits.max_waiting} requests wait "
                "(--max-waiting). Ask for fewer in one call.",
                param="n",
            )
        self.check_waiting(count - len(leaving))
        tokens = sum([request.prompt_tokens for request in requests])
        freed_tokens = sum([request.prompt_tokens for request in leaving])
        # An empty waiting room takes any call whose prompts fit the model: a limit must never make one impossible.
        if self.waiting and self.waiting_tokens - freed_tokens + tokens > limits.max_waiting_tokens:
            raise QueueFull(
                f"{self.waiting_tokens} prompt tokens are waiting; with {tokens} more the limit of "
                f"{limits.max_waiting_tokens} (--max-waiting-tokens) would be passed.",
                retry_after_s=self.retry_after_s(),
            )
        self._check_kv(total_tokens - sum([request.total_tokens for request in leaving]))
        # Last, since it is what takes: the samples of one call are one request a minute.
        amounts = [Amounts(1, int(number == 0), request.total_tokens) for number, request in enumerate(requests)]
        leases = self.ledger.take(requests[0].tenant, amounts, now)
        self.requests += count
        self.waiting += count
        self.waiting_tokens += tokens
        self.claimed_tokens += total_tokens
        return [Reservation(request, lease) for request, lease in zip(requests, leases, strict=True)]

    def check_possible(self, requests: ReadOnlySequence[Request]) -> None:
        """Raises `InvalidRequest` for what can never be let in, whatever else is inside."""
        for request in requests:
            self._check_fits(request)
        self._check_tenant(requests, sum([request.total_tokens for request in requests]))

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

    def _check_tenant(self, requests: ReadOnlySequence[Request], total_tokens: int) -> None:
        """Raises `InvalidRequest` for what its tenant may never have."""
        limits = self.tenants.of(requests[0].tenant)
        for request in requests:
            if 0 < limits.max_input_tokens < request.prompt_tokens:
                raise ContextLengthExceeded(
                    f"The prompt has {request.prompt_tokens} tokens; this key's limit is {limits.max_input_tokens}. "
                    "Shorten the prompt.",
                    param="prompt",
                )
            if 0 < limits.max_output_tokens < request.max_tokens:
                raise InvalidRequest(
                    f"max_tokens is {request.max_tokens}; this key's limit is {limits.max_output_tokens}.",
                    param="max_tokens",
                )
        if 0 < limits.tokens_per_minute < total_tokens:
            raise InvalidRequest(
                f"Prompt and output could come to {total_tokens} tokens; this key's limit is "
                f"{limits.tokens_per_minute} a minute, so it could never start. Lower max_tokens.",
                param="max_tokens",
            )
        if 0 < limits.max_concurrency < len(requests):
            raise InvalidRequest(
                f"One call asks for {len(requests)} outputs; this key's limit is {limits.max_concurrency} at a time.",
                param="n",
            )

    def _check_kv(self, more_tokens: int) -> None:
        limit = int(self.kv_capacity_tokens * self.limits.kv_claim_ratio)
        # Alone anything may claim what it needs: a limit must never make a request impossible.
        if limit and self.requests and self.claimed_tokens + more_tokens > limit:
            raise KvClaimed(
                f"The requests inside could come to {self.claimed_tokens} tokens of KV; with {more_tokens} more the "
                f"limit of {limit} (--kv-claim-ratio) would be passed.",
                retry_after_s=self.retry_after_s(),
            )

    @property
    def running(self) -> int:
        return self.requests - self.waiting

    @property
    def may_start(self) -> bool:
        """Does the limit on running requests allow one more?"""
        return not self.limits.max_running or self.running < self.limits.max_running

    def start(self, reservation: Reservation, now: int) -> None:
        """The request leaves the waiting room for an engine."""
        self._leave_waiting(reservation)
        self._drain.started(reservation.request.prompt_tokens, now, still_waiting=self.waiting > 0)

    def put_back(self, reservation: Reservation) -> None:
        """It waits again, with all it holds, even if the waiting room has filled up since."""
        reservation.waiting = True
        self.waiting += 1
        self.waiting_tokens += reservation.request.prompt_tokens

    def settle(self, reservation: Reservation, used_tokens: int, now: int) -> None:
        """Give everything back but the tokens that were used. A second call is a defect of the caller."""
        if reservation.settled:
            raise AssertionError(f"request {reservation.request.id} was settled twice")
        if reservation.waiting:
            self._leave_waiting(reservation)
        reservation.settled = True
        self.requests -= 1
        self.claimed_tokens -= reservation.request.total_tokens
        self.ledger.settle(reservation.lease, used_tokens, now)

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
