"""`VirtualServer`: a worker behind a gateway: a queue, an engine that pulls from it, and what it says of its load."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as ReadOnlySequence

from headway.core.fleet.worker import WorkerLoad
from headway.core.front.admission import AdmissionLimits
from headway.core.front.front import Front, FrontLimits
from headway.core.pace import StepTimeModel
from headway.core.request import NO_SLO, Request, RequestId, Slo
from headway.core.scheduler.sequence import Ended, Event
from headway.metrics.worker_signals import Meter, Sample, Total
from headway.simulate.engine import VirtualEngine
from headway.simulate.settings import NO_LIMIT, VirtualWorker


class VirtualServer:
    """It takes whatever it is sent, as far as it could ever hold it, and serves by its own policy.

    What it is told of a request is what a gateway passes on: not whose it is, and promises only where they mean
    anything to it.
    """

    def __init__(self, number: int, worker: VirtualWorker, outputs: Mapping[RequestId, int], *, keeps_kv: bool) -> None:
        capacity = worker.capacity_tokens
        self._by_promise = worker.policy.by_promise
        self._front = Front(
            AdmissionLimits(capacity, capacity, max_waiting=NO_LIMIT, max_waiting_tokens=NO_LIMIT),
            FrontLimits() if self._by_promise else FrontLimits(age_bound_ns=0),
            model=StepTimeModel(worker.step_time, frozen=True),
            policy=worker.policy,
        )
        self.engine = VirtualEngine(number, worker, self._front, outputs, keeps_kv=keeps_kv)
        self._meter = Meter()
        self._arrived_ns: dict[RequestId, int] = {}  # of those without a first token
        self._ttft_ns = self._first_tokens = 0

    @property
    def waiting(self) -> int:
        """In its queue."""
        return len(self._front.lanes)

    @property
    def stands_until_ns(self) -> int:
        """Until when those in its queue stand as they do of themselves."""
        return min(self._front.give_up.next_ns, self._front.lanes.stands_until_ns)

    @property
    def queued(self) -> int:
        """In its queue, or thrown out of KV."""
        return self.waiting + len(self.engine.scheduler.preempted)

    def take(self, request: Request, now: int) -> None:
        """It came in. Raises the `HeadwayError` of what could never be served."""
        slo = request.slo
        copy = Request(
            request.id,
            request.prompt,
            request.max_tokens,
            params=request.params,
            priority=request.priority if self._by_promise else 0,
            slo=Slo(slo.ttft_ns, slo.itl_ns) if self._by_promise else NO_SLO,
            cache_scope=request.cache_scope,
        )
        self._front.submit(copy, now)
        self.engine.arrived(now)
        self._arrived_ns[request.id] = now

    def output_tokens(self, request_id: RequestId) -> int:
        """So many it has sent of an answer."""
        seq = self.engine.scheduler.residents.by_id.get(request_id)
        return seq.output_tokens if seq is not None else 0

    def cancel(self, request_id: RequestId, now: int) -> ReadOnlySequence[Event]:
        """Its client has gone."""
        self._arrived_ns.pop(request_id, None)
        if self._front.cancel(request_id, now):
            return ()
        return self.engine.scheduler.cancel(request_id, now)

    def began(self, request_id: RequestId, now: int) -> None:
        """A first token was made."""
        self._ttft_ns += now - self._arrived_ns.pop(request_id)
        self._first_tokens += 1

    def settle(self, event: Ended, now: int) -> None:
        """A request has ended in the engine."""
        self._arrived_ns.pop(event.request.id, None)
        self._front.settle(event.request.id, event.usage, now)

    def load(self, now: int) -> WorkerLoad:
        """What it would say if it were asked now, as a gateway reads it."""
        scheduler, engine = self.engine.scheduler, self.engine
        counters, pool = scheduler.counters, scheduler.pool
        told = Sample(
            "headway",
            {
                "running": float(len(scheduler.running)),
                "waiting": float(self.queued),
                "kv_used_ratio": pool.used_blocks / pool.num_blocks,
                "kv_capacity_tokens": float(pool.capacity_tokens),
            },
            totals={
                "batch_tokens": Total(float(counters.prefill_tokens + counters.decode_tokens), float(counters.steps)),
                "ttft_s": Total(self._ttft_ns / 1e9, float(self._first_tokens)),
                "itl_s": Total(engine.gap_ns / 1e9, float(engine.gaps)),
            },
        )
        return WorkerLoad.at(now, **self._meter.feed(told, now))
