"""`KvPool`: the paged KV cache as bookkeeping: blocks of `block_size` tokens, shared by reference, found by prefix.

The pool knows nothing of sequences: it fills (`match`, `grow`) and empties (`release`) a `Table` of block indices. The
memory itself belongs to an executor; the indices are all the two share.

**Prefix cache.** A full block is known by its *chain*: which block of tokens came before it, and its own tokens. The
chain's root is a scope (a tenant, say), so what one scope computed is never visible to another. Chains are compared by
their tokens, not by a digest, so two prefixes cannot be taken for each other. A cached block that no table holds stays
until its room is needed; the one unused for longest goes first (LRU), the end of a prefix before its beginning.
"""

from __future__ import annotations

import itertools
from array import array
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from headway.core.spans import Spans

Scope = Hashable


class _Chain(NamedTuple):
    """Where a block stands: a scope's root, or a number given to one block's content and never used again."""

    id: Hashable


def _root(scope: Scope) -> _Chain:
    return _Chain(("root", scope))


# A block's place and content: the chain before it, and its tokens. And what has to be known to undo its eviction.
Key = Hashable
Evicted = tuple[Key, int]

# There will never be so many chains.
CHAINS = 1 << 48


def _key(chain: Hashable, content: Hashable) -> Key:
    """Two numbers are kept as one: of the many blocks of a simulation, as one small object each instead of three."""
    if type(content) is int and type(chain) is int:
        return content * CHAINS + chain
    return chain, content


