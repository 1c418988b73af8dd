"""`ModelShape` from a Hugging Face `config.json`: one reader for the families, each field by any of its names.

Parameters are counted from the dimensions (biases, and the vision part of a model that sees, are left out: under 1%
and stated in `notes`). Where the files of the weights are at hand, their size is taken instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from headway.simulate.sizing.fields import MAX_LAYERS, Fields
from headway.simulate.sizing.layer_plan import Kind, layer_plan
from headway.simulate.sizing.quantisation import plain_dtype, weight_format
from headway.simulate.sizing.recurrent import Recurrent, recurrent_layer
from headway.simulate.sizing.shape import AttentionGroup, ModelShape, Parameters, StateGroup

_TEXT_PARTS = ("text_config", "llm_config", "language_config", "thinker_config")
# Feed-forward layers of two matrices; everything newer has three (a gate).
_UNGATED = frozenset(
    [
        "gpt2",
        "gpt_bigcode",
        "gpt_neox",
        "gptj",
        "gpt_neo",
        "opt",
        "falcon",
        "bloom",
        "mpt",
        "phi",
        "starcoder2",
        "nemotron",
        "nemotron_h",
        "persimmon",
    ]
)
_TIED_BY_DEFAULT = frozenset(
    [
        "gemma",
        "gemma2",
        "gemma3",
        "gemma3_text",
        "gemma3n",
        "gpt2",
        "gpt_bigcode",
        "opt",
        "falcon",
        "bloom",
        "mpt",
        "cohere",
    ]
)
_GATED_QUERIES = frozenset(["qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text"])


class _Heads(NamedTuple):
    query: int
    kv: int
    dim: int


def shape_from_config(config: Mapping[str, Any], *, where: str = "config.json", name: str = "") -> ModelShape:
    """Read the shape of a language model.

    Raises:
        ModelError: a field that is needed is missing, is no number that can be true, or is of an unknown kind; the
            message names it and `where`.
    """
    outer = Fields(config, where)
    fields, notes = _text_part(outer)
    family = fields.text("model_type", default=outer.text("model_type", default="unknown"))
    hidden = fields.count("hidden_size", "n_embd", "d_model", "hidden_dim")
    layers = fields.count("num_hidden_layers", "n_layer", "num_layers", "n_layers", most=MAX_LAYERS)
    vocab = fields.count("vocab_size", "padded_vocab_size")
    context = fields.count(
        "max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "max_sequence_length", default=2048
    )
    window = _window(fields, context)
    kinds = layer_plan(fields, layers, window)
    heads = _heads(fields, hidden, kinds)
    recurrent = recurrent_layer(fields, hidden) if Kind.STATE in kinds or Kind.BOTH in kinds else None
    experts = fields.count(
        "num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts", default=0, least=0
    )
    per_token = fields.count("num_experts_per_tok", "num_experts_per_token", "moe_top_k", "top_k_experts", default=1)
    if experts and per_token > experts:
        raise fields.bad("num_experts_per_tok", per_token, f"at most the {experts} experts there are")
    dtype = plain_dtype(fields if fields.has("dtype", "torch_dtype") else outer)
    quantised = fields if fields.has("quantization_config", "compression_config") else outer
    tied = fields.flag(
        "tie_word_embeddings", default=outer.flag("tie_word_embeddings", default=family in _TIED_BY_DEFAULT)
    )
    feed_forward = _FeedForward(fields, family, hidden, experts)
    attention = _attention_groups(fields, kinds, heads, window)
    return ModelShape(
        name=name or outer.text("_name_or_path") or family,
        family=family,
        layers=layers,
        hidden_size=hidden,
        vocab_size=vocab,
        query_heads=heads.query,
        head_dim=heads.dim,
        attention=attention,
        states=_states(kinds, recurrent),
        parameters=_parameters(
            fields,
            family,
            kinds,
            heads=heads,
            recurrent=recurrent,
            feed_forward=feed_forward,
            vocab=vocab,
            tied=tied,
        ),
        widest_feed_forward=feed_forward.dense_width if feed_forward.dense_layers(kinds) else 0,
        expert_width=feed_forward.expert_width if experts else 0,
        experts=experts,
        experts_per_token=per_token if experts else 0,
        context_tokens=context,
        weight_format=weight_format(quantised, dtype),
        rope_dim=fields.count("qk_rope_head_dim", default=heads.dim, least=1),
        tied=tied,
        notes=notes,
    )


def _text_part(outer: Fields) -> tuple[Fields, tuple[str, ...]]:
    for part in _TEXT_PARTS:
        if (inner := outer.inner(part)) is not None:
            deeper, _ = _text_part(inner)
            notes = ("parts that see or hear are not counted in the weights",) if outer.has("vision_config") else ()
            return deeper, notes
    return outer, ()


def _window(fields: Fields, context: int) -> int | None:
    """The width of windows; None when there is none, or one that holds the whole context."""
    if not fields.has("sliding_window", "attention_chunk_size", "sliding_window_size"):
        return None
    width = fields.count("sliding_window", "sliding_window_size", "attention_chunk_size", least=0)
    return width if 0 < width < context else None


def _heads(fields: Fields, hidden: int, kinds: Sequence[Kind]) -> _Heads:
    if not any(kind in (Kind.FULL, Kind.WINDOW, Kind.BOTH) for kind in kinds):
        return _Heads(0, 0, 1)
    query = fields.count("num_attention_heads", "n_head", "n_heads", "num_heads")
    inner = fields.inner("attn_config")  # DBRX, MPT
    kv = _kv_heads(fields, inner, query)
    if query % kv and kv % query:
        raise fields.bad("num_key_value_heads", kv, f"a divisor of the {query} attention heads")
    if not fields.has("head_dim", "attention_head_dim", "kv_channels") and hidden % query:
        raise fields.bad("hidden_size", hidden, f"a multiple of the {query} attention heads (and there is no head_dim)")
    return _Heads(
        query, kv, fields.count("head_dim", "attention_head_dim", "kv_channels", default=max(1, hidden // query))
    )


def _kv_heads(fields: Fields, inner: Fields | None, query: int) -> int:
    if fields.text("model_type") == "falcon" and not fields.flag("new_decoder_architecture", default=False):
        return 1 if fields.flag("multi_query", default=True) else query
    if fields.flag("multi_query", default=False) and not fields.has("num_kv_heads", "num_key_value_heads"):
        return 1
    if fields.flag("multi_query_attention", default=False):  # ChatGLM
        return fields.count("multi_query_group_num")
    if inner is not None and inner.has("kv_n_heads"):
        return inner.count("kv_n_heads")
    return fields.count("num_key_value_heads", "num_kv_heads", "n_head_kv", "n_kv_heads", default=query)


def _attention_groups(
    fields: Fields, kinds: Sequence[Kind], heads: _Heads, window: int | None
) -> tuple[AttentionGroup, ...]:
    """Groups of layers that store; layers that share another's keys (the last ones of gemma3n and gemma4) do not."""
    sharing = fields.count("num_kv_shared_layers", default=0, least=0)
    storing = kinds[: len(kinds) - sharing] if sharing < len(kinds) else kinds
    full = sum(kind in (Kind.FULL, Kind.BOTH) for kind in storing)
    windowed = sum(kind is Kind.WINDOW for kind in storing)
    groups = []
    if full and fields.has("kv_lora_rank"):
        latent, rope = fields.count("kv_lora_rank"), fields.count("qk_rope_head_dim")
        index = fields.count("index_head_dim", default=0, least=0)
        groups.append(AttentionGroup(full, 1, latent + rope, 0, latent=True, rope_dim=rope, index_dim=index))
    elif full:
        dim = fields.count("global_head_dim", default=heads.dim)
        kv_heads = fields.count("num_global_key_value_heads", default=heads.kv)
        groups.append(AttentionGroup(full, kv_heads, dim, fields.count("v_head_dim", default=dim)))
    if windowed:
        groups.append(
            AttentionGroup(
                windowed,
                fields.count("swa_num_key_value_heads", default=heads.kv),
                fields.count("swa_head_dim", default=heads.dim),
                fields.count("swa_v_head_dim", "v_head_dim", default=heads.dim),
                window,
            )
        )
    return tuple(groups)


