"""`Scheduler`: decides what one engine's next step carries.

`plan(now)` gives the next `Step`, `commit(step, outcome, now)` the events that follow from it.

It holds running and preempted sequences and has no waiting room: it pulls from the `Front` what it can start.
Only `plan` allocates blocks; blocks used by a step in flight are freed only by its `commit`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from headway.core.kv import KvPool
from headway.core.request import Reason, Request, RequestId, State, Times, Usage, move
from headway.core.step import Begin, Outcome, Row, RowResult, Step, TokenLogprob

# Called with a predicate and `now`; returns a request that satisfies it, taken out of the waiting room, or None.
Pull = Callable[[Callable[[Request], bool], int], Request | None]


class BrokenOutcome(ValueError):
    """An executor answered something else than what it was asked: it is not to be trusted any more."""


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """The limits of one step. A chunk that does not finish its prompt ends at a multiple of `chunk_multiple_tokens`."""

    max_num_seqs: int
    max_num_batched_tokens: int
    chunk_multiple_tokens: int = 1

    def __post_init__(self) -> None:
        least = max(self.max_num_seqs, self.chunk_multiple_tokens)
        if self.max_num_seqs < 1 or self.max_num_batched_tokens < least:
            raise ValueError(
                f"max_num_seqs is {self.max_num_seqs} and must be at least 1; max_num_batched_tokens is "
                f"{self.max_num_batched_tokens} and must be at least {least}, so that every running sequence can decode"
            )


class Sequence:
    """A started request: its tokens, how many of them are resident in KV, and where."""

    __slots__ = ("blocks", "cancelled", "computed", "handle", "in_flight", "known", "request", "times", "tokens")

    def __init__(self, handle: int, request: Request, now: int) -> None:
        self.handle = handle
        self.request = request
        self.tokens = list(request.prompt)  # prompt, then output
        self.computed = 0  # tokens whose KV is resident
        self.blocks: list[int] = []
        self.known = False  # the executor has its `Begin`
        self.in_flight = False  # a planned step that is not committed holds a row of it
        self.cancelled = False  # to be ended by the commit of the step in flight
        self.times = Times(arrival_ns=request.arrival_ns, started_ns=now)

    @property
    def output_tokens(self) -> int:
        return len(self.tokens) - self.request.prompt_tokens

    @property
    def remaining(self) -> int:
        """Tokens that must be fed before the next one can be drawn: 1 while decoding."""
        return len(self.tokens) - self.computed


@dataclass(frozen=True, slots=True)
class Produced:
    """New tokens of a request, in order."""

    request: Request
    tokens: list[int]
    logprobs: list[TokenLogprob] | None


@dataclass(frozen=True, slots=True)
class Ended:
    """The one terminal event of a started request. `reason` is set when `state` is FINISHED."""

    request: Request
    state: State
    reason: Reason | None
    usage: Usage
    times: Times


Event = Produced | Ended


@dataclass(slots=True)
class Counters:
    """Totals since start. Seconds are what the executor reported; a mixed step's are split by its tokens."""

    steps: int = 0
    prefill_tokens: int = 0
    decode_tokens: int = 0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    preemptions: int = 0
    recomputed_tokens: int = 0
    ended: dict[str, int] = field(default_factory=dict)  # by finish reason, or by state where there is none


