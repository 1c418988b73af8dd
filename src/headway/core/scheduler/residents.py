"""`Residents`: the started sequences of one engine, and the slots and blocks they hold. Bookkeeping, no choices."""

from __future__ import annotations

from collections.abc import Sequence as ReadOnlySequence

from headway.core.request import Request, RequestId, State, move
from headway.core.scheduler.kv import Evicted, KvPool, Scope
from headway.core.scheduler.sequence import Sequence


class Residents:
    """`running` holds slots and KV, oldest first; `preempted` has lost both and waits, oldest first.

    A *committed* sequence has KV for its worst case set aside: blocks that are free, and nobody else's.
    """

    def __init__(self, pool: KvPool) -> None:
        self.pool = pool
        self.running: list[Sequence] = []
        self.preempted: list[Sequence] = []
        self.set_aside_blocks = 0
        self.by_id: dict[RequestId, Sequence] = {}
        self.by_handle: dict[int, Sequence] = {}
        self._next_handle = 0

    @property
    def free_blocks(self) -> int:
        """Blocks that an uncommitted sequence may get."""
        return self.pool.free_blocks - self.set_aside_blocks

    @property
    def promised_blocks(self) -> int:
        """Blocks that prompts already begun, and their first token, will still need."""
        return sum(self.still_needs(seq) for seq in self.running if seq.request.state is State.PREFILL)

    def free_without(self, seat: Sequence, request: Request) -> int:
        """Blocks for `request` in place of `seat`: free ones that no prompt will still need, and what `seat` frees."""
        others = (seq for seq in self.running if seq is not seat and seq.request.state is State.PREFILL)
        promised = sum(self.still_needs(seq) for seq in others)
        return self.free_blocks - promised + self.pool.freed_by(seat.table, request.prompt, request.cache_scope)

    def still_needs(self, seq: Sequence) -> int:
        """What an uncommitted prompt will still need; what a committed one needs is set aside already."""
        if seq.committed:
            return 0
        return max(0, self.pool.blocks_for(seq.length + 1) - len(seq.table.blocks))

    def needs(self, tokens: ReadOnlySequence[int], total_tokens: int, scope: Scope) -> int:
        """Free blocks that a table for `total_tokens` would take, beginning with what is cached of `tokens`."""
        cached, idle = self.pool.cached(tokens, scope)
        return self.pool.blocks_for(total_tokens) - cached + idle

    def begin(self, request: Request, now: int, *, commit: bool) -> Sequence:
        """Start a request."""
        self._next_handle += 1
        seq = Sequence(self._next_handle, request, now)
        request.state = move(request.state, State.PREFILL)
        self.by_id[request.id] = self.by_handle[seq.handle] = seq
        self._enter(seq, commit=commit)
        seq.cached_tokens = seq.computed
        return seq

    def readmit(self, *, commit: bool) -> Sequence:
        """Bring the oldest preempted sequence back."""
        seq = self.preempted.pop(0)
        seq.request.state = move(seq.request.state, State.PREFILL)
        self._enter(seq, commit=commit)
        if not seq.known:  # nothing of it was ever computed: what it finds now is what it found first
            seq.cached_tokens = seq.computed
        return seq

    def preempt(self, seq: Sequence) -> int:
        """Take a running sequence's slot and KV. Returns how many tokens it will have to compute again."""
        lost = seq.computed
        self._leave(seq)
        seq.preemptions += 1
        seq.computed = 0
        seq.request.state = move(seq.request.state, State.PREEMPTED)
        self.preempted.insert(_place(self.preempted, seq), seq)
        return lost

    def remove(self, seq: Sequence) -> None:
        """A sequence has ended, wherever it was."""
        if seq.request.state is State.PREEMPTED:
            self.preempted.remove(seq)
        else:
            self._leave(seq)
        del self.by_id[seq.request.id], self.by_handle[seq.handle]

    def grow(self, seq: Sequence, tokens: int) -> bool:
        """Like `KvPool.grow`, without touching what is set aside for others."""
        missing = self.pool.blocks_for(tokens) - len(seq.table.blocks)
        if missing <= 0:
            return True
        if seq.committed:
            self.set_aside_blocks -= missing
        elif missing > self.free_blocks:
            return False
        grown = self.pool.grow(seq.table, tokens)
        assert grown, "blocks set aside are free blocks"
        return True

    def able_to_yield(self) -> list[Sequence]:
        """Who may lose its KV: not the oldest, not who has paid enough, not who is in this step already."""
        return [other for other in self.running[1:] if not other.in_flight and not other.committed]

    def extend(self, seq: Sequence) -> Evicted | None:
        """Like `KvPool.extend`."""
        self.set_aside_blocks -= seq.committed
        return self.pool.extend(seq.table)

    def retract(self, seq: Sequence, evicted: Evicted | None) -> None:
        self.set_aside_blocks += seq.committed
        self.pool.retract(seq.table, evicted)

    def room(self, seq: Sequence) -> int:
        """How many tokens the table of `seq` could hold now."""
        free = self.pool.free_blocks if seq.committed else self.free_blocks
        return (len(seq.table.blocks) + free) * self.pool.block_size

    def _enter(self, seq: Sequence, *, commit: bool) -> None:
        # By age: a readmitted sequence is older than those that started while it was out.
        self.running.insert(_place(self.running, seq), seq)
        # The prompt itself, as long as that is all: the pool remembers what it found of it a moment ago.
        tokens = seq.tokens if seq.output_tokens else seq.request.prompt
        seq.computed = self.pool.match(seq.table, tokens)
        if commit:
            seq.committed = True
            self.set_aside_blocks += self._unused(seq)

    def _leave(self, seq: Sequence) -> None:
        self.running.remove(seq)
        if seq.committed:
            seq.committed = False
            self.set_aside_blocks -= self._unused(seq)
        self.pool.release(seq.table)

    def _unused(self, seq: Sequence) -> int:
        """Blocks of its worst case that a committed sequence does not hold yet."""
        return self.pool.blocks_for(seq.request.total_tokens) - len(seq.table.blocks)


def _place(sequences: list[Sequence], seq: Sequence) -> int:
    """Where `seq` belongs in `sequences`, by age. Nearly always at the end, so that is where to look."""
    at = len(sequences)
    while at and sequences[at - 1].handle > seq.handle:
        at -= 1
    return at