def _states(kinds: Sequence[Kind], recurrent: Recurrent | None) -> tuple[StateGroup, ...]:
    if recurrent is None:
        return ()
    layers = sum(kind in (Kind.STATE, Kind.BOTH) for kind in kinds)
    return (StateGroup(layers, recurrent.convolution_elements, recurrent.state_elements),)


class _FeedForward:
    """How wide the feed-forward part of each layer is, and which layers have experts."""

    def __init__(self, fields: Fields, family: str, hidden: int, experts: int) -> None:
        self.fields, self.hidden, self.experts, self.family = fields, hidden, experts, family
        self.matrices = 2 if family in _UNGATED else 3
        inner = fields.inner("ffn_config")
        self.dense_width = fields.count(
            "intermediate_size_mlp" if family.startswith("llama4") else "intermediate_size",
            "ffn_dim", "n_inner", "ffn_hidden_size", "ffn_dim_exp", "intermediate_size",
            default=inner.count("ffn_hidden_size") if inner is not None else 4 * hidden, least=0,
        )  # fmt: skip
        self.expert_width = fields.count(
            "moe_intermediate_size", "intermediate_size_moe", "expert_feed_forward_length",
            default=fields.count("intermediate_size", default=self.dense_width), least=0,
        )  # fmt: skip
        shared = fields.count("n_shared_experts", "num_shared_experts", "moe_num_shared_experts", default=0, least=0)
        self.shared_width = fields.count(
            "shared_expert_intermediate_size", "shared_intermediate_size", "moe_shared_expert_intermediate_size",
            default=shared * self.expert_width, least=0,
        )  # fmt: skip

    def expert_layers(self, kinds: Sequence[Kind]) -> int:
        return sum(self._has_experts(i) for i in self._with_feed_forward(kinds))

    def dense_layers(self, kinds: Sequence[Kind]) -> int:
        return len(self._with_feed_forward(kinds)) - self.expert_layers(kinds)

    def _with_feed_forward(self, kinds: Sequence[Kind]) -> list[int]:
        """Pure state models have none; where layers are either mixer or feed-forward, those that keep nothing."""
        if Kind.NOTHING in kinds:
            return [i for i, kind in enumerate(kinds) if kind is Kind.NOTHING]
        pure = not self.fields.has("num_attention_heads", "n_head", "n_heads", "num_heads") or self.family == "mamba2"
        return [] if pure else list(range(len(kinds)))

    def _has_experts(self, layer: int) -> bool:
        fields = self.fields
        if not self.experts:
            return False
        if (only := fields.items("mlp_only_layers")) and layer in only:
            return False
        if fields.has("first_k_dense_replace"):
            every = (
                fields.count("moe_layer_freq", default=1)
                if not isinstance(fields.values.get("moe_layer_freq"), list)
                else 1
            )
            return layer >= fields.count("first_k_dense_replace", least=0) and layer % every == 0
        if fields.has("expert_layer_period"):
            return layer % fields.count("expert_layer_period") == fields.count(
                "expert_layer_offset", default=0, least=0
            )
        step = fields.count("decoder_sparse_step", "interleave_moe_layer_step", default=1)
        return (layer + 1) % step == 0


