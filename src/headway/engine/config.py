"""`EngineConfig`: one model and how it is run. The one source of names, defaults, limits and meanings.

The Python API takes these as keywords; the command line and the configuration file are generated from them.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from difflib import get_close_matches
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from headway.core.errors import ConfigError
from headway.core.scheduler.limits import SchedulerLimits
from headway.setting import Setting


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """One model and how it is run. Build it with `engine_config`, which checks it."""

    max_model_len: Annotated[
        int | None,
        Setting("Longest prompt and output together, in tokens.", "Model", 2, default="what the model was trained for"),
    ] = None
    dtype: Annotated[
        Literal["auto", "bf16", "f32"],
        Setting(
            "Precision of the matrix work. auto: bf16 where the device has it, else fast f32. f32: exact and slower.",
            "Model",
        ),
    ] = "auto"
    kv_cache_dtype: Annotated[
        Literal["bf16", "u8", "f32"] | None,
        Setting("Precision of the KV cache. u8 holds more tokens per GiB.", "Model", default="the same as dtype"),
    ] = None
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
    slo_ttft: Annotated[
        float,
        Setting("Seconds to the first token that requests are promised; 0 promises nothing.", "Promises", 0, 3600),
    ] = 0.0
    slo_itl: Annotated[
        float,
        Setting(
            "Seconds between tokens that streams are promised: prefill is sized to keep it; 0 promises nothing.",
            "Promises",
            0,
            3600,
        ),
    ] = 0.0
    ttft_limit: Annotated[
        float,
        Setting(
            "Seconds to the first token beyond which a request is refused, at once or while it waits; 0 is no limit.",
            "Promises",
            0,
            3600,
        ),
    ] = 0.0
    age_bound: Annotated[
        float,
        Setting("Seconds of waiting after which a request goes before everybody younger; 0 for never.", "Promises", 0),
    ] = 30.0
    pace: Annotated[
        bool, Setting("Size prefill, and admit streams, so that --slo-itl holds. Off for comparison.", "Promises")
    ] = True
    policy: Annotated[
        Literal["headway", "vllm"],
        Setting("How to schedule: our way, or as vLLM does, for comparison and prediction.", "Promises"),
    ] = "headway"
    batching: Annotated[
        Literal["continuous", "static"],
        Setting(
            "Refill slots every step, or run fixed batches of equal length to their end.", "Concurrency and batching"
        ),
    ] = "continuous"
    kv_full: Annotated[
        Literal["preempt", "wait", "reject"],
        Setting(
            "When a running sequence finds no KV: recompute somebody later, never let it come to that (the worst case "
            "is set aside at the start), or fail the newest.",
            "Concurrency and batching",
        ),
    ] = "preempt"
    prefix_cache_scope: Annotated[
        Literal["tenant", "shared", "off"],
        Setting("Who may reuse the KV of whose prompts: only the same tenant, everybody, or nobody.", "Model"),
    ] = "tenant"
    long_prompt_tokens: Annotated[int, Setting("A prompt this long goes to a lane of its own.", "Lanes", 1)] = 1024
    long_output_tokens: Annotated[
        int, Setting("A request that may produce so many tokens goes to a lane of its own.", "Lanes", 1)
    ] = 512
    long_prompt_slots: Annotated[
        int | None, Setting("Slots that long prompts may take.", "Lanes", 1, default="half of max-num-seqs")
    ] = None
    long_output_slots: Annotated[
        int | None,
        Setting("Slots that long outputs may take.", "Lanes", 1, default="three quarters of max-num-seqs"),
    ] = None
    long_prompt_lane_tokens: Annotated[
        int | None,
        Setting("Tokens, at their longest, that running long prompts may come to.", "Lanes", 1, default="no limit"),
    ] = None
    long_output_lane_tokens: Annotated[
        int | None,
        Setting("Tokens, at their longest, that running long outputs may come to.", "Lanes", 1, default="no limit"),
    ] = None
    batch_slots: Annotated[
        int | None,
        Setting(
            "Slots that work of the background may take.",
            "Lanes",
            1,
            4096,
            default="half of max-num-seqs; of a gateway 16",
        ),
    ] = None
    step_log: Annotated[
        str | None, Setting("File to append a JSON line to for every step and request.", "Runtime", default="none")
    ] = None
    decision_log: Annotated[
        str | None, Setting("File to append a JSON line to for every decision, to replay.", "Runtime", default="none")
    ] = None
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
        # The rule is the scheduler's own; asking it now is better than after minutes of loading a model.
        chunk_multiple_tokens = 32 if self.kv_cache_dtype == "u8" else 1
        SchedulerLimits(self.max_num_seqs, self.max_num_batched_tokens, chunk_multiple_tokens)


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
    kind, setting = get_args(_HINTS[name])
    alternatives = get_args(kind) if get_origin(kind) is UnionType or get_origin(kind) is Union else (kind,)
    if value is None and NoneType in alternatives:
        return
    (kind,) = (one for one in alternatives if one is not NoneType)
    try:
        if get_origin(kind) is Literal:
            if value not in get_args(kind):
                raise ValueError(f"must be one of {', '.join(get_args(kind))}, not {value!r}")
        elif kind is bool or kind is str:
            if not isinstance(value, kind):
                raise ValueError(f"must be {'true or false' if kind is bool else 'text'}, not {value!r}")
        elif isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ValueError(f"must be a number, not {value!r}")
        elif kind is int and value != value // 1:  # inf and NaN are caught here as well
            raise ValueError(f"must be a whole number, not {value!r}")
        else:
            setting.check(value)
    except ValueError as error:
        raise ConfigError(f"{name} {error}.", param=name) from None


_HINTS = get_type_hints(EngineConfig, include_extras=True)
