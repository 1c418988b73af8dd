"""How many bits a weight takes, from what `config.json` says of dtype and quantisation.

A quantised matrix stores its weights, and for each group of weights along a row a scale and sometimes a zero point:
AWQ and GPTQ (4 bits, a 16-bit scale and a 4-bit zero per group of 128) take 4.156 bits per weight. Embeddings, norms
and usually the output head stay in the model's dtype.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from headway.simulate.sizing.fields import Fields
from headway.simulate.sizing.shape import WeightFormat

DTYPE_BYTES: dict[str, int] = {"bfloat16": 2, "float16": 2, "half": 2, "float32": 4, "float": 4, "float64": 8}
DEFAULT_DTYPE = "bfloat16"
SCALE_BITS = 16


def grouped(bits: int, group_tokens: int, *, zero: bool) -> Fraction:
    """Bits per weight with a 16-bit scale, and a zero point of `bits`, per group; a group of -1 is a whole row."""
    if group_tokens <= 0:
        return Fraction(bits)
    return Fraction(bits) + Fraction(SCALE_BITS + (bits if zero else 0), group_tokens)


def plain_dtype(fields: Fields) -> str:
    """The dtype of the checkpoint, as engines take it by default: float32 is served as float16 or bfloat16."""
    name = fields.text("dtype", "torch_dtype", default=DEFAULT_DTYPE).removeprefix("torch.").lower()
    if name not in DTYPE_BYTES:
        raise fields.bad("torch_dtype", name, f"one of {', '.join(DTYPE_BYTES)}")
    return DEFAULT_DTYPE if DTYPE_BYTES[name] > 2 else name


def weight_format(fields: Fields, dtype: str, stored: Mapping[str, Any] | None = None) -> WeightFormat:
    """The format that `quantization_config` describes; plain when there is none.

    Raises:
        ModelError: a method that is not known: its size would be a guess.
    """
    inner = (
        fields.inner("quantization_config", "compression_config") if stored is None else Fields(stored, fields.where)
    )
    if inner is None:
        return WeightFormat(dtype, Fraction(8 * DTYPE_BYTES[dtype]), dtype)
    method = inner.text("quant_method", "quant_algo", "quant_library").lower().replace("_", "-")
    if method == "compressed-tensors":
        return _compressed(inner, dtype)
    if method in ("awq", "gptq", "awq-marlin", "gptq-marlin", "auto-round", "autoround", "intel/auto-round"):
        bits = inner.count("bits", "w_bit", default=4, most=16)
        group = inner.count("group_size", "q_group_size", default=128, least=-1)
        return WeightFormat(f"{method} {bits}-bit", grouped(bits, group, zero=True), dtype)
    if method in ("fp8", "fbgemm-fp8", "modelopt-fp8"):
        block = inner.counts("weight_block_size")
        share = Fraction(32, max(1, math.prod(block))) if block else Fraction(0)
        return WeightFormat("fp8", 8 + share, dtype)
    if method in ("mxfp4", "gpt-oss-mxfp4"):
        return WeightFormat("mxfp4", Fraction(17, 4), dtype, only_experts=True)
    if method in ("modelopt", "modelopt-fp4", "nvfp4", "modelopt-mixed"):
        four = "fp4" in inner.text("quant_algo", "quant_method", default="nvfp4").lower()
        return WeightFormat("nvfp4", Fraction(9, 2), dtype) if four else WeightFormat("fp8", Fraction(8), dtype)
    if method in ("bitsandbytes", "bnb"):
        if inner.flag("load_in_8bit", "_load_in_8bit", default=False):
            return WeightFormat("bitsandbytes 8-bit", Fraction(8), dtype)
        return WeightFormat("bitsandbytes 4-bit", Fraction(4) + Fraction(32, 64), dtype)
    raise inner.bad("quant_method", method, "a known quantisation (awq, gptq, fp8, mxfp4, nvfp4, bitsandbytes, …)")


def _compressed(inner: Fields, dtype: str) -> WeightFormat:
    """llm-compressor's format: groups of layers, each with its weights' bits and group size; the first one counts."""
    groups = inner.inner("config_groups")
    first = next(iter(groups.values.values()), None) if groups else None
    weights = first.get("weights") if isinstance(first, Mapping) else None
    if not isinstance(weights, Mapping):
        raise inner.missing("config_groups")
    described = Fields(weights, f"{inner.where}: config_groups")
    bits = described.count("num_bits", most=16)
    group = described.count("group_size", default=-1, least=-1)
    kind = described.text("type", default="int")
    scale_bits = 8 if kind == "float" and bits == 4 else SCALE_BITS
    share = Fraction(0) if group <= 0 else Fraction(scale_bits, group)
    return WeightFormat(f"compressed-tensors {kind}{bits}", Fraction(bits) + share, dtype)
