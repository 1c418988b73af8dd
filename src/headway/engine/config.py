"""`EngineConfig`: one model and how it is run. The one source of names, defaults, limits and meanings.

The Python API takes these as keywords; the command line and the configuration file are generated from them.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from headway.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Setting:
    """What a configuration field means and which numbers it takes."""

    help: str
    group: str
    low: float = -math.inf
    high: float = math.inf
    default: str = ""  # what happens when it is left out, where the default itself does not say

    def check(self, value: float | None) -> None:
        """Raises ValueError, fit to follow the field's name, when `value` is outside the limits."""
        if value is None or (self.low <= value <= self.high and math.isfinite(value)):
            return
        limit = f"at least {self.low:,}" if self.high == math.inf else f"between {self.low:,} and {self.high:,}"
        raise ValueError(f"must be {limit}, not {value:,}")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """One model and how it is run. Build it with `engine_config`, which checks it."""

    max_model_len: Annotated[
        int | None,
        Setting("Longest prompt and output together, in tokens.", "Model", 2, default="what the model was trained for"),
    ] = None
    dtype: Annotated[
        Literal["bf16", "f32"], Setting("Precision of the matrix work. f32 is exact and slower.", "Model")
    ] = "bf16"
    kv_cache_dtype: Annotated[
        Literal["bf16", "u8", "f32"], Setting("Precision of the KV cache. u8 holds more tokens per GiB.", "Model")
    ] = "bf16"
    kv_cache_gib: Annotated[
        float, Setting("Memory for the KV cache, in GiB; fixed while the server runs.", "Model", 0.001, 4096)
    ] = 2.0
    max_num_seqs: Annotated[
        int, Setting("Most sequences that run in one step.", "Concurrency and batching", 1, 4096)
    ] = 64
    max_num_batched_tokens: Annotated[
        int,
        Setting(
            "Most tokens one step computes, prefill and decode. Lower: steadier streams. Higher: more throughput.",
            "Concurrency and batching",
            1,
            1_048_576,
        ),
    ] = 256
    max_waiting: Annotated[
        int,
        Setting("Most requests that wait to be started; more are refused with 429.", "Concurrency and batching", 1),
    ] = 1024
    max_waiting_tokens: Annotated[
        int,
        Setting("Most prompt tokens that wait to be started; more are refused.", "Concurrency and batching", 1),
    ] = 1_000_000
    queue_timeout: Annotated[
        float,
        Setting(
            "Seconds a request may wait to be started before it is refused with 503; 0 is no limit.",
            "Concurrency and batching",
            0,
        ),
    ] = 0.0
    executor: Annotated[
        Literal["openvino", "simulated"],
        Setting("What computes the tokens. simulated needs no model: it sleeps a modelled time.", "Runtime"),
    ] = "openvino"
    device: Annotated[str, Setting("OpenVINO device.", "Runtime")] = "CPU"
    threads: Annotated[
        int | None, Setting("Threads for inference.", "Runtime", 1, 1024, default="one per physical core")
    ] = None
    step_timeout: Annotated[
        float,
        Setting("Seconds one step may take before the executor counts as hung and is restarted.", "Runtime", 1),
    ] = 120.0

    def __post_init__(self) -> None:
        for field in dataclasses.fields(EngineConfig):
            _check_field(field.name, getattr(self, field.name))
        least = max(self.max_num_seqs, 32 if self.kv_cache_dtype == "u8" else 1)
        if self.max_num_batched_tokens < least:
            raise ConfigError(
                f"max_num_batched_tokens is {self.max_num_batched_tokens} and must be at least {least}: each of "
                f"max_num_seqs ({self.max_num_seqs}) sequences decodes a token in a step, and with kv_cache_dtype u8 a "
                "prefill chunk is at least 32 tokens.",
                param="max_num_batched_tokens",
            )


def engine_config(**settings: Any) -> EngineConfig:
    """An `EngineConfig` from keywords. Raises ConfigError for an unknown name (naming the nearest) or a bad value."""
    known = [field.name for field in dataclasses.fields(EngineConfig)]
    for name in settings:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else f" Known are: {', '.join(known)}."
            raise ConfigError(f"There is no engine setting {name!r}.{hint}", param=name)
    return EngineConfig(**settings)


def _check_field(name: str, value: Any) -> None:
    hint = get_type_hints(EngineConfig, include_extras=True)[name]
    kind, setting = get_args(hint)
    try:
        if get_origin(kind) is Literal:
            if value not in get_args(kind):
                raise ValueError(f"must be one of {', '.join(get_args(kind))}, not {value!r}")
        elif kind is not str:
            if isinstance(value, bool) or not isinstance(value, (int, float, type(None))):
                raise ValueError(f"must be a number, not {value!r}")
            setting.check(value)
    except ValueError as error:
        raise ConfigError(f"{name} {error}.", param=name) from None
