"""The readers: every family's layers, heads and parameters, against what their makers publish."""

from __future__ import annotations

from typing import Any

import pytest

from headway.simulate.sizing import kv_cost, kv_dtype, shape_from_config, shape_from_gguf, weight_bytes
from tests.simulate.sizing import configs as c

# Billions of parameters, as the model cards say.
PARAMETERS = [
    (c.LLAMA_31_8B, 8.03),
    (c.LLAMA_2_13B, 13.0),
    (c.LLAMA_31_70B, 70.6),
    (c.TINYLLAMA, 1.10),
    (c.SMOLLM2_135M, 0.135),
    (c.QWEN25_05B, 0.494),
    (c.QWEN25_15B, 1.54),
    (c.QWEN3_14B, 14.8),
    (c.QWEN3_32B, 32.8),
    (c.QWEN3_30B_A3B, 30.5),
    (c.QWEN3_235B_FP8, 235.1),
    (c.MIXTRAL_8X7B, 46.7),
    (c.GPT_OSS_120B, 116.8),
    (c.DEEPSEEK_V3, 671.0),
    (c.JAMBA, 51.6),
    (c.PHI_2, 2.78),
    (c.FALCON_7B, 6.92),
    (c.GEMMA_3_27B, 27.0),
]
# Billions that one token is multiplied with or looks up.
ACTIVE = [(c.QWEN3_30B_A3B, 3.35), (c.MIXTRAL_8X7B, 12.9), (c.DEEPSEEK_V3, 37.6), (c.JAMBA, 12.1)]


@pytest.mark.parametrize(("config", "billions"), PARAMETERS, ids=lambda value: str(value)[:40])
def test_parameters_are_those_of_the_model_card(config, billions):
    assert shape_from_config(config).parameters.total / 1e9 == pytest.approx(billions, rel=0.005)


@pytest.mark.parametrize(("config", "billions"), ACTIVE, ids=lambda value: str(value)[:40])
def test_of_experts_only_the_chosen_ones_count(config, billions):
    counts = shape_from_config(config).parameters
    assert (counts.active_body + counts.head + counts.embedding) / 1e9 == pytest.approx(billions, rel=0.02)


def token_bytes(config: c.Config, ranks: int = 1, dtype: str = "bf16") -> int:
    return kv_cost(shape_from_config(config), kv_dtype(dtype), tensor_parallel=ranks).token_bytes


def test_grouped_queries_are_not_forgotten():
    """The same model with a head of keys for each query takes four times as much: what careless calculators say."""
    multi_head = {**c.LLAMA_31_8B, "num_key_value_heads": 32}
    assert token_bytes(multi_head) == 4 * token_bytes(c.LLAMA_31_8B)


def test_one_head_for_all_queries():
    assert token_bytes(c.FALCON_7B) == 32 * 2 * 1 * 64 * 2
    new = {
        **c.FALCON_7B,
        "new_decoder_architecture": True,
        "num_kv_heads": 8,
        "num_attention_heads": 71,
        "head_dim": 64,
    }
    with pytest.raises(Exception, match=r"num_kv_heads|num_key_value_heads"):
        shape_from_config(new)  # 71 queries cannot share 8 heads
    starcoder = {
        "model_type": "gpt_bigcode",
        "n_embd": 6144,
        "n_layer": 40,
        "n_head": 48,
        "multi_query": True,
        "vocab_size": 49152,
    }
    assert token_bytes(starcoder) == 40 * 2 * 128 * 2
    glm = {
        "model_type": "chatglm", "hidden_size": 4096, "num_layers": 40, "num_attention_heads": 32, "kv_channels": 128,
        "multi_query_attention": True, "multi_query_group_num": 2, "ffn_hidden_size": 13696,
        "padded_vocab_size": 151552,
    }  # fmt: skip
    assert token_bytes(glm) == 40 * 2 * 2 * 128 * 2


def windows(config: c.Config) -> dict[int | None, int]:
    """Layers by their window."""
    return {group.window_tokens: group.layers for group in shape_from_config(config).attention}


def test_sliding_windows_by_family():
    assert windows(c.GPT_OSS_120B) == {None: 18, 128: 18}
    assert windows(c.GEMMA_3_27B) == {None: 10, 1024: 52}
    gemma2 = {**c.LLAMA_31_8B, "model_type": "gemma2", "sliding_window": 4096}
    assert windows(gemma2) == {None: 16, 4096: 16}
    mistral = {**c.MISTRAL_7B, "sliding_window": 4096}
    assert windows(mistral) == {4096: 32}
    assert windows({**mistral, "sliding_window": 32768}) == {None: 32}, "a window as wide as the context is none"
    asked = {**c.QWEN25_15B, "sliding_window": 4096, "use_sliding_window": True, "max_window_layers": 21}
    assert windows(asked) == {None: 21, 4096: 7}
    assert windows({**asked, "use_sliding_window": False}) == {None: 28}


def test_layers_that_share_keys_store_none():
    sharing = {**c.GEMMA_3_27B, "text_config": c.GEMMA_3_27B["text_config"] | {"num_kv_shared_layers": 20}}
    assert sum(windows(sharing).values()) == 42


