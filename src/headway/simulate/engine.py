"""`VirtualEngine`: one worker on virtual time: a scheduler, its executor, and until when it is busy."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping

from headway.core.front.front import Front
from headway.core.lanes import Accepts, Fit
from headway.core.pace import StepTimeModel
from headway.core.request import Request, RequestId, State
from headway.core.scheduler.base import SchedulerBase
from headway.core.scheduler.kv import KvPool
from headway.core.scheduler.scheduler import Scheduler
from headway.core.scheduler.sequence import Event
from headway.core.scheduler.static import StaticScheduler
from headway.core.scheduler.step import Outcome, Step
from headway.executors.simulated import SimulatedConfig, SimulatedExecutor
from headway.simulate.run import Reach, RowRecord, StepRecord
from headway.simulate.settings import VirtualWorker


class VirtualEngine:
    """Computes a step at once and has it until the step's cost has passed. `outputs`: tokens that requests produce.

    One that plans ahead has planned a step before the one under way began: it does not see who came since.
    """

    def __init__(
        self,
        number: int,
        worker: VirtualWorker,
        front: Front,
        outputs: Mapping[RequestId, int],
        *,
        keeps_kv: bool,
    ) -> None:
        self.number = number
        self.cost = worker.cost
        pool = KvPool(worker.num_blocks, worker.block_size, prefix_cache=worker.prefix_cache)
        model = StepTimeModel(worker.step_time, frozen=True)
        self._arrived_ns = -1  # when somebody came last
        self._front = front
        self._plans_ahead = worker.plans_ahead
        self._sees_until_ns = 0
        pull = self._pull if worker.plans_ahead else front.pull
        self.scheduler: SchedulerBase
        if worker.batching is not None:
            self.scheduler = StaticScheduler(worker.limits, pool, pull, model=model, batching=worker.batching)
        else:
            self.scheduler = Scheduler(worker.limits, pool, pull, model=model, policy=worker.policy)
        self.executor = SimulatedExecutor(
            SimulatedConfig(
                cost=worker.cost,
                clock="virtual",
                block_size=worker.block_size,
                num_blocks=worker.num_blocks,
                chunk_multiple_tokens=worker.limits.chunk_multiple_tokens,
                keeps_kv=keeps_kv,
            )
        )
        self.ends_ns: int | None = None  # of the step in flight
        self.reach = Reach()
        # Since the start: between tokens of one sequence, and how many times.
        self.gap_ns = self.gaps = 0
        self._outputs = outputs
        self._in_flight: tuple[Step, Outcome, int] | None = None
        self._last: tuple[Step, int] | None = None  # the step that was committed last, and for how many it stood

    def arrived(self, now: int) -> None:
        """Somebody waits since `now` whom it may pull."""
        self._arrived_ns = now

    def begin_step(self, now: int, most_steps: int) -> bool:
        """Plan and compute. False when there is nothing to do."""
        step = self.scheduler.plan(now, most_steps=1 if self._overlooks else most_steps)
        if step is None and self._overlooks:
            self._sees_until_ns = now  # with nothing to compute there is nothing to be ahead of
            step = self.scheduler.plan(now)
        if step is None:
            return False
        for row in step.rows if step.prefill_tokens else ():
            if row.begin is not None:
                self.executor.end_after(row.seq, self._outputs[self.scheduler.request(row.seq).id])
        outcome = self.executor.run(step)
        steps = len(outcome.results[0].tokens) if step.repeat > 1 else 1
        self.ends_ns = now + self.cost.of_repeat(step, steps)
        self._in_flight = step, outcome, steps
        self.reach.met(step.shape, steps)
        return True

    def end_step(self, log: list[StepRecord] | None) -> list[Event]:
        """Commit the step in flight, at its end."""
        assert self._in_flight is not None
        assert self.ends_ns is not None
        step, outcome, steps = self._in_flight
        if log is not None:
            log.append(self._record(step, steps, self.ends_ns))
        self.gap_ns += step.decode_tokens * (self.ends_ns - step.planned_ns)
        self.gaps += step.decode_tokens * steps
        events = self.scheduler.commit(step, outcome, self.ends_ns)
        self._last = step, steps
        self._in_flight = self.ends_ns = None
        self._sees_until_ns = step.planned_ns
        return events

    @property
    def _overlooks(self) -> bool:
        """Has somebody come whom the next plan will not see?"""
        return self._plans_ahead and self._arrived_ns > self._sees_until_ns

    def _pull(self, accepts: Accepts, now: int) -> Request | None:
        def seen(request: Request) -> Fit:
            return accepts(request) if request.arrival_ns <= self._sees_until_ns else Fit.OTHER

        return self._front.pull(seen, now)

    def token_times_ns(self) -> list[int]:
        """When the steps that were committed last ended, of which each yielded a token of each sequence."""
        if self._last is None:
            return []
        step, steps = self._last
        return [step.planned_ns + self.cost.of_repeat(step, done) for done in range(1, steps + 1)]

    def certain_steps(self, now: int, until_ns: int) -> int:
        """How many decode steps surely end no sequence, but for the last, and all before `until_ns`; at least 1.

        Here the world says when outputs end. The core only hears that so many steps may be taken at once.
        """
        running = self.scheduler.running
        if not running or any(seq.request.state is State.PREFILL for seq in reversed(running)):
            return 1
        # When one that lost its KV has aged, those who wait may start sooner or later than it.
        ageing = [at_ns for seq in self.scheduler.preempted if (at_ns := seq.request.aged_at_ns) > now]
        within_ns = min(until_ns, *ageing) - now - 1 if ageing else until_ns - now - 1
        steps = min(self._outputs[seq.request.id] - seq.output_tokens for seq in running)
        context = self.scheduler.kv_tokens

        def ends_ns(steps: int) -> int:
            return self.cost.of_decode(len(running), context, steps)

        if ends_ns(steps) <= within_ns:
            return max(1, steps)
        return max(1, bisect_right(range(1, steps + 1), within_ns, key=ends_ns))

    def _record(self, step: Step, steps: int, ended_ns: int) -> StepRecord:
        return StepRecord(
            self.number,
            step.planned_ns,
            ended_ns,
            steps,
            step.prefill_tokens,
            step.decode_tokens,
            step.context_tokens,
            step.pad_tokens,
            tuple(RowRecord(row.seq, row.start, len(row.tokens), row.samples) for row in step.rows),
        )
