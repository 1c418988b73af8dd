"""`Candidate`: one kind of replica that could serve the traffic: how long its steps take, what it holds, what it costs.

Steps come from a fit of that very device (`measured`), from a fit of another, carried over by the ratio of the two
rooflines (`carried`), or from a roofline alone (`rated`). Each has a faster and a slower version, between which the
truth should lie.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from headway.core.errors import ConfigError
from headway.core.scheduler.limits import SchedulerLimits
from headway.core.scheduler.policies import VLLM, Policy
from headway.executors.simulated import StepCost
from headway.simulate.fit import Belief, StepFit, Valid
from headway.simulate.fit.terms import COLUMNS, REQUEST, Floats, step_cost
from headway.simulate.settings import VirtualWorker
from headway.simulate.sizing import Engine, Hardware, MemorySettings, ModelShape, StepRange, plan_memory

# What carrying a fit to another device may be off by, beside what the fit may be.
CARRIED_LOW, CARRIED_HIGH = 0.8, 1.25
# Steps for which a roofline is laid out: what servers are usually set to.
RATED = StepRange(8_192, 256, 8_192)


@dataclass(frozen=True, slots=True, order=True)
class Limits:
    """The two settings that a plan chooses."""

    max_num_seqs: int
    max_num_batched_tokens: int


@dataclass(frozen=True, slots=True)
class Room:
    """The KV cache of one replica."""

    num_blocks: int
    block_size: int

    @property
    def tokens(self) -> int:
        return self.num_blocks * self.block_size


@dataclass(frozen=True, slots=True)
class StepCosts:
    """What a step takes: as expected, and as fast and as slow as it may be."""

    usual: StepCost
    fast: StepCost
    slow: StepCost

    @classmethod
    def of(cls, usual: Floats, low: Floats, high: Floats) -> StepCosts:
        """From coefficients in order of `COLUMNS`, ns."""
        return cls(step_cost(usual), step_cost(np.minimum(low, usual)), step_cost(np.maximum(high, usual)))


# Limits and the longest request -> the KV cache beside everything else. Raises `ConfigError`: nothing is left for it.
Memory = Callable[[Limits, int], Room]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A replica: `devices` of one kind that run the model together. `price_per_hour` is of all of them, any currency.

    `valid` is None where nothing was measured and so no step is better known than another. `seqs` and `budget` are set
    where they are not to be chosen.
    """

    name: str
    price_per_hour: float
    costs: StepCosts
    memory: Memory
    model: str = ""
    devices: int = 1
    context_tokens: int | None = None  # of the model; None: not known
    request_ns: int = 0  # what a request takes outside of the engine
    valid: Valid | None = None
    policy: Policy = VLLM
    prefix_cache: bool = True
    plans_ahead: bool = False
    chunk_multiple_tokens: int = 1
    seqs: int | None = None
    budget: int | None = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_price(self.name, self.price_per_hour)
        for flag, value in (("max-num-seqs", self.seqs), ("max-num-batched-tokens", self.budget)):
            if value is not None and value < 1:
                raise ConfigError(f"--{flag} is {value}, and must be at least 1", param=flag.replace("-", "_"))

    def fits(self, limits: Limits, max_model_len: int) -> bool:
        """Is there memory for a KV cache beside steps of this size?"""
        try:
            self.memory(limits, max_model_len)
        except ConfigError:
            return False
        return True

    def worker(self, limits: Limits, max_model_len: int, cost: StepCost | None = None) -> VirtualWorker:
        """The replica with these settings, for the simulator. Raises `ConfigError`."""
        room = self.memory(limits, max_model_len)
        return VirtualWorker(
            limits=SchedulerLimits(
                limits.max_num_seqs,
                max(limits.max_num_batched_tokens, limits.max_num_seqs + self.chunk_multiple_tokens - 1),
                self.chunk_multiple_tokens,
            ),
            num_blocks=room.num_blocks,
            block_size=room.block_size,
            prefix_cache=self.prefix_cache,
            cost=cost or self.costs.usual,
            policy=self.policy,
            plans_ahead=self.plans_ahead,
        )


def check_price(name: str, price_per_hour: float) -> None:
    """Raises `ConfigError` for what is no price."""
    if not (0 <= price_per_hour < math.inf):
        raise ConfigError(
            f"the price of {name} is {price_per_hour}, and must be a number of at least 0, per device and hour",
            param="hardware",
        )


