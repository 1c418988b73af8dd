"""Layers with a state of fixed size: its elements per request, and their parameters, for the families that exist.

A layer keeps the last inputs of a short convolution, (kernel - 1) × channels, and the state proper. Sources: the
models' published code; checked against what llama.cpp prints for Qwen3.6 (`tests/simulate/sizing`).
"""

from __future__ import annotations

from typing import NamedTuple

from headway.simulate.sizing.fields import Fields


class Recurrent(NamedTuple):
    """Of one layer."""

    convolution_elements: int
    state_elements: int
    parameters: int


def recurrent_layer(fields: Fields, hidden: int) -> Recurrent:
    """The state of one recurrent layer.

    Raises:
        ModelError: the file names no dimensions of a known kind of recurrent layer.
    """
    if fields.has("linear_num_value_heads"):
        return _gated_delta(fields, hidden)
    if (inner := fields.inner("linear_attn_config")) is not None:
        return _kimi_delta(inner, hidden)
    if fields.has("conv_L_cache"):
        width = fields.count("conv_dim", default=hidden)
        return Recurrent((fields.count("conv_L_cache") - 1) * width, 0, 4 * hidden * width)
    if fields.has("mamba_n_heads", "mamba_num_heads", "n_mamba_heads", "num_heads") and fields.has(
        "mamba_d_state", "ssm_state_size", "state_size"
    ):
        return _mamba2(fields, hidden)
    if fields.has("mamba_d_state", "state_size", "ssm_state_size"):
        return _mamba1(fields, hidden)
    raise fields.missing("linear_num_value_heads", "mamba_d_state", "state_size", "conv_L_cache")


def _gated_delta(fields: Fields, hidden: int) -> Recurrent:
    """Gated DeltaNet: Qwen3-Next, Qwen3.5 and later."""
    keys = fields.count("linear_num_key_heads") * fields.count("linear_key_head_dim")
    heads, value_dim = fields.count("linear_num_value_heads"), fields.count("linear_value_head_dim")
    channels = 2 * keys + heads * value_dim
    kernel = fields.count("linear_conv_kernel_dim", default=4)
    parameters = hidden * (channels + heads * value_dim + 2 * heads) + heads * value_dim * hidden + channels * kernel
    return Recurrent((kernel - 1) * channels, heads * value_dim * fields.count("linear_key_head_dim"), parameters)


def _kimi_delta(fields: Fields, hidden: int) -> Recurrent:
    heads, dim = fields.count("num_heads"), fields.count("head_dim")
    kernel = fields.count("short_conv_kernel_size", default=4)
    width = heads * dim
    return Recurrent((kernel - 1) * 3 * width, heads * dim * dim, 5 * hidden * width)


def _mamba2(fields: Fields, hidden: int) -> Recurrent:
    heads = fields.count("mamba_n_heads", "mamba_num_heads", "n_mamba_heads", "num_heads")
    state = fields.count("mamba_d_state", "ssm_state_size", "state_size")
    expand = fields.number("mamba_expand", "expand", default=2.0)
    head_dim_names = ("mamba_d_head", "mamba_head_dim", "mamba_headdim")
    width = fields.first(*head_dim_names)
    # granite writes "auto" for the head's width
    known = width is not None and not isinstance(width[1], str)
    inner = heads * fields.count(*head_dim_names) if known else int(expand * hidden)
    groups = fields.count("mamba_n_groups", "n_groups", "mamba_ngroups", default=1)
    kernel = fields.count("mamba_d_conv", "conv_kernel", "mamba_conv_kernel", default=4)
    channels = inner + 2 * groups * state
    parameters = hidden * (inner + channels + heads) + inner * hidden + channels * kernel
    return Recurrent((kernel - 1) * channels, inner * state, parameters)


def _mamba1(fields: Fields, hidden: int) -> Recurrent:
    state = fields.count("mamba_d_state", "state_size", "ssm_state_size")
    expand = fields.number("mamba_expand", "expand", default=2.0)
    inner = (
        fields.count("intermediate_size", default=int(expand * hidden)) if _is_pure(fields) else int(expand * hidden)
    )
    named = fields.first("mamba_dt_rank", "time_step_rank")  # or "auto"
    automatic = named is None or isinstance(named[1], str)
    rank = -(-hidden // 16) if automatic else fields.count("mamba_dt_rank", "time_step_rank")
    kernel = fields.count("mamba_d_conv", "conv_kernel", default=4)
    parameters = 3 * hidden * inner + inner * (rank + 2 * state) + rank * inner + inner * (kernel + state)
    return Recurrent((kernel - 1) * inner, inner * state, parameters)


def _is_pure(fields: Fields) -> bool:
    return not fields.has("num_attention_heads")
