"""What a model is, for memory and time: layers by what they keep of the past, and parameters by how they are read.

`ModelShape` is the one thing that readers (`config_json`, `gguf_metadata`) make and the sums (`kv`, `memory`,
`roofline`) take. It holds no hardware, no engine and no settings.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction


@dataclass(frozen=True, slots=True)
class AttentionGroup:
    """Equal layers that keep keys and values of every token, or of the last `window_tokens`.

    `latent` layers (MLA) keep one compressed row per token instead of heads: `kv_heads` is 1, `key_dim` its length,
    `value_dim` 0, and tensor parallel ranks each hold all of it. `index_dim` is the width of an extra row of 8-bit keys
    that sparse attention searches (DeepSeek V3.2).
    """

    layers: int
    kv_heads: int
    key_dim: int
    value_dim: int
    window_tokens: int | None = None
    latent: bool = False
    rope_dim: int = 0
    index_dim: int = 0


@dataclass(frozen=True, slots=True)
class StateGroup:
    """Equal layers that keep a state of fixed size per request, however long it is (Mamba, linear attention)."""

    layers: int
    convolution_elements: int  # per layer; kept in the model's dtype
    state_elements: int  # per layer; kept in float32 unless the engine is told otherwise


@dataclass(frozen=True, slots=True)
class Parameters:
    """Counts, by what happens to them under tensor parallelism and in a step.

    `embedding` is looked up, never multiplied; `head` is 0 when it is the embedding itself.
    """

    embedding: int
    head: int
    mixers: int  # attention and recurrent layers without what is named below; split over ranks
    kv_projections: int  # keys' and values' matrices: a rank holds at least one head of them
    whole: int  # held whole by every rank: norms, routers, MLA's down-projections
    feed_forward: int  # dense layers and shared experts; split
    experts: int  # routed experts; split
    active_experts: int  # of them, those one token is multiplied with

    @property
    def total(self) -> int:
        return self.embedding + self.head + self.body

    @property
    def body(self) -> int:
        """Everything between embedding and head."""
        return self.mixers + self.kv_projections + self.whole + self.feed_forward + self.experts

    @property
    def active_body(self) -> int:
        """What one token is multiplied with, head aside."""
        return self.body - self.experts + self.active_experts


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """How weights are stored. `bits` of one weight in a quantised matrix, its share of scales and zeros included."""

    name: str
    bits: Fraction
    dtype: str  # of what is not quantised
    only_experts: bool = False
    quantises_head: bool = False


@dataclass(frozen=True, slots=True)
class ModelShape:
    """See the module. Sizes are of the whole model, not of one rank."""

    name: str
    family: str
    layers: int
    hidden_size: int
    vocab_size: int
    query_heads: int
    head_dim: int
    attention: tuple[AttentionGroup, ...]
    states: tuple[StateGroup, ...]
    parameters: Parameters
    widest_feed_forward: int  # of a dense layer; 0 when there is none
    expert_width: int
    experts: int  # routed experts of a layer; 0 for dense models
    experts_per_token: int
    context_tokens: int
    weight_format: WeightFormat
    rope_dim: int
    tied: bool
    weights_bytes: int | None = None  # as measured on the file, where one was given
    notes: tuple[str, ...] = field(default_factory=tuple)

    @property
    def attention_layers(self) -> int:
        return sum(group.layers for group in self.attention)
