"""The same numbers under vLLM's names, types and labels: `--metrics-names vllm`, so that dashboards made for it work.

Names, labels (`model_name`, `engine`) and buckets are those of vLLM's V1 engine and, where they were renamed, of both
versions; facts read from its public documentation and sources. What is not known here has no series.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headway.metrics.breakdown import Calls
from headway.metrics.histogram import Histogram
from headway.metrics.names import (
    TOKENS_BUCKETS,
    TTFT_BUCKETS_S,
    VLLM_DURATION_BUCKETS_S,
    VLLM_ITL_BUCKETS_S,
    Metric,
)
from headway.metrics.text import histograms, series

_LABELS = ("model_name", "engine")
_REASON = ("model_name", "engine", "finished_reason")
_CONFIG = ("block_size", "num_gpu_blocks", "engine")
_ENGINE = "0"

# vLLM's name -> ours, and the buckets of those that are histograms.
_COUNTED = {
    "vllm:num_requests_running": "headway_sequences_running",
    "vllm:num_requests_waiting": "headway_requests_waiting",
    "vllm:kv_cache_usage_perc": "headway_kv_usage_ratio",
    "vllm:gpu_cache_usage_perc": "headway_kv_usage_ratio",
    "vllm:num_preemptions_total": "headway_preemptions_total",
    "vllm:prefix_cache_queries_total": "headway_prefix_lookup_tokens_total",
    "vllm:prefix_cache_hits_total": "headway_prefix_hit_tokens_total",
}
_TIMED = {
    "vllm:time_to_first_token_seconds": ("headway_time_to_first_token_seconds", TTFT_BUCKETS_S),
    "vllm:inter_token_latency_seconds": ("headway_inter_token_latency_seconds", VLLM_ITL_BUCKETS_S),
    "vllm:time_per_output_token_seconds": ("headway_inter_token_latency_seconds", VLLM_ITL_BUCKETS_S),
    "vllm:e2e_request_latency_seconds": ("headway_request_duration_seconds", VLLM_DURATION_BUCKETS_S),
    "vllm:request_queue_time_seconds": ("headway_queue_seconds", VLLM_DURATION_BUCKETS_S),
    "vllm:request_prefill_time_seconds": ("headway_prefill_seconds", VLLM_DURATION_BUCKETS_S),
    "vllm:request_decode_time_seconds": ("headway_decode_seconds", VLLM_DURATION_BUCKETS_S),
    "vllm:request_prompt_tokens": ("headway_request_input_tokens", TOKENS_BUCKETS),
    "vllm:request_generation_tokens": ("headway_request_output_tokens", TOKENS_BUCKETS),
}

_TABLE = (
    *(
        Metric(name, "counter" if name.endswith("_total") else "gauge", f"As {ours}.", _LABELS)
        for name, ours in _COUNTED.items()
    ),
    Metric(
        "vllm:prompt_tokens_total",
        "counter",
        "Prompt tokens, cached or computed and each once, of requests whose answer began; counted when they end.",
        _LABELS,
    ),
    Metric("vllm:generation_tokens_total", "counter", "Output tokens, the first of each answer among them.", _LABELS),
    Metric("vllm:request_success_total", "counter", "As headway_requests_ended_total, by vLLM's reasons.", _REASON),
    Metric("vllm:cache_config_info", "gauge", "How many KV blocks there are, and of how many tokens.", _CONFIG),
    *(Metric(name, "histogram", f"As {ours}.", _LABELS, buckets) for name, (ours, buckets) in _TIMED.items()),
)
VLLM_METRICS: Mapping[str, Metric] = {metric.name: metric for metric in _TABLE}

_SEEN = ("headway_time_to_first_token_seconds", "headway_inter_token_latency_seconds")
# Ours -> vLLM's.
_REASONS = {"stop": "stop", "length": "length", "cancelled": "abort", "failed": "error"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """What an engine or a gateway knows at one moment. None is unknown, and has no series."""

    model: str
    running: int
    waiting: int
    kv_usage_ratio: float | None = None
    preemptions_total: int | None = None
    unseen_tokens: int = 0  # of output, that `times` do not hold
    prefix_lookup_tokens_total: int | None = None
    prefix_hit_tokens_total: int | None = None
    ended_total: Mapping[str, int] = field(default_factory=dict)
    kv_blocks: int | None = None
    block_size: int | None = None


def vllm_text(now: Numbers, times: Mapping[str, Histogram], calls: Calls) -> str:
    """`times`: our histograms by our names; those that are missing are left out here as well."""
    labels = (now.model, _ENGINE)
    told = {
        "headway_sequences_running": now.running,
        "headway_requests_waiting": now.waiting,
        "headway_kv_usage_ratio": now.kv_usage_ratio,
        "headway_preemptions_total": now.preemptions_total,
        "headway_prefix_lookup_tokens_total": now.prefix_lookup_tokens_total,
        "headway_prefix_hit_tokens_total": now.prefix_hit_tokens_total,
    }
    parts = [
        series(VLLM_METRICS[name], {labels: value})
        for name, ours in _COUNTED.items()
        if (value := told[ours]) is not None
    ]
    # What is found in a cache or computed again changes nothing in vLLM's prompt tokens, and first tokens are among its
    # generation tokens: headway_prefill_tokens_total and headway_decode_tokens_total tell an engine's work instead.
    seen = sum(times[name].count for name in _SEEN if name in times)
    parts.append(series(VLLM_METRICS["vllm:prompt_tokens_total"], {labels: calls.begun_tokens}))
    parts.append(series(VLLM_METRICS["vllm:generation_tokens_total"], {labels: seen + now.unseen_tokens}))
    reasons = {(*labels, theirs): float(now.ended_total.get(ours, 0)) for ours, theirs in _REASONS.items()}
    parts.append(series(VLLM_METRICS["vllm:request_success_total"], reasons))
    if now.kv_blocks is not None and now.block_size is not None:
        config = (str(now.block_size), str(now.kv_blocks), _ENGINE)
        parts.append(series(VLLM_METRICS["vllm:cache_config_info"], {config: 1}))
    lengths = {"headway_request_input_tokens": calls.input_tokens, "headway_request_output_tokens": calls.output_tokens}
    known = {**times, **lengths}
    parts += [
        histograms(VLLM_METRICS[name], {labels: known[ours]}) for name, (ours, _) in _TIMED.items() if ours in known
    ]
    return "".join(parts)
