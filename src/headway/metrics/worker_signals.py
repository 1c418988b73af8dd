"""What servers say of their load -> our names. Pure: text or JSON in, numbers out.

`read_metrics` and `read_load` read one answer; `Meter` turns a row of them into what is true now, since half of it is
only told as totals since the server's start. Only the lines that are wanted are parsed: a server exports hundreds.
"""

from __future__ import annotations

import math
import re
import sys
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeGuard

# Server -> its name -> ours. Names of one server that mean the same are of different versions of it.
_GAUGES: dict[str, dict[str, str]] = {
    "headway": {
        "headway_sequences_running": "running",
        "headway_requests_waiting": "waiting",
        "headway_kv_usage_ratio": "kv_used_ratio",
        "headway_memory_used_bytes": "memory_bytes",
        "headway_desired_replicas": "desired_replicas",
        "headway_preemptions_total": "preemptions_total",
        "headway_prefill_tokens_total": "prompt_tokens_total",
        "headway_decode_tokens_total": "generation_tokens_total",
        "headway_steps_total": "steps_total",
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
        "sglang:max_total_num_tokens": "kv_capacity_tokens",
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
    "dcgm": {
        "DCGM_FI_DEV_FB_FREE": "memory_free",
        "DCGM_FI_DEV_FB_USED": "memory_used",
        "DCGM_FI_DEV_GPU_UTIL": "accelerator_percent",
    },
}
# Histograms, of which the sum and the count are read: what lies between two answers is what is recent.
_HISTOGRAMS: dict[str, dict[str, str]] = {
    "headway": {
        "headway_time_to_first_token_seconds": "ttft_s",
        "headway_inter_token_latency_seconds": "itl_s",
    },
    "vllm": {
        "vllm:iteration_tokens_total": "batch_tokens",
        "vllm:time_to_first_token_seconds": "ttft_s",
        "vllm:inter_token_latency_seconds": "itl_s",
        "vllm:time_per_output_token_seconds": "itl_s",
    },
    "sglang": {
        "sglang:time_to_first_token_seconds": "ttft_s",
        "sglang:inter_token_latency_seconds": "itl_s",
        "sglang:time_per_output_token_seconds": "itl_s",
    },
    "tgi": {
        "tgi_request_mean_time_per_token_duration": "itl_s",
    },
}
_INFO = "vllm:cache_config_info"
_MOST = frozenset({"kv_used_ratio", "accelerator_percent"})  # of several the tightest counts; all else adds up
# Who speaks here, where a text has lines of more than one.
_PASSENGERS = frozenset({"dcgm"})

_MEANING = {name: (server, ours) for server, names in _GAUGES.items() for name, ours in names.items()}
_PARTS = {
    f"{name}_{part}": (server, name, ours, part)
    for server, names in _HISTOGRAMS.items()
    for name, ours in names.items()
    for part in ("sum", "count")
}
_WANTED = (*_MEANING, *_PARTS, _INFO)
# name{labels} value timestamp
_LINE = re.compile(r"([A-Za-z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?\s*")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, slots=True)
class Total:
    """Of a histogram since the server's start."""

    sum: float
    count: float


@dataclass(frozen=True, slots=True)
class Sample:
    """What a server tells at one moment. `flags` are settings that it shows beside its numbers."""

    source: str
    values: Mapping[str, float]
    flags: Mapping[str, str] = field(default_factory=dict)
    totals: Mapping[str, Total] = field(default_factory=dict)


def read_metrics(text: str) -> Sample | None:
    """Prometheus' text. None when it has none of the names that are known."""
    values: dict[str, float] = {}
    flags: dict[str, str] = {}
    parts: dict[tuple[str, str], dict[str, float]] = {}  # (histogram, our name) -> its sum and its count
    capacity_tokens, source = 0.0, ""
    for name, labels, value in _lines(text):
        if source == "headway" and name.startswith("vllm:"):
            continue  # its own numbers under other names: they would be counted twice
        if name == _INFO:
            told = dict(_LABEL.findall(labels))
            flags |= told
            capacity_tokens += _number(told.get("block_size")) * _number(told.get("num_gpu_blocks"))
        elif name in _PARTS:
            server, histogram, ours, part = _PARTS[name]
            source = source or server
            sums = parts.setdefault((histogram, ours), {})
            sums[part] = sums.get(part, 0.0) + value
        else:
            server, ours = _MEANING[name]
            source = server if not source or source in _PASSENGERS else source
            values[ours] = _joined(ours, values.get(ours), value)
    if capacity_tokens:
        values["kv_capacity_tokens"] = capacity_tokens
    totals = {
        ours: Total(sums["sum"], sums["count"]) for (_, ours), sums in parts.items() if {"sum", "count"} <= sums.keys()
    }
    return Sample(source, values, flags, totals) if values or totals else None


def _lines(text: str) -> Iterable[tuple[str, str, float]]:
    """Those that are wanted and can be read."""
    for line in text.split("\n"):
        if line.startswith(_WANTED):
            found = _LINE.fullmatch(line)
            if found is None or (found[1] not in _MEANING and found[1] not in _PARTS and found[1] != _INFO):
                continue
            value = _number(found[3], math.nan)
            if math.isfinite(value):
                yield found[1], found[2] or "", value


def read_load(body: Any) -> Sample | None:
    """The JSON of Headway's `/load`, SGLang's `/v1/loads` or llama.cpp's `/slots`. None when it is none of them."""
    if isinstance(body, list):
        return _slots(body)
    if not isinstance(body, dict):
        return None
    if isinstance(body.get("loads"), list):
        return _sglang_loads(body["loads"])
    return _headway_load(body) if "step_tokens" in body else None