@dataclass(slots=True, eq=False)
class Table:
    """One sequence's blocks, in order, and how much of its beginning others can find."""

    scope: Scope = ""
    blocks: list[int] = field(default_factory=list)
    published: int = 0  # leading blocks that are in the cache, as themselves or as a twin
    chain: Hashable = None  # of the last published block


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
        self._entries: dict[Key, int] = {}  # the cached blocks
        self._key_of: list[Key | None] = [None] * num_blocks  # None: not cached
        self._chain_of = array("q", [0]) * num_blocks  # of what a cached block holds: what continues it has it
        self._idle: OrderedDict[int, None] = OrderedDict()  # cached, held by no table; least recently used first
        self._next_chain = 0
        self._changes = 0  # of what is cached
        self._looked_up: tuple[Sequence[int], int, Scope, int, list[int]] | None = None  # see `_find`

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
        found, references = self._find(tokens, scope), self._references
        return len(found), sum([1 for block in found if not references[block]])

    def freed_by(self, table: Table, tokens: Sequence[int], scope: Scope) -> int:
        """How many blocks releasing `table` would free, beside those that `tokens` would begin with anyway."""
        found = set(self._find(tokens, scope))
        return sum(1 for block in table.blocks if self._references[block] == 1 and block not in found)

    def may_find_more(self, looked_for: Sequence[tuple[Sequence[int], Scope]], growing: Sequence[Table]) -> bool:
        """Could any of these beginnings find more, once the tables `growing` have published more?

        If what is found of it goes as far as one of the tables was published: that may go on as it does.
        """
        if not self.prefix_cache:
            return False
        ends = {table.chain if table.chain is not None else _root(table.scope) for table in growing}
        chain_of = self._chain_of
        return any(
            _root(scope) in ends or any(chain_of[block] in ends for block in self._find(tokens, scope))
            for tokens, scope in looked_for
        )

    def match(self, table: Table, tokens: Sequence[int]) -> int:
        """Let the empty `table` begin with the cached blocks of `tokens`. Returns how many tokens they hold.

        At least one token is left to compute: without it there would be nothing to sample from.
        """
        assert not table.blocks, "a prefix can only begin a table"
        found = self._find(tokens, table.scope)
        references, idle = self._references, self._idle
        for block in found:
            if not references[block]:
                del idle[block]
            references[block] += 1
        table.blocks += found
        table.chain = self._chain_of[found[-1]] if found else None
        table.published = len(found)
        self.counters.looked_up_tokens += len(tokens)
        self.counters.hit_tokens += len(found) * self.block_size
        return len(found) * self.block_size

    def grow(self, table: Table, tokens: int) -> bool:
        """Extend `table` until it holds `tokens` tokens. All or nothing: False leaves everything as it was."""
        missing = self.blocks_for(tokens) - len(table.blocks)
        if missing <= 0:
            return True
        if missing > self.free_blocks:
            return False
        if empty := min(missing, len(self._empty)):
            taken = self._empty[: -empty - 1 : -1]
            del self._empty[-empty:]
        else:
            taken = []
        if missing > empty:
            taken += self._evict(missing - empty)
        table.blocks += taken
        for block in taken:
            self._references[block] = 1
        return True

    def extend(self, table: Table) -> Evicted | None:
        """One more block for `table`; there must be a free one. Returns what was evicted for it, for `retract`."""
        evicted: Evicted | None = None
        if self._empty:
            block = self._empty.pop()
        else:
            oldest = next(iter(self._idle))
            key = self._key_of[oldest]
            assert key is not None
            evicted = key, self._chain_of[oldest]
            [block] = self._evict(1)
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
        self._changes += 1
        key, self._chain_of[block] = evicted
        self._key_of[block] = key
        self._entries[key] = block
        self._idle[block] = None
        self._idle.move_to_end(block, last=False)
        self.counters.evictions -= 1

    def publish(self, table: Table, tokens: Sequence[int], computed: int) -> None:
        """Let later prompts find the full blocks of `table`; the first `computed` of `tokens` are resident in it.

        A block whose content another block already holds stays private: both are right, and one is enough.
        """
        full = computed // self.block_size
        if not self.prefix_cache or full <= table.published:
            return
        entries, chain_of = self._entries, self._chain_of
        chain = table.chain if table.chain is not None else _root(table.scope)
        filled = list(contents(tokens, table.published, full, self.block_size))
        for twins, content in enumerate(filled):
            block = entries.get(_key(chain, content))
            if block is None:  # nor can there be one of what follows: a new chain has no continuation
                chain = self._add(chain, filled[twins:], table.blocks[table.published + twins : full])
                break
            chain = chain_of[block]
        table.chain = chain
        table.published = full

    def _add(self, chain: Hashable, filled: list[Hashable], blocks: list[int]) -> int:
        """Cache `blocks`, which hold what was `filled` after `chain` and nobody else has. Returns their last chain."""
        chains = range(self._next_chain + 1, self._next_chain + 1 + len(blocks))
        keys = list(map(_key, itertools.chain((chain,), chains), filled))
        self._entries.update(zip(keys, blocks, strict=True))
        key_of, chain_of = self._key_of, self._chain_of
        for block, key, number in zip(blocks, keys, chains, strict=True):
            key_of[block] = key
            chain_of[block] = number
        self._next_chain = chains[-1]
        self._changes += len(blocks)
        return chains[-1]

    def release(self, table: Table) -> None:
        """Take every block of `table` back and empty it. Cached blocks can still be found until they are needed."""
        references, key_of, idle = self._references, self._key_of, self._idle
        for block in reversed(table.blocks):  # so that the end of a prefix is evicted before its beginning
            left = references[block] = references[block] - 1
            if left:
                continue
            if key_of[block] is None:
                self._empty.append(block)
            else:
                idle[block] = None
        table.blocks.clear()
        table.published = 0
        table.chain = None

    def forget(self) -> None:
        """The memory is gone: nothing cached can be found any more. No table may hold a block."""
        assert not self.used_blocks, "forget() while tables hold blocks"
        self._empty += self._evict(len(self._idle))

    def _find(self, tokens: Sequence[int], scope: Scope) -> list[int]:
        """The cached blocks that `tokens` begin with; nobody may change what is returned.

        Whoever starts something asks several times in a row, and whoever finds no room asks again at every step: what
        was found last holds as long as nothing else is cached.
        """
        last, length = self._looked_up, len(tokens)
        if last is not None and last[0] is tokens and last[1:4] == (length, scope, self._changes):
            return last[4]
        found: list[int] = []
        if not self.prefix_cache:
            return found
        chain: Hashable = _root(scope)
        entries, chain_of = self._entries, self._chain_of
        for content in contents(tokens, 0, (len(tokens) - 1) // self.block_size, self.block_size):
            block = entries.get(_key(chain, content))
            if block is None:
                break
            found.append(block)
            chain = chain_of[block]
        self._looked_up = tokens, length, scope, self._changes, found
        return found

    def _evict(self, count: int) -> list[int]:
        """The blocks that were unused for longest; what they held is forgotten."""
        entries, key_of = self._entries, self._key_of
        evicted = [block for block, _ in map(self._idle.popitem, itertools.repeat(False, count))]
        for block in evicted:
            key = key_of[block]
            assert key is not None
            del entries[key]
            key_of[block] = None
        self._changes += count
        self.counters.evictions += count
        return evicted


def contents(tokens: Sequence[int], first: int, end: int, size: int) -> Iterator[Hashable]:
    """What the blocks `first` to `end` of `tokens` hold, each as something to compare."""
    if isinstance(tokens, Spans):
        return tokens.blocks(first, end, size)
    return (tuple(tokens[start : start + size]) for start in range(first * size, end * size, size))
