"""What servers say of their load -> our names. Pure: text or JSON in, numbers out.

`read_metrics` and `read_load` read one answer; `Meter` turns a row of them into what is true now, since half of it is
only told as totals since the server's start. Only the lines that are wanted are parsed: a server exports hundreds.
"""

from __future__ import annotations

import math
import sys
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from headway.metrics.server_names import GAUGES, HISTOGRAMS, INFO, TOTALS, first, kind_of, of_one_rank
from headway.metrics.text import samples

# What is read of `server_names`.
_GAUGES = ("running", "waiting", "kv_capacity_tokens", "memory_bytes", "desired_replicas")
_OF_GPUS = ("memory_free", "memory_used", "accelerator_percent")
_TOTALS = ("prompt_tokens", "generation_tokens", "preemptions", "steps")
# Histograms, and their names here. Sum and count are read: what lies between two answers is what is recent.
_HISTOGRAMS = {"step_tokens": "batch_tokens", "ttft_s": "ttft_s", "itl_s": "itl_s"}
_MOST = frozenset({"kv_used_ratio", "accelerator_percent"})  # of several the tightest counts; all else adds up

_VALUES = {
    **{name: GAUGES[name] for name in (*_GAUGES, *_OF_GPUS)},
    "kv_used_ratio": GAUGES["kv_ratio"],
    **{f"{name}_total": TOTALS[name] for name in _TOTALS},
}
_SUMS = {ours: tuple(f"{name}_sum" for name in HISTOGRAMS[signal]) for signal, ours in _HISTOGRAMS.items()}
_COUNTS = {f"{name}_count": "count" for signal in _HISTOGRAMS for name in HISTOGRAMS[signal]}
_OURS = _COUNTS | {name: ours for table in (_SUMS, _VALUES) for ours, names in table.items() for name in names}
# What a gateway says of its workers is in what it says of itself. And a name begins as the same with `_total` does.
_WANTED = tuple(
    name for name in (*_OURS, INFO) if not name.startswith("headway_worker_") and not name.endswith("_total")
)


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
    found: dict[str, float] = {}
    flags: dict[str, str] = {}
    capacity_tokens = 0.0
    for name, labels, value in of_one_rank(samples(text, _WANTED)):
        if name == INFO:
            flags |= labels
            capacity_tokens += _number(labels.get("block_size")) * _number(labels.get("num_gpu_blocks"))
        elif (ours := _OURS.get(name)) is not None:
            found[name] = _joined(ours, found.get(name), value)
    values = {ours: found[told] for ours, names in _VALUES.items() if (told := first(names, found))}
    if capacity_tokens:
        values["kv_capacity_tokens"] = capacity_tokens
    totals = {
        ours: Total(found[summed], count)
        for ours, names in _SUMS.items()
        if (summed := first(names, found)) and (count := found.get(f"{summed.removesuffix('_sum')}_count")) is not None
    }
    return Sample(kind_of(*found), values, flags, totals) if values or totals else None


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
