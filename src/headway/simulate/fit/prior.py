"""`Belief`: what a roofline says of a model on a device, as a prior, or as a fit of its own.

Factors of efficiency are known to about a third. Where measurements say more, they win (`regression`). A measurement
on one device tells of another by the ratio of their rooflines, step by step (`carried`), and not coefficient by
coefficient: what is bound by memory on one may be bound by arithmetic on the other.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from headway.core.pace import Shape, chunk_attention
from headway.simulate.fit.regression import Prior, Solution, solve
from headway.simulate.fit.terms import COLUMNS, WIDTH, Equations, Floats
from headway.simulate.sizing import Efficiency, Hardware, ModelShape, Roofline, StepRange
from headway.simulate.sizing.roofline import FASTEST, SLOWEST, USUAL

# How far truth may lie from a roofline's coefficient, as a share of it.
SIGMA = 0.35
# Up to this a link between devices is a bus, not a fabric of its own: an all-reduce over it starts slower.
_BUS_BYTES_S = 64e9
_BUS_HOPS, _BUS_STREAM = 3.0, 0.67
_CONSUMER, _CONSUMER_RATIO = re.compile(r"RTX-[2-5]0[5-9]0"), 1.3
# Ratios of measured to roofline are believed between these.
_LEAST_RATIO, _MOST_RATIO = 0.4, 3.0


@dataclass(frozen=True, slots=True)
class Belief:
    """A roofline, of what, and for which steps."""

    device: str
    roofline: Roofline
    valid: StepRange

    @classmethod
    def of(
        cls,
        shape: ModelShape,
        hardware: Hardware,
        *,
        tensor_parallel: int = 1,
        kv_cache_dtype: str = "auto",
        valid: StepRange | None = None,
    ) -> Belief:
        """Raises `ConfigError` for what the model cannot be split into."""
        roofline = Roofline(shape, hardware, tensor_parallel, kv_cache_dtype, _usual(hardware, USUAL))
        devices = f"{tensor_parallel} × " if tensor_parallel > 1 else ""
        return cls(f"{devices}{hardware.name}", roofline, valid or StepRange())

    @property
    def model(self) -> str:
        return self.roofline.shape.name

    def laid(self) -> Solution:
        """The linear model over the roofline; `low` and `high` over those of fast and of slow engines."""
        usual = self._lay(self.roofline.step_s)
        bounds = [
            self._lay(replace(self.roofline, efficiency=_usual(self.roofline.hardware, factors)).step_s).values
            for factors in (FASTEST, SLOWEST)
        ]
        low, high = np.minimum(*bounds), np.maximum(*bounds)
        return Solution(usual.values, np.minimum(low, usual.values), np.maximum(high, usual.values), usual.misfits)

    @property
    def prior(self) -> Prior:
        """Each coefficient of the roofline, give or take a third. A step's extra for prefill may be anything."""
        values = self._lay(self.roofline.step_s).values
        sigmas = values * SIGMA
        sigmas[COLUMNS.index("prefill_step_ns")] = max(values[0], 1.0)
        return Prior(values, sigmas)

    def carried(self, measured: Floats, target: Belief) -> Floats:
        """`measured` (of `COLUMNS`) here, had it been measured there: each step by the ratio of the two rooflines."""

        def step_s(work: Shape) -> float:
            here = self.roofline.step_s(work)
            ratio = float(_row(work) @ measured) / 1e9 / here
            return target.roofline.step_s(work) * min(_MOST_RATIO, max(_LEAST_RATIO, ratio))

        values = target._lay(step_s).values
        values[COLUMNS.index("request_ns")] = measured[COLUMNS.index("request_ns")]
        return values

    def _lay(self, step_s: Callable[[Shape], float]) -> Solution:
        grid = list(_typical(self.valid))
        matrix = np.array([_row(work) for work in grid])
        times = np.array([step_s(work) for work in grid]) * 1e9
        order = np.arange(len(grid), dtype=np.float64)
        return solve(Equations(matrix, times, ["roofline"] * len(grid), order), robust=False)


def _typical(valid: StepRange) -> Iterator[Shape]:
    """Steps as servers take them: decode alone, and beside it chunks that are the budget or a good part of it."""
    seqs = sorted({0, 1, *(max(1, valid.max_num_seqs // 2**n) for n in range(6))})
    depths = [valid.max_context // 2**n for n in (1, 2, 4)]
    chunks = [0, *(max(1, valid.max_num_batched_tokens // n) for n in (4, 2, 1))]
    for chunk, decode, depth in itertools.product(chunks, seqs, depths):
        for start in (0, depth) if chunk else (0,):
            if chunk or decode:
                yield Shape(chunk, decode, decode * depth, chunk_attention(start, chunk))


def _usual(hardware: Hardware, factors: Efficiency) -> Efficiency:
    """What is reached differs by kind of device, in two ways that a table of rates does not tell.

    All-reduces over a bus start later and stream more slowly than over links made for it. And consumer GPUs, whose
    rate with 32-bit accumulation is halved by the maker, come near to it: power and memory would do for twice as much.
    """
    if hardware.link_bytes_s <= _BUS_BYTES_S:
        factors = replace(factors, hop_s=factors.hop_s * _BUS_HOPS, link_ratio=factors.link_ratio * _BUS_STREAM)
    if _CONSUMER.match(hardware.name):
        factors = replace(factors, compute_ratio=min(0.95, factors.compute_ratio * _CONSUMER_RATIO))
    return factors


def _row(work: Shape) -> Floats:
    row = np.zeros(WIDTH)
    row[:5] = 1, *work
    row[5] = float(work.prefill_tokens > 0)
    return row
