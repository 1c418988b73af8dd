"""`StaticScheduler`: fixed batches, as offline work is often run, for an honest comparison with continuous batching.

**Buckets.** Prompts of similar length go together: those whose lengths round up to the same power of two, and all up
to `SHORTEST_BUCKET_TOKENS`. So above that the longest of a batch is less than twice its shortest, and less than half of
a prefill is padding.

**Start.** Nothing starts while a batch runs. Then each bucket's requests, in the order in which they wait, make a batch
of as many as there are slots and KV for (the worst case is set aside). A batch is ready when no more would go in, when
its oldest request has waited `batch_wait_ns`, or when nothing else is expected. Of several, the one with the oldest
goes first, so that no bucket starves.

**Padding.** The prompts are fed together, each padded on the right to the longest left to feed. Then every slot is
held, and decodes, until the last sequence has ended: slots of ended sequences compute padding. When the padded prompts
do not fit into `max_num_batched_tokens` they are fed in chunks of equal width; when not even the narrowest chunk of all
fits, the batch is prefilled group by group. No step exceeds the limit, padding included.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import itemgetter

from headway.core.decisions import Listener, ignore
from headway.core.lanes import Fit, Pull
from headway.core.pace import StepTimeModel
from headway.core.request import Request, State
from headway.core.scheduler.base import SchedulerBase
from headway.core.scheduler.draft import Draft
from headway.core.scheduler.kv import KvPool
from headway.core.scheduler.limits import SchedulerLimits
from headway.core.scheduler.sequence import Sequence
from headway.core.scheduler.step import Step

SHORTEST_BUCKET_TOKENS = 32


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """How long a request may wait for company, and whether that must be of its length."""

    batch_wait_ns: int = 100_000_000
    bucketed: bool = True  # False puts everybody into one bucket: what it shows is what buckets gain

    def bucket(self, request: Request) -> int:
        """The longest prompt that may share a batch with this one."""
        if not self.bucketed:
            return 0
        return max(SHORTEST_BUCKET_TOKENS, 1 << (request.prompt_tokens - 1).bit_length())


class StaticScheduler(SchedulerBase):
    """Static batching: fixed batches, run to their end. Nobody is ever preempted."""

    def __init__(
        self,
        limits: SchedulerLimits,
        pool: KvPool,
        pull: Pull,
        *,
        model: StepTimeModel,
        batching: BatchLimits | None = None,
        listener: Listener = ignore,
    ) -> None:
        super().__init__(limits, pool, pull, model=model, listener=listener)
        self.batching = batching or BatchLimits()
        self.expects_more = True  # whoever drives says when nothing else will be submitted
        self._slots: list[Sequence] = []  # of the batch, ended sequences included
        self._budget_tokens = 0  # as it was when the batch began: a smaller one is for the next

    @property
    def padding_efficiency_ratio(self) -> float:
        """The part of all computed tokens that was not padding; 1 before anything was computed."""
        useful = self.counters.prefill_tokens + self.counters.decode_tokens
        return useful / (useful + self.counters.pad_tokens) if useful else 1.0

    def plan(self, now: int, *, most_steps: int = 1) -> Step | None:  # noqa: ARG002 - static batches do not leap
        """The next step of the batch, or the first of a new one; None when there is none to begin."""
        assert self._in_flight is None, "plan() before the last step was committed"
        if not self.running and not self._begin_batch(now):
            return None
        draft = Draft(now, self._budget_tokens)
        group = self._group_in_prefill()
        padded_tokens = self._feed_prompts_of(group, draft) if group else self._feed_streams(draft)
        step = self._take_off(draft)
        step.pad_tokens = padded_tokens - step.tokens
        return step

    # -- a batch begins ------------------------------------------------------------------------------------------

    def _begin_batch(self, now: int) -> bool:
        chosen = {request.id for request in self._ready_batch(now)}
        self._slots = []
        self._budget_tokens = self.limits.max_num_batched_tokens

        def accepts(request: Request) -> Fit:
            return Fit.START if request.id in chosen else Fit.OTHER

        while chosen and (request := self.pull(accepts, now)) is not None:
            chosen.remove(request.id)
            self._slots.append(self.residents.begin(request, now, commit=True))
        return bool(self._slots)

    def _ready_batch(self, now: int) -> list[Request]:
        """The ready batch with the oldest request; empty when none is, and then `wake_ns` says when one will be."""
        ready: list[tuple[int, list[Request]]] = []
        wakes: list[int] = []
        for requests in self._waiting_by_bucket(now).values():
            batch, full = self._fill(requests)
            oldest_ns = min(request.arrival_ns for request in requests)
            waits_until_ns = oldest_ns + self.batching.batch_wait_ns
            if full or not self.expects_more or now >= waits_until_ns:
                ready.append((oldest_ns, batch))
            else:
                wakes.append(waits_until_ns)
        if ready:
            self.wake_ns = None
            return min(ready, key=itemgetter(0))[1]
        self.wake_ns = min(wakes, default=None)
        return []

    def _waiting_by_bucket(self, now: int) -> dict[int, list[Request]]:
        """Everybody who could be started, in order; nobody is taken."""
        buckets: dict[int, list[Request]] = {}

        def look(request: Request) -> Fit:
            buckets.setdefault(self.batching.bucket(request), []).append(request)
            return Fit.OTHER

        self.pull(look, now)
        return buckets

    def _fill(self, requests: list[Request]) -> tuple[list[Request], bool]:
        """Those of `requests` that there are slots and KV for, and whether that is all there is room for."""
        free_blocks = self.pool.free_blocks
        batch: list[Request] = []
        for request in requests:
            free_blocks -= self.pool.blocks_for(request.total_tokens)
            if free_blocks < 0:
                return batch, True
            batch.append(request)
            if len(batch) == self.limits.max_num_seqs:
                return batch, True
        return batch, False

    # -- a batch runs --------------------------------------------------------------------------------------------

    def _group_in_prefill(self) -> list[Sequence]:
        """The slots whose prompts are fed together now; empty when every prompt is fed."""
        longest = max(seq.request.prompt_tokens for seq in self._slots)
        narrowest = min(longest, self.limits.chunk_multiple_tokens)
        size = min(len(self._slots), self._budget_tokens // narrowest)
        groups = (self._slots[at : at + size] for at in range(0, len(self._slots), size))
        return next((group for group in groups if any(_in_prefill(seq) for seq in group)), [])

    def _feed_prompts_of(self, group: list[Sequence], draft: Draft) -> int:
        """Feed every prompt of `group` alike. Returns what that computes, padding included."""
        width = max(seq.remaining for seq in group if _in_prefill(seq))
        if width * len(group) > self._budget_tokens:
            width = self._budget_tokens // len(group)
            width -= width % self.limits.chunk_multiple_tokens
        for seq in group:
            if _in_prefill(seq):
                self._feed(seq, width, draft)
        return width * len(group)

    def _feed_streams(self, draft: Draft) -> int:
        for seq in self.running:
            self._feed(seq, 1, draft)
        return len(self._slots)

    def _feed(self, seq: Sequence, width: int, draft: Draft) -> None:
        end = min(seq.length, seq.computed + width)
        if end < seq.length:
            end -= end % self.limits.chunk_multiple_tokens
        grown = self.residents.grow(seq, end)
        assert grown, "the worst case was set aside"
        draft.add(seq, end - seq.computed, samples=end == seq.length)


def _in_prefill(seq: Sequence) -> bool:
    return seq.request.state is State.PREFILL
