"""`KvPool`: the paged KV cache as bookkeeping: blocks of `block_size` tokens, shared by reference, found by prefix.

The pool knows nothing of sequences: it fills (`match`, `grow`) and empties (`release`) a `Table` of block indices. The
memory itself belongs to an executor; the indices are all the two share.

**Prefix cache.** A full block is known by its *chain*: which block of tokens came before it, and its own tokens. The
chain's root is a scope (a tenant, say), so what one scope computed is never visible to another. Chains are compared by
their tokens, not by a digest, so two prefixes cannot be taken for each other. A cached block that no table holds stays
until its room is needed; the one unused for longest goes first (LRU), the end of a prefix before its beginning.

**Runs.** Blocks that were published together are kept as one `_Run`, however many they are: a prompt of a thousand
blocks is one thing to find, to hold and to give back. A run is cut in two when somebody holds only its beginning.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from headway.core.spans import Spans

Scope = Hashable
# A place in the cache: what was there before it. A scope's root, or a number given once and never again.
Chain = Hashable
# Where a run begins: the chain before it, and what its first block holds.
Key = tuple[Chain, Hashable]


def _root(scope: Scope) -> Chain:
    return "root", scope


@dataclass(slots=True, eq=False)
class _Run:
    """Cached blocks, one continuing the other, of which every table holds all or none."""

    key: Key
    chain: int  # the chain after its first n blocks is so much more than this
    contents: list[Hashable]
    blocks: list[int]
    holders: int  # tables


# The beginning of something that is cached: runs, and how many blocks of each.
Found = list[tuple[_Run, int]]
# What has to be known to undo the eviction of one block: whose it was, and what it held.
Evicted = tuple[_Run, Hashable]


@dataclass(slots=True, eq=False)
class Table:
    """One sequence's blocks, in order, and how much of its beginning others can find."""

    scope: Scope = ""
    blocks: list[int] = field(default_factory=list)
    published: int = 0  # leading blocks that are in the cache, as themselves or as a twin
    chain: Chain = None  # of the last published block


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
        self._runs: dict[Key, _Run] = {}  # all that is cached
        self._run_at: dict[int, _Run] = {}  # the same, by their first blocks
        self._idle: OrderedDict[_Run, None] = OrderedDict()  # held by no table; least recently used first
        self._cached_blocks = self._idle_blocks = 0
        self._next_chain = 0
        self._changes = 0  # of what is cached
        self._looked_up: tuple[Sequence[int], int, Scope, int, Found] | None = None  # see `_find`

    @property
    def free_blocks(self) -> int:
        """Blocks that a table can get: empty ones, and cached ones that nobody holds."""
        return len(self._empty) + self._idle_blocks

    @property
    def used_blocks(self) -> int:
        return self.num_blocks - self.free_blocks

    @property
    def cached_blocks(self) -> int:
        """Blocks that a later prompt can find, held by a table or not."""
        return self._cached_blocks

    @property
    def capacity_tokens(self) -> int:
        return self.num_blocks * self.block_size

    def blocks_for(self, tokens: int) -> int:
        """How many blocks hold `tokens` tokens."""
        return -(-tokens // self.block_size)

    def cached(self, tokens: Sequence[int], scope: Scope) -> tuple[int, int]:
        """How many blocks of the beginning of `tokens` are cached, and how many of them no table holds."""
        found = self._find(tokens, scope)
        return sum([same for _, same in found]), sum([same for run, same in found if not run.holders])

    def freed_by(self, table: Table, tokens: Sequence[int], scope: Scope) -> int:
        """How many blocks releasing `table` would free, beside those that `tokens` would begin with anyway."""
        runs, private = self._holdings(table)
        found = dict(self._find(tokens, scope))
        return len(private) + sum(len(run.blocks) - found.get(run, 0) for run in runs if run.holders == 1)

    def may_find_more(self, looked_for: Sequence[tuple[Sequence[int], Scope]], growing: Sequence[Table]) -> bool:
        """Could any of these beginnings find more, once the tables `growing` have published more?

        If what is found of it goes as far as one of the tables was published: that may go on as it does.
        """
        if not self.prefix_cache:
            return False
        ends = {table.chain if table.chain is not None else _root(table.scope) for table in growing}
        return any(
            _root(scope) in ends
            or any(
                not ends.isdisjoint(range(run.chain + 1, run.chain + same + 1))
                for run, same in self._find(tokens, scope)
            )
            for tokens, scope in looked_for
        )

    def match(self, table: Table, tokens: Sequence[int]) -> int:
        """Let the empty `table` begin with the cached blocks of `tokens`. Returns how many tokens they hold.

        At least one token is left to compute: without it there would be nothing to sample from.
        """
        assert not table.blocks, "a prefix can only begin a table"
        for found, same in self._find(tokens, table.scope):
            run = found if same == len(found.blocks) else self._cut(found, same)
            if not run.holders:
                self._idle.pop(run, None)  # what was cut off of an idle one is not in it
                self._idle_blocks -= same
            run.holders += 1
            table.blocks += run.blocks
            table.chain = run.chain + same
        table.published = len(table.blocks)
        self.counters.looked_up_tokens += len(tokens)
        self.counters.hit_tokens += table.published * self.block_size
        return table.published * self.block_size

    def grow(self, table: Table, tokens: int) -> bool:
        """Extend `table` until it holds `tokens` tokens. All or nothing: False leaves everything as it was."""
        missing = self.blocks_for(tokens) - len(table.blocks)
        if missing <= 0:
            return True
        if missing > self.free_blocks:
            return False
        if empty := min(missing, len(self._empty)):
            table.blocks += self._empty[: -empty - 1 : -1]
            del self._empty[-empty:]
        if missing > empty:
            table.blocks += self._evict(missing - empty)
        return True

    def extend(self, table: Table) -> Evicted | None:
        """One more block for `table`; there must be a free one. Returns what was evicted for it, for `retract`."""
        if self._empty:
            table.blocks.append(self._empty.pop())
            return None
        oldest = next(iter(self._idle))
        evicted = oldest, oldest.contents[-1]
        table.blocks += self._evict(1)
        return evicted

    def retract(self, table: Table, evicted: Evicted | None) -> None:
        """Undo the last `extend`, which was of `table`. Nothing may have been written to the block."""
        block = table.blocks.pop()
        if evicted is None:
            self._empty.append(block)
            return
        run, content = evicted
        run.blocks.append(block)
        run.contents.append(content)
        if len(run.blocks) == 1:
            self._register(run)
            self._idle[run] = None
            self._idle.move_to_end(run, last=False)
        self._count(1, idle=1)
        self.counters.evictions -= 1

    def publish(self, table: Table, tokens: Sequence[int], computed: int) -> None:
        """Let later prompts find the full blocks of `table`; the first `computed` of `tokens` are resident in it.

        A block whose content another block already holds stays private: both are right, and one is enough. While
        `table` says what the beginning of a run does, and may go on as it does, that waits until it is known.
        """
        full = computed // self.block_size
        if not self.prefix_cache or full <= table.published:
            return
        chain = table.chain if table.chain is not None else _root(table.scope)
        filled = contents(tokens, table.published, full, self.block_size)
        while filled and (twin := self._runs.get((chain, filled[0]))) is not None:
            same = _alike(twin.contents, filled[: len(twin.contents)])
            if same == len(filled) < len(twin.contents):
                return
            del filled[:same]
            table.published += same
            table.chain = chain = twin.chain + same
        if filled:
            run = _Run((chain, filled[0]), self._next_chain, filled, table.blocks[table.published : full], holders=1)
            self._register(run)
            self._count(len(filled), idle=0)
            self._next_chain += len(filled)
            table.published, table.chain = full, self._next_chain

    def release(self, table: Table) -> None:
        """Take every block of `table` back and empty it. Cached blocks can still be found until they are needed."""
        runs, private = self._holdings(table)
        for run in reversed(runs):  # so that the end of a prefix is evicted before its beginning
            run.holders -= 1
            if not run.holders:
                self._idle[run] = None
                self._idle_blocks += len(run.blocks)
        self._empty += reversed(private)
        table.blocks.clear()
        table.published = 0
        table.chain = None

    def forget(self) -> None:
        """The memory is gone: nothing cached can be found any more. No table may hold a block."""
        assert not self.used_blocks, "forget() while tables hold blocks"
        self._empty += self._evict(self._idle_blocks)

    def _find(self, tokens: Sequence[int], scope: Scope) -> Found:
        """The cached blocks that `tokens` begin with; nobody may change what is returned.

        Whoever starts something asks several times in a row, and whoever finds no room asks again at every step: what
        was found last holds as long as nothing else is cached.
        """
        last, length = self._looked_up, len(tokens)
        if last is not None and last[0] is tokens and last[1:4] == (length, scope, self._changes):
            return last[4]
        if not self.prefix_cache:
            return []
        found: Found = []
        chain, size = _root(scope), self.block_size
        at, end = 0, (length - 1) // size
        while at < end and (run := self._runs.get((chain, contents(tokens, at, at + 1, size)[0]))) is not None:
            same = _alike(run.contents, contents(tokens, at, min(end, at + len(run.contents)), size))
            found.append((run, same))
            at += same
            chain = run.chain + same
        self._looked_up = tokens, length, scope, self._changes, found
        return found

    def _holdings(self, table: Table) -> tuple[list[_Run], list[int]]:
        """The runs that `table` holds, and its blocks that nobody can find, each in order."""
        runs, private, at = [], [], 0
        while at < table.published:
            run = self._run_at.get(table.blocks[at])
            if run is None:  # a twin
                private.append(table.blocks[at])
                at += 1
            else:
                runs.append(run)
                at += len(run.blocks)
        return runs, private + table.blocks[at:]

    def _cut(self, run: _Run, first: int) -> _Run:
        """Make two of a run. Returns the one of its `first` blocks; the rest keeps its place among the idle."""
        beginning = _Run(run.key, run.chain, run.contents[:first], run.blocks[:first], run.holders)
        del run.contents[:first], run.blocks[:first]
        run.chain += first
        run.key = run.chain, run.contents[0]
        self._register(beginning)
        self._register(run)
        self._changes += 1
        return beginning

    def _register(self, run: _Run) -> None:
        self._runs[run.key] = self._run_at[run.blocks[0]] = run

    def _count(self, cached: int, idle: int) -> None:
        """So many more blocks are cached, or fewer, and so many of them idle."""
        self._cached_blocks += cached
        self._idle_blocks += idle
        self._changes += 1

    def _evict(self, count: int) -> list[int]:
        """The blocks that were unused for longest; what they held is forgotten."""
        evicted: list[int] = []
        while len(evicted) < count:
            run = next(iter(self._idle))
            left = max(0, len(run.blocks) - count + len(evicted))
            evicted += reversed(run.blocks[left:])
            del run.blocks[left:], run.contents[left:]
            if not left:
                del self._idle[run], self._runs[run.key], self._run_at[evicted[-1]]
        self._count(-count, idle=-count)
        self.counters.evictions += count
        return evicted


def _alike(longer: list[Hashable], other: list[Hashable]) -> int:
    """How many of the first are equal."""
    if longer[: len(other)] == other:
        return len(other)
    return next(at for at, (left, right) in enumerate(zip(longer, other, strict=False)) if left != right)


def contents(tokens: Sequence[int], first: int, end: int, size: int) -> list[Hashable]:
    """What the blocks `first` to `end` of `tokens` hold, each as something to compare."""
    if isinstance(tokens, Spans):
        return tokens.blocks(first, end, size)
    return [tuple(tokens[start : start + size]) for start in range(first * size, end * size, size)]
