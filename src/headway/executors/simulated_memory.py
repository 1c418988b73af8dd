"""What the KV blocks of a model that does not exist hold: in every slot, a hash chained over the tokens before it.

It is written and read through the rows' own block tables, so a lost block, a wrong position or somebody else's block
changes what is read, as it would in a real cache.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence as ReadOnlySequence

import numpy as np

from headway.core.errors import EngineFailed
from headway.core.scheduler.step import Row, Step

MASK = (1 << 64) - 1
ODD = 0x9E3779B97F4A7C15
OTHER_ODD = 0xD6E8FEB86659FD93
_ROOT = 0x243F6A8885A308D3  # the hash before position 0


class HashedKv:
    """`num_blocks` blocks of `block_size` slots. Raises `EngineFailed` for tables that leave them."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self._num_blocks = num_blocks
        self._block_size = block_size
        self._hashes = array("Q", bytes(8 * num_blocks * block_size))  # by block and offset
        self._tokens = array("q", bytes(8 * num_blocks * block_size))

    def before(self, row: Row) -> int:
        """The hash stored at the position before the row's first."""
        size, blocks = self._block_size, row.blocks
        if row.start == 0:
            return _ROOT
        block, offset = divmod(row.start - 1, size)
        try:
            return self._hashes[blocks[block] * size + offset]
        except IndexError:
            raise self._outside(row) from None

    def write(self, row: Row, position: int, tokens: ReadOnlySequence[int], chain: int) -> int:
        """Store `tokens` from `position` on, continuing `chain`. Returns the chain at the last of them."""
        size, blocks = self._block_size, row.blocks
        hashes, stored = self._hashes, self._tokens
        try:
            for token in tokens:
                chain = ((chain ^ token) * ODD + OTHER_ODD) & MASK
                chain ^= chain >> 29
                slot = blocks[position // size] * size + position % size
                hashes[slot] = chain
                stored[slot] = token
                position += 1
        except IndexError:
            raise self._outside(row) from None
        return chain

    def audit(self, step: Step) -> None:
        """Check that every position before each row's start holds the chain of what is before it."""
        size = self._block_size
        hashes = np.frombuffer(self._hashes, np.uint64).reshape(-1, size)
        tokens = np.frombuffer(self._tokens, np.uint64).reshape(-1, size)
        for row in step.rows:
            if row.start == 0:
                continue
            table = np.asarray(row.blocks[: -(-row.start // size)], np.int64)
            held = hashes[table].reshape(-1)[: row.start]
            before = np.concatenate([np.array([_ROOT], np.uint64), held[:-1]])
            chain = (before ^ tokens[table].reshape(-1)[: row.start]) * np.uint64(ODD) + np.uint64(OTHER_ODD)
            wrong = np.flatnonzero(held != chain ^ (chain >> np.uint64(29)))
            if len(wrong):
                position = int(wrong[0])
                raise EngineFailed(
                    f"step {step.id}, sequence {row.seq}: position {position}, in block {int(table[position // size])} "
                    f"of table {table.tolist()}, does not hold the continuation of the positions before it"
                )

    def _outside(self, row: Row) -> EngineFailed:
        return EngineFailed(
            f"sequence {row.seq}: its table {list(row.blocks)} leaves the {self._num_blocks} blocks that exist"
        )
