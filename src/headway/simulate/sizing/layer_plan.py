"""Which layer keeps what: all of the past, a window of it, a state of fixed size, or nothing.

Newer files list it (`layer_types`); older ones have a rule of their family.
"""

from __future__ import annotations

from enum import Enum

from headway.simulate.sizing.fields import Fields


class Kind(Enum):
    FULL = "full attention"
    WINDOW = "a window of attention"
    STATE = "a state of fixed size"
    BOTH = "full attention beside a state"
    NOTHING = "nothing"


_NAMES = {
    "full_attention": Kind.FULL,
    "attention": Kind.FULL,
    "global_attention": Kind.FULL,
    "sliding_attention": Kind.WINDOW,
    "local_attention": Kind.WINDOW,
    "chunked_attention": Kind.WINDOW,
    "linear_attention": Kind.STATE,
    "mamba": Kind.STATE,
    "mamba2": Kind.STATE,
    "conv": Kind.STATE,
    "recurrent": Kind.STATE,
    "hybrid": Kind.BOTH,
    "mlp": Kind.NOTHING,
    "moe": Kind.NOTHING,
}
_PATTERN = {"M": Kind.STATE, "*": Kind.FULL, "-": Kind.NOTHING, "E": Kind.NOTHING}
PURE_STATE = {"mamba", "mamba2", "falcon_mamba"}
BESIDE = {"falcon_h1"}
# Windows that alternate: one full layer in each so many. The first of gemma2 and gpt-oss has the window.
_EVERY = {"gemma2": 2, "gpt_oss": 2, "gemma3": 6, "gemma3_text": 6, "cohere2": 4, "llama4": 4, "llama4_text": 4}
# These have a window only where they say so.
_ASKS = {"qwen2", "qwen2_moe", "qwen3", "qwen3_moe"}


def layer_plan(fields: Fields, layers: int, window_tokens: int | None) -> list[Kind]:
    """One kind per layer. `window_tokens` is the width of a window, None when the file names none."""
    family = fields.text("model_type")
    listed = fields.items("layer_types", "layers_block_type")
    if listed is not None:
        kinds = [_named(fields, str(name)) for name in listed]
    elif pattern := fields.text("hybrid_override_pattern"):
        kinds = [_PATTERN.get(letter, Kind.NOTHING) for letter in pattern]
    else:
        kinds = _by_rule(fields, family, layers, window_tokens)
    if len(kinds) != layers:
        raise fields.bad("layer_types", f"a list of {len(kinds)}", f"a list of {layers}, as num_hidden_layers says")
    if window_tokens is None:  # a kind that is listed, without its width: all of the past is the safe reading
        kinds = [Kind.FULL if kind is Kind.WINDOW else kind for kind in kinds]
    return kinds


def _named(fields: Fields, name: str) -> Kind:
    if (kind := _NAMES.get(name)) is None:
        raise fields.bad("layer_types", name, f"a kind of layer that is known ({', '.join(_NAMES)})")
    return kind


def _by_rule(fields: Fields, family: str, layers: int, window_tokens: int | None) -> list[Kind]:
    if family in PURE_STATE:
        return [Kind.STATE] * layers
    if family in BESIDE:
        return [Kind.BOTH] * layers
    if (linear := fields.inner("linear_attn_config")) is not None:  # Kimi Linear counts from 1
        full = linear.items("full_attn_layers") or []
        return [Kind.FULL if i + 1 in full else Kind.STATE for i in range(layers)]
    if (indices := fields.items("attn_layer_indices")) is not None:
        return [Kind.FULL if i in indices else Kind.STATE for i in range(layers)]
    if fields.has("attn_layer_period"):
        period, offset = fields.count("attn_layer_period"), fields.count("attn_layer_offset", default=0, least=0)
        return [Kind.FULL if i % period == offset else Kind.STATE for i in range(layers)]
    if fields.has("full_attention_interval"):
        interval = fields.count("full_attention_interval")
        return [Kind.FULL if (i + 1) % interval == 0 else Kind.STATE for i in range(layers)]
    if window_tokens is None:
        return [Kind.FULL] * layers
    return _windows(fields, family, layers)


def _windows(fields: Fields, family: str, layers: int) -> list[Kind]:
    asked = fields.flag("use_sliding_window", default=family not in _ASKS)
    if not asked:
        return [Kind.FULL] * layers
    if family in _ASKS:  # the first layers stay full
        first = fields.count("max_window_layers", default=0, least=0)
        return [Kind.WINDOW if i >= first else Kind.FULL for i in range(layers)]
    if family in _EVERY or fields.has("sliding_window_pattern"):
        every = fields.count("sliding_window_pattern", "no_rope_layer_interval", default=_EVERY.get(family, 1))
        return [Kind.FULL if (i + 1) % every == 0 else Kind.WINDOW for i in range(layers)]
    return [Kind.WINDOW] * layers
