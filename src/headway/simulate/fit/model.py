"""`StepFit`: what `headway fit` writes: a step-time model, how sure it is, where it holds, and the server it is of.

A small JSON file. `SCHEMA_VERSION` changes with the meaning of a field; unknown is `null`, never 0.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np

from headway.core.errors import ConfigError
from headway.core.pace import Shape
from headway.core.scheduler.limits import SchedulerLimits
from headway.core.scheduler.policies import POLICIES, Policy
from headway.executors.simulated import StepCost
from headway.simulate.fit.terms import COLUMNS, REQUEST, Floats, step_cost
from headway.simulate.settings import VirtualWorker

SCHEMA_VERSION = 1
# The pool of a server of which nothing is known but that it never was full, in tokens.
PLENTY_TOKENS = 1 << 22


class Coefficient(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """In ns. Between `low` and `high` lie 95% of the replicates of a bootstrap."""

    value: float
    low: float
    high: float


class Residual(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """How far the model is from what it was fitted to, by kind of observation, as shares of what was measured.

    `step` is one step; of requests, `queue`, `prefill` (scheduled to first token), `ttft` (arrival to first token) and
    `decode` (first to last token); `roofline`, one step of a formula. `bias` above 0: predicted too long.
    """

    kind: str
    count: int
    bias: float
    median_error: float
    p95_error: float


class Valid(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """The steps that were seen, or, of another server, inferred. Outside of these the model only extrapolates."""

    steps: int
    max_prefill_tokens: int
    min_decode_seqs: int
    max_decode_seqs: int
    max_context_tokens: int  # of one step, over all sequences
    max_attention_tokens: int

    def covers(self, shape: Shape) -> bool:
        """Was a step like this seen?"""
        return (
            shape.prefill_tokens <= self.max_prefill_tokens
            and (not shape.decode_seqs or self.min_decode_seqs <= shape.decode_seqs <= self.max_decode_seqs)
            and shape.context_tokens <= self.max_context_tokens
            and shape.attention_tokens <= self.max_attention_tokens
        )


class Server(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Settings of the server that was measured. `known` says of each whether it was given, inferred or assumed.

    `plans_ahead`: it plans a step while the one before is computed (vLLM's asynchronous scheduling), so what arrives
    or ends is heeded one step later. `whole_prompt_kv`: a request starts only when its whole prompt finds KV.
    """

    policy: str = "vllm"
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    num_blocks: int | None = None  # None: never full
    block_size: int = 16
    chunk_multiple_tokens: int = 1
    prefix_cache: bool = True
    whole_prompt_kv: bool = True
    plans_ahead: bool = False
    known: dict[str, str] = {}

    def scheduling(self) -> Policy:
        """The policy, with what this server does otherwise."""
        policy = POLICIES[self.policy]
        return policy if self.policy == "headway" else replace(policy, whole_prompt_kv=self.whole_prompt_kv)

    def worker(self, cost: StepCost) -> VirtualWorker:
        """As the simulator takes it. Raises `ConfigError` for limits that contradict each other."""
        return VirtualWorker(
            limits=SchedulerLimits(
                self.max_num_seqs,
                max(self.max_num_batched_tokens, self.max_num_seqs + self.chunk_multiple_tokens - 1),
                self.chunk_multiple_tokens,
            ),
            num_blocks=self.num_blocks or PLENTY_TOKENS // self.block_size,
            block_size=self.block_size,
            prefix_cache=self.prefix_cache,
            cost=cost,
            policy=self.scheduling(),
            plans_ahead=self.plans_ahead,
        )


class StepFit(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """A fitted model. `coefficients` has every name of `terms.COLUMNS`."""

    model: str = ""
    device: str = ""
    sources: list[str]
    coefficients: dict[str, Coefficient]
    residuals: list[Residual]
    valid: Valid
    server: Server
    notes: list[str] = []
    schema_version: int = SCHEMA_VERSION

    @property
    def values(self) -> Floats:
        """Coefficients in order of `COLUMNS`, ns."""
        return np.array([self.coefficients[name].value for name in COLUMNS])

    @property
    def cost(self) -> StepCost:
        """What a step costs, for the simulator."""
        return step_cost(self.values)

    @property
    def request_ns(self) -> int:
        """What a request takes outside of the engine: parsing, tokenising, network."""
        return round(float(self.values[REQUEST]))

    def worker(self) -> VirtualWorker:
        """The measured server, for the simulator. `dataclasses.replace` changes its settings."""
        return self.server.worker(self.cost)


def fit_bytes(fit: StepFit) -> bytes:
    """The file's content; the version stands first."""
    fields = msgspec.structs.asdict(fit)
    ordered = {"schema_version": fields.pop("schema_version"), **fields}
    return msgspec.json.format(msgspec.json.encode(ordered), indent=2) + b"\n"


def load_fit(path: Path) -> StepFit:
    """Read a file that `headway fit` wrote. Raises `ConfigError`: which file, which field, what to do."""
    again = "Run `headway fit` again."
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from error
    try:
        version = msgspec.json.decode(content, type=_Version).schema_version
        if version != SCHEMA_VERSION:
            said = "has no `schema_version`" if version is None else f"is of version {version}"
            raise ConfigError(f"{path}: no fit that this headway reads: it {said}, not {SCHEMA_VERSION}. {again}")
        fit = msgspec.json.decode(content, type=StepFit)
    except msgspec.DecodeError as error:
        raise ConfigError(f"{path}: no fit: {error}. {again}") from error
    for name in COLUMNS:
        value = fit.coefficients.get(name)
        if value is None:
            raise ConfigError(f"{path}: `coefficients.{name}` is missing. {again}")
        if not (math.isfinite(value.value) and value.value >= 0):
            raise ConfigError(f"{path}: `coefficients.{name}` is {value.value}, and must be 0 or more. {again}")
    if fit.server.policy not in POLICIES:
        raise ConfigError(f"{path}: `server.policy` is {fit.server.policy!r}; known are {', '.join(POLICIES)}. {again}")
    return fit


class _Version(msgspec.Struct):
    schema_version: int | None = None
