"""The flags of `headway simulate`: those of `headway bench` that shape a load, those of `headway serve` that shape a
service, and what only a simulation has to be told.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

from headway.cli.bench.flags import DEFAULTS_OF, NOT_OF, PROFILE_KEYS, REPORT_KEYS
from headway.cli.config import SERVE_KEYS, Key, keys
from headway.loadtest.bench.options import ClientOptions, PromiseOptions, TextOptions, WindowOptions
from headway.setting import Setting


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldOptions:
    """What a step takes, and how many engines there are."""

    fit: Annotated[
        str | None,
        Setting("How long steps take, and the server's own settings: the file that `headway fit` wrote.", "Simulation"),
    ] = None
    model: Annotated[
        str | None,
        Setting("In place of --fit: the model's config.json, GGUF file, folder or owner/name; with --gpu. Beside it: "
                "what its KV cache takes.", "Simulation"),
    ] = None  # fmt: skip
    gpu: Annotated[
        str | None,
        Setting("Device that the model runs on, such as «RTX 4090»: rates and memory are known of many.", "Simulation",
                names=("gpu", "device")),
    ] = None  # fmt: skip
    memory_gib: Annotated[
        float | None, Setting("Memory of a CPU, or another size of a GPU.", "Simulation", 0.001, 1 << 20)
    ] = None
    tensor_parallel_size: Annotated[int, Setting("Devices that the model is split over.", "Simulation", 1, 1024)] = 1
    kv_cache_dtype: Annotated[str, Setting("Of the KV cache, as `headway kv` takes it.", "Simulation")] = "auto"
    gpu_memory_utilization: Annotated[
        float | None, Setting("Share of the device's memory that the server may use.", "Simulation", 0.01, 1,
                              default="as vLLM has it")
    ] = None  # fmt: skip
    num_blocks: Annotated[
        int | None,
        Setting("KV blocks of a worker.", "Simulation", 1, 1 << 40,
                default="what --kv-cache-gib or the device holds, else those of the fit"),
    ] = None  # fmt: skip
    block_size: Annotated[
        int | None, Setting("Tokens in a block.", "Simulation", 1, 4096, default="as the fit says, else 16")
    ] = None
    workers: Annotated[
        int,
        Setting("Put our gateway before so many workers; 0: one server by itself.", "Simulation", 0, 1024),
    ] = 0
    scrape_interval: Annotated[
        float, Setting("Seconds between two looks of the gateway at a worker's load.", "Simulation", 0.01, 3600)
    ] = 1.0
    replay: Annotated[
        str | None,
        Setting("In place of a profile: what came to a real service. A decision or step log of an engine, a decision "
                "log of a gateway, or a run of `headway bench` (its folder, or run.json with run.csv).", "Simulation"),
    ] = None  # fmt: skip


WORLD_KEYS = tuple(keys(WorldOptions))
# Of `headway serve`: everything that decides. What is left out is about sockets, files and this machine, is said by the
# promises of the load, or is in `WorldOptions` for any device instead of this one.
_SERVICE_GROUPS = frozenset({"Concurrency and batching", "Promises", "Lanes"})
_SERVICE_OTHERS = frozenset({
    "max_model_len", "kv_cache_gib", "prefix_cache_scope", "max_running", "kv_claim_ratio", "overlong",
    "overlong_tokens", "ladder", "clamp_output_tokens", "short_context_ratio",
})  # fmt: skip
_SAID_BY_THE_LOAD = frozenset({"slo_ttft", "slo_itl"})
# The fit says of the measured server what holds where nothing else is said.
_MEASURED = {
    "max_num_seqs": "as the fit says",
    "max_num_batched_tokens": "as the fit says",
    "policy": "as the fit says",
    "kv_cache_gib": "what the device holds, else as the fit says",
}


def _shown(key: Key) -> Key:
    if key.field not in _MEASURED:
        return key
    return replace(key, default=None, type=key.type | None, setting=replace(key.setting, default=_MEASURED[key.field]))


SERVICE_KEYS = tuple(
    _shown(key)
    for key in SERVE_KEYS
    if (key.setting.group in _SERVICE_GROUPS or key.field in _SERVICE_OTHERS) and key.field not in _SAID_BY_THE_LOAD
)
_LOAD_KINDS = (WindowOptions, PromiseOptions, TextOptions, ClientOptions)
_NOT_OF_A_SIMULATION = frozenset({"processes", "drain", "scrape_interval", "unique_prefix"})
LOAD_KEYS = tuple(key for kind in _LOAD_KINDS for key in keys(kind) if key.field not in _NOT_OF_A_SIMULATION)


def keys_of(profile: str) -> tuple[Key, ...]:
    """All flags of the command that simulates a profile; "" is the one that may replay."""
    own = PROFILE_KEYS[profile or "concurrency"]
    shown = DEFAULTS_OF.get(profile, {})
    left_out = {*NOT_OF.get(profile, ()), *(("replay",) if profile else ())}
    return tuple(
        replace(key, setting=replace(key.setting, default=shown[key.field])) if key.field in shown else key
        for key in (*WORLD_KEYS, *own, *LOAD_KEYS, *SERVICE_KEYS, *REPORT_KEYS)
        if key.field not in left_out
    )
