"""Bytes of weights on one rank."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

from headway.simulate.sizing.kv import heads_on_a_rank
from headway.simulate.sizing.quantisation import DTYPE_BYTES
from headway.simulate.sizing.shape import ModelShape


@dataclass(frozen=True, slots=True)
class WeightBytes:
    """Of one rank. A step reads `body` (experts only as far as they are used) and, to sample, the head."""

    embedding: int  # only looked up
    head: int  # also when it is the embedding itself
    body: int
    experts: int  # the part of `body` that is routed experts
    tied: bool

    @property
    def total(self) -> int:
        return self.body + self.head + (0 if self.tied else self.embedding)


def weight_bytes(shape: ModelShape, tensor_parallel: int = 1) -> WeightBytes:
    """From the parameters and their format, or scaled to what the files take where that is known."""
    rank = _counted(shape, tensor_parallel)
    if shape.weights_bytes is None:
        return rank
    whole = _counted(shape, 1).total
    scaled = {
        part: getattr(rank, part) * shape.weights_bytes // whole for part in ("embedding", "head", "experts", "total")
    }
    beside = scaled["head"] + (0 if rank.tied else scaled["embedding"])
    return replace(
        rank,
        embedding=scaled["embedding"],
        head=scaled["head"],
        body=scaled["total"] - beside,
        experts=scaled["experts"],
    )


def _counted(shape: ModelShape, tensor_parallel: int) -> WeightBytes:
    counts, form = shape.parameters, shape.weight_format
    plain = Fraction(DTYPE_BYTES[form.dtype])
    packed = form.bits / 8
    dense = plain if form.only_experts else packed
    head = packed if form.quantises_head else plain
    kv_heads = max((group.kv_heads for group in shape.attention), default=1)
    kv_share = Fraction(heads_on_a_rank(kv_heads, tensor_parallel), kv_heads)
    experts = counts.experts * packed / tensor_parallel
    body = (counts.mixers + counts.feed_forward) * dense / tensor_parallel + counts.kv_projections * dense * kv_share
    embedding = int(counts.embedding * head / tensor_parallel)
    return WeightBytes(
        embedding=embedding,
        head=embedding if shape.tied else int(counts.head * head / tensor_parallel),
        body=int(body + experts + counts.whole * plain),
        experts=int(experts),
        tied=shape.tied,
    )
