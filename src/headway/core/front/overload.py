"""`Overload`: how much too much there is, and what is done about it."""

from __future__ import annotations

from collections.abc import Mapping

from headway.core.decisions import Decision, Listener
from headway.core.fleet.fleet import Fleet
from headway.core.front.admission import Admission
from headway.core.front.ladder import Ladder, Level, LevelChange, Mode, Pressure
from headway.core.front.replicas import ANY_NUMBER, ReplicaLimits, Replicas
from headway.core.front.tenants import TenantLimits
from headway.core.front.treatment import Asked, Degradation, Treatment, treat
from headway.core.request import Request

# Over how long it is measured: what each of these intervals leaves of those before it.
INTERVAL_NS = 1_000_000_000
REMEMBERED = 0.6
PROMPT_RATE = 0.05
# What each look of the ladder leaves of the promises kept and broken before it; of so few nothing is concluded.
KEPT_REMEMBERED = 0.9
FEW = 4.0


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


class PromisesKept:
    """Which part of the promises lately was kept: what the ladder sees of them.

    A promise counts when it is decided: lost in the waiting room when that is found, else when its request ends. What
    is served of the lost ones afterwards tells of a load that may be over.
    """

    __slots__ = ("_ended", "_kept", "_relegations")

    def __init__(self) -> None:
        self._ended = self._kept = 0.0
        self._relegations = 0

    def ended(self, request: Request, sent_ns: int, *, kept: bool) -> None:
        """A request that was promised something, and sent to a worker at `sent_ns`, has ended."""
        if request.latest_start_ns and request.latest_start_ns < sent_ns:
            return  # it was lost before, and counted then
        self._ended += 1
        self._kept += kept

    def ratio(self, relegations: int) -> float | None:
        """`relegations`: promises found lost in the waiting room, since the start. None while there are few of all.

        Ask once for each look of the ladder: what was before it counts less each time.
        """
        self._ended += relegations - self._relegations
        self._relegations = relegations
        ratio = self._kept / self._ended if self._ended >= FEW else None
        self._ended *= KEPT_REMEMBERED
        self._kept *= KEPT_REMEMBERED
        return ratio


class Overload:
    """One front's. `degradation` says what each level does."""

    def __init__(
        self, degradation: Degradation, replicas: ReplicaLimits = ANY_NUMBER, listener: Listener | None = None
    ) -> None:
        self.degradation = degradation
        self.replicas = Replicas(replicas)
        self.ladder = Ladder()
        self.demand = Demand()
        self._listener = listener

    def treat(self, asked: Asked, limits: TenantLimits, admission: Admission) -> Treatment:
        """What becomes of a request at the door. Raises what `treatment.treat` raises."""
        most = admission.limits.max_model_len
        return treat(asked, self.ladder, self.degradation, limits, most, retry_after_s=admission.retry_after_s)

    def adapt(
        self, admission: Admission, now: int, *, kv_used_ratio: float | None, slo_met_ratio: float | None
    ) -> list[LevelChange]:
        """Let the ladder follow the load."""
        limits = admission.limits
        by_count = admission.waiting / limits.max_waiting
        by_tokens = admission.waiting_tokens / limits.max_waiting_tokens
        demand_ratio = self.demand.ratio(now, admission.drain_tokens_per_ns)
        pressure = Pressure(max(by_count, by_tokens), kv_used_ratio, slo_met_ratio, demand_ratio)
        return self._tell(self.ladder.step(pressure, now), now)

    def set_levels(self, modes: Mapping[Level, Mode], now: int) -> list[LevelChange]:
        """Pin levels on or off, or leave them to the load again."""
        return self._tell(self.ladder.set_modes(modes), now)

    def resize(self, fleet: Fleet, now: int) -> None:
        """After the ladder was stepped: how many workers there should be."""
        ladder, replicas = self.ladder, self.replicas
        last = Level.SHORTEN_CONTEXT
        changed = replicas.look(
            now,
            up=fleet.up(now),
            busy=fleet.busy(),
            demand_ratio=ladder.pressure.demand_ratio,
            calm=not ladder.height,
            overloaded=ladder.height >= last and ladder.active(last),
        )
        if changed and self._listener is not None:
            self._listener(Decision(now, "replicas", "", str(replicas.desired), {"up": replicas.up}))

    def _tell(self, changes: list[LevelChange], now: int) -> list[LevelChange]:
        if self._listener is not None:
            for change in changes:
                why = f"{change.level.name.lower()}: {'on' if change.active else 'off'}"
                self._listener(Decision(now, "ladder", "", why, {"height": change.height}))
        return changes
