"""`KvPool`: the paged KV cache as bookkeeping. Blocks of `block_size` tokens, handed out and taken back.

The pool knows nothing of sequences: a block table is a plain list that it extends (`grow`) or empties (`release`).
The memory itself belongs to an executor; block indices are all the two share.
"""

from __future__ import annotations


class KvPool:
    """`num_blocks` blocks of `block_size` tokens each. Not thread-safe: the core is driven by one caller."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"a KV pool needs at least one block of one token, not {num_blocks} x {block_size}")
        self.num_blocks = num_blocks
        self.block_size = block_size
        # A stack: the block freed last is the likeliest to be in a processor cache still.
        self._free = list(range(num_blocks - 1, -1, -1))

    @property
    def free_blocks(self) -> int:
        return len(self._free)

    @property
    def used_blocks(self) -> int:
        return self.num_blocks - len(self._free)

    @property
    def capacity_tokens(self) -> int:
        return self.num_blocks * self.block_size

    def blocks_for(self, tokens: int) -> int:
        """How many blocks hold `tokens` tokens."""
        return -(-tokens // self.block_size)

    def grow(self, table: list[int], tokens: int) -> bool:
        """Extend `table` until it holds `tokens` tokens. All or nothing: False leaves everything as it was."""
        missing = self.blocks_for(tokens) - len(table)
        if missing <= 0:
            return True
        if missing > len(self._free):
            return False
        table.extend(self._free.pop() for _ in range(missing))
        return True

    def release(self, table: list[int]) -> None:
        """Take every block of `table` back and empty it."""
        self._free.extend(reversed(table))
        table.clear()
