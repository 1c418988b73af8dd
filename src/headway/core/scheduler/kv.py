"""`KvPool`: the paged KV cache as bookkeeping: blocks of `block_size` tokens, shared by reference, found by prefix.

The pool knows nothing of sequences: it fills (`match`, `grow`) and empties (`release`) a `Table` of block indices. The
memory itself belongs to an executor; the indices are all the two share.

**Prefix cache.** A full block is known by its *chain*: which block of tokens came before it, and its own tokens. The
chain's root is a scope (a tenant, say), so what one scope computed is never visible to another. Chains are compared by
their tokens, not by a digest, so two prefixes cannot be taken for each other. A cached block that no table holds stays
until its room is needed; the one unused for longest goes first (LRU), the end of a prefix before its beginning.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

Scope = Hashable


@dataclass(frozen=True, slots=True)
class _Chain:
    """Where a block stands: a scope's root, or a number given to one block's content and never used again."""

    id: Hashable


@dataclass(slots=True, eq=False)
class Table:
    """One sequence's blocks, in order, and how much of its beginning others can find."""

    scope: Scope = ""
    blocks: list[int] = field(default_factory=list)
    published: int = 0  # leading blocks that are in the cache, as themselves or as a twin
    chain: _Chain | None = None  # of the last published block


@dataclass(slots=True)
class KvCounters:
    """Totals since start."""

    hit_tokens: int = 0  # prompt tokens found in the cache
    looked_up_tokens: int = 0  # prompt tokens looked for
    evictions: int = 0  # cached blocks given up for room