def measured(fit: StepFit, name: str, price_per_hour: float, *, context_tokens: int | None = None) -> Candidate:
    """The server that a fit is of, with other limits."""
    server = fit.server
    blocks = server.worker(fit.cost).num_blocks
    low, high = (_column(fit, side) for side in ("low", "high"))
    notes = () if server.num_blocks else ("How much KV cache it has was not seen: it was never full.",)

    def room(_limits: Limits, _max_model_len: int) -> Room:
        return Room(blocks, server.block_size)

    return Candidate(
        name=name,
        price_per_hour=price_per_hour,
        costs=StepCosts.of(fit.values, low, high),
        memory=room,
        model=fit.model,
        context_tokens=context_tokens,
        request_ns=fit.request_ns,
        valid=fit.valid,
        policy=server.scheduling(),
        prefix_cache=server.prefix_cache,
        plans_ahead=server.plans_ahead,
        chunk_multiple_tokens=server.chunk_multiple_tokens,
        notes=notes,
    )


def rated(
    shape: ModelShape,
    hardware: Hardware,
    price_per_hour: float,
    *,
    engine: Engine,
    settings: MemorySettings | None = None,
    policy: Policy = VLLM,
    fit: StepFit | None = None,
    measured_on: Hardware | None = None,
    ranks_measured: int = 1,
) -> Candidate:
    """A model on a device that nobody measured it on: by the device's rates, and by `fit` of the same model
    `measured_on` another device (`ranks_measured` of it) where there is one. `price_per_hour` is of one device.

    Raises `ConfigError` for a model that cannot be split so, or does not fit.
    """
    settings = settings or MemorySettings()
    ranks = settings.tensor_parallel
    belief = Belief.of(shape, hardware, tensor_parallel=ranks, kv_cache_dtype=settings.kv_cache_dtype, valid=RATED)
    laid = belief.laid()
    notes, request_ns = ["Steps are from the device's rates, not measured: good to about a third."], 0
    costs = StepCosts.of(laid.values, laid.low, laid.high)
    if fit is not None and measured_on is not None:
        here = Belief.of(
            shape,
            measured_on,
            tensor_parallel=ranks_measured,
            kv_cache_dtype=settings.kv_cache_dtype,
            valid=RATED,
        )
        usual, low, high = (
            here.carried(values, belief) for values in (fit.values, _column(fit, "low"), _column(fit, "high"))
        )
        costs = StepCosts.of(usual, CARRIED_LOW * low, CARRIED_HIGH * high)
        request_ns = round(float(fit.values[REQUEST]))
        notes = [
            f"Steps are those of the fit of {fit.device or measured_on.name}, carried over by the ratio of the rates."
        ]

    def room(limits: Limits, max_model_len: int) -> Room:
        plan = plan_memory(
            shape,
            hardware,
            engine,
            replace(
                settings,
                max_model_len=max_model_len,
                max_num_seqs=limits.max_num_seqs,
                max_num_batched_tokens=limits.max_num_batched_tokens,
            ),
        )
        # Of a model with windows or states a block is a share of what requests of this length take.
        tokens = plan.tokens if plan.cost.uniform else plan.tokens_at(max_model_len)
        if plan.sequences(max_model_len) < 1:
            raise ConfigError(
                f"{shape.name} leaves {hardware.name} a KV cache of {tokens:,} tokens, and the longest request has "
                f"{max_model_len:,}. Shorten requests, split the model over more devices, or take a narrower "
                "--kv-cache-dtype.",
                param="hardware",
            )
        return Room(max(1, tokens // plan.cost.block_tokens), plan.cost.block_tokens)

    return Candidate(
        name=f"{ranks} × {hardware.name}" if ranks > 1 else hardware.name,
        price_per_hour=price_per_hour * ranks,
        costs=costs,
        memory=room,
        model=shape.name,
        devices=ranks,
        context_tokens=shape.context_tokens,
        request_ns=request_ns,
        policy=policy,
        notes=(*notes, *(f"{note}." for note in shape.notes)),
    )


def _column(fit: StepFit, side: str) -> Floats:
    return np.array([float(getattr(fit.coefficients[name], side)) for name in COLUMNS])
