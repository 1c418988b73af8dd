"""`environment_of`: what the server tells about itself. What it does not tell stays unknown."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headway.loadtest.result import Environment
from headway.loadtest.side.models import Card, card_of, read_models
from headway.metrics.worker_signals import Sample
from headway.wire.blocking import Channel

# What of a server's own settings says something about its speed.
_SGLANG = [
    "attention_backend",
    "chunked_prefill_size",
    "context_length",
    "disable_cuda_graph",
    "disable_radix_cache",
    "dp_size",
    "dtype",
    "kv_cache_dtype",
    "max_prefill_tokens",
    "max_running_requests",
    "mem_fraction_static",
    "quantization",
    "schedule_policy",
    "tp_size",
]
_TGI = [
    "max_batch_prefill_tokens",
    "max_batch_total_tokens",
    "max_concurrent_requests",
    "max_input_tokens",
    "max_total_tokens",
    "model_device_type",
    "model_dtype",
]
_HEADWAY = ["max_num_seqs", "max_num_batched_tokens", "kv_blocks_total", "kv_reserved_bytes"]
_HEADWAY_CONFIG = [
    "batching",
    "dtype",
    "executor",
    "kv_cache_dtype",
    "kv_cache_gib",
    "kv_full",
    "max_model_len",
    "policy",
    "prefix_cache_scope",
    "slo_itl",
    "slo_ttft",
    "threads",
]


def environment_of(channel: Channel, root: str, base: str, model: str, sample: Sample | None) -> Environment:
    """Blocks for a few small requests. `sample` is one scrape of the server's metrics, if there was one."""
    cards = read_models(channel.json(f"{base}/models"))
    card = card_of(cards, model)
    framework = _framework(card or next(iter(cards), None), sample)
    found = Environment(model=model or None, client=client_facts())
    if sample is not None:
        found.flags |= sample.flags
    if card is not None and card.max_model_len is not None:
        found.flags["max_model_len"] = str(card.max_model_len)
    ask = {"headway": _headway, "vllm": _vllm, "sglang": _sglang, "llamacpp": _llamacpp, "tgi": _tgi}.get(framework)
    if ask is not None:
        ask(channel, root, found)
    elif framework:
        found.framework = framework
    return found


def _framework(card: Card | None, sample: Sample | None) -> str:
    if sample is not None:
        return sample.source
    owner = card.owner.lower().replace(".", "") if card is not None else ""
    return owner if owner in {"headway", "vllm", "sglang", "llamacpp"} else ""


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _settings(told: Mapping[str, Any], names: list[str]) -> dict[str, str]:
    return {name: str(told[name]) for name in names if told.get(name) is not None}


def _text(told: Mapping[str, Any], *names: str) -> str | None:
    """The first of these that is told in words."""
    return next((told[name] for name in names if isinstance(told.get(name), str) and told[name]), None)


def _named(name: str, version: Any) -> str:
    return f"{name} {version}" if version else name


def _headway(channel: Channel, root: str, found: Environment) -> None:
    """Its configuration is told to its own machine only, whose CPU is then the device; from elsewhere, use notes."""
    version = channel.json(f"{root}/version")
    found.framework = _named("headway", version.get("version"))
    load = channel.json(f"{root}/load")
    found.flags |= _settings(load, _HEADWAY)
    config = channel.json(f"{root}/admin/config")
    found.flags |= _settings(config, _HEADWAY_CONFIG)
    told = {**config, **version}
    found.precision = _text(told, "precision", "dtype")
    if found.precision is not None:  # it quantises nothing: weights are as quantised as the model's files are
        found.quantisation = _text(told, "quantisation", "quantization") or "as the model's files"
    kind = _text(told, "executor")
    if kind == "simulated":
        found.device, found.device_count = "simulated", 1
    elif device := _text(told, "device"):
        found.device = f"CPU {_cpu_kind()}" if config and device == "CPU" else device
        found.device_count = 1
    if isinstance(load.get("memory_bytes"), int) and load["memory_bytes"] > 0:
        found.memory_bytes = load["memory_bytes"]


def _vllm(channel: Channel, root: str, found: Environment) -> None:
    found.framework = _named("vLLM", channel.json(f"{root}/version").get("version"))


def _sglang(channel: Channel, root: str, found: Environment) -> None:
    told = channel.json(f"{root}/get_server_info")
    found.framework = _named("SGLang", told.get("version"))
    found.flags |= _settings(told, _SGLANG)
    found.precision = told.get("dtype") if isinstance(told.get("dtype"), str) and told["dtype"] != "auto" else None
    found.quantisation = told["quantization"] if isinstance(told.get("quantization"), str) else None
    if isinstance(told.get("device"), str):
        found.device = told["device"]
    if isinstance(told.get("tp_size"), int):
        found.device_count = told["tp_size"] * (told["dp_size"] if isinstance(told.get("dp_size"), int) else 1)


def _llamacpp(channel: Channel, root: str, found: Environment) -> None:
    told = channel.json(f"{root}/props")
    found.framework = _named("llama.cpp", told.get("build_info"))
    found.flags |= _settings(told, ["total_slots"])
    found.flags |= _settings(_dict(told.get("default_generation_settings")), ["n_ctx"])
    if isinstance(told.get("model_path"), str):
        found.flags["model_file"] = told["model_path"].rpartition("/")[2]


def _tgi(channel: Channel, root: str, found: Environment) -> None:
    told = channel.json(f"{root}/info")
    found.framework = _named("TGI", told.get("version"))
    found.flags |= _settings(told, _TGI)
    if isinstance(told.get("model_dtype"), str):
        found.precision = told["model_dtype"].removeprefix("torch.")
    if isinstance(told.get("model_device_type"), str):
        found.device = told["model_device_type"]


def client_facts() -> dict[str, str]:
    """The client's machine, as far as it bears on the figures."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "headway": _version(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        "cpu": _cpu_kind(),
        "cores": str(cores or "unknown"),
    }


def _version() -> str:
    try:
        return importlib.metadata.version("headway")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def _cpu_kind() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines()
    except OSError:
        lines = []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()