class KvPool:
    """`num_blocks` blocks of `block_size` tokens each. Not thread-safe: the core is driven by one caller."""

    def __init__(self, num_blocks: int, block_size: int, *, prefix_cache: bool = True) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"a KV pool needs at least one block of one token, not {num_blocks} x {block_size}")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.prefix_cache = prefix_cache
        self.counters = KvCounters()
        # A stack: the block freed last is the likeliest to be in a processor cache still.
        self._empty = list(range(num_blocks - 1, -1, -1))
        self._references = [0] * num_blocks
        self._entries: dict[tuple[_Chain, tuple[int, ...]], _Entry] = {}  # by chain before, and own tokens
        self._entry_of: list[_Entry | None] = [None] * num_blocks
        self._idle: OrderedDict[int, None] = OrderedDict()  # cached, held by no table; least recently used first
        self._next_chain = 0

    @property
    def free_blocks(self) -> int:
        """Blocks that a table can get: empty ones, and cached ones that nobody holds."""
        return len(self._empty) + len(self._idle)

    @property
    def used_blocks(self) -> int:
        return self.num_blocks - self.free_blocks

    @property
    def cached_blocks(self) -> int:
        """Blocks that a later prompt can find, held by a table or not."""
        return len(self._entries)

    @property
    def capacity_tokens(self) -> int:
        return self.num_blocks * self.block_size

    def blocks_for(self, tokens: int) -> int:
        """How many blocks hold `tokens` tokens."""
        return -(-tokens // self.block_size)

    def cached(self, tokens: Sequence[int], scope: Scope) -> tuple[int, int]:
        """How many blocks of the beginning of `tokens` are cached, and how many of them no table holds."""
        entries = self._find(tokens, scope)
        return len(entries), sum(1 for entry in entries if not self._references[entry.block])

    def freed_by(self, table: Table, tokens: Sequence[int], scope: Scope) -> int:
        """How many blocks releasing `table` would free, beside those that `tokens` would begin with anyway."""
        found = {entry.block for entry in self._find(tokens, scope)}
        return sum(1 for block in table.blocks if self._references[block] == 1 and block not in found)

    def match(self, table: Table, tokens: Sequence[int]) -> int:
        """Let the empty `table` begin with the cached blocks of `tokens`. Returns how many tokens they hold.

        At least one token is left to compute: without it there would be nothing to sample from.
        """
        assert not table.blocks, "a prefix can only begin a table"
        entries = self._find(tokens, table.scope)
        for entry in entries:
            if not self._references[entry.block]:
                del self._idle[entry.block]
            self._references[entry.block] += 1
            table.blocks.append(entry.block)
            table.chain = entry.chain
        table.published = len(entries)
        self.counters.looked_up_tokens += len(tokens)
        self.counters.hit_tokens += len(entries) * self.block_size
        return len(entries) * self.block_size

    def grow(self, table: Table, tokens: int) -> bool:
        """Extend `table` until it holds `tokens` tokens. All or nothing: False leaves everything as it was."""
        missing = self.blocks_for(tokens) - len(table.blocks)
        if missing <= 0:
            return True
        if missing > self.free_blocks:
            return False
        for _ in range(missing):
            self.extend(table)
        return True

    def extend(self, table: Table) -> Evicted | None:
        """One more block for `table`; there must be a free one. Returns what was evicted for it, for `retract`."""
        evicted = None if self._empty else self._entry_of[next(iter(self._idle))]
        block = self._empty.pop() if self._empty else self._evict()
        self._references[block] = 1
        table.blocks.append(block)
        return evicted

    def retract(self, table: Table, evicted: Evicted | None) -> None:
        """Undo the last `extend`, which was of `table`. Nothing may have been written to the block."""
        block = table.blocks.pop()
        self._references[block] = 0
        if evicted is None:
            self._empty.append(block)
            return
        self._entries[evicted.key] = self._entry_of[block] = evicted
        self._idle[block] = None
        self._idle.move_to_end(block, last=False)
        self.counters.evictions -= 1

    def publish(self, table: Table, tokens: Sequence[int], computed: int) -> None:
        """Let later prompts find the full blocks of `table`; the first `computed` of `tokens` are resident in it.

        A block whose content another block already holds stays private: both are right, and one is enough.
        """
        size = self.block_size
        while self.prefix_cache and (table.published + 1) * size <= computed:
            start = table.published * size
            key = (table.chain or _Chain(("root", table.scope)), tuple(tokens[start : start + size]))
            entry = self._entries.get(key)
            if entry is None:
                self._next_chain += 1
                entry = _Entry(key, table.blocks[table.published], _Chain(self._next_chain))
                self._entries[key] = self._entry_of[entry.block] = entry
            table.chain = entry.chain
            table.published += 1

    def release(self, table: Table) -> None:
        """Take every block of `table` back and empty it. Cached blocks can still be found until they are needed."""
        for block in reversed(table.blocks):  # so that the end of a prefix is evicted before its beginning
            self._references[block] -= 1
            if self._references[block]:
                continue
            if self._entry_of[block] is None:
                self._empty.append(block)
            else:
                self._idle[block] = None
        table.blocks.clear()
        table.published = 0
        table.chain = None

    def forget(self) -> None:
        """The memory is gone: nothing cached can be found any more. No table may hold a block."""
        assert not self.used_blocks, "forget() while tables hold blocks"
        while self._idle:
            self._empty.append(self._evict())

    def _find(self, tokens: Sequence[int], scope: Scope) -> list[_Entry]:
        found: list[_Entry] = []
        if not self.prefix_cache:
            return found
        chain = _Chain(("root", scope))
        size = self.block_size
        for start in range(0, (len(tokens) - 1) // size * size, size):
            entry = self._entries.get((chain, tuple(tokens[start : start + size])))
            if entry is None:
                break
            found.append(entry)
            chain = entry.chain
        return found

    def _evict(self) -> int:
        block, _ = self._idle.popitem(last=False)
        entry = self._entry_of[block]
        assert entry is not None
        del self._entries[entry.key]
        self._entry_of[block] = None
        self.counters.evictions += 1
        return block


@dataclass(frozen=True, slots=True, eq=False)
class _Entry:
    """A cached block: what it holds and what it continues (`key`), and the chain that continues it."""

    key: tuple[_Chain, tuple[int, ...]]
    block: int
    chain: _Chain


Evicted = _Entry
