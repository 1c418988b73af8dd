"""`Fleet`: the remote workers, who is in flight where, and where the next request may go."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headway.core.decisions import Decision, Listener
from headway.core.errors import ConfigError, NotFound, NoWorker
from headway.core.fleet.breaker import Trust
from headway.core.fleet.routing import Choice, choose, within_fair_share
from headway.core.fleet.shares import Shares
from headway.core.fleet.worker import Flight, WorkerLoad, WorkerSpec, WorkerState
from headway.core.lanes import Fit
from headway.core.request import Request, RequestId

# How much one request counts in what is typical of them.
TYPICAL_RATE = 0.05
# Of a window's tokens, while several tenants come: what one may fill that has more than its share in flight, and what
# the others may. The last tenth is for outputs that come longer than expected: a server that runs out of KV throws out
# the newest, which is whoever comes seldom.
BEYOND_RATIO = 0.7
WITHIN_RATIO = 0.9
NS_PER_S = 1_000_000_000


@dataclass(slots=True)
class Dispatch:
    """Send this request to that worker now."""

    request: Request
    worker: str
    choice: Choice


class Fleet:
    """Nobody decides here who goes next: only where to. `weight` tells a tenant's part of the workers' KV."""

    def __init__(self, listener: Listener | None = None, weight: Callable[[str], float] = lambda _: 1.0) -> None:
        self._listener = listener
        self.shares = Shares(weight)
        self.workers: dict[str, WorkerState] = {}
        self.flights: dict[RequestId, Flight] = {}
        self.typical_tokens = 0.0  # of a request; 0 before the first

    def add(self, spec: WorkerSpec, now: int) -> None:
        if spec.id in self.workers:
            raise ConfigError(f"Two workers are called {spec.id!r}.", param="worker")
        self.workers[spec.id] = WorkerState(spec)
        self._tell(spec.id, "added", now)

    def remove(self, worker_id: str, now: int) -> list[RequestId]:
        """It gets nothing more. Returns who is still there: they end as they end, or are `lost`."""
        worker = self.worker(worker_id)
        del self.workers[worker_id]
        self._tell(worker_id, "removed", now)
        return list(worker.flights)

    def drain(self, worker_id: str, now: int, *, draining: bool = True) -> None:
        """Send it nothing new; or, when not `draining`, let it have requests again."""
        self.worker(worker_id).draining = draining
        self._tell(worker_id, "drained" if draining else "undrained", now)

    def worker(self, worker_id: str) -> WorkerState:
        if worker_id not in self.workers:
            raise NotFound(f"There is no worker {worker_id!r}.")
        return self.workers[worker_id]

    def observe(self, worker_id: str, load: WorkerLoad, now: int) -> None:
        self.worker(worker_id).observe(load, now)

    def health(self, worker_id: str, now: int, *, well: bool) -> None:
        """What a health check found."""
        worker = self.worker(worker_id)
        before = self._trust(worker, now)
        if well:
            worker.breaker.is_back(now)
        else:
            worker.breaker.failed(now)
        self._tell_trust(worker, before, now)

    # -- where to ------------------------------------------------------------------------------------------------

    def check_up(self, request: Request, now: int) -> None:
        """Raises `NoWorker` when nobody that could serve `request` is up, `NotFound` when nobody serves its model."""
        for worker in self.workers.values():  # as nearly always somebody can
            able = worker.spec.pool == request.pool and not worker.draining and worker.serves(request.model)
            if able and worker.breaker.allows(now):
                return
        pool = self._pool(request)
        if self.workers and not pool:
            raise NotFound(f"No worker serves the model {request.model!r}.", param="model", code="model_not_found")
        usable = [worker for worker in pool if not worker.draining]
        for worker in usable:
            if worker.breaker.allows(now):
                return
        waits_ns = min((worker.breaker.retry_after_ns(now) for worker in usable), default=0)
        raise NoWorker(
            "No worker that could serve this request is up; they are tried again shortly.",
            retry_after_s=max(1.0, waits_ns / NS_PER_S),
        )

    def has_room(self, now: int) -> bool:
        """Could anybody be sent anywhere? Cheap: what a front asks before it looks for whose turn it is."""
        for worker in self.workers.values():
            if _has_room(worker) and worker.breaker.allows(now) and not worker.draining:
                return True
        return False

    def choose(self, request: Request, tried: tuple[str, ...], now: int) -> Choice | Fit:
        """Where `request` should go now; or what it waits for. Workers that were `tried` only when no other is up."""
        up = [worker for worker in self._pool(request) if not worker.draining and worker.breaker.allows(now)]
        fresh = [worker for worker in up if worker.spec.id not in tried] if tried else up
        able = fresh or up
        roomy = [worker for worker in able if _has_room(worker)]
        if not roomy:
            return Fit.OTHER if len(able) < len(up) else Fit.OTHER_KIND
        tokens = request.prompt_tokens
        part = self._part(request.tenant)
        fitting = []
        for worker in roomy:
            if worker.window.holds(worker.tokens, tokens, of=part):
                fitting.append(worker)
            else:
                worker.window.filled()
        if not fitting:
            return Fit.NO_KV
        if len(roomy) < len(able):
            fitting = self._within_share_of_all(fitting, able, tokens, now)
            if not fitting:
                return Fit.OTHER_KIND
        return choose(fitting, request, max(1.0, self.typical_tokens or request.prompt_tokens), now)

    def _part(self, tenant: str) -> float:
        """Of each window's tokens, what `tenant` may fill."""
        if not self.shares.several:
            return 1.0
        return BEYOND_RATIO if self.shares.beyond(tenant) else WITHIN_RATIO

    @staticmethod
    def _within_share_of_all(
        fitting: list[WorkerState], able: list[WorkerState], tokens: int, now: int
    ) -> list[WorkerState]:
        """Those of `fitting` that have no more than their share of the burst, beside workers that only read just now.

        Else whoever is not known to read, or reads fastest, would get all of it.
        """
        readers = [
            worker
            for worker in able
            if worker.reads
            and len(worker.flights) < int(worker.window.sequences)
            and worker.window.holds(worker.tokens, tokens)
        ]
        fair = within_fair_share([*fitting, *readers], now)
        return [worker for worker in fitting if worker in fair]

    def _pool(self, request: Request) -> list[WorkerState]:
        """Those that serve its model: of its pool, or of any when there is no such pool."""
        serving = [worker for worker in self.workers.values() if worker.serves(request.model)]
        return [worker for worker in serving if worker.spec.pool == request.pool] or serving

    # -- who is where --------------------------------------------------------------------------------------------

    def send(self, request: Request, worker_id: str, output_tokens: int, now: int) -> Flight:
        worker = self.workers[worker_id]
        before = self._trust(worker, now)
        flight = self.flights[request.id] = worker.send(request, output_tokens, now)
        tokens = request.prompt_tokens + output_tokens
        self.shares.sent(request.tenant, tokens)
        self.typical_tokens += (tokens - self.typical_tokens) * (TYPICAL_RATE if self.typical_tokens else 1.0)
        self._tell_trust(worker, before, now)
        return flight

    def began(self, request_id: RequestId, now: int) -> None:
        flight = self.flights[request_id]
        if not flight.began:
            before = self._trust(flight.worker, now)
            flight.worker.began(flight, now)
            self._tell_trust(flight.worker, before, now)

    def land(self, request: Request, now: int, *, output_tokens: int = 0, failed: bool = False) -> Flight | None:
        """It is nowhere any more, and has so many tokens of output. None when it was at no worker of ours."""
        flight = self.flights.pop(request.id, None)
        if flight is not None:
            before = self._trust(flight.worker, now)
            self.shares.landed(request.tenant, request.prompt_tokens + flight.output_tokens)
            flight.worker.land(request, output_tokens, now)
            if failed:
                flight.worker.breaker.failed(now)
            self._tell_trust(flight.worker, before, now)
        return flight

    # -- all of them together ------------------------------------------------------------------------------------

    @property
    def kv_capacity_tokens(self) -> int:
        """Of all workers together; 0 when one of them does not say."""
        signals = [worker.load.kv_capacity_tokens for worker in self.workers.values()]
        return sum(int(signal.value) if signal is not None else 0 for signal in signals) if all(signals) else 0

    def kv_used_ratio(self, now: int) -> float | None:
        """The mean over those that are known; None when none is."""
        known = [ratio for worker in self.workers.values() if (ratio := worker.kv_used_ratio(now)) is not None]
        return sum(known) / len(known) if known else None

    def up(self, now: int) -> int:
        """How many take requests."""
        return sum(1 for one in self.workers.values() if not one.draining and one.breaker.allows(now))

    def busy(self) -> float:
        """How many would be enough for what is in flight, if each were as full as its window."""
        return sum(min(1.0, len(one.flights) / max(1.0, one.window.sequences)) for one in self.workers.values())

    def first_token_ns(self, request: Request, prompt_tokens: float) -> float:
        """What a first token takes once it is sent where `request` may go, at the best; 0 before anything is known."""
        return min([worker.prompt_time.at(prompt_tokens) for worker in self._known(request)], default=0.0)

    def first_token_by_ns(self, request: Request) -> float:
        """In what time its first token comes nearly always, wherever it goes; 0 before anything is known."""
        tokens = request.prompt_tokens
        return max([one.prompt_time.at(tokens) + one.delay.most_ns for one in self._known(request)], default=0.0)

    def _known(self, request: Request) -> list[WorkerState]:
        """Where it may go soon, as far as first tokens have been seen. Other models tell nothing, nor who is down."""
        pool = self._pool(request)
        able = [worker for worker in pool if not worker.draining and worker.breaker.closed] or pool
        return [worker for worker in able if worker.prompt_time]

    def _tell(self, worker_id: str, what: str, now: int) -> None:
        if self._listener is not None:
            self._listener(Decision(now, "worker", "", f"{worker_id}: {what}"))

    def _trust(self, worker: WorkerState, now: int) -> Trust | None:
        """What to compare with in `_tell_trust`. None where nobody listens."""
        return worker.breaker.trust(now) if self._listener is not None else None

    def _tell_trust(self, worker: WorkerState, before: Trust | None, now: int) -> None:
        if self._listener is not None and (trust := worker.breaker.trust(now)) is not before:
            self._tell(worker.spec.id, trust.value, now)


def _has_room(worker: WorkerState) -> bool:
    """For one more, and nothing that keeps it from reading its prompt soon."""
    return not worker.reads and worker.window.open(len(worker.flights))
