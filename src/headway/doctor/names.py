"""Servers' names of metrics -> ours. Names of one server that mean the same are of different versions of it.

vLLM's are those of 0.6 to 0.21 and the v1 engine, SGLang's of 0.4 to 0.5. A name that a newer version gives a known
thing belongs here, in one line; until then the doctor says which of its signals it misses.
"""

from __future__ import annotations

from types import MappingProxyType

GAUGES = MappingProxyType({
    "headway_sequences_running": "running",
    "headway_requests_waiting": "waiting",
    "headway_requests_in_service": "in_service",
    "headway_waiting_tokens": "waiting_tokens",
    "headway_sequences_preempted": "preempted",
    "headway_kv_usage_ratio": "kv_ratio",
    "headway_kv_blocks": "kv_blocks",
    "headway_kv_set_aside_blocks": "kv_set_aside_blocks",
    "headway_kv_resident_tokens": "kv_tokens",
    "headway_step_tokens": "step_tokens",
    "headway_max_num_seqs": "max_num_seqs",
    "headway_max_num_batched_tokens": "max_num_batched_tokens",
    "headway_memory_used_bytes": "memory_bytes",
    "headway_engine_ready": "ready",
    "headway_worker_running": "running",
    "headway_worker_waiting": "waiting",
    "headway_worker_kv_used_ratio": "kv_ratio",
    "headway_worker_kv_capacity_tokens": "kv_capacity_tokens",
    "headway_worker_requests_in_flight": "in_flight",
    "headway_ladder_pressure_ratio": "pressure_ratio",
    "vllm:num_requests_running": "running",
    "vllm:num_requests_waiting": "waiting",
    "vllm:num_requests_swapped": "preempted",
    "vllm:kv_cache_usage_perc": "kv_ratio",
    "vllm:gpu_cache_usage_perc": "kv_ratio",
    "sglang:num_running_reqs": "running",
    "sglang:num_queue_reqs": "waiting",
    "sglang:num_retracted_reqs": "preempted",
    "sglang:token_usage": "kv_ratio",
    "sglang:num_used_tokens": "kv_tokens",
    "sglang:max_total_num_tokens": "kv_capacity_tokens",
    "sglang:max_running_requests": "max_num_seqs",
    "sglang:cache_hit_rate": "hit_ratio",
    "llamacpp:requests_processing": "running",
    "llamacpp:requests_deferred": "waiting",
    "llamacpp:kv_cache_usage_ratio": "kv_ratio",
    "tgi_batch_current_size": "running",
    "tgi_queue_size": "waiting",
})  # fmt: skip

# Prometheus' clients add `_total` to a counter's name; some servers export both.
TOTALS = MappingProxyType({
    "headway_prefill_tokens": "prompt_tokens",
    "headway_decode_tokens": "generation_tokens",
    "headway_worker_output_tokens": "generation_tokens",
    "headway_steps": "steps",
    "headway_preemptions": "preemptions",
    "headway_recomputed_tokens": "recomputed_tokens",
    "headway_prefill_seconds": "prefill_work_s",
    "headway_decode_seconds": "decode_work_s",
    "headway_step_real_seconds": "step_real_s",
    "headway_step_predicted_seconds": "step_predicted_s",
    "headway_prefix_lookup_tokens": "lookup_tokens",
    "headway_prefix_hit_tokens": "hit_tokens",
    "headway_kv_evictions": "evictions",
    "headway_requests_ended": "ended",
    "headway_requests_refused": "refused",
    "vllm:prompt_tokens": "prompt_tokens",
    "vllm:generation_tokens": "generation_tokens",
    "vllm:num_preemptions": "preemptions",
    "vllm:prefix_cache_queries": "lookup_tokens",
    "vllm:prefix_cache_hits": "hit_tokens",
    "vllm:gpu_prefix_cache_queries": "lookup_tokens",
    "vllm:gpu_prefix_cache_hits": "hit_tokens",
    "vllm:request_success": "ended",
    "sglang:prompt_tokens": "prompt_tokens",
    "sglang:generation_tokens": "generation_tokens",
    "sglang:cached_tokens": "hit_tokens",
    "sglang:num_requests": "ended",
    "sglang:num_retractions": "preemptions",
    "llamacpp:prompt_tokens": "prompt_tokens",
    "llamacpp:tokens_predicted": "generation_tokens",
    "tgi_request_success": "ended",
})  # fmt: skip

