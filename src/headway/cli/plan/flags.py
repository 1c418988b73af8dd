"""The flags of `headway plan`: the load's and the promises' are those of `headway bench`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal

from headway.cli.config import Key, keys
from headway.loadtest.bench.options import MAX_RATE, PromiseOptions, TextOptions, Trace
from headway.setting import Setting

# Of a load test's prompts, where nobody says; as `loadtest/bench/profiles.py` has them.
INPUT_LEN, OUTPUT_LEN = "512", "128"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficOptions:
    """What will be asked."""

    request_rate: Annotated[
        float | None,
        Setting("Requests per second, by independent users.", "Load", 1e-6, MAX_RATE, names=("request-rate", "rate")),
    ] = None
    burstiness: Annotated[
        float, Setting("Shape of the gaps: 1 is Poisson, less is burstier, more is more even.", "Load", 1e-3, 1e6)
    ] = 1.0
    share: Annotated[
        tuple[str, ...],
        Setting("NAME=WEIGHT/INPUT/OUTPUT, such as long=8%/1500:4000/64:256, in place of lengths; may be repeated.",
                "Load"),
    ] = ()  # fmt: skip
    trace: Annotated[
        str | None,
        Setting("In place of a rate: a recorded day. Azure's CSV, Mooncake's JSON lines or our own.", "Load"),
    ] = None
    bench: Annotated[
        str | None,
        Setting("In place of a rate: what `headway bench` sent: run.json with run.csv beside it, or their folder.",
                "Load"),
    ] = None  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareOptions:
    """What there is to choose from."""

    hardware: Annotated[
        tuple[str, ...],
        Setting("NAME=PRICE, a device and what an hour of it costs; 2xNAME=PRICE: a replica is two of them, each at "
                "that price; may be repeated.", "Hardware"),
    ] = ()  # fmt: skip
    hardware_file: Annotated[
        str | None, Setting("TOML or JSON with a table `hardware` for each; see the guide.", "Hardware")
    ] = None
    memory_gib: Annotated[
        float | None, Setting("Memory of each device, in place of what the table says.", "Hardware", 1e-3, 1 << 20)
    ] = None
    engine: Annotated[str, Setting("Whose rule divides the memory, as `headway kv` takes it.", "Hardware")] = "vllm"
    policy: Annotated[
        Literal["headway", "vllm"] | None,
        Setting("How the servers schedule.", "Hardware", default="the fit's, else vllm"),
    ] = None
    kv_cache_dtype: Annotated[str, Setting("Of the KV cache, as `headway kv` takes it.", "Hardware")] = "auto"
    gpu_memory_utilization: Annotated[
        float | None,
        Setting("Share of memory that the engine may use.", "Hardware", 0.01, 1.0, default="the engine's own"),
    ] = None
    max_num_seqs: Annotated[
        int | None, Setting("Do not choose it: it is this.", "Hardware", 1, 1 << 20, default="it is chosen")
    ] = None
    max_num_batched_tokens: Annotated[
        int | None, Setting("Do not choose it: it is this.", "Hardware", 1, 1 << 24, default="it is chosen")
    ] = None
    max_model_len: Annotated[
        int | None,
        Setting("Longest request, prompt and output together.", "Hardware", 1, 1 << 40,
                default="the longest of the traffic, rounded up"),
    ] = None  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class EffortOptions:
    """How surely it is found out, and where it is told."""

    percentile: Annotated[float, Setting("At which the promises hold.", "Promises", 50, 99.9)] = 99.0
    requests: Annotated[
        int | None,
        Setting("Simulated on each day on which a plan must hold; fewer are faster and less sure.", "Effort", 20, 10**6,
                default="what the percentile needs"),
    ] = None  # fmt: skip
    seed: Annotated[int, Setting("Same seed: same plan.", "Effort", 0, 2**31)] = 0
    measure: Annotated[
        str | None,
        Setting("URL of a live server: measure the curve there as well, in closed loops of the curve's batch sizes.",
                "Effort"),
    ] = None  # fmt: skip
    measure_window: Annotated[float, Setting("Seconds that each of its loads lasts.", "Effort", 2, 3600)] = 20.0
    measure_output: Annotated[str, Setting("Folder for what was measured.", "Effort")] = "headway-plan"
    json: Annotated[str | None, Setting("File for the plan as JSON; /dev/stdout prints it.", "Report")] = None
    html: Annotated[str | None, Setting("File for the report with plots.", "Report")] = None
    quiet: Annotated[bool, Setting("Show no progress.", "Report")] = False


_OF_A_TRACE = frozenset({"time_scale", "max_input_len", "max_output_len", "over", "sort"})
_OF_TEXTS = frozenset({
    "input_len", "output_len", "prompts", "tokenizer", "shared_prefix_tokens", "shared_prefix_groups",
    "shared_prefix_share", "tenants",
})  # fmt: skip


_SHOWN = {"input_len": INPUT_LEN, "output_len": OUTPUT_LEN, "tokenizer": "none"}


def _load(key: Key) -> Key:
    return replace(key, setting=replace(key.setting, group="Load"))


def _text(key: Key) -> Key:
    shown = _SHOWN.get(key.field)
    return key if shown is None else replace(key, setting=replace(key.setting, default=shown))


KEYS: tuple[Key, ...] = (
    *keys(TrafficOptions),
    *(_load(key) for key in keys(Trace) if key.field in _OF_A_TRACE),
    *(_text(key) for key in keys(TextOptions) if key.field in _OF_TEXTS),
    *keys(PromiseOptions),
    *keys(HardwareOptions),
    *keys(EffortOptions),
)
