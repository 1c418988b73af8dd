"""Bytes of KV cache: per token, per block, per request. Exact, in integers, on one rank.

Per token and layer: 2 × KV heads × head width × bytes, where a rank of a tensor parallel group holds its share of the
heads, at least one. So groups larger than the number of heads hold copies, and MLA's compressed row is copied on every
rank. A window stops growing at its width; a recurrent state never grows. Nothing here depends on query heads:
forgetting that makes models with grouped queries look many times too large.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from headway.core.errors import ConfigError
from headway.simulate.sizing.kv_dtype import F32_BYTES, KvDtype
from headway.simulate.sizing.quantisation import DTYPE_BYTES
from headway.simulate.sizing.shape import AttentionGroup, ModelShape

DEFAULT_BLOCK_TOKENS = 16
STATE_BYTES = F32_BYTES
LARGEST_GROUP = 64


@dataclass(frozen=True, slots=True)
class GroupCost:
    """One group of layers on one rank."""

    layers: int
    token_bytes: int  # of all its layers
    window_tokens: int | None
    what: str


@dataclass(frozen=True, slots=True)
class KvCost:
    """What one rank keeps. `request_state_bytes` is there from a request's first token to its last."""

    groups: tuple[GroupCost, ...]
    request_state_bytes: int
    block_tokens: int
    dtype: str

    @property
    def token_bytes(self) -> int:
        """Of a token inside every window."""
        return sum(group.token_bytes for group in self.groups)

    @property
    def growing_token_bytes(self) -> int:
        """Of one more token of a long context: windows no longer grow."""
        return sum(group.token_bytes for group in self.groups if group.window_tokens is None)

    @property
    def block_bytes(self) -> int:
        return self.token_bytes * self.block_tokens

    @property
    def uniform(self) -> bool:
        """Whether a request is its tokens and nothing else: then the cache is a number of blocks."""
        return self.request_state_bytes == 0 and all(group.window_tokens is None for group in self.groups)

    def request_bytes(self, context_tokens: int) -> int:
        """What a request of this length holds, in whole blocks. A window needs a block more than its width: it moves
        through blocks without being aligned to them.
        """
        held = self.request_state_bytes
        for group in self.groups:
            blocks = math.ceil(context_tokens / self.block_tokens)
            if group.window_tokens is not None:
                blocks = min(blocks, math.ceil(group.window_tokens / self.block_tokens) + 1)
            held += blocks * self.block_tokens * group.token_bytes
        return held


def kv_cost(
    shape: ModelShape,
    dtype: KvDtype,
    *,
    tensor_parallel: int = 1,
    block_tokens: int = DEFAULT_BLOCK_TOKENS,
    use_windows: bool = True,
    convolution_bytes: int | None = None,
) -> KvCost:
    """The cost on one rank. `use_windows` is False for engines that keep everything even where a window would do;
    `convolution_bytes` is what they take for an element of a short convolution's past, by default the model's dtype.

    Raises:
        ConfigError: heads that cannot be divided over so many ranks, or a block of no tokens.
    """
    if block_tokens < 1:
        raise ConfigError(f"--block-size is {block_tokens}; a block holds at least 1 token", param="block_size")
    if tensor_parallel < 1:
        raise ConfigError(f"--tensor-parallel-size is {tensor_parallel}, not at least 1", param="tensor_parallel_size")
    if not divides(shape, tensor_parallel):
        possible = [n for n in range(1, LARGEST_GROUP + 1) if divides(shape, n)]
        raise ConfigError(
            f"--tensor-parallel-size {tensor_parallel} does not go into the {shape.query_heads} attention heads (and "
            f"the heads of keys) of {shape.name}: use {', '.join(map(str, possible))}",
            param="tensor_parallel_size",
        )
    groups = tuple(_group_cost(group, dtype, tensor_parallel, use_windows=use_windows) for group in shape.attention)
    plain_bytes = convolution_bytes or DTYPE_BYTES[shape.weight_format.dtype]
    state = sum(
        group.layers * (group.convolution_elements * plain_bytes + group.state_elements * STATE_BYTES)
        for group in shape.states
    )
    return KvCost(groups, -(-state // tensor_parallel), block_tokens, dtype.name)


def divides(shape: ModelShape, tensor_parallel: int) -> bool:
    """Whether every rank gets as many heads: whole ones, or copies of one where ranks outnumber the heads of keys."""
    shared = [group.kv_heads for group in shape.attention if not group.latent]
    return shape.query_heads % tensor_parallel == 0 and all(
        heads % tensor_parallel == 0 or tensor_parallel % heads == 0 for heads in shared
    )


def heads_on_a_rank(kv_heads: int, tensor_parallel: int) -> int:
    """A share of the heads, or a copy of one where there are more ranks than heads."""
    return max(1, -(-kv_heads // tensor_parallel))


def _group_cost(group: AttentionGroup, dtype: KvDtype, tensor_parallel: int, *, use_windows: bool) -> GroupCost:
    window = group.window_tokens if use_windows else None
    if group.latent:
        row = dtype.latent_row(group.key_dim - group.rope_dim, group.rope_dim)
        row += group.index_dim + Fraction(F32_BYTES * group.index_dim, 128)
        return GroupCost(
            group.layers, math.ceil(row * group.layers), window, "compressed rows (MLA), whole on every rank"
        )
    heads = heads_on_a_rank(group.kv_heads, tensor_parallel)
    row = heads * (dtype.key_row(group.key_dim) + dtype.value_row(group.value_dim))
    kind = "all of the past" if window is None else f"the last {window:,} tokens"
    return GroupCost(group.layers, math.ceil(row * group.layers), window, f"{heads} KV heads × {group.key_dim}, {kind}")
