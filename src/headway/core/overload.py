"""`Overload`: how much too much there is, and what is done about it."""

from __future__ import annotations

from headway.core.admission import Admission
from headway.core.ladder import Ladder, Pressure
from headway.core.tenants import TenantLimits
from headway.core.treatment import Asked, Degradation, Treatment, treat

# Over how long it is measured: what each of these intervals leaves of those before it.
INTERVAL_NS = 1_000_000_000
REMEMBERED = 0.6
PROMPT_RATE = 0.05


class Demand:
    """How much is asked of the service, whether it is let in or not, over what it drains.

    In prompt tokens, as the drain rate is. A refusal at the door counts as a usual prompt: nobody has read it.
    """

    __slots__ = ("_elapsed_ns", "_since_ns", "_tokens", "_usual_tokens")

    def __init__(self) -> None:
        self._tokens = 0.0
        self._elapsed_ns = 0.0
        self._since_ns: int | None = None
        self._usual_tokens = 0.0

    def offered(self, count: int, prompt_tokens: int | None) -> None:
        """So many requests were asked for, with so many prompt tokens together, if that is known."""
        if prompt_tokens is None:
            prompt_tokens = round(count * self._usual_tokens)
        else:
            usual = prompt_tokens / count
            self._usual_tokens += (usual - self._usual_tokens) * (PROMPT_RATE if self._usual_tokens else 1.0)
        self._tokens += prompt_tokens

    def ratio(self, now: int, drain_tokens_per_ns: float) -> float | None:
        """None before both are known."""
        if self._since_ns is None:
            self._since_ns = now
        elapsed_ns = self._elapsed_ns + now - self._since_ns
        if elapsed_ns < INTERVAL_NS or not drain_tokens_per_ns:
            return None
        ratio = self._tokens / elapsed_ns / drain_tokens_per_ns
        if now - self._since_ns >= INTERVAL_NS:
            self._tokens *= REMEMBERED
            self._elapsed_ns = elapsed_ns * REMEMBERED
            self._since_ns = now
        return ratio


class Overload:
    """One front's. `degradation` says what each level does."""

    def __init__(self, degradation: Degradation) -> None:
        self.degradation = degradation
        self.ladder = Ladder()
        self.demand = Demand()

    def treat(self, asked: Asked, limits: TenantLimits, admission: Admission) -> Treatment:
        """What becomes of a request at the door. Raises what `treatment.treat` raises."""
        most, retry_after_s = admission.limits.max_model_len, admission.retry_after_s()
        return treat(asked, self.ladder, self.degradation, limits, most, retry_after_s=retry_after_s)

    def pressure(
        self, admission: Admission, now: int, kv_used_ratio: float | None, slo_met_ratio: float | None
    ) -> Pressure:
        limits = admission.limits
        by_count = admission.waiting / limits.max_waiting
        by_tokens = admission.waiting_tokens / limits.max_waiting_tokens
        demand_ratio = self.demand.ratio(now, admission.drain_tokens_per_ns)
        return Pressure(max(by_count, by_tokens), kv_used_ratio, slo_met_ratio, demand_ratio)
