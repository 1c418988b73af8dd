"""`ModelShape` from a GGUF file's metadata and tensor table, which the caller reads (`headway.models.gguf_file`).

The architecture's own keys are said again in `config.json`'s words, so that there is one reader. The weights take what
the tensors take.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any

from headway.core.errors import ModelError
from headway.simulate.sizing.config_json import shape_from_config
from headway.simulate.sizing.fields import Fields
from headway.simulate.sizing.shape import ModelShape, WeightFormat

# GGUF's key (after the architecture's name) -> config.json's
_KEYS = {
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "context_length": "max_position_embeddings",
    "attention.head_count": "num_attention_heads",
    "attention.kv_lora_rank": "kv_lora_rank",
    "attention.q_lora_rank": "q_lora_rank",
    "attention.sliding_window": "sliding_window",
    "attention.shared_kv_layers": "num_kv_shared_layers",
    "attention.key_length": "head_dim",
    "expert_count": "num_local_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
    "expert_shared_count": "n_shared_experts",
    "leading_dense_block_count": "first_k_dense_replace",
    "full_attention_interval": "full_attention_interval",
}
_ARCHITECTURES = {"gpt-oss": "gpt_oss", "gemma3": "gemma3_text", "qwen2moe": "qwen2_moe", "qwen3moe": "qwen3_moe"}
_ARCHITECTURES |= {
    "qwen3next": "qwen3_next",
    "qwen35": "qwen3_5",
    "qwen35moe": "qwen3_5_moe",
    "deepseek2": "deepseek_v3",
}


def shape_from_gguf(
    metadata: Mapping[str, Any], tensor_bytes: Mapping[str, int], *, where: str = "GGUF", name: str = ""
) -> ModelShape:
    """`tensor_bytes` is the size of every tensor by its name.

    Raises:
        ModelError: a key that is needed is missing or cannot be true.
    """
    architecture = str(metadata.get("general.architecture", ""))
    if not architecture:
        raise ModelError(f"{where} names no general.architecture, so its sizes cannot be read", code="bad_config")
    config = _as_config(metadata, architecture, tied="output.weight" not in tensor_bytes, where=where)
    shape = shape_from_config(config, where=where, name=name or str(metadata.get("general.name", "")))
    total = sum(tensor_bytes.values())
    if not total:
        return shape
    bits = Fraction(8 * total, shape.parameters.total)
    stored = WeightFormat(f"GGUF, {float(bits):.2f} bits per weight", bits, "float16", quantises_head=True)
    return replace(shape, weights_bytes=total, weight_format=stored)


def _as_config(metadata: Mapping[str, Any], architecture: str, *, tied: bool, where: str) -> dict[str, Any]:
    own = {key.removeprefix(f"{architecture}."): value for key, value in metadata.items()}
    config: dict[str, Any] = {_KEYS[key]: own[key] for key in _KEYS if own.get(key) is not None}
    config["model_type"] = _ARCHITECTURES.get(architecture, architecture)
    config["tie_word_embeddings"] = tied
    config["torch_dtype"] = "float16"
    tokens = metadata.get("tokenizer.ggml.tokens")
    config["vocab_size"] = own.get("vocab_size") or (len(tokens) if isinstance(tokens, list) else None)
    fields = Fields(own, where)
    widths = fields.counts("feed_forward_length")
    config["intermediate_size"] = max(widths) if widths else own.get("feed_forward_length")
    _heads_by_layer(config, fields)
    if config.get("kv_lora_rank") is not None:
        rope = fields.count("rope.dimension_count")
        config["qk_rope_head_dim"] = rope
        config["qk_nope_head_dim"] = fields.count("attention.key_length_mla", "attention.key_length") - rope
        config["v_head_dim"] = fields.count("attention.value_length_mla", "attention.value_length")
    elif fields.has("attention.value_length"):
        config["v_head_dim"] = own["attention.value_length"]
    if fields.has("ssm.state_size"):
        _state(fields, config, architecture)
    return config


def _heads_by_layer(config: dict[str, Any], fields: Fields) -> None:
    """Counts may be lists, one for each layer: a 0 is a layer without keys and values."""
    if (query := fields.counts("attention.head_count")) is not None:
        config["num_attention_heads"] = max(query)
    pattern = fields.values.get("attention.sliding_window_pattern")
    windowed = [bool(flag) for flag in pattern] if isinstance(pattern, list) else []
    if windowed:
        config["layer_types"] = ["sliding_attention" if flag else "full_attention" for flag in windowed]
    if (kv := fields.counts("attention.head_count_kv")) is None:
        config["num_key_value_heads"] = fields.values.get("attention.head_count_kv")
        return
    config["num_key_value_heads"] = max(kv)
    if 0 in kv and "full_attention_interval" not in config:
        config["layer_types"] = ["full_attention" if count else "mamba" for count in kv]
    elif len(windowed) == len(kv):  # gemma4: windows have other heads than full layers
        for name, wanted in (("num_global_key_value_heads", False), ("swa_num_key_value_heads", True)):
            if counts := [count for count, flag in zip(kv, windowed, strict=True) if flag is wanted]:
                config[name] = max(counts)


def _state(fields: Fields, config: dict[str, Any], architecture: str) -> None:
    state, inner = fields.count("ssm.state_size"), fields.count("ssm.inner_size")
    kernel, rank = fields.count("ssm.conv_kernel"), fields.count("ssm.time_step_rank", default=1)
    groups = fields.count("ssm.group_count", default=0, least=0)
    if architecture.startswith(("qwen3next", "qwen35")):
        config |= {"linear_num_key_heads": groups, "linear_key_head_dim": state, "linear_num_value_heads": rank}
        config |= {"linear_value_head_dim": inner // rank, "linear_conv_kernel_dim": kernel}
        config.setdefault("full_attention_interval", 4)
    elif groups:  # Mamba 2: the "rank" is the number of heads
        config |= {"mamba_n_heads": rank, "mamba_d_head": inner // rank, "mamba_n_groups": groups}
        config |= {"mamba_d_state": state, "mamba_d_conv": kernel}
    else:
        config |= {"mamba_d_state": state, "mamba_d_conv": kernel, "mamba_dt_rank": rank}
        config["mamba_expand"] = inner / fields.count("embedding_length")
