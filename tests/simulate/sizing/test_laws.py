"""What must hold of every model, device and setting."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.errors import ConfigError
from headway.simulate.sizing import (
    ENGINES,
    KV_DTYPES,
    MemorySettings,
    hardware_named,
    kv_cost,
    kv_dtype,
    plan_memory,
    shape_from_config,
    weight_bytes,
)
from headway.simulate.sizing.kv import divides
from tests.simulate.sizing import configs as c

SHAPES = [
    shape_from_config(config)
    for config in (
        c.LLAMA_31_8B,
        c.GPT_OSS_120B,
        c.GEMMA_3_27B,
        c.DEEPSEEK_V3,
        c.QWEN36_27B,
        c.JAMBA,
        c.FALCON_7B,
        c.QWEN25_15B,
    )
]
shapes = st.sampled_from(SHAPES)
dtypes = st.sampled_from(sorted(KV_DTYPES))
ranks = st.integers(1, 16)


@given(shapes, dtypes, st.integers(1, 300), st.integers(1, 200_000), st.integers(0, 50_000))
def test_a_longer_request_never_holds_less(shape, dtype, block, context, more):
    cost = kv_cost(shape, kv_dtype(dtype), block_tokens=block)
    assert cost.request_bytes(context) <= cost.request_bytes(context + more)


@given(shapes, dtypes, st.integers(1, 300), st.integers(1, 200_000))
def test_a_request_holds_its_tokens_and_at_most_a_block_more(shape, dtype, block, context):
    cost = kv_cost(shape, kv_dtype(dtype), block_tokens=block)
    held = cost.request_bytes(context) - cost.request_state_bytes
    least = sum(g.token_bytes * min(context, g.window_tokens or context) for g in cost.groups)
    assert least <= held <= least + 2 * cost.block_bytes


@given(shapes, dtypes)
def test_without_windows_everything_grows(shape, dtype):
    cost = kv_cost(shape, kv_dtype(dtype), use_windows=False)
    assert cost.growing_token_bytes == cost.token_bytes


@given(shapes, dtypes, ranks)
def test_ranks_hold_at_least_their_share(shape, dtype, n):
    if not divides(shape, n):
        with pytest.raises(ConfigError, match="tensor-parallel-size"):
            kv_cost(shape, kv_dtype(dtype), tensor_parallel=n)
        return
    one, many = (kv_cost(shape, kv_dtype(dtype), tensor_parallel=k) for k in (1, n))
    assert many.token_bytes <= one.token_bytes <= many.token_bytes * n
    assert weight_bytes(shape, n).total <= weight_bytes(shape).total <= weight_bytes(shape, n).total * n + n


def test_more_ranks_than_heads_hold_copies():
    shape = shape_from_config(c.LLAMA_31_8B)
    assert kv_cost(shape, kv_dtype("bf16"), tensor_parallel=8).token_bytes == 16_384
    assert kv_cost(shape, kv_dtype("bf16"), tensor_parallel=16).token_bytes == 16_384
    mla = shape_from_config(c.DEEPSEEK_V3)
    assert kv_cost(mla, kv_dtype("bf16"), tensor_parallel=8).token_bytes == kv_cost(mla, kv_dtype("bf16")).token_bytes


@given(
    shapes,
    st.sampled_from(sorted(ENGINES)),
    st.floats(8, 400),
    st.builds(
        MemorySettings,
        gpu_memory_utilization=st.floats(0.05, 1.0),
        max_num_seqs=st.integers(1, 1024),
        max_num_batched_tokens=st.integers(64, 16384),
    ),
)
def test_the_parts_are_the_budget(shape, engine, memory_gib, settings):
    hardware = hardware_named("H100", memory_gib=memory_gib)
    try:
        plan = plan_memory(shape, hardware, ENGINES[engine], settings)
    except ConfigError as error:
        assert "too large" in error.message
        return
    assert sum(term.bytes for term in plan.terms) + plan.kv_bytes == plan.budget_bytes <= hardware.memory_bytes
    assert plan.tokens * plan.cost.token_bytes <= plan.kv_bytes
    assert plan.blocks * plan.cost.block_tokens == plan.tokens
    longest = plan.longest_context
    assert plan.sequences(longest) >= 1 or longest == 0
    assert longest == plan.max_model_len or plan.sequences(longest + 1) < 1


@given(shapes, st.floats(0.4, 0.99))
def test_more_memory_never_holds_fewer(shape, share):
    less, more = (
        MemorySettings(gpu_memory_utilization=value, max_model_len=4096) for value in (share, min(1.0, share + 0.01))
    )
    big = hardware_named("B200", memory_gib=2000)
    first, second = (plan_memory(shape, big, ENGINES["vllm"], settings) for settings in (less, more))
    assert first.tokens <= second.tokens
    assert first.sequences(4096) <= second.sequences(4096)


def test_a_cache_of_half_the_width_holds_twice_the_tokens():
    shape, hardware = shape_from_config(c.LLAMA_31_8B), hardware_named("A100-80GB")
    wide, narrow = (
        plan_memory(shape, hardware, ENGINES["vllm"], MemorySettings(kv_cache_dtype=dtype)) for dtype in ("auto", "fp8")
    )
    assert narrow.blocks in (2 * wide.blocks, 2 * wide.blocks + 1)


def test_files_tell_the_weights_where_they_are_known():
    shape = replace(shape_from_config(c.LLAMA_31_8B), weights_bytes=5 << 30)
    assert weight_bytes(shape).total == pytest.approx(5 << 30, abs=8)
    assert weight_bytes(shape, 4).total == pytest.approx((5 << 30) / 4, rel=0.01)
