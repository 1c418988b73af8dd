"""`Promises`: what time means for a request: when it must start, when it is old, when it gives up."""

from __future__ import annotations

from dataclasses import replace

from headway.core.errors import Expired, TtftUnreachable
from headway.core.fleet.fleet import Fleet
from headway.core.pace import Shape, StepTime, StepTimeModel
from headway.core.request import BATCH, Request
from headway.core.scheduler.policies import Policy

# Of a fleet nobody knows how long a step takes; what is known of it is how fast it drains.
UNKNOWN_STEP_TIME = StepTime(0.0, 0.0, 0.0, 0.0, 0.0)
NS_PER_S = 1_000_000_000


class Promises:
    """By the two bounds on waiting (0 is none), and by how long `model` says that a prompt takes to feed."""

    def __init__(
        self,
        queue_timeout_ns: int,
        age_bound_ns: int,
        model: StepTimeModel | None,
        policy: Policy,
        fleet: Fleet | None = None,
    ) -> None:
        self._queue_timeout_ns = queue_timeout_ns
        self._age_bound_ns = age_bound_ns
        self._model = model or StepTimeModel(UNKNOWN_STEP_TIME, frozen=True)
        self._policy = policy
        self._fleet = fleet  # that requests are sent to: what it takes is measured

    def set_bounds(self, queue_timeout_ns: int, age_bound_ns: int) -> None:
        """For those who come from now on."""
        self._queue_timeout_ns = queue_timeout_ns
        self._age_bound_ns = age_bound_ns

    def prefill_ns(self, request: Request, tokens: float) -> float:
        """How long a prompt of so many tokens takes to feed, where `request` may go."""
        if self._fleet is not None:
            return self._fleet.first_token_ns(request, tokens)
        return self._model.coefficients.prefill_ns(0, round(tokens))

    def predicted_ttft_ns(self, request: Request, ahead_tokens: float, drain_tokens_per_ns: float) -> float:
        """The prompts that stand before it, at the rate they drain (0 is unknown), and its own."""
        if drain_tokens_per_ns:
            wait_ns = ahead_tokens / drain_tokens_per_ns
        else:
            wait_ns = self.prefill_ns(request, ahead_tokens) if ahead_tokens else 0.0
        return wait_ns + self.prefill_ns(request, request.prompt_tokens)

    def stamp(self, request: Request, now: int) -> None:
        """Write down what its place in the order follows from."""
        request.arrival_ns = now
        # A promise that not even a lone stream could be kept would only keep everybody else out.
        if 0 < request.slo.itl_ns < self._model.coefficients.predict_ns(Shape(0, 1, request.prompt_tokens)):
            request.slo = replace(request.slo, itl_ns=0)
        if self._age_bound_ns and request.pool != BATCH:  # nobody waits for a batch: time lifts it over nobody
            request.aged_at_ns = now + self._age_bound_ns
        if request.slo.ttft_ns and self._policy.by_promise:
            # 0 says that nothing was promised; a moment sooner changes nothing.
            request.latest_start_ns = (now + self._slack_ns(request)) or -1

    def _slack_ns(self, request: Request) -> int:
        """How long it may wait for its promise to be kept, as nearly always as that can be said."""
        slack_ns = request.slo.ttft_ns - self.prefill_ns(request, request.prompt_tokens)
        if self._fleet is None or slack_ns <= 0:
            return int(slack_ns)
        return int(max(slack_ns / 2, request.slo.ttft_ns - self._fleet.first_token_by_ns(request)))

    def gives_up_at_ns(self, request: Request) -> int | None:
        """When it has waited out its time, or could not meet its limit any more if it started then; None for never."""
        ends = []
        if self._queue_timeout_ns:
            ends.append(request.arrival_ns + self._queue_timeout_ns)
        if request.slo.ttft_limit_ns:
            prefill_ns = int(self.prefill_ns(request, request.prompt_tokens))
            ends.append(request.arrival_ns + request.slo.ttft_limit_ns - prefill_ns)
        return min(ends, default=None)


def unreachable(predicted_ns: float, limit_ns: int, retry_after_s: float) -> TtftUnreachable:
    """For a request that is refused at once, since it would be too late."""
    return TtftUnreachable(
        f"The first token is predicted in {predicted_ns / NS_PER_S:.1f} s, beyond this request's limit of "
        f"{limit_ns / NS_PER_S:.1f} s.",
        retry_after_s=retry_after_s,
    )


def expired(waited_ns: int, retry_after_s: float) -> Expired:
    """For a request that gave up."""
    return Expired(
        f"The request waited {waited_ns / NS_PER_S:.1f} s without being started, and is turned away "
        f"(--queue-timeout, or its own limit on TTFT).",
        retry_after_s=retry_after_s,
    )