HISTOGRAMS = MappingProxyType({
    "headway_time_to_first_token_seconds": "ttft_s",
    "headway_inter_token_latency_seconds": "itl_s",
    "headway_request_duration_seconds": "e2e_s",
    "headway_network_seconds": "body_s",
    "headway_tokenise_seconds": "tokenise_s",
    "headway_queue_seconds": "queue_s",
    "headway_prefill_seconds": "prefill_s",
    "headway_decode_seconds": "decode_s",
    "headway_worker_seconds": "worker_s",
    "headway_worker_time_to_first_token_seconds": "ttft_s",
    "headway_worker_inter_token_latency_seconds": "itl_s",
    "headway_request_input_tokens": "prompt_tokens",
    "headway_request_output_tokens": "output_tokens",
    "vllm:time_to_first_token_seconds": "ttft_s",
    "vllm:inter_token_latency_seconds": "itl_s",
    "vllm:time_per_output_token_seconds": "itl_s",
    "vllm:e2e_request_latency_seconds": "e2e_s",
    "vllm:request_queue_time_seconds": "queue_s",
    "vllm:request_prefill_time_seconds": "prefill_s",
    "vllm:request_decode_time_seconds": "decode_s",
    "vllm:request_prompt_tokens": "prompt_tokens",
    "vllm:request_generation_tokens": "output_tokens",
    "vllm:iteration_tokens_total": "step_tokens",
    "sglang:time_to_first_token_seconds": "ttft_s",
    "sglang:inter_token_latency_seconds": "itl_s",
    "sglang:time_per_output_token_seconds": "itl_s",
    "sglang:e2e_request_latency_seconds": "e2e_s",
    "sglang:queue_time_seconds": "queue_s",
    "sglang:prompt_tokens_histogram": "prompt_tokens",
    "sglang:generation_tokens_histogram": "output_tokens",
    "tgi_request_duration": "e2e_s",
    "tgi_request_queue_duration": "queue_s",
    "tgi_request_mean_time_per_token_duration": "itl_s",
    "tgi_request_input_length": "prompt_tokens",
    "tgi_request_generated_tokens": "output_tokens",
})  # fmt: skip

# What tells an engine from another in one text, or in one Prometheus.
PLACES = ("worker", "engine", "dp_rank", "instance", "pod")
INFO = "vllm:cache_config_info"

# Without these a rule is blind; with each, what cannot be told.
WANTED = MappingProxyType({
    "running": "sequences running: batches and slots cannot be judged",
    "waiting": "requests waiting: a queue cannot be told from slow work",
    "kv_ratio": "KV in use: a full cache cannot be seen",
    "ttft_s": "TTFT: only what the queue says of it is known",
    "itl_s": "ITL: slow streams cannot be seen",
    "queue_s": "queue times: they are taken from the queue's length (Little's law)",
    "prefill_s": "prefill times: own work and interference are not told apart",
    "preemptions": "preemptions: thrashing cannot be seen",
    "lookup_tokens": "prefix cache lookups: a cold cache cannot be seen",
})  # fmt: skip


def kind_of(name: str) -> str:
    """Whose name it is: "vllm", "headway"…; empty for nobody's that we know."""
    for prefix, kind in (("headway_", "headway"), ("vllm:", "vllm"), ("sglang:", "sglang")):
        if name.startswith(prefix):
            return kind
    return {"llamacpp": "llama.cpp", "tgi_batch": "tgi", "tgi_queue": "tgi", "tgi_request": "tgi"}.get(
        name.partition(":")[0] if ":" in name else "_".join(name.split("_")[:2]), ""
    )
