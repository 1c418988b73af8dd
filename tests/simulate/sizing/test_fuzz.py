"""Whatever a file says, it makes a shape or an error of ours, never another exception."""

from __future__ import annotations

import contextlib
import copy
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from headway.core.errors import HeadwayError
from headway.simulate.sizing import kv_cost, kv_dtype, live_kv, shape_from_config, shape_from_gguf, weight_bytes
from tests.simulate.sizing import configs as c
from tests.simulate.sizing.test_shapes import gguf_metadata

CONFIGS = [
    c.LLAMA_31_8B, c.GPT_OSS_120B, c.GEMMA_3_27B, c.DEEPSEEK_V32, c.QWEN36_27B, c.JAMBA, c.FALCON_7B,
    c.LLAMA_31_70B_INT8, c.QWEN3_235B_FP8,
    {**c.LLAMA_31_8B, "quantization_config": c.AWQ},
    {**c.DEEPSEEK_V3, "linear_attn_config": {"full_attn_layers": [4], "num_heads": 32, "head_dim": 128}},
    {**c.GRANITE_33_2B, "layer_types": ["mamba", "attention"] * 20, "mamba_n_heads": 64, "mamba_d_state": 128},
]  # fmt: skip
scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner))
# Fields that a reader asks for, also where this model has none.
KNOWN = sorted(
    {key for config in CONFIGS for key in (*config, *config.get("text_config", {}))}
    | {"layers_block_type", "hybrid_override_pattern", "attn_layer_indices", "full_attention_interval", "conv_L_cache"}
    | {
        "mamba_d_head",
        "moe_layer_freq",
        "num_kv_shared_layers",
        "ffn_config",
        "attn_config",
        "text_config",
        "state_size",
    }
)


def takes(config: dict[str, Any]) -> None:
    with contextlib.suppress(HeadwayError):
        shape = shape_from_config(config)
        assert kv_cost(shape, kv_dtype("q8_0")).request_bytes(1000) >= 0
        assert weight_bytes(shape).total > 0


@settings(max_examples=400)
@given(st.sampled_from(CONFIGS), st.dictionaries(st.sampled_from(KNOWN), values, min_size=1, max_size=3))
def test_a_changed_config(config, change):
    takes(config | change)


@settings(max_examples=200)
@given(st.sampled_from(CONFIGS), st.data())
def test_a_change_inside(config, data):
    config = copy.deepcopy(config)
    nested = [key for key, value in config.items() if isinstance(value, dict)]
    if nested:
        inner = config[data.draw(st.sampled_from(nested))]
        inner[data.draw(st.sampled_from(sorted(inner)))] = data.draw(values)
        takes(config)


@settings(max_examples=300)
@given(st.data())
def test_a_changed_gguf(data):
    metadata = gguf_metadata() | {"llama.ssm.state_size": 16, "llama.ssm.inner_size": 64, "llama.ssm.conv_kernel": 4}
    metadata |= {"llama.attention.sliding_window_pattern": [True, False] * 15, "llama.attention.sliding_window": 64}
    for key in data.draw(st.lists(st.sampled_from(sorted(metadata)), max_size=3)):
        metadata[key] = data.draw(values)
    with contextlib.suppress(HeadwayError):
        shape_from_gguf(metadata, {"token_embd.weight": data.draw(st.integers(0, 10**9))})


@given(st.dictionaries(st.sampled_from(["/metrics", "/v1/models", "/get_server_info", "/props"]), st.text(max_size=60)))
def test_any_pages(pages):
    with contextlib.suppress(HeadwayError):
        live_kv(pages, "http://here")