def _parameters(
    fields: Fields,
    family: str,
    kinds: Sequence[Kind],
    *,
    heads: _Heads,
    recurrent: Recurrent | None,
    feed_forward: _FeedForward,
    vocab: int,
    tied: bool,
) -> Parameters:
    hidden = feed_forward.hidden
    attending = sum(kind in (Kind.FULL, Kind.WINDOW, Kind.BOTH) for kind in kinds)
    states = sum(kind in (Kind.STATE, Kind.BOTH) for kind in kinds)
    mixers, kv, whole = _attention_parameters(fields, family, heads, hidden)
    expert = feed_forward.matrices * hidden * feed_forward.expert_width
    sparse, dense = feed_forward.expert_layers(kinds), feed_forward.dense_layers(kinds)
    per_token = min(
        feed_forward.experts, fields.count("num_experts_per_tok", "num_experts_per_token", "moe_top_k", default=1)
    )
    return Parameters(
        embedding=vocab * hidden,
        head=0 if tied else vocab * hidden,
        mixers=attending * mixers + states * (recurrent.parameters if recurrent else 0),
        kv_projections=attending * kv,
        whole=attending * whole + 2 * hidden * len(kinds) + hidden + sparse * hidden * feed_forward.experts,
        feed_forward=dense * feed_forward.matrices * hidden * feed_forward.dense_width
        + sparse * feed_forward.matrices * hidden * feed_forward.shared_width,
        experts=sparse * feed_forward.experts * expert,
        active_experts=sparse * per_token * expert,
    )


def _attention_parameters(fields: Fields, family: str, heads: _Heads, hidden: int) -> tuple[int, int, int]:
    """Of one layer: what is split over ranks, the keys' and values' projections, what every rank holds whole."""
    if not fields.has("kv_lora_rank"):
        queries = heads.query * heads.dim * (2 if family in _GATED_QUERIES else 1)
        return hidden * (queries + heads.query * heads.dim), 2 * hidden * heads.kv * heads.dim, 0
    latent, rope = fields.count("kv_lora_rank"), fields.count("qk_rope_head_dim")
    plain = fields.count("qk_nope_head_dim", default=heads.dim)
    value = fields.count("v_head_dim", default=heads.dim)
    query_width = heads.query * (plain + rope)
    split = latent * heads.query * (plain + value) + heads.query * value * hidden
    rank = fields.count("q_lora_rank", default=0, least=0)
    split += rank * query_width if rank else hidden * query_width
    whole = hidden * (latent + rope) + hidden * rank
    if fields.has("index_n_heads"):
        index = fields.count("index_head_dim")
        whole += rank * fields.count("index_n_heads") * index + hidden * index
    return split, 0, whole