class Scheduler:
    """One engine's running sequences. `running` is in order of start, oldest first."""

    def __init__(self, limits: SchedulerLimits, pool: KvPool, pull: Pull) -> None:
        self.limits = limits
        self.pool = pool
        self.pull = pull
        self.running: list[Sequence] = []
        self.preempted: list[Sequence] = []  # oldest first; readmitted before anything new is pulled
        self.counters = Counters()
        self._sequences: dict[RequestId, Sequence] = {}
        self._by_handle: dict[int, Sequence] = {}
        self._next_handle = 0
        self._next_step = 0
        self._dropped: list[int] = []
        self._in_flight: Step | None = None

    @property
    def busy(self) -> bool:
        return bool(self._sequences)

    @property
    def kv_tokens(self) -> int:
        """Tokens resident in KV."""
        return sum(seq.computed for seq in self.running)

    def check(self, step: Step, outcome: Outcome) -> None:
        """Raises `BrokenOutcome` when `outcome` does not answer `step` row by row. Whoever reads it first checks it."""
        _match(step, outcome)

    def request(self, handle: int) -> Request:
        """The request behind a row of the step in flight."""
        return self._by_handle[handle].request

    def plan(self, now: int) -> Step | None:
        """The next step, or None when there is nothing to compute. The last step must be committed first."""
        assert self._in_flight is None, "plan() before the last step was committed"
        draft = _Draft(self.limits.max_num_batched_tokens)
        self._plan_decode(draft)
        self._plan_prefill(draft)
        if self.preempted:
            self._readmit(draft)
        if not self.preempted:
            self._start(draft, now)
        if not draft.rows:
            return None
        return self._take_off(draft)

    def commit(self, step: Step, outcome: Outcome, now: int) -> list[Event]:
        """Apply what the executor computed for the step in flight.

        Raises `BrokenOutcome`, with nothing applied, when the outcome does not answer the step row by row.
        """
        assert self._in_flight is step, "commit() of a step that is not in flight"
        results = _match(step, outcome)
        self._in_flight = None
        self._count(step, outcome)
        events: list[Event] = []
        for row in step.rows:
            seq = self._by_handle[row.seq]
            seq.in_flight = False
            seq.computed += len(row.tokens)
            if seq.cancelled:
                events.append(self._end(seq, State.CANCELLED, None, now))
            elif row.samples:
                self._apply(seq, results[row.seq], now, events)
        return events

    def cancel(self, request_id: RequestId, now: int) -> list[Event]:
        """End a request as soon as no step in flight uses its blocks. Unknown ids are ignored: it may have ended."""
        seq = self._sequences.get(request_id)
        if seq is None:
            return []
        if seq.in_flight:
            seq.cancelled = True  # its terminal event comes with the commit
            return []
        return [self._end(seq, State.CANCELLED, None, now)]

    def abort(self, now: int) -> list[Event]:
        """The executor lost everything: every sequence fails, and the KV cache is empty again."""
        self._in_flight = None
        events: list[Event] = []
        for seq in list(self._sequences.values()):
            seq.known = False
            seq.in_flight = False
            state = State.CANCELLED if seq.cancelled else State.FAILED
            events.append(self._end(seq, state, None, now))
        self._dropped.clear()  # a new executor knows nobody
        return events

    # -- planning ------------------------------------------------------------------------------------------------

    def _plan_decode(self, draft: _Draft) -> None:
        """One token for every decoding sequence, oldest first, so that who must yield KV is always younger."""
        for seq in self.running[:]:
            if seq.request.state is not State.DECODE:
                continue
            while not self.pool.grow(seq.blocks, len(seq.tokens)):
                victim = self.running[-1]
                self._preempt(victim)
                if victim is seq:
                    break
            else:
                draft.add(seq, seq.remaining, samples=True)

    def _plan_prefill(self, draft: _Draft) -> None:
        """Chunks for prompts already begun, oldest first, from what decode left of the budget."""
        for seq in self.running[:]:
            if seq.request.state is not State.PREFILL:
                continue
            self._add_chunk(seq, draft)
            # Prompts that hold all KV between them and cannot go on would wait for each other for ever.
            while not draft.rows and self.running[-1] is not seq:
                self._preempt(self.running[-1])
                self._add_chunk(seq, draft)

    def _readmit(self, draft: _Draft) -> None:
        while self.preempted and self._has_room(len(self.preempted[0].tokens), draft):
            seq = self.preempted.pop(0)
            seq.request.state = move(seq.request.state, State.PREFILL)
            self._enter(seq)
            self._add_chunk(seq, draft)

    def _start(self, draft: _Draft, now: int) -> None:
        """Pull new requests while a slot, KV for the whole prompt and budget remain."""

        def accepts(request: Request) -> bool:
            return self._has_room(request.prompt_tokens, draft)

        while draft.budget > 0 and (request := self.pull(accepts, now)) is not None:
            self._next_handle += 1
            seq = Sequence(self._next_handle, request, now)
            request.state = move(request.state, State.PREFILL)
            self._sequences[request.id] = self._by_handle[seq.handle] = seq
            self._enter(seq)
            self._add_chunk(seq, draft)

    def _enter(self, seq: Sequence) -> None:
        """Into `running`, by age: a readmitted sequence is older than those that started while it was out."""
        at = len(self.running)
        while at and self.running[at - 1].handle > seq.handle:
            at -= 1
        self.running.insert(at, seq)

    def _has_room(self, tokens: int, draft: _Draft) -> bool:
        """Can a sequence with `tokens` tokens to feed start now without taking KV that begun prompts still need?"""
        if draft.budget <= 0 or len(self.running) >= self.limits.max_num_seqs:
            return False
        # One token beyond the prompt: the first decode must not need a preemption.
        wanted = self.pool.blocks_for(tokens + 1)
        promised = sum(
            self.pool.blocks_for(len(seq.tokens) + 1) - len(seq.blocks)
            for seq in self.running
            if seq.request.state is State.PREFILL
        )
        return wanted + promised <= self.pool.free_blocks

    def _add_chunk(self, seq: Sequence, draft: _Draft) -> None:
        """Feed as much of what remains as budget, KV and alignment allow; maybe nothing."""
        room = (len(seq.blocks) + self.pool.free_blocks) * self.pool.block_size
        end = min(len(seq.tokens), seq.computed + draft.budget, room)
        if end < len(seq.tokens):
            end -= end % self.limits.chunk_multiple_tokens
        if end <= seq.computed:
            return
        grown = self.pool.grow(seq.blocks, end)
        assert grown, "the chunk was cut to what the pool has"
        draft.add(seq, end - seq.computed, samples=end == len(seq.tokens))

    def _preempt(self, seq: Sequence) -> None:
        """Give a running sequence's KV back; its tokens are fed again when it is readmitted."""
        self.running.remove(seq)
        self.pool.release(seq.blocks)
        self.counters.preemptions += 1
        self.counters.recomputed_tokens += seq.computed
        seq.computed = 0
        seq.request.state = move(seq.request.state, State.PREEMPTED)
        self.preempted.append(seq)
        self.preempted.sort(key=lambda waiting: waiting.handle)

    def _take_off(self, draft: _Draft) -> Step:
        self._next_step += 1
        step = Step(
            id=self._next_step,
            rows=draft.rows,
            prefill_tokens=draft.prefill_tokens,
            decode_tokens=draft.decode_tokens,
            context_tokens=draft.context_tokens,
            dropped=self._dropped,
        )
        self._dropped = []
        self._in_flight = step
        return step

    # -- committing ----------------------------------------------------------------------------------------------

    def _apply(self, seq: Sequence, result: RowResult, now: int, events: list[Event]) -> None:
        if not seq.times.first_token_ns:
            seq.times.first_token_ns = now
        if seq.request.state is State.PREFILL:
            seq.request.state = move(seq.request.state, State.DECODE)
        seq.tokens.extend(result.tokens)
        events.append(Produced(seq.request, result.tokens, result.logprobs))
        if result.ended is not None:
            events.append(self._end(seq, State.FINISHED, result.ended, now))

    def _end(self, seq: Sequence, state: State, reason: Reason | None, now: int) -> Ended:
        request = seq.request
        (self.preempted if request.state is State.PREEMPTED else self.running).remove(seq)
        del self._sequences[request.id], self._by_handle[seq.handle]
        self.pool.release(seq.blocks)
        if seq.known:
            self._dropped.append(seq.handle)
        request.state = move(request.state, state)
        seq.times.ended_ns = now
        label = reason.value if reason is not None else state.value
        self.counters.ended[label] = self.counters.ended.get(label, 0) + 1
        return Ended(request, state, reason, Usage(request.prompt_tokens, seq.output_tokens), seq.times)

    def _count(self, step: Step, outcome: Outcome) -> None:
        counters = self.counters
        counters.steps += 1
        counters.prefill_tokens += step.prefill_tokens
        counters.decode_tokens += step.decode_tokens
        prefill_share = step.prefill_tokens / step.tokens
        counters.prefill_seconds += outcome.seconds * prefill_share
        counters.decode_seconds += outcome.seconds * (1.0 - prefill_share)


