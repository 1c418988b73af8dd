"""Servers' metrics -> our names. Pure: text or JSON in, numbers out.

Only the lines that are wanted are parsed: a server exports hundreds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

# Server -> its name -> ours. Names of one server that mean the same are of different versions of it.
_NAMES: dict[str, dict[str, str]] = {
    "headway": {
        "headway_sequences_running": "running",
        "headway_requests_waiting": "waiting",
        "headway_kv_usage_ratio": "kv_used_ratio",
        "headway_preemptions_total": "preemptions_total",
        "headway_prefill_tokens_total": "prompt_tokens_total",
        "headway_decode_tokens_total": "generation_tokens_total",
        "headway_memory_used_bytes": "memory_bytes",
        "headway_desired_replicas": "desired_replicas",
    },
    "vllm": {
        "vllm:num_requests_running": "running",
        "vllm:num_requests_waiting": "waiting",
        "vllm:kv_cache_usage_perc": "kv_used_ratio",
        "vllm:gpu_cache_usage_perc": "kv_used_ratio",
        "vllm:num_preemptions_total": "preemptions_total",
        "vllm:num_preemptions": "preemptions_total",
        "vllm:prompt_tokens_total": "prompt_tokens_total",
        "vllm:generation_tokens_total": "generation_tokens_total",
    },
    "sglang": {
        "sglang:num_running_reqs": "running",
        "sglang:num_queue_reqs": "waiting",
        "sglang:token_usage": "kv_used_ratio",
        "sglang:prompt_tokens_total": "prompt_tokens_total",
        "sglang:generation_tokens_total": "generation_tokens_total",
    },
    "llamacpp": {
        "llamacpp:requests_processing": "running",
        "llamacpp:requests_deferred": "waiting",
        "llamacpp:kv_cache_usage_ratio": "kv_used_ratio",
        "llamacpp:prompt_tokens_total": "prompt_tokens_total",
        "llamacpp:tokens_predicted_total": "generation_tokens_total",
    },
    "tgi": {
        "tgi_batch_current_size": "running",
        "tgi_queue_size": "waiting",
        "tgi_request_input_length_sum": "prompt_tokens_total",
        "tgi_request_generated_tokens_sum": "generation_tokens_total",
    },
}
_MEANING = {name: (server, ours) for server, names in _NAMES.items() for name, ours in names.items()}
_WANTED = tuple(_MEANING)
_INFO = "vllm:cache_config_info"
_MOST = frozenset({"kv_used_ratio"})  # of several engines the tightest counts; all else adds up


@dataclass(frozen=True, slots=True)
class Sample:
    """What a server tells at one moment. `flags` are settings that it shows beside its numbers."""

    source: str
    values: Mapping[str, float]
    flags: Mapping[str, str]


def read_metrics(text: str) -> Sample | None:
    """Prometheus' text. None when it has none of the names that are known."""
    wanted = [line for line in text.split("\n") if line.startswith(_WANTED) or line.startswith(_INFO)]
    values: dict[str, float] = {}
    flags: dict[str, str] = {}
    source = ""
    for name, labels, value in _samples("\n".join(wanted)):
        if name == _INFO:
            flags |= labels
        elif name in _MEANING and math.isfinite(value):
            source, ours = _MEANING[name]
            values[ours] = _joined(ours, values.get(ours), value)
    return Sample(source, values, flags) if values else None


def _samples(text: str) -> Iterator[tuple[str, dict[str, str], float]]:
    """Raises ValueError where the text is none of Prometheus'."""
    for family in text_string_to_metric_families(text + "\n"):
        for sample in family.samples:
            yield sample.name, sample.labels, float(sample.value)


def read_load(body: Any) -> Sample | None:
    """The JSON of Headway's `/load` or SGLang's `/v1/loads`."""
    if not isinstance(body, dict):
        return None
    if isinstance(body.get("loads"), list):
        values: dict[str, float] = {}
        names = {"num_running_reqs": "running", "num_waiting_reqs": "waiting", "token_usage": "kv_used_ratio"}
        for load in body["loads"]:
            for name, ours in names.items():
                value = load.get(name) if isinstance(load, dict) else None
                if isinstance(value, int | float):
                    values[ours] = _joined(ours, values.get(ours), float(value))
        return Sample("sglang", values, {}) if values else None
    if "step_tokens" not in body:
        return None
    values = {
        ours: float(body[name])
        for name, ours in {
            "running": "running",
            "waiting": "waiting",
            "preemptions_total": "preemptions_total",
            "prefill_tokens_total": "prompt_tokens_total",
            "decode_tokens_total": "generation_tokens_total",
            "memory_bytes": "memory_bytes",
        }.items()
        if isinstance(body.get(name), int | float)
    }
    if body.get("kv_blocks_total"):
        values["kv_used_ratio"] = body.get("kv_blocks_used", 0) / body["kv_blocks_total"]
    return Sample("headway", values, {})


def _joined(ours: str, before: float | None, value: float) -> float:
    if before is None:
        return value
    return max(before, value) if ours in _MOST else before + value
