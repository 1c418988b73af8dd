"""The formats in which engines keep keys and values, and what a row of one takes, scales included."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from fractions import Fraction

from headway.core.errors import ConfigError

F32_BYTES = 4


@dataclass(frozen=True, slots=True)
class KvDtype:
    """`key` and `value` are bytes of one element; `per_head` are beside each head's row of keys, and of values."""

    name: str
    key: Fraction
    value: Fraction
    key_per_head: int = 0
    value_per_head: int = 0
    scaled_latent: bool = False  # MLA rows keep their rotary part in 16 bits, and a scale per 128 of the rest
    source: str = ""

    def key_row(self, dim: int) -> Fraction:
        return self.key * dim + self.key_per_head

    def value_row(self, dim: int) -> Fraction:
        return self.value * dim + self.value_per_head if dim else Fraction(0)

    def latent_row(self, latent: int, rope: int) -> Fraction:
        if not self.scaled_latent:
            return self.key * (latent + rope)
        return self.key * latent + Fraction(F32_BYTES * latent, 128) + 2 * rope


def _plain(name: str, size: Fraction | int, source: str = "") -> KvDtype:
    return KvDtype(name, Fraction(size), Fraction(size), source=source)


def _ggml(name: str, bytes_per_32: int) -> KvDtype:
    return _plain(name, Fraction(bytes_per_32, 32), "ggml: 32 values and their scale")


_TWO = _plain("bfloat16", 2)
KV_DTYPES: dict[str, KvDtype] = {
    "bfloat16": _TWO,
    "bf16": _TWO,
    "float16": _plain("float16", 2),
    "f16": _plain("float16", 2),
    "half": _plain("float16", 2),
    "float32": _plain("float32", 4),
    "f32": _plain("float32", 4),
    "fp8": _plain("fp8", 1, "one scale per layer or head, not per token"),
    "fp8_e4m3": _plain("fp8_e4m3", 1),
    "fp8_e5m2": _plain("fp8_e5m2", 1),
    "int8": _plain("int8", 1),
    "fp8_ds_mla": KvDtype("fp8_ds_mla", Fraction(1), Fraction(1), scaled_latent=True, source="656 bytes for 512 + 64"),
    "nvfp4": _plain("nvfp4", Fraction(9, 16), "16 values of 4 bits and an 8-bit scale"),
    # OpenVINO's CPU cache: keys are scaled by channel in blocks of 32 tokens that take 40 rows, values by token.
    "u8": KvDtype("u8", Fraction(40, 32), Fraction(1), value_per_head=8, source="OpenVINO on CPUs"),
    "q8_0": _ggml("q8_0", 34),
    "q5_1": _ggml("q5_1", 24),
    "q5_0": _ggml("q5_0", 22),
    "q4_1": _ggml("q4_1", 20),
    "q4_0": _ggml("q4_0", 18),
    "iq4_nl": _ggml("iq4_nl", 18),
}


def kv_dtype(name: str, model_dtype: str = "bfloat16") -> KvDtype:
    """`auto` is the model's own dtype.

    Raises:
        ConfigError: no such format.
    """
    wanted = name.strip().lower()
    if wanted == "auto":
        return KV_DTYPES[model_dtype]
    if (found := KV_DTYPES.get(wanted)) is not None:
        return found
    near = difflib.get_close_matches(wanted, KV_DTYPES, 3, 0.4)
    hint = f" Did you mean {' or '.join(near)}?" if near else ""
    raise ConfigError(
        f"--kv-cache-dtype {name!r} is not known: use auto or one of {', '.join(KV_DTYPES)}.{hint}",
        param="kv_cache_dtype",
    )
