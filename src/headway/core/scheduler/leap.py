"""`Leap`: equal decode steps planned as one, so that what is left behind is exactly what single steps leave.

Single steps take blocks, evict and publish in the order of steps, and stop when a sequence ends of itself, which no
plan can know. So a leap takes blocks in that order and, when it has landed, gives all of them back and goes through the
steps that were really made. The order being the same, so are the blocks.
"""

from __future__ import annotations

from collections.abc import Sequence as ReadOnlySequence

from headway.core.scheduler.kv import Evicted
from headway.core.scheduler.residents import Residents
from headway.core.scheduler.sequence import Sequence

_GROW, _PUBLISH = 0, 1


class Leap:
    """`steps` steps of `sequences`, all decoding, each with a block for the first of them already."""

    def __init__(self, residents: Residents, sequences: ReadOnlySequence[Sequence], steps: int) -> None:
        self._residents = residents
        self._sequences = list(sequences)
        self._taken: list[tuple[Sequence, Evicted | None]] = []
        self._grow_and_publish(steps, [])

    def land(self, tokens: ReadOnlySequence[list[int]]) -> None:
        """`tokens` were drawn, by sequence, equally many: leave the tables and the cache as so many steps would."""
        while self._taken:
            self._residents.retract(*self._taken.pop())
        self._grow_and_publish(len(tokens[0]), tokens)

    def _grow_and_publish(self, steps: int, tokens: ReadOnlySequence[list[int]]) -> None:
        size = self._residents.pool.block_size
        due = []
        for index, seq in enumerate(self._sequences):
            held = seq.length  # in KV after the first step
            # The step after a block has become full needs the next; the block is published by the one that filled it.
            first_full = 1 + -held % size
            due += [(step + 1, _GROW, index) for step in range(first_full, steps, size)]
            if tokens:
                due += [(step, _PUBLISH, index) for step in range(first_full, steps + 1, size)]
        due.sort()
        grown: dict[int, ReadOnlySequence[int]] = {}  # the sequences of which something is published, as they end up
        for step, what, index in due:
            seq = self._sequences[index]
            if what == _GROW:
                self._taken.append((seq, self._residents.extend(seq)))
            else:
                if index not in grown:
                    grown[index] = seq.tokens + tokens[index]
                self._residents.pool.publish(seq.table, grown[index], seq.length - 1 + step)
