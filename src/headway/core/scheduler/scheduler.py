"""`Scheduler`: decides what one engine's next step carries.

`plan(now)` gives the next `Step`, `commit(step, outcome, now)` the events that follow from it. It holds running and
preempted sequences and has no waiting room: it pulls from the `Front` what it can start. Only `plan` allocates blocks;
blocks used by a step in flight are freed only by its `commit`.

A step is filled in this order: a token for every sequence that streams; then prompts, as many tokens as the budget and
the ITL promise allow, in order of their TTFT slack, those already begun and those still waiting together.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence as ReadOnlySequence

from headway.core.decisions import Decision, Listener, ignore
from headway.core.errors import KvExhausted
from headway.core.lanes import Fit, Pull, Standing, standing
from headway.core.pace import Shape, StepTimeModel
from headway.core.request import BATCH, Request, State
from headway.core.scheduler.base import SchedulerBase
from headway.core.scheduler.draft import Draft
from headway.core.scheduler.kv import KvPool, Scope
from headway.core.scheduler.leap import Leap
from headway.core.scheduler.limits import SchedulerLimits
from headway.core.scheduler.policies import HEADWAY, Policy
from headway.core.scheduler.sequence import Sequence
from headway.core.scheduler.step import Step

# A prompt that was begun gets at least one block in this many steps, even when decode has no time to spare.
YIELD_EVERY = 4


class Scheduler(SchedulerBase):
    """Continuous batching: every step takes whom it can, and slots are refilled as soon as they are free."""

    def __init__(
        self,
        limits: SchedulerLimits,
        pool: KvPool,
        pull: Pull,
        *,
        model: StepTimeModel,
        policy: Policy = HEADWAY,
        listener: Listener = ignore,
    ) -> None:
        super().__init__(limits, pool, pull, model=model, listener=listener)
        self.policy = policy
        self._steps_without_prefill = 0  # while there was some to do

    def plan(self, now: int, *, most_steps: int = 1) -> Step | None:
        """The next step, or None when there is nothing to compute. The last step must be committed first.

        With `most_steps` above 1, as many equal decode steps as are certain to follow (`horizon`) may be one `Step`
        with `repeat`: nobody may arrive meanwhile, and those who wait must stand as they do now. Only a simulation can
        promise that.
        """
        assert self._in_flight is None, "plan() before the last step was committed"
        # Slots that drain after a reconfigure may be more than the budget: those who stream still get their token.
        draft = Draft(now, max(self.limits.max_num_batched_tokens, len(self.running)))
        if self.policy.decode_first:
            self._seat_priorities(draft)
            for seq in self.running[:]:
                if seq.request.state is State.DECODE:
                    self._feed_decode(seq, draft)
            self._pace(draft)
            self._feed_prompts(draft)
        else:
            self._feed_in_order(draft)
        if not draft.rows:
            return None
        if most_steps > 1:
            self._leap(draft, most_steps)
        return self._take_off(draft)

    # -- decode --------------------------------------------------------------------------------------------------

    def _feed_decode(self, seq: Sequence, draft: Draft) -> None:
        """If its KV holds another token, or can be made to."""
        tokens = seq.length
        if tokens <= len(seq.table.blocks) * self.pool.block_size or self._make_room(seq, tokens, draft):
            draft.add_decode(seq)

    def _make_room(self, seq: Sequence, tokens: int, draft: Draft) -> bool:
        """Blocks for `tokens` tokens of a running sequence, from a victim if need be. False when it was the victim."""
        while not self.residents.grow(seq, tokens):
            able = self.residents.able_to_yield()
            if not able:
                return False  # the oldest, beside those with blocks set aside: it waits where it is until one ends
            if self._take_kv(able, seq, draft) is seq:
                return False
        return True

    def _take_kv(self, able: list[Sequence], needy: Sequence, draft: Draft) -> Sequence:
        """Take a victim's KV, as `kv_full` and the policy say, and return the victim."""
        if self.limits.kv_full == "reject":
            victim = able[-1]
            self._reject(victim, draft)
        else:
            victim = self.policy.victim(able, draft.now)
            self._preempt(victim, draft, f"block for {needy.request.id}")
        return victim

    # -- leaps ---------------------------------------------------------------------------------------------------

    def horizon(self, most: int = 1 << 20) -> int:
        """How many coming steps are certain to repeat one shape, if nobody arrives, can start, or ends of itself.

        Everybody must be decoding. Then nothing changes until somebody reaches `max_tokens`, or needs a block that is
        not there.
        """
        if any(seq.request.state is not State.DECODE for seq in self.running):
            return 1
        steps = min((seq.request.max_tokens - seq.output_tokens for seq in self.running), default=1)
        most = max(1, min(most, steps))
        if self._blocks_short(most) <= 0:
            return most
        return max(1, bisect_left(range(1, most + 1), 1, key=self._blocks_short))  # the last that has its blocks

    def _blocks_short(self, steps: int) -> int:
        """How many blocks are missing for everybody to decode `steps` more tokens; committed ones have theirs."""
        pool = self.pool
        return (
            sum(
                max(0, pool.blocks_for(seq.length - 1 + steps) - len(seq.table.blocks))
                for seq in self.running
                if not seq.committed
            )
            - self.residents.free_blocks
        )

    def _leap(self, draft: Draft, most_steps: int) -> None:
        """Make the planned step stand for as many as are certain to be like it.

        Whoever could not start in it cannot in those either: decode takes blocks and time, and gives none back.
        """
        if draft.prefill_tokens or len(draft.rows) != len(self.running) or self._due:  # an end is told by this commit
            return
        if draft.preempted or not draft.repeatable:  # some policies start nobody in a step that preempted
            return
        if draft.refused and self.pool.may_find_more(draft.refused, [seq.table for seq in self.running]):
            return
        draft.repeat = self.horizon(most_steps)
        if draft.repeat > 1:
            self._leap_in_flight = Leap(self.residents, self.running, draft.repeat)

    # -- prefill -------------------------------------------------------------------------------------------------

    def _pace(self, draft: Draft) -> None:
        """How long prefill may take beside these decode rows; and what it is owed if that was nothing for too long."""
        if self.policy.paced and draft.itl_ns:
            draft.time_ns = draft.itl_ns / self.model.margin - self.model.coefficients.predict_ns(draft.shape)
        if self._steps_without_prefill < YIELD_EVERY - 1:
            return
        begun = next((seq for seq in self.running if seq.request.state is State.PREFILL), None)
        if begun is None:
            return  # it has left since
        draft.owed_tokens = max(self.pool.block_size, self.limits.chunk_multiple_tokens)
        if draft.time_ns <= 0:
            self._listener(Decision(draft.now, "yield", begun.request.id))

    def _feed_prompts(self, draft: Draft) -> None:
        """Prompts in order of urgency, waiting ones started where their turn comes."""
        draft.promised_blocks = self.residents.promised_blocks
        self._readmit(draft)
        begun = [seq for seq in self.running if seq.request.state is State.PREFILL]
        ranked = sorted(((standing(seq.request, draft.now), seq) for seq in begun), key=lambda pair: pair[0])
        for rank, seq in ranked:
            self._start(draft, before=rank)
            self._feed_chunk(seq, draft)
            # Prompts that hold all KV between them and cannot go on would wait for each other for ever.
            while not draft.rows and (others := [one for one in self.residents.able_to_yield() if one is not seq]):
                self._take_kv(others[-1:], seq, draft)
                self._feed_chunk(seq, draft)
        self._start(draft)
        starved = bool(begun) and not draft.prefill_tokens
        self._steps_without_prefill = self._steps_without_prefill + 1 if starved else 0

    def _feed_chunk(self, seq: Sequence, draft: Draft) -> None:
        """As much of what remains as budget, time, KV and alignment allow; maybe nothing."""
        if seq.request.state is not State.PREFILL:
            return  # preempted since the list was made
        tokens = min(seq.remaining, self._chunk_tokens(seq.request, seq.computed, draft))
        end = min(seq.computed + tokens, self.residents.room(seq))
        if end < seq.length:
            end -= end % self.limits.chunk_multiple_tokens
        if end <= seq.computed:
            return
        held = len(seq.table.blocks)
        grown = self.residents.grow(seq, end)
        assert grown, "the chunk was cut to what the pool has"
        if not seq.committed:
            draft.promised_blocks -= len(seq.table.blocks) - held
        tokens = end - seq.computed
        draft.time_ns -= self.model.coefficients.prefill_ns(seq.computed, tokens)
        draft.add(seq, tokens, samples=end == seq.length)

    def _chunk_tokens(self, request: Request, start: int, draft: Draft) -> int:
        """How many tokens of `request` from position `start` the budgets of `draft` allow."""
        by_time = self.model.coefficients.tokens_within(start, draft.time_ns - self._left_free(request) * draft.itl_ns)
        return min(draft.budget_tokens, max(by_time, draft.owed_tokens))

    def _feed_in_order(self, draft: Draft) -> None:
        """Everything in order of start, and nothing new in a step that preempted: how others do it."""
        for seq in self.running[:]:
            if seq.request.state is State.DECODE and draft.budget_tokens:
                self._feed_decode(seq, draft)
            elif seq.request.state is State.PREFILL and draft.budget_tokens:
                self._make_room(seq, min(seq.length, seq.computed + draft.budget_tokens), draft)
                self._feed_chunk(seq, draft)
        if not draft.preempted or self.policy.start_after_preemption:
            self._readmit(draft)
            for seq in self.running[:]:
                if not seq.in_flight:
                    self._feed_chunk(seq, draft)
            self._start(draft)

    # -- starting ------------------------------------------------------------------------------------------------

    def _start(self, draft: Draft, before: Standing | None = None) -> None:
        """Pull new requests, those that stand `before` something already begun, and begin them.

        What lost its place comes back before anything new of its priority; and, once aged, before anything new.
        """

        def accepts(request: Request) -> Fit:
            if self._owed_to_preempted(request, draft.now):
                return Fit.FULL
            if before is not None and standing(request, draft.now) >= before:
                return Fit.FULL
            return self._fit(request, draft)

        while draft.open and (request := self.pull(accepts, draft.now)) is not None:
            self._feed_chunk(self._begin(request, draft), draft)

    def _seat_priorities(self, draft: Draft) -> None:
        """When all slots are taken, whoever waits with a higher priority takes the slot of a lower one."""

        def accepts(request: Request) -> Fit:
            seat = self._seat_of_lower(request)
            if seat is None or self._owed_to_preempted(request, draft.now):
                return Fit.FULL
            free_blocks = self.residents.free_without(seat, request)
            return self._find_kv(request.prompt, request.prompt_tokens + 1, request.cache_scope, free_blocks, draft)

        while len(self.running) >= self.limits.max_num_seqs:
            request = self.pull(accepts, draft.now)
            if request is None:
                return
            seat = self._seat_of_lower(request)
            assert seat is not None
            self._preempt(seat, draft, f"slot for {request.id}")
            self._begin(request, draft)

    def _owed_to_preempted(self, request: Request, now: int) -> bool:
        """Does somebody preempted come before `request`, by age or priority?"""
        return any(standing(seq.request, now)[:2] <= standing(request, now)[:2] for seq in self.preempted)

    def _seat_of_lower(self, request: Request) -> Sequence | None:
        """Who would give up its slot for `request`: the lowest priority below its own, that has not paid enough yet."""
        lower = [
            seq
            for seq in self.running
            if seq.request.priority > request.priority
            and not seq.committed
            and seq.preemptions < self.policy.max_preemptions
        ]
        return max(lower, key=lambda seq: (seq.request.priority, seq.handle), default=None)

    def _fit(self, request: Request, draft: Draft) -> Fit:
        """Can `request` start now, without breaking a promise to those who run?"""
        if len(self.running) >= self.limits.max_num_seqs or self._would_slow(request):
            return Fit.FULL
        if self._chunk_tokens(request, 0, draft) < min(request.prompt_tokens, self.limits.chunk_multiple_tokens):
            return Fit.FULL  # nothing of it could be computed now: it waits better where it is
        if self.limits.kv_full == "wait":
            tokens = request.total_tokens
        elif self.policy.whole_prompt_kv:
            tokens = request.prompt_tokens + 1  # the first decode must not need a preemption
        else:
            cached, idle = self.pool.cached(request.prompt, request.cache_scope)
            draft.repeatable = not idle and draft.repeatable  # with less found, its first chunk would be shorter
            tokens = min(request.prompt_tokens, cached * self.pool.block_size + draft.budget_tokens)
        free_blocks = self.residents.free_blocks - draft.promised_blocks
        return self._find_kv(request.prompt, tokens, request.cache_scope, free_blocks, draft)

    def _find_kv(self, prompt: ReadOnlySequence[int], tokens: int, scope: Scope, free_blocks: int, draft: Draft) -> Fit:
        """Are `free_blocks` enough for `tokens` tokens, of which `prompt` may be cached?"""
        if self.residents.needs(prompt, tokens, scope) <= free_blocks:
            return Fit.START
        draft.refused.append((prompt, scope))
        return Fit.NO_KV

    def _would_slow(self, request: Request) -> bool:
        """Would one more stream push the decode step over the ITL that those who stream were promised?"""
        if not self.policy.paced or not self.running:
            return False
        promises = [itl_ns for seq in self.running if (itl_ns := seq.request.slo.itl_ns)]
        if request.slo.itl_ns:
            promises.append(request.slo.itl_ns)
        if not promises:
            return False
        context = sum(seq.length for seq in self.running) + request.prompt_tokens
        predicted = self.model.coefficients.predict_ns(Shape(0, len(self.running) + 1, context))
        return predicted * self.model.margin > min(promises) * (1 - self._left_free(request))

    def _left_free(self, request: Request) -> float:
        """The share of others' ITL promise that `request` may not use: nobody waits for batch work."""
        return self.policy.left_by_batch if request.pool == BATCH else 0.0

    def _begin(self, request: Request, draft: Draft) -> Sequence:
        seq = self.residents.begin(request, draft.now, commit=self.limits.kv_full == "wait")
        draft.promised_blocks += self._promise(seq)
        return seq

    def _readmit(self, draft: Draft) -> None:
        """Those who lost their KV come back, oldest first; after too often, only with their worst case set aside."""
        while self.preempted and draft.open and len(self.running) < self.limits.max_num_seqs:
            seq = self.preempted[0]
            commit = self.limits.kv_full == "wait" or seq.preemptions >= self.policy.max_preemptions
            tokens = seq.request.total_tokens if commit else seq.length + 1
            free_blocks = self.residents.free_blocks - draft.promised_blocks
            if self._find_kv(seq.tokens, tokens, seq.table.scope, free_blocks, draft) is not Fit.START:
                return
            draft.promised_blocks += self._promise(self.residents.readmit(commit=commit))
            self._listener(Decision(draft.now, "readmit", seq.request.id, "committed" if commit else ""))

    def _promise(self, seq: Sequence) -> int:
        return self.residents.still_needs(seq) if self.policy.whole_prompt_kv else 0

    def _preempt(self, seq: Sequence, draft: Draft, why: str) -> None:
        draft.preempted = True
        self._listener(Decision(draft.now, "preempt", seq.request.id, why, {"computed_tokens": seq.computed}))
        if seq.request.state is State.PREFILL:
            draft.promised_blocks -= self._promise(seq)
        self.counters.recomputed_tokens += self.residents.preempt(seq)
        self.counters.preemptions += 1

    def _reject(self, seq: Sequence, draft: Draft) -> None:
        error = KvExhausted(
            "The KV cache is full, and this server rejects rather than preempts (--kv-full reject).", retry_after_s=5.0
        )
        draft.preempted = True
        self._listener(Decision(draft.now, "reject", seq.request.id, "kv"))
        self._due.append(self._end(seq, State.FAILED, draft.now, error=error))
