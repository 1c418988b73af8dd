"""`KvPool` alone: every block is in exactly one place, growth is all or nothing, and what is found is what was put."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.core.scheduler.kv import KvPool, Table
from tests.laws.audit import recount

TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=30)  # few tokens: beginnings are often shared


@settings(max_examples=150, deadline=None)
@given(
    num_blocks=st.integers(1, 12),
    block_size=st.sampled_from([1, 2, 4]),
    prefix_cache=st.booleans(),
    moves=st.lists(
        st.tuples(st.sampled_from(["start", "grow", "publish", "release"]), st.integers(0, 3), TOKENS), max_size=40
    ),
)
def test_blocks_are_conserved_and_growth_is_all_or_nothing(num_blocks, block_size, prefix_cache, moves):
    pool = KvPool(num_blocks, block_size, prefix_cache=prefix_cache)
    tables = [Table(scope=i % 2) for i in range(4)]
    texts: list[list[int]] = [[] for _ in tables]
    for what, which, tokens in moves:
        table, text = tables[which], texts[which]
        before, free, cached = list(table.blocks), pool.free_blocks, pool.cached_blocks
        if what == "release":
            pool.release(table)
            assert table.blocks == []
        elif what == "start" and not before:
            texts[which] = tokens
            found = pool.match(table, tokens)
            assert found == len(table.blocks) * block_size < len(tokens)
        elif what == "grow":
            grown = pool.grow(table, len(text))
            missing = pool.blocks_for(len(text)) - len(before)
            assert grown is (missing <= free)
            assert table.blocks[: len(before)] == before
            if not grown:
                assert (table.blocks, pool.free_blocks, pool.cached_blocks) == (before, free, cached)
        elif what == "publish":
            pool.publish(table, text, min(len(text), len(before) * block_size))
        recount(pool, tables)


@settings(max_examples=150, deadline=None)
@given(
    texts=st.lists(st.tuples(st.sampled_from("ab"), TOKENS), max_size=8),
    block_size=st.sampled_from([1, 2, 4]),
    asked=TOKENS,
)
def test_what_is_found_is_the_longest_whole_block_beginning_of_the_same_scope(texts, block_size, asked):
    """With room for everything. One token at least is left to compute."""
    pool = KvPool(400, block_size)
    for scope, tokens in texts:
        table = Table(scope=scope)
        pool.match(table, tokens)
        assert pool.grow(table, len(tokens))
        pool.publish(table, tokens, len(tokens))
        pool.release(table)

    def shared(tokens: list[int]) -> int:
        pairs = enumerate(zip(tokens, asked, strict=False))
        return next((i for i, (left, right) in pairs if left != right), min(len(tokens), len(asked)))

    whole = max((shared(tokens) // block_size for scope, tokens in texts if scope == "a"), default=0)
    expected = min(whole, (len(asked) - 1) // block_size)
    assert pool.cached(asked, "a") == (expected, expected)
    table = Table(scope="a")
    assert pool.match(table, asked) == expected * block_size
    assert pool.cached(asked, "a") == (expected, 0)
    assert pool.counters.looked_up_tokens == sum(len(tokens) for _, tokens in texts) + len(asked)


def filled(pool: KvPool, tokens: list[int], scope: str = "") -> Table:
    table = Table(scope=scope)
    pool.match(table, tokens)
    assert pool.grow(table, len(tokens))
    pool.publish(table, tokens, len(tokens))
    return table


def test_the_least_recently_used_goes_first_and_the_end_of_a_prefix_before_its_beginning():
    pool = KvPool(4, 1)
    old, new = filled(pool, [1, 2]), filled(pool, [3, 4])
    pool.release(old)
    pool.release(new)
    again = Table()
    assert pool.match(again, [1, 2, 9]) == 2  # used again: now the youngest
    pool.release(again)
    table = Table()
    assert pool.grow(table, 1)
    assert (pool.cached([3, 4, 9], "")[0], pool.cached([1, 2, 9], "")[0]) == (1, 2)
    assert pool.grow(table, 3)
    assert (pool.cached([3, 4, 9], "")[0], pool.cached([1, 2, 9], "")[0]) == (0, 1)
    assert pool.counters.evictions == 3


def test_a_shared_block_is_free_only_when_its_last_holder_leaves():
    pool = KvPool(4, 2)
    first = filled(pool, [1, 2, 3, 4])
    second = Table()
    assert pool.match(second, [1, 2, 3, 4, 5]) == 4
    assert second.blocks == first.blocks
    pool.release(first)
    assert pool.free_blocks == 2
    pool.release(second)
    assert pool.free_blocks == 4


def test_twins_share_what_follows():
    """Two that computed the same at the same time: one block is enough, and what either goes on with can be found."""
    pool = KvPool(8, 2)
    one, other = Table(), Table()
    for table in (one, other):
        assert pool.grow(table, 2)
    pool.publish(one, [1, 2], 2)
    pool.publish(other, [1, 2], 2)
    assert pool.cached_blocks == 1
    assert pool.grow(other, 4)
    pool.publish(other, [1, 2, 3, 4], 4)
    assert pool.cached([1, 2, 3, 4, 5], "") == (2, 0)


def test_a_twin_that_is_behind_goes_on_by_itself_where_it_differs():
    pool = KvPool(8, 1)
    filled(pool, [1, 2, 3, 4])
    twin = Table()
    assert pool.grow(twin, 3)
    pool.publish(twin, [1, 2], 2)
    assert (twin.published, pool.cached_blocks) == (0, 4)  # it may still say what the other does
    pool.publish(twin, [1, 2, 9], 3)
    assert (twin.published, pool.cached_blocks) == (3, 5)
    assert pool.cached([1, 2, 9, 0], "") == (3, 0)
    pool.release(twin)
    assert pool.cached([1, 2, 9, 0], "") == (3, 1)


def test_a_twin_whose_twin_has_gone_takes_its_place():
    pool = KvPool(8, 1)
    first, twin = filled(pool, [1, 2, 3, 4]), Table()
    assert pool.grow(twin, 4)
    pool.publish(twin, [1, 2], 2)
    pool.release(first)
    assert pool.grow(Table(), 4)
    pool.publish(twin, [1, 2, 3], 3)
    assert pool.cached([1, 2, 3, 4], "") == (3, 0)


def test_who_holds_only_the_beginning_leaves_the_rest_as_old_as_it_was():
    pool = KvPool(6, 1)
    pool.release(filled(pool, [1, 2, 3, 4]))
    pool.release(filled(pool, [7, 8]))
    table = Table()
    assert pool.match(table, [1, 2, 9]) == 2
    assert pool.free_blocks == 4
    assert pool.grow(table, 4)
    assert pool.cached([7, 8, 9], "") == (2, 2)
    assert pool.cached([1, 2, 3, 4, 5], "") == (2, 0)
    recount(pool, [table])


def test_only_whole_computed_blocks_are_published():
    pool = KvPool(8, 4)
    table = Table()
    assert pool.grow(table, 8)
    for computed, published in ((3, 0), (4, 1), (7, 1), (8, 2)):
        pool.publish(table, list(range(8)), computed)
        assert (table.published, pool.cached_blocks) == (published, published)


def test_an_evicted_beginning_hides_its_continuation_for_good():
    """The continuation of a beginning that is gone must not be found under a new one that only looks the same."""
    pool = KvPool(4, 1)
    pool.release(filled(pool, [1, 2]))
    table = Table()
    assert pool.grow(table, 4)  # evicts both
    pool.release(table)
    pool.release(filled(pool, [1]))
    assert pool.cached([1, 2, 3], "")[0] == 1


def test_forget_finds_nothing_any_more_and_loses_no_block():
    pool = KvPool(4, 1)
    pool.release(filled(pool, [1, 2, 3]))
    pool.forget()
    assert pool.cached_blocks == 0
    recount(pool, [])


def state(pool: KvPool) -> tuple[object, ...]:
    idle = [(run.key, run.contents[:], run.blocks[:]) for run in pool._idle]
    return pool._empty[:], idle, set(pool._runs), set(pool._run_at), pool.cached_blocks, pool.counters.evictions


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 8), st.integers(0, 8), st.integers(0, 8))
def test_extend_undone_leaves_everything_as_it_was(num_blocks, cached, extended):
    pool = KvPool(num_blocks, 1)
    pool.release(filled(pool, list(range(min(cached, num_blocks)))))
    before = state(pool)
    table = Table()
    done = [pool.extend(table) for _ in range(min(extended, num_blocks))]
    for evicted in reversed(done):
        pool.retract(table, evicted)
    assert table.blocks == []
    assert state(pool) == before
    recount(pool, [table])


@pytest.mark.parametrize(("num_blocks", "block_size"), [(0, 32), (4, 0), (-1, 32)])
def test_an_empty_pool_is_refused(num_blocks, block_size):
    with pytest.raises(ValueError, match="at least one block"):
        KvPool(num_blocks, block_size)
