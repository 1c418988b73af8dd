"""From a device's memory to tokens and sequences: each term named, none fitted to a case.

    KV cache = utilisation × memory - weights - activations - what is outside of the allocator (- CUDA graphs)

Activations are the larger of two moments of the biggest step: inside a feed-forward layer (its input, output and
residual, and the three sides of its gate, for every token), and sampling (`Engine.logit_bytes` for every sequence and
entry of the vocabulary, beside every token's hidden row).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from headway.core.errors import ConfigError
from headway.simulate.sizing.engines import GIB, Engine, Share, captured_sizes
from headway.simulate.sizing.hardware import HARDWARE, Hardware
from headway.simulate.sizing.kv import LARGEST_GROUP, KvCost, divides, kv_cost
from headway.simulate.sizing.kv_dtype import kv_dtype
from headway.simulate.sizing.quantisation import DTYPE_BYTES
from headway.simulate.sizing.shape import ModelShape
from headway.simulate.sizing.weights import weight_bytes


@dataclass(frozen=True, slots=True)
class Term:
    """A part of a device's memory, and why it is that large."""

    name: str
    bytes: int
    why: str


@dataclass(frozen=True, slots=True)
class MemorySettings:
    """What an operator sets. None means: as the engine does when nobody says."""

    tensor_parallel: int = 1
    kv_cache_dtype: str = "auto"
    gpu_memory_utilization: float | None = None
    max_model_len: int | None = None
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    block_tokens: int | None = None
    enforce_eager: bool = False
    use_windows: bool = True


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """How one device's memory is divided, and what fits into the part for the KV cache. All of one rank."""

    hardware: Hardware
    engine: Engine
    cost: KvCost
    terms: tuple[Term, ...]
    budget_bytes: int
    kv_bytes: int
    max_model_len: int
    tensor_parallel: int
    utilization: float

    @property
    def blocks(self) -> int:
        """Blocks of all layers; a bound, where windows or states share the memory."""
        return self.kv_bytes // self.cost.block_bytes if self.cost.token_bytes else 0

    @property
    def tokens(self) -> int:
        """Tokens that fit if every layer keeps every one of them."""
        return self.blocks * self.cost.block_tokens

    def sequences(self, context_tokens: int) -> float:
        """How many requests of this length fit at once; a fraction, as engines print it."""
        if self.cost.uniform:
            return self.blocks / math.ceil(context_tokens / self.cost.block_tokens)
        return self.kv_bytes / self.cost.request_bytes(context_tokens)

    def tokens_at(self, context_tokens: int) -> int:
        """Tokens of requests of this length that fit at once: what newer engines print for models with windows."""
        return int(self.sequences(context_tokens) * context_tokens)

    @property
    def longest_context(self) -> int:
        """The longest single request that fits, at most the model's own context."""
        if self.sequences(self.max_model_len) >= 1:
            return self.max_model_len
        low, high = 0, self.max_model_len
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.sequences(middle) >= 1 else (low, middle)
        return low


def plan_memory(shape: ModelShape, hardware: Hardware, engine: Engine, settings: MemorySettings) -> MemoryPlan:
    """Divide the memory.

    Raises:
        ConfigError: a setting that cannot be true, or nothing is left for a KV cache: what takes the room, and
            what would fit.
    """
    plan = _divide(shape, hardware, engine, settings)
    if plan.kv_bytes < plan.cost.request_bytes(1):
        raise ConfigError(_too_large(shape, plan, settings), param="gpu")
    return plan


def _divide(shape: ModelShape, hardware: Hardware, engine: Engine, settings: MemorySettings) -> MemoryPlan:
    utilization = _utilization(engine, settings)
    context = _context(shape, settings)
    tokens, seqs = _batch_limits(engine, hardware, settings, context)
    ranks, block = (
        settings.tensor_parallel,
        engine.block_tokens if settings.block_tokens is None else settings.block_tokens,
    )
    cost = kv_cost(
        shape,
        kv_dtype(settings.kv_cache_dtype, shape.weight_format.dtype),
        tensor_parallel=ranks,
        block_tokens=block,
        use_windows=settings.use_windows,
        convolution_bytes=engine.convolution_bytes,
    )
    total = hardware.memory_bytes
    graphs = 0 if settings.enforce_eager else engine.graph_bytes * captured_sizes(seqs)
    weights = _weights_term(shape, engine, ranks)
    sampled = 0 if engine.whole_prompts and tokens < context else seqs
    activations = _activations_term(shape, engine, tokens, sampled, ranks)
    outside = Term(
        "outside the allocator",
        engine.context_bytes + int(engine.collective_bytes * math.log2(ranks)),
        "the driver's context and libraries" + (f", communication of {ranks} ranks" if ranks > 1 else ""),
    )
    terms = [weights, activations, outside]
    if engine.share is Share.ALL:
        budget = int(total * utilization)
        if graphs:
            terms.append(Term("CUDA graphs", graphs, f"{captured_sizes(seqs)} captured batch sizes"))
        kv = budget - sum(term.bytes for term in terms)
    elif engine.share is Share.WITHOUT_ACTIVATIONS:
        budget = int((total - outside.bytes) * utilization)
        terms = [weights]
        kv = budget - weights.bytes
    else:
        budget = int((total - sum(term.bytes for term in terms)) * utilization)
        kv, terms = budget, []
    return MemoryPlan(hardware, engine, cost, tuple(terms), budget, kv, context, ranks, utilization)


