"""What a running server says of its own KV cache, in the words of each engine. Reading it is the caller's."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headway.core.errors import ConfigError

_SAMPLE = re.compile(r"^(?P<name>[A-Za-z_:][\w:]*)(?:\{(?P<labels>.*)\})?\s+(?P<value>\S+)", re.ASCII)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_VLLM, _HEADWAY = "vllm:cache_config_info", "headway_kv_blocks"


@dataclass(frozen=True, slots=True)
class LiveKv:
    """What a server has. None is not known."""

    engine: str
    tokens: int
    blocks: int | None = None
    block_tokens: int | None = None
    max_model_len: int | None = None
    model: str | None = None
    dtype: str | None = None
    utilization: float | None = None

    def sequences(self, context_tokens: int) -> float:
        if self.blocks is not None and self.block_tokens:
            return self.blocks / -(-context_tokens // self.block_tokens)
        return self.tokens / context_tokens


def live_kv(documents: Mapping[str, str], url: str) -> LiveKv:
    """From whatever of `/metrics`, `/v1/models`, `/get_server_info` and `/props` could be fetched.

    Raises:
        ConfigError: nothing in them says how large the KV cache is.
    """
    models = _json(documents.get("/v1/models"))
    listed = models.get("data")
    first: Mapping[str, Any] = listed[0] if isinstance(listed, list) and listed and isinstance(listed[0], dict) else {}
    model, length = first.get("id"), _whole(first.get("max_model_len"))
    samples = _samples(documents.get("/metrics", ""))
    if (labels := samples.get(_VLLM)) is not None:
        blocks, block = _whole(labels[1].get("num_gpu_blocks")), _whole(labels[1].get("block_size"))
        if blocks and block:
            share = _share(labels[1].get("gpu_memory_utilization"))
            return LiveKv("vllm", blocks * block, blocks, block, length, model, labels[1].get("cache_dtype"), share)
    if _HEADWAY in samples and (blocks := _whole(samples[_HEADWAY][0])):
        block = _whole(first.get("kv_block_tokens")) or 32
        return LiveKv("headway", blocks * block, blocks, block, length, model)
    info = _json(documents.get("/get_server_info"))
    if tokens := _whole(info.get("max_total_num_tokens")):
        share = _share(info.get("mem_fraction_static"))
        return LiveKv("sglang", tokens, tokens, 1, length or _whole(info.get("context_length")), model, None, share)
    props = _json(documents.get("/props"))
    settings = props.get("default_generation_settings")
    if isinstance(settings, Mapping) and (context := _whole(settings.get("n_ctx"))):
        slots = _whole(props.get("total_slots")) or 1
        return LiveKv("llama.cpp", context * slots, context * slots, 1, context, model)
    raise ConfigError(
        f"{url} does not say how large its KV cache is: looked for {_VLLM} and {_HEADWAY} in /metrics, "
        "max_total_num_tokens in /get_server_info and n_ctx in /props. Give its config.json and --gpu instead.",
        param="source",
    )


def _samples(text: str) -> dict[str, tuple[str, dict[str, str]]]:
    """The last sample of each name of a Prometheus page."""
    found: dict[str, tuple[str, dict[str, str]]] = {}
    for line in text.splitlines():
        if line[:1] != "#" and (match := _SAMPLE.match(line)):
            found[match["name"]] = (match["value"], dict(_LABEL.findall(match["labels"] or "")))
    return found


def _json(text: str | None) -> dict[str, Any]:
    try:
        value = json.loads(text or "{}")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _whole(value: Any) -> int | None:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return int(number) if 0 < number < 1e15 and number == int(number) else None


def _share(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if 0 < number <= 1 else None
