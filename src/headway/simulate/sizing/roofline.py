"""The time of a step from a model's shape and a device's rates: no measurement needed, and no better than its factors.

A step multiplies its tokens with the weights, or waits for the weights to come from memory, whichever takes longer;
beside that it reads the keys and values that decode attends to, computes the attention of prefill, talks to the
other ranks and pays for its launch. `Roofline.step_s` says exactly that; `fit_roofline` lays the linear model of
`core/pace` over it inside a stated range, and says how far the two are apart there.

After Williams, Waterman, Patterson, «Roofline» (CACM 2009).
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

from headway.core.errors import ConfigError
from headway.core.pace import Shape, StepTime, StepTimeModel, chunk_attention
from headway.simulate.sizing.hardware import Hardware
from headway.simulate.sizing.kv import kv_cost
from headway.simulate.sizing.kv_dtype import kv_dtype
from headway.simulate.sizing.quantisation import DTYPE_BYTES
from headway.simulate.sizing.shape import ModelShape
from headway.simulate.sizing.weights import weight_bytes

_ROUNDS = 40  # of coordinate descent: enough for the coefficients to settle to 0.1%


@dataclass(frozen=True, slots=True)
class Efficiency:
    """What real kernels reach of a device's rates."""

    compute_ratio: float = 0.65
    memory_ratio: float = 0.80
    link_ratio: float = 0.6
    launch_s: float = 1.5e-3  # of a step: scheduling, sampling, the host
    layer_s: float = 4e-6  # of a layer: its kernels, inside a graph
    hop_s: float = 12e-6  # of one all-reduce

    def __post_init__(self) -> None:
        for name in ("compute_ratio", "memory_ratio", "link_ratio"):
            value = getattr(self, name)
            if not 0 < value <= 1:
                raise ConfigError(f"{name} is {value}; an efficiency is a share, above 0 and at most 1", param=name)


# What was seen of well-tuned engines; the truth of an unmeasured one lies between them.
USUAL = Efficiency()
FASTEST = Efficiency(0.85, 0.93, 0.85, 0.6e-3, 2e-6, 6e-6)
SLOWEST = Efficiency(0.40, 0.60, 0.35, 5e-3, 10e-6, 30e-6)


@dataclass(frozen=True, slots=True)
class Roofline:
    """One model on one group of devices."""

    shape: ModelShape
    hardware: Hardware
    tensor_parallel: int = 1
    kv_cache_dtype: str = "auto"
    efficiency: Efficiency = USUAL

    def step_s(self, work: Shape) -> float:
        """How long a step with this work takes."""
        tokens = work.prefill_tokens + work.decode_seqs
        e = self.efficiency
        dense = max(self._matrix_s(tokens, work.decode_seqs), self._weights_s(tokens))
        attention = self._cache_s(work) + self._prefill_attention_s(work)
        return e.launch_s + e.layer_s * self.shape.layers + dense + attention + self._ranks_s(tokens)

    def _flops_s(self) -> float:
        """A format narrower than 16 bits is faster only where the device multiplies it: 8 bits and, on some, 4."""
        form = self.shape.weight_format
        narrow = "fp8" in form.name or "float8" in form.name or "int8" in form.name or "nvfp4" in form.name
        bits = float(form.bits) if narrow else 8.0 * DTYPE_BYTES[form.dtype]
        nearest = min((4, 8, 16, 32), key=lambda width: abs(width - bits))
        return self.hardware.rate(nearest) * self.efficiency.compute_ratio * self.tensor_parallel

    def _matrix_s(self, tokens: int, sampled: int) -> float:
        head = self.shape.vocab_size * self.shape.hidden_size
        return 2.0 * (self.shape.parameters.active_body * tokens + head * sampled) / self._flops_s()

    def _weights_s(self, tokens: int) -> float:
        rank = weight_bytes(self.shape, self.tensor_parallel)
        read = rank.body - rank.experts + rank.head + rank.experts * self._experts_touched(tokens)
        return read / self._bytes_s()

    def _experts_touched(self, tokens: int) -> float:
        """The share of a layer's experts that a step of so many tokens uses, if they choose independently."""
        if not self.shape.experts:
            return 0.0
        return 1.0 - (1.0 - self.shape.experts_per_token / self.shape.experts) ** tokens

    def _bytes_s(self) -> float:
        return self.hardware.bandwidth_bytes_s * self.efficiency.memory_ratio

    def _cache_s(self, work: Shape) -> float:
        """Reading what decode attends to; a window is read up to its width, a state whole and written back."""
        if not work.decode_seqs:
            return 0.0
        cost = kv_cost(
            self.shape,
            kv_dtype(self.kv_cache_dtype, self.shape.weight_format.dtype),
            tensor_parallel=self.tensor_parallel,
        )
        each = work.context_tokens / work.decode_seqs
        read = sum(g.token_bytes * min(each, g.window_tokens or math.inf) for g in cost.groups)
        return work.decode_seqs * (read + 2 * cost.request_state_bytes) / self._bytes_s()

    def _prefill_attention_s(self, work: Shape) -> float:
        full = sum(group.layers for group in self.shape.attention if group.window_tokens is None)
        operations = 4.0 * full * self.shape.query_heads * self.shape.head_dim * work.attention_tokens
        for group in self.shape.attention:
            if group.window_tokens is not None:
                seen = min(work.attention_tokens, work.prefill_tokens * group.window_tokens)
                operations += 4.0 * group.layers * self.shape.query_heads * self.shape.head_dim * seen
        plain = self.hardware.rate(16) * self.efficiency.compute_ratio * self.tensor_parallel
        return operations / plain

    def _ranks_s(self, tokens: int) -> float:
        """Two all-reduces a layer, each moving every token's hidden row nearly twice."""
        ranks = self.tensor_parallel
        if ranks == 1:
            return 0.0
        row = self.shape.hidden_size * DTYPE_BYTES[self.shape.weight_format.dtype]
        moved = 2.0 * (ranks - 1) / ranks * tokens * row
        link = self.hardware.link_bytes_s * self.efficiency.link_ratio
        return 2 * self.shape.layers * (self.efficiency.hop_s + moved / link)