def _utilization(engine: Engine, settings: MemorySettings) -> float:
    utilization = engine.utilization if settings.gpu_memory_utilization is None else settings.gpu_memory_utilization
    if not 0 < utilization <= 1:  # also refuses NaN
        raise ConfigError(
            f"--gpu-memory-utilization is {utilization}; it is a share, above 0 and at most 1",
            param="gpu_memory_utilization",
        )
    return utilization


def _batch_limits(engine: Engine, hardware: Hardware, settings: MemorySettings, context: int) -> tuple[int, int]:
    tokens, seqs = engine.batch_limits(hardware.memory_bytes, hardware.name, context)
    tokens = tokens if settings.max_num_batched_tokens is None else settings.max_num_batched_tokens
    seqs = seqs if settings.max_num_seqs is None else settings.max_num_seqs
    for flag, value in (("max_num_batched_tokens", tokens), ("max_num_seqs", seqs)):
        if value < 1:
            raise ConfigError(f"--{flag.replace('_', '-')} is {value}, not at least 1", param=flag)
    return tokens, min(seqs, tokens)


def _context(shape: ModelShape, settings: MemorySettings) -> int:
    if settings.max_model_len is None:
        return shape.context_tokens
    if not 1 <= settings.max_model_len <= 1 << 40:
        raise ConfigError(f"--max-model-len is {settings.max_model_len}, not at least 1", param="max_model_len")
    return settings.max_model_len


def _weights_term(shape: ModelShape, engine: Engine, ranks: int) -> Term:
    table = shape.context_tokens * shape.rope_dim * DTYPE_BYTES[shape.weight_format.dtype] if engine.rotary_table else 0
    billions = shape.parameters.total / 1e9
    source = "the files' size" if shape.weights_bytes is not None else shape.weight_format.name
    why = f"{billions:.2f} billion parameters, {source}" + (f", over {ranks} ranks" if ranks > 1 else "")
    return Term("weights", weight_bytes(shape, ranks).total + table, why)


def _activations_term(shape: ModelShape, engine: Engine, tokens: int, seqs: int, ranks: int) -> Term:
    size, hidden = DTYPE_BYTES[shape.weight_format.dtype], shape.hidden_size
    wide = shape.widest_feed_forward / ranks
    expert = shape.expert_width / ranks
    inside = tokens * size * 3 * (wide + hidden)
    routed = tokens * size * (shape.experts_per_token * (max(2 * expert, hidden) + expert) + 3 * hidden)
    sampling = seqs * shape.vocab_size * engine.logit_bytes + tokens * hidden * size
    forward = max(inside, routed if shape.experts else 0)
    if forward >= sampling:
        return Term("activations", int(forward), f"a step of {tokens:,} tokens inside a feed-forward layer")
    return Term("activations", int(sampling), f"sampling {seqs:,} sequences from {shape.vocab_size:,} entries")


def _too_large(shape: ModelShape, plan: MemoryPlan, settings: MemorySettings) -> str:
    parts = " + ".join(f"{term.name} {term.bytes / GIB:.2f}" for term in plan.terms)
    needed = sum(term.bytes for term in plan.terms)
    taken = f"{parts} = {needed / GIB:.2f} GiB" if parts else "what is loaded"
    return (
        f"{shape.name} is too large for {_devices(plan.tensor_parallel, plan.hardware.name)}: {taken}, and "
        f"{plan.budget_bytes / GIB:.2f} GiB may be used ({plan.utilization:g} of "
        f"{plan.hardware.memory_bytes / GIB:.2f}), so nothing is left for a KV cache: "
        f"{(plan.cost.request_bytes(1) - plan.kv_bytes) / GIB:.2f} GiB are missing. {_advice(shape, plan, settings)}"
    )


def _devices(count: int, name: str) -> str:
    return f"one {name}" if count == 1 else f"{count} × {name}"


def _advice(shape: ModelShape, plan: MemoryPlan, settings: MemorySettings) -> str:
    advice = []
    larger = [n for n in range(plan.tensor_parallel + 1, LARGEST_GROUP + 1) if divides(shape, n)]
    for ranks in larger:
        if _fits(shape, plan.hardware, plan.engine, settings, ranks):
            advice.append(f"--tensor-parallel-size {ranks}")
            break
    others = [
        other.name
        for other in sorted(HARDWARE, key=lambda h: h.memory_bytes)
        if other.kind == "gpu"
        and other.memory_bytes > plan.hardware.memory_bytes
        and _fits(shape, other, plan.engine, settings, plan.tensor_parallel)
    ]
    if others:
        advice.append(f"a larger GPU ({', '.join(others[:3])})")
    if shape.weight_format.bits > 8:
        advice.append("a quantised checkpoint")
    return f"It would fit with {', or with '.join(advice)}." if advice else "Nothing in the table holds it."


def _fits(shape: ModelShape, hardware: Hardware, engine: Engine, settings: MemorySettings, ranks: int) -> bool:
    plan = _divide(shape, hardware, engine, replace(settings, tensor_parallel=ranks))
    return plan.kv_bytes >= plan.cost.request_bytes(min(plan.max_model_len, 4096))