def test_hybrids_have_few_layers_of_attention():
    jamba = shape_from_config(c.JAMBA)
    assert (jamba.attention_layers, jamba.states[0].layers) == (4, 28)
    qwen = shape_from_config(c.QWEN36_27B)
    assert (qwen.attention_layers, qwen.states[0].layers) == (16, 48)
    kimi = shape_from_config(
        {
            **c.DEEPSEEK_V3, "num_hidden_layers": 4,
            "linear_attn_config": {"full_attn_layers": [4], "kda_layers": [1, 2, 3], "num_heads": 32, "head_dim": 128},
        }
    )  # fmt: skip
    assert (kimi.attention_layers, kimi.attention[0].latent, kimi.states[0].layers) == (1, True, 3)
    nemotron = {
        "model_type": "nemotron_h", "hidden_size": 4480, "num_hidden_layers": 4, "hybrid_override_pattern": "M-*-",
        "num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 131072,
        "intermediate_size": 15680, "mamba_num_heads": 128, "mamba_head_dim": 80, "ssm_state_size": 128, "n_groups": 8,
        "conv_kernel": 4,
    }  # fmt: skip
    shape = shape_from_config(nemotron)
    assert (shape.attention_layers, shape.states[0].layers, shape.states[0].state_elements) == (1, 1, 128 * 80 * 128)


def test_a_model_of_states_alone_needs_no_heads():
    mamba = shape_from_config(
        {"model_type": "mamba", "hidden_size": 2560, "num_hidden_layers": 64, "vocab_size": 50280, "state_size": 16,
         "intermediate_size": 5120, "conv_kernel": 4, "time_step_rank": 160, "tie_word_embeddings": True}
    )  # fmt: skip
    cost = kv_cost(mamba, kv_dtype("bf16"))
    assert cost.token_bytes == 0
    assert cost.request_state_bytes == 64 * (3 * 5120 * 2 + 5120 * 16 * 4)
    assert mamba.parameters.total / 1e9 == pytest.approx(2.77, rel=0.01)


def test_compressed_rows_do_not_depend_on_heads():
    assert token_bytes(c.DEEPSEEK_V3) == 61 * (512 + 64) * 2
    assert token_bytes({**c.DEEPSEEK_V3, "num_attention_heads": 64, "num_key_value_heads": 64}) == 61 * 576 * 2


def test_the_text_part_of_a_model_that_sees():
    shape = shape_from_config(c.GEMMA_3_27B)
    assert shape.layers == 62
    assert shape.notes


@pytest.mark.parametrize(
    ("config", "gib"),
    [
        ({**c.LLAMA_31_8B, "quantization_config": c.AWQ}, 5.33),  # hugging-quants' AWQ: 5.7 GB
        ({**c.LLAMA_31_8B, "quantization_config": {"quant_method": "gptq", "bits": 8, "group_size": -1}}, 8.46),
        (c.LLAMA_31_70B_INT8, 67.7),
        ({**c.LLAMA_31_8B, "quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}}, 5.6),
    ],
    ids=["awq", "gptq-8", "int8", "bnb-4"],
)
def test_quantised_weights(config, gib):
    assert weight_bytes(shape_from_config(config)).total / (1 << 30) == pytest.approx(gib, rel=0.02)


def gguf_metadata() -> dict[str, Any]:
    return {
        "general.architecture": "llama", "general.name": "Tiny", "llama.block_count": 30, "llama.embedding_length": 576,
        "llama.context_length": 8192, "llama.attention.head_count": 9, "llama.attention.head_count_kv": 3,
        "llama.feed_forward_length": 1536, "llama.vocab_size": 49152,
    }  # fmt: skip


def test_gguf_says_the_same_as_config_json():
    gguf = shape_from_gguf(gguf_metadata(), {"token_embd.weight": 98_000_000})
    config = shape_from_config(c.SMOLLM2_135M)
    assert (gguf.attention, gguf.parameters, gguf.tied) == (config.attention, config.parameters, config.tied)
    assert gguf.weights_bytes == weight_bytes(gguf).total == 98_000_000


def test_gguf_with_heads_by_layer():
    metadata = gguf_metadata() | {
        "general.architecture": "granitehybrid", "granitehybrid.block_count": 4, "granitehybrid.embedding_length": 64,
        "granitehybrid.context_length": 100, "granitehybrid.attention.head_count": 4, "granitehybrid.vocab_size": 10,
        "granitehybrid.attention.head_count_kv": [0, 2, 0, 0], "granitehybrid.feed_forward_length": [8, 8, 8, 8],
        "granitehybrid.ssm.state_size": 16, "granitehybrid.ssm.inner_size": 128, "granitehybrid.ssm.conv_kernel": 4,
        "granitehybrid.ssm.time_step_rank": 8, "granitehybrid.ssm.group_count": 1,
    }  # fmt: skip
    shape = shape_from_gguf(metadata, {})
    assert (shape.attention_layers, shape.states[0].layers) == (1, 3)
    assert shape.states[0].state_elements == 128 * 16
    assert shape.states[0].convolution_elements == 3 * (128 + 2 * 16)


def test_gguf_of_compressed_rows():
    key = "deepseek2."
    metadata = {
        "general.architecture": "deepseek2", key + "block_count": 61, key + "embedding_length": 7168,
        key + "context_length": 163840, key + "attention.head_count": 128, key + "attention.head_count_kv": 1,
        key + "feed_forward_length": 18432, key + "vocab_size": 129280, key + "attention.kv_lora_rank": 512,
        key + "attention.q_lora_rank": 1536, key + "rope.dimension_count": 64, key + "attention.key_length": 576,
        key + "attention.value_length": 512, key + "attention.key_length_mla": 192,
        key + "attention.value_length_mla": 128, key + "expert_count": 256, key + "expert_used_count": 8,
        key + "expert_feed_forward_length": 2048, key + "expert_shared_count": 1, key + "leading_dense_block_count": 3,
    }  # fmt: skip
    shape = shape_from_gguf(metadata, {"output.weight": 0})
    assert shape.attention == shape_from_config(c.DEEPSEEK_V3).attention
    assert shape.parameters == shape_from_config(c.DEEPSEEK_V3).parameters
