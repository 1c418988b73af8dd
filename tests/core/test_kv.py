"""Blocks are conserved: what is free and what is in tables are, together, every block exactly once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.kv import KvPool


@given(
    num_blocks=st.integers(1, 40),
    block_size=st.integers(1, 32),
    moves=st.lists(st.tuples(st.integers(0, 5), st.integers(-1, 400)), max_size=60),
)
def test_blocks_are_conserved_and_growth_is_all_or_nothing(num_blocks, block_size, moves):
    pool = KvPool(num_blocks, block_size)
    tables: list[list[int]] = [[] for _ in range(6)]
    for which, tokens in moves:  # tokens -1: release
        table = tables[which]
        before, free = list(table), pool.free_blocks
        if tokens < 0:
            pool.release(table)
            assert table == []
        elif pool.grow(table, tokens):
            assert len(table) == max(len(before), -(-tokens // block_size))
            assert table[: len(before)] == before
        else:
            assert table == before
            assert pool.free_blocks == free
            assert -(-tokens // block_size) - len(before) > free
        held = [block for table in tables for block in table]
        assert len(set(held)) == len(held)
        assert set(held) <= set(range(num_blocks))
        assert pool.used_blocks == len(held)
        assert pool.free_blocks + len(held) == num_blocks


@pytest.mark.parametrize(("num_blocks", "block_size"), [(0, 32), (4, 0), (-1, 32)])
def test_an_empty_pool_is_refused(num_blocks, block_size):
    with pytest.raises(ValueError, match="at least one block"):
        KvPool(num_blocks, block_size)