def _slots(slots: list[Any]) -> Sample | None:
    busy = [slot["is_processing"] for slot in slots if isinstance(slot, dict) and "is_processing" in slot]
    return Sample("llamacpp", {"running": float(sum(map(bool, busy)))}) if busy else None


def _sglang_loads(loads: list[Any]) -> Sample | None:
    values: dict[str, float] = {}
    names = {
        "num_running_reqs": "running",
        "num_waiting_reqs": "waiting",
        "token_usage": "kv_used_ratio",
        "max_total_num_tokens": "kv_capacity_tokens",
    }
    for load in loads:
        for name, ours in names.items():
            value = load.get(name) if isinstance(load, dict) else None
            if _is_number(value):
                values[ours] = _joined(ours, values.get(ours), float(value))
    return Sample("sglang", values) if values else None


def _headway_load(body: dict[str, Any]) -> Sample:
    names = {
        "running": "running",
        "waiting": "waiting",
        "preemptions_total": "preemptions_total",
        "prefill_tokens_total": "prompt_tokens_total",
        "decode_tokens_total": "generation_tokens_total",
        "steps_total": "steps_total",
        "memory_bytes": "memory_bytes",
        "memory_total_bytes": "memory_total_bytes",
        "kv_capacity_tokens": "kv_capacity_tokens",
    }
    values = {ours: float(value) for name, ours in names.items() if _is_number(value := body.get(name))}
    blocks, used = body.get("kv_blocks_total"), body.get("kv_blocks_used")
    if _is_number(blocks) and _is_number(used) and blocks > 0:
        values["kv_used_ratio"] = used / blocks
    return Sample("headway", values)


def _joined(ours: str, before: float | None, value: float) -> float:
    if before is None:
        return value
    return max(before, value) if ours in _MOST else before + value


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _number(text: str | None, otherwise: float = 0.0) -> float:
    """What is no number, such as vLLM's `None` for a size that it has not found out yet, is `otherwise`."""
    try:
        return float(text or "")
    except ValueError:
        return otherwise


# -- over time ---------------------------------------------------------------------------------------------------------

RECENT_NS = 5_000_000_000
# What a total must not do, unless the server started again.
_RISING = ("prompt_tokens_total", "generation_tokens_total", "steps_total", "preemptions_total")


class Meter:
    """Feed it what one server tells, in order. Its answer holds only what is known: unknown is never zero.

    Means are over what was counted in the last `RECENT_NS`, or the last thing that was. A server that started again
    counts from zero: `restarts` says how often that was seen, and nothing from before is mixed in.
    """

    def __init__(self) -> None:
        self.restarts = 0
        self._rows: dict[str, deque[tuple[int, Total]]] = {}
        self._before: dict[str, float] = {}

    def feed(self, sample: Sample, at_ns: int) -> dict[str, float]:
        """What is true at `at_ns`, by the names of the signals. Means that nothing new was counted for are left out."""
        if self._restarted(sample):
            self.restarts += 1
            self._rows.clear()
            self._before.clear()
        self._before |= sample.values
        signals = {name: sample.values[name] for name in _SIGNALS if name in sample.values}
        if "kv_used_ratio" in signals:
            signals["kv_used_ratio"] = min(1.0, max(0.0, signals["kv_used_ratio"]))
        if (headroom := _headroom(sample.values)) is not None:
            signals["memory_headroom_ratio"] = headroom
        if "accelerator_percent" in sample.values:
            signals["accelerator_used_ratio"] = min(1.0, max(0.0, sample.values["accelerator_percent"] / 100))
        for name, total in self._totals(sample):
            mean = self._mean(name, total, at_ns)
            if mean is not None:
                signals[name] = mean
        return signals

    def _restarted(self, sample: Sample) -> bool:
        fell = any(sample.values.get(name, math.inf) < self._before.get(name, 0.0) for name in _RISING)
        return fell or any(
            total.count < self._rows[name][-1][1].count for name, total in sample.totals.items() if self._rows.get(name)
        )

    @staticmethod
    def _totals(sample: Sample) -> Iterable[tuple[str, Total]]:
        yield from sample.totals.items()
        values = sample.values
        if "batch_tokens" not in sample.totals and "steps_total" in values:
            tokens = values.get("prompt_tokens_total", 0.0) + values.get("generation_tokens_total", 0.0)
            yield "batch_tokens", Total(tokens, values["steps_total"])

    def _mean(self, name: str, total: Total, at_ns: int) -> float | None:
        row = self._rows.setdefault(name, deque())
        if row and total.count == row[-1][1].count:
            return None
        row.append((at_ns, total))
        while len(row) > 2 and row[1][0] <= at_ns - RECENT_NS:
            row.popleft()
        first = row[0][1]
        if len(row) < 2 or total.sum < first.sum:
            return None
        return (total.sum - first.sum) / (total.count - first.count)


_SIGNALS = ("running", "waiting", "kv_used_ratio", "kv_capacity_tokens")


def _headroom(values: Mapping[str, float]) -> float | None:
    """The share of memory that is free: of a GPU's exporter, or of a server that tells what it has and uses."""
    if "memory_free" in values and values["memory_free"] + values.get("memory_used", 0.0) > 0:
        return values["memory_free"] / (values["memory_free"] + values.get("memory_used", 0.0))
    total_bytes = values.get("memory_total_bytes", 0.0)
    if total_bytes > 0 and "memory_bytes" in values:
        return min(1.0, max(0.0, 1.0 - values["memory_bytes"] / total_bytes))
    return None