@dataclass(frozen=True, slots=True)
class StepRange:
    """The work for which a model of steps was made; outside of it, it says nothing."""

    max_num_batched_tokens: int = 2048
    max_num_seqs: int = 256
    max_context: int = 8192

    def __contains__(self, work: Shape) -> bool:
        context_ok = work.context_tokens <= work.decode_seqs * self.max_context
        return (
            work.prefill_tokens + work.decode_seqs <= self.max_num_batched_tokens + self.max_num_seqs
            and work.decode_seqs <= self.max_num_seqs
            and context_ok
            and work.attention_tokens <= work.prefill_tokens * self.max_context
        )

    def grid(self) -> list[Shape]:
        """Steps of every kind, spread evenly in logarithm."""
        prefill = [0, *_spread(16, self.max_num_batched_tokens, 6)]
        decode = [0, *_spread(1, self.max_num_seqs, 6)]
        depth = _spread(64, self.max_context, 4)
        shapes = []
        for chunk, seqs, context in itertools.product(prefill, decode, depth):
            if chunk or seqs:
                start = min(context, self.max_context - 1) if chunk else 0
                shapes.append(Shape(chunk, seqs, seqs * context, chunk_attention(start // 2, min(chunk, context))))
        return shapes


@dataclass(frozen=True, slots=True)
class RooflineFit:
    """The linear model, how far it is from the roofline in its range, and the bounds between which truth should lie."""

    step_time: StepTime
    fastest: StepTime
    slowest: StepTime
    valid: StepRange
    median_error: float
    worst_error: float


def fit_roofline(
    shape: ModelShape,
    hardware: Hardware,
    *,
    tensor_parallel: int = 1,
    kv_cache_dtype: str = "auto",
    efficiency: Efficiency = USUAL,
    valid: StepRange | None = None,
) -> RooflineFit:
    """`StepTime` for the core and the simulator, from a shape and a name.

    Raises:
        ConfigError: ranks that the heads do not divide into, or an unknown KV format.
    """
    valid = valid or StepRange()
    grid = valid.grid()

    def fitted(factors: Efficiency) -> tuple[StepTime, list[float]]:
        roofline = Roofline(shape, hardware, tensor_parallel, kv_cache_dtype, factors)
        times_ns = [max(1, round(roofline.step_s(work) * 1e9)) for work in grid]
        model = StepTimeModel(StepTime(min(times_ns), 0.0, 0.0, 0.0, 0.0))
        for _ in range(_ROUNDS):
            model.profile(list(zip(grid, times_ns, strict=True)))
        errors = [abs(model.coefficients.predict_ns(w) / t - 1) for w, t in zip(grid, times_ns, strict=True)]
        return model.coefficients, sorted(errors)

    usual, errors = fitted(efficiency)
    return RooflineFit(
        step_time=usual,
        fastest=fitted(FASTEST)[0],
        slowest=fitted(SLOWEST)[0],
        valid=valid,
        median_error=errors[len(errors) // 2],
        worst_error=errors[-1],
    )


def transfer(measured: StepTime, source: RooflineFit, target: RooflineFit) -> StepTime:
    """A measured model carried to other hardware, or another shape: each coefficient by the ratio of the two rooflines.

    A coefficient that the source's roofline does not have is carried by the ratio of the whole step's constants.
    """
    constants = target.step_time.step_ns / source.step_time.step_ns

    def carried(name: str) -> float:
        value, had, has = (float(getattr(t, name)) for t in (measured, source.step_time, target.step_time))
        return value * (has / had if had > 0 else constants)

    return StepTime(
        carried("step_ns"),
        carried("prefill_token_ns"),
        carried("decode_seq_ns"),
        carried("context_token_ns"),
        carried("attention_token_ns"),
    )


def _spread(low: int, high: int, count: int) -> list[int]:
    """From low to high in equal ratios, each once."""
    if high <= low:
        return [high]
    ratio = (high / low) ** (1 / (count - 1))
    return sorted({min(high, max(low, round(low * ratio**i))) for i in range(count)})
