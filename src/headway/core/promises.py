"""`Promises`: what time means for a request: when it must start, when it is old, when it gives up."""

from __future__ import annotations

from dataclasses import replace

from headway.core.pace import Shape, StepTime, StepTimeModel
from headway.core.policies import Policy
from headway.core.request import Request

# Of a fleet nobody knows how long a step takes; what is known of it is how fast it drains.
UNKNOWN_STEP_TIME = StepTime(0.0, 0.0, 0.0, 0.0, 0.0)


class Promises:
    """By the two bounds on waiting (0 is none), and by how long `model` says that a prompt takes to feed."""

    def __init__(self, queue_timeout_ns: int, age_bound_ns: int, model: StepTimeModel | None, policy: Policy) -> None:
        self._queue_timeout_ns = queue_timeout_ns
        self._age_bound_ns = age_bound_ns
        self._model = model or StepTimeModel(UNKNOWN_STEP_TIME, frozen=True)
        self._policy = policy

    def prefill_ns(self, tokens: float) -> float:
        """How long a prompt of so many tokens takes to feed."""
        return self._model.coefficients.prefill_ns(0, round(tokens))

    def stamp(self, request: Request, now: int) -> None:
        """Write down what its place in the order follows from."""
        request.arrival_ns = now
        # A promise that not even a lone stream could be kept would only keep everybody else out.
        if 0 < request.slo.itl_ns < self._model.coefficients.predict_ns(Shape(0, 1, request.prompt_tokens)):
            request.slo = replace(request.slo, itl_ns=0)
        if self._age_bound_ns:
            request.aged_at_ns = now + self._age_bound_ns
        if request.slo.ttft_ns and self._policy.by_promise:
            # 0 says that nothing was promised; a moment sooner changes nothing.
            request.latest_start_ns = (now + request.slo.ttft_ns - int(self.prefill_ns(request.prompt_tokens))) or -1

    def gives_up_at_ns(self, request: Request) -> int | None:
        """When it has waited out its time, or could not meet its limit any more if it started then; None for never."""
        ends = []
        if self._queue_timeout_ns:
            ends.append(request.arrival_ns + self._queue_timeout_ns)
        if request.slo.ttft_limit_ns:
            prefill_ns = int(self.prefill_ns(request.prompt_tokens))
            ends.append(request.arrival_ns + request.slo.ttft_limit_ns - prefill_ns)
        return min(ends, default=None)
