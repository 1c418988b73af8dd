"""Servers' names of metrics by signal. Names of one server that mean the same are of different versions of it: the
first that is there counts.

vLLM's are those of 0.6 to 0.21 and the v1 engine, SGLang's of 0.4 to 0.5. A name that a newer version gives a known
thing belongs here, in one line; until then the doctor says which of its signals it misses.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TypeVar

Names = Mapping[str, tuple[str, ...]]
Told = TypeVar("Told")

# Whose names begin so. A GPU's exporter may share its page with a server: it comes last.
KINDS: Mapping[str, str] = MappingProxyType(
    {
        "headway": "headway_",
        "vllm": "vllm:",
        "sglang": "sglang:",
        "llamacpp": "llamacpp:",
        "tgi": "tgi_",
        "dcgm": "DCGM_",
    }
)
GAUGES: Names = MappingProxyType(
    {
        "in_service": ("headway_requests_in_service",),
        "running": (
            *("headway_sequences_running", "headway_worker_running", "vllm:num_requests_running"),
            *("sglang:num_running_reqs", "llamacpp:requests_processing", "tgi_batch_current_size"),
        ),
        "waiting": (
            *("headway_requests_waiting", "headway_worker_waiting", "vllm:num_requests_waiting"),
            *("sglang:num_queue_reqs", "llamacpp:requests_deferred", "tgi_queue_size"),
        ),
        "waiting_tokens": ("headway_waiting_tokens",),
        "preempted": ("headway_sequences_preempted", "vllm:num_requests_swapped", "sglang:num_retracted_reqs"),
        "kv_ratio": (
            *("headway_kv_usage_ratio", "headway_worker_kv_used_ratio", "vllm:kv_cache_usage_perc"),
            *("vllm:gpu_cache_usage_perc", "sglang:token_usage", "llamacpp:kv_cache_usage_ratio"),
        ),
        "kv_blocks": ("headway_kv_blocks",),
        "kv_set_aside_blocks": ("headway_kv_set_aside_blocks",),
        "kv_tokens": ("headway_kv_resident_tokens", "sglang:num_used_tokens"),
        "kv_capacity_tokens": ("headway_worker_kv_capacity_tokens", "sglang:max_total_num_tokens"),
        "kv_reserved_bytes": ("headway_kv_reserved_bytes",),
        "memory_bytes": ("headway_memory_used_bytes",),
        "step_tokens": ("headway_step_tokens",),
        "in_flight": ("headway_worker_requests_in_flight",),
        "window_seqs": ("headway_worker_window_sequences",),
        "slo_ttft_s": ("headway_slo_ttft_seconds",),
        "slo_itl_s": ("headway_slo_itl_seconds",),
        "max_num_seqs": ("headway_max_num_seqs", "sglang:max_running_requests"),
        "max_num_batched_tokens": ("headway_max_num_batched_tokens",),
        "ladder_level": ("headway_ladder_level",),
        "pressure_ratio": ("headway_ladder_pressure_ratio",),
        "replicas": ("headway_replicas",),
        "desired_replicas": ("headway_desired_replicas",),
        "memory_free": ("DCGM_FI_DEV_FB_FREE",),
        "memory_used": ("DCGM_FI_DEV_FB_USED",),
        "accelerator_percent": ("DCGM_FI_DEV_GPU_UTIL",),
    }
)


def _counted(names: Names) -> Names:
    """Prometheus' clients add `_total` to a counter's name, and not everybody has one of them."""
    return MappingProxyType(
        {ours: tuple(one for name in told for one in (f"{name}_total", name)) for ours, told in names.items()}
    )


TOTALS: Names = _counted(
    {
        "prompt_tokens": (
            *("headway_prefill_tokens", "vllm:prompt_tokens", "sglang:prompt_tokens"),
            *("llamacpp:prompt_tokens", "tgi_request_input_length_sum"),
        ),
        "generation_tokens": (
            *("headway_decode_tokens", "headway_worker_output_tokens", "vllm:generation_tokens"),
            *("sglang:generation_tokens", "llamacpp:tokens_predicted", "tgi_request_generated_tokens_sum"),
        ),
        "steps": ("headway_steps",),
        "step_real_s": ("headway_step_real_seconds",),
        "preemptions": ("headway_preemptions", "vllm:num_preemptions", "sglang:num_retractions"),
        "recomputed_tokens": ("headway_recomputed_tokens",),
        "lookup_tokens": (
            *("headway_prefix_lookup_tokens", "vllm:prefix_cache_queries"),
            "vllm:gpu_prefix_cache_queries",
        ),
        "hit_tokens": (
            *("headway_prefix_hit_tokens", "vllm:prefix_cache_hits", "vllm:gpu_prefix_cache_hits"),
            "sglang:cached_tokens",
        ),
        "evictions": ("headway_kv_evictions",),
        "ended": ("headway_requests_ended", "vllm:request_success", "sglang:num_requests", "tgi_request_success"),
    }
)
HISTOGRAMS: Names = MappingProxyType(
    {
        "ttft_s": (
            *("headway_time_to_first_token_seconds", "headway_worker_time_to_first_token_seconds"),
            *("vllm:time_to_first_token_seconds", "sglang:time_to_first_token_seconds"),
        ),
        "itl_s": (
            *("headway_inter_token_latency_seconds", "headway_worker_inter_token_latency_seconds"),
            *("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
            *("sglang:inter_token_latency_seconds", "sglang:time_per_output_token_seconds"),
            "tgi_request_mean_time_per_token_duration",
        ),
        "e2e_s": (
            *("headway_request_duration_seconds", "vllm:e2e_request_latency_seconds"),
            *("sglang:e2e_request_latency_seconds", "tgi_request_duration"),
        ),
        "body_s": ("headway_network_seconds",),
        "tokenise_s": ("headway_tokenise_seconds",),
        "queue_s": (
            *("headway_queue_seconds", "vllm:request_queue_time_seconds"),
            *("sglang:queue_time_seconds", "tgi_request_queue_duration"),
        ),
        "prefill_s": ("headway_prefill_seconds", "vllm:request_prefill_time_seconds"),
        "decode_s": ("headway_decode_seconds", "vllm:request_decode_time_seconds"),
        "prompt_tokens": (
            *("headway_request_input_tokens", "vllm:request_prompt_tokens"),
            *("sglang:prompt_tokens_histogram", "tgi_request_input_length"),
        ),
        "output_tokens": (
            *("headway_request_output_tokens", "vllm:request_generation_tokens"),
            *("sglang:generation_tokens_histogram", "tgi_request_generated_tokens"),
        ),
        "step_tokens": ("vllm:iteration_tokens_total",),
    }
)
INFO = "vllm:cache_config_info"
# Parts of one engine. SGLang's all tell of the whole of it with --enable-metrics-for-all-schedulers.
RANKS = ("tp_rank", "pp_rank", "moe_ep_rank")


def _signals(names: Names) -> Mapping[str, str]:
    return MappingProxyType({name: ours for ours, told in names.items() for name in told})


# The other way round: a server's name -> the signal.
GAUGE_OF, TOTAL_OF, HISTOGRAM_OF = map(_signals, (GAUGES, TOTALS, HISTOGRAMS))


def kind_of(*names: str) -> str:
    """Whose names they are: "vllm", "headway"…; of several the first in `KINDS`. Empty for nobody's that we know."""
    return next((kind for kind, start in KINDS.items() if any(name.startswith(start) for name in names)), "")


def first(names: Iterable[str], there: Mapping[str, object]) -> str | None:
    """Of a signal's names the one that counts."""
    return next((name for name in names if name in there), None)


def of_one_rank(series: Iterable[tuple[str, Mapping[str, str], Told]]) -> list[tuple[str, Mapping[str, str], Told]]:
    """Name, labels and whatever is told: of series that differ by `RANKS` alone, the lowest's."""
    every, lowest = list(series), dict[tuple[object, ...], tuple[int, ...]]()
    ranked = [_rank_of(labels) for _, labels, _ in every]
    if not any(ranked):
        return every
    whose = [(name, *sorted(one for one in labels.items() if one[0] not in RANKS)) for name, labels, _ in every]
    for one, rank in zip(whose, ranked, strict=True):
        lowest[one] = min(rank, lowest.get(one, rank))
    return [told for told, one, rank in zip(every, whose, ranked, strict=True) if rank == lowest[one]]


def _rank_of(labels: Mapping[str, str]) -> tuple[int, ...]:
    """Empty where it has none."""
    told = [labels.get(key, "") for key in RANKS]
    return tuple(int(one) if one.isdecimal() and len(one) < 9 else 0 for one in told) if any(told) else ()