class _Draft:
    """A step while it is being planned: rows so far and budget left."""

    __slots__ = ("budget", "context_tokens", "decode_tokens", "prefill_tokens", "rows")

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.rows: list[Row] = []
        self.prefill_tokens = 0
        self.decode_tokens = 0
        self.context_tokens = 0

    def add(self, seq: Sequence, tokens: int, *, samples: bool) -> None:
        request = seq.request
        begin = None
        if not seq.known:
            begin = Begin(request.params, request.prompt, request.max_tokens)
            seq.known = True
        start = seq.computed
        self.rows.append(Row(seq.handle, start, seq.tokens[start : start + tokens], seq.blocks, samples, begin))
        seq.in_flight = True
        self.budget -= tokens
        if request.state is State.DECODE:
            self.decode_tokens += tokens
            self.context_tokens += start
        else:
            self.prefill_tokens += tokens


def _match(step: Step, outcome: Outcome) -> dict[int, RowResult]:
    """Results by handle, once they are known to answer exactly the sampling rows of `step`."""
    if outcome.step_id != step.id:
        raise BrokenOutcome(f"the outcome answers step {outcome.step_id}, not step {step.id}")
    expected = [row.seq for row in step.rows if row.samples]
    given = [result.seq for result in outcome.results]
    if given != expected:
        raise BrokenOutcome(f"step {step.id} sampled for sequences {expected}, the outcome holds {given}")
    for result in outcome.results:
        if not result.tokens:
            raise BrokenOutcome(f"step {step.id} produced no token for sequence {result.seq}")
    return {result.seq: result for result in outcome.results}
