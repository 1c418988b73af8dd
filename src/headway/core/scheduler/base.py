"""`SchedulerBase`: what every scheduler does with a step once it is planned: commit it, and end what ends.

A scheduler is this and a `plan`: `Scheduler` fills steps continuously, `StaticScheduler` in fixed batches.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from headway.core.decisions import Decision, Listener, ignore
from headway.core.errors import EngineFailed, HeadwayError
from headway.core.lanes import Pull
from headway.core.pace import StepTimeModel
from headway.core.request import Reason, Request, RequestId, State, move
from headway.core.scheduler.draft import Draft
from headway.core.scheduler.kv import KvPool
from headway.core.scheduler.leap import Leap
from headway.core.scheduler.limits import Counters, SchedulerLimits
from headway.core.scheduler.residents import Residents
from headway.core.scheduler.sequence import Ended, Event, Produced, Sequence
from headway.core.scheduler.step import Outcome, Row, RowResult, Step, answers

# A plan so soon after a commit follows from it: what lies between (telling tokens, serving clients) is the step's cost.
SAME_BREATH_NS = 5_000_000


class SchedulerBase(ABC):
    """One engine's running sequences. `running` is in order of start, oldest first."""

    def __init__(
        self, limits: SchedulerLimits, pool: KvPool, pull: Pull, *, model: StepTimeModel, listener: Listener = ignore
    ) -> None:
        self.limits = limits
        self.pool = pool
        self.pull = pull
        self.model = model
        self.residents = Residents(pool)
        self.counters = Counters()
        self.wake_ns: int | None = None  # after a plan of nothing: when to ask again though nobody came or left
        self._listener = listener
        self._next_step = 0
        self._dropped: list[int] = []
        self._due: list[Event] = []  # ends decided by plan(), told by commit()
        self._in_flight: Step | None = None
        self._committed_ns: int | None = None  # when the last step was
        self._leap_in_flight: Leap | None = None

    @abstractmethod
    def plan(self, now: int, *, most_steps: int = 1) -> Step | None:
        """The next step, or None when there is nothing to compute. The last step must be committed first."""

    @property
    def running(self) -> list[Sequence]:
        return self.residents.running

    @property
    def preempted(self) -> list[Sequence]:
        return self.residents.preempted

    @property
    def busy(self) -> bool:
        return bool(self.residents.by_id)

    @property
    def kv_tokens(self) -> int:
        """Tokens resident in KV, those of shared blocks counted for each holder."""
        return sum(seq.computed for seq in self.running)

    def commit(self, step: Step, outcome: Outcome, now: int) -> list[Event]:
        """Apply what the executor computed for the step in flight.

        Raises `BrokenOutcome`, with nothing applied, when the outcome does not answer the step row by row.
        """
        assert self._in_flight is step, "commit() of a step that is not in flight"
        results = answers(step, outcome)
        self._in_flight = None
        self.counters.count(step, outcome)
        if step.repeat == 1:  # what was leapt over has no time of its own to learn from
            real_ns = now - self._begun_ns(step)
            self.counters.predicted(self.model.coefficients.predict_ns(step.shape), real_ns)
            self.model.observe(step.shape, real_ns)
        self._committed_ns = now
        events, self._due = self._due, []
        if self._leap_in_flight is not None:
            self._leap_in_flight.land([result.tokens for result in outcome.results])
            self._leap_in_flight = None
        for row in step.rows:
            seq = self.residents.by_handle[row.seq]
            seq.in_flight = False
            result = next(results) if row.samples else None
            if result is not None and not seq.cancelled:
                self._apply(seq, row, result, now, events)
                continue
            seq.computed += len(row.tokens)
            self.pool.publish(seq.table, seq.tokens, seq.computed)
            if seq.cancelled:
                events.append(self._end(seq, State.CANCELLED, now))
        return events

    def _begun_ns(self, step: Step) -> int:
        """When the step began, as those who stream feel it: with the commit before it, if it followed at once."""
        before = self._committed_ns
        return before if before is not None and step.planned_ns - before < SAME_BREATH_NS else step.planned_ns

    def reconfigure(self, limits: SchedulerLimits) -> None:
        """Change limits, between commit and plan. Fewer slots drain: nobody loses the one it has."""
        assert self._in_flight is None, "reconfigure() while a step is in flight"
        self.limits = limits

    def check(self, step: Step, outcome: Outcome) -> None:
        """Raises `BrokenOutcome` when `outcome` does not answer `step` row by row. Whoever reads it first checks it."""
        answers(step, outcome)

    def request(self, handle: int) -> Request:
        """The request behind a row of the step in flight."""
        return self.residents.by_handle[handle].request

    def cancel(self, request_id: RequestId, now: int) -> list[Event]:
        """End a request as soon as no step in flight uses its blocks. Unknown ids are ignored: it may have ended."""
        seq = self.residents.by_id.get(request_id)
        if seq is None:
            return []
        if seq.in_flight:
            seq.cancelled = True  # its terminal event comes with the commit
            return []
        return [self._end(seq, State.CANCELLED, now)]

    def abort(self, now: int) -> list[Event]:
        """The executor lost everything: every sequence fails, and the KV cache is empty again."""
        self._in_flight = self._leap_in_flight = None
        events, self._due = self._due, []
        for seq in list(self.residents.by_id.values()):
            seq.known = False  # a new executor knows nobody
            seq.in_flight = False
            events.append(self._end(seq, State.CANCELLED if seq.cancelled else State.FAILED, now))
        self._dropped.clear()
        self.pool.forget()
        return events

    def _take_off(self, draft: Draft) -> Step:
        self._next_step += 1
        step = draft.step(self._next_step, self._dropped)
        self._dropped = []
        self._in_flight = step
        return step

    def _apply(self, seq: Sequence, row: Row, result: RowResult, now: int, events: list[Event]) -> None:
        if result.failed:
            events.append(self._end(seq, State.FAILED, now, error=EngineFailed(result.failed, code="row_failed")))
            return
        request, drawn = seq.request, result.tokens
        if request.state is State.PREFILL:
            request.state = move(request.state, State.DECODE)
            if not seq.times.first_token_ns:
                seq.times.first_token_ns = now
        seq.produce(drawn)
        full = seq.computed // self.pool.block_size
        seq.computed += len(row.tokens) + len(drawn) - 1  # of several tokens, all but the last were fed as well
        if seq.computed // self.pool.block_size > full:
            self.pool.publish(seq.table, seq.tokens, seq.computed)
        events.append(Produced(request, drawn, result.logprobs))
        if result.ended is not None:
            events.append(self._end(seq, State.FINISHED, now, reason=result.ended))

    def _end(
        self, seq: Sequence, state: State, now: int, *, reason: Reason | None = None, error: HeadwayError | None = None
    ) -> Ended:
        self.residents.remove(seq)
        if seq.known:
            self._dropped.append(seq.handle)
        seq.request.state = move(seq.request.state, state)
        seq.times.ended_ns = now
        label = reason.value if reason is not None else state.value
        self.counters.ended[label] = self.counters.ended.get(label, 0) + 1
        self._listener(Decision(now, "end", seq.request.id, label, {"output_tokens": seq.output_tokens}))
        return Ended(seq.request, state, reason, seq.usage, seq.times, error)
