"""Every exported name with its kind, labels and meaning. The exporter and the reference are made from this table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

# OpenTelemetry's GenAI buckets, so that dashboards made for other servers fit.
TTFT_BUCKETS_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
ITL_BUCKETS_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
DURATION_BUCKETS_S = tuple(0.01 * 2**i for i in range(14))  # 0.01 ... 81.92


@dataclass(frozen=True, slots=True)
class Metric:
    """A name as a dashboard reads it (a counter's ends in `_total`), and what it means."""

    name: str
    kind: Literal["gauge", "counter", "histogram"]
    meaning: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


_TABLE = (
    # Request, sequence and token concurrency are three different things and are never one gauge.
    Metric("headway_requests_in_service", "gauge", "Requests inside the service: waiting, in prefill or decoding."),
    Metric("headway_sequences_running", "gauge", "Sequences the engine is working on."),
    Metric("headway_step_tokens", "gauge", "Tokens, prefill and decode, of the step in flight; 0 between steps."),
    Metric("headway_kv_resident_tokens", "gauge", "Tokens whose keys and values are held for running sequences."),
    Metric("headway_requests_waiting", "gauge", "Requests let in and not yet started."),
    Metric("headway_waiting_tokens", "gauge", "Prompt tokens of the waiting requests."),
    Metric("headway_sequences_preempted", "gauge", "Sequences that lost their KV blocks and wait to go on."),
    Metric("headway_kv_usage_ratio", "gauge", "KV blocks in use over KV blocks there are, 0 to 1."),
    Metric("headway_kv_blocks", "gauge", "KV blocks there are."),
    Metric("headway_kv_cached_blocks", "gauge", "KV blocks that a later prompt can find, held or idle."),
    Metric("headway_kv_set_aside_blocks", "gauge", "Free KV blocks kept for the worst case of running sequences."),
    Metric("headway_kv_reserved_bytes", "gauge", "Memory of the KV cache, used or not."),
    Metric("headway_memory_used_bytes", "gauge", "Resident memory of the server and its executor."),
    Metric("headway_lane_waiting", "gauge", "Requests that wait, by lane.", ("lane",)),
    Metric("headway_max_num_seqs", "gauge", "The limit of sequences running at once."),
    Metric("headway_max_num_batched_tokens", "gauge", "The limit of tokens in one step."),
    Metric("headway_engine_ready", "gauge", "1 while the engine takes requests, else 0."),
    Metric(
        "headway_http_requests_in_flight", "gauge", "API calls being answered, from the first header to the last byte."
    ),
    Metric("headway_prefill_tokens_total", "counter", "Prompt tokens computed."),
    Metric("headway_decode_tokens_total", "counter", "Output tokens computed, one per sequence and decode step."),
    Metric("headway_prefill_seconds_total", "counter", "Engine time attributed to prefill tokens."),
    Metric("headway_decode_seconds_total", "counter", "Engine time attributed to decode tokens."),
    Metric("headway_steps_total", "counter", "Steps run."),
    Metric("headway_preemptions_total", "counter", "Times a running sequence lost its KV blocks to another."),
    Metric("headway_recomputed_tokens_total", "counter", "Tokens computed again after a preemption."),
    Metric("headway_pad_tokens_total", "counter", "Tokens computed and thrown away by static batching."),
    Metric("headway_kv_evictions_total", "counter", "Cached KV blocks given up for room."),
    Metric("headway_relegations_total", "counter", "TTFT promises found lost while waiting."),
    Metric("headway_prefix_lookup_tokens_total", "counter", "Prompt tokens looked for in the prefix cache."),
    Metric("headway_prefix_hit_tokens_total", "counter", "Prompt tokens found in the prefix cache."),
    Metric("headway_step_predicted_seconds_total", "counter", "What the step-time model said of the steps run."),
    Metric("headway_step_real_seconds_total", "counter", "What the steps took, from plan to commit."),
    Metric("headway_step_error_seconds_total", "counter", "Sum of |real - predicted| over the steps."),
    Metric(
        "headway_requests_ended_total",
        "counter",
        "Requests that left: stop and length finished their output, cancelled, expired and failed did not.",
        ("reason",),
    ),
    Metric("headway_requests_refused_total", "counter", "Requests turned away, by error code.", ("code",)),
    Metric(
        "headway_http_responses_total",
        "counter",
        "API answers by route and HTTP status; 499 is a client that left, and a stream that fails counts as it began.",
        ("route", "status"),
    ),
    Metric(
        "headway_stream_errors_total",
        "counter",
        "Streams that began with 200 and failed, by error code; slow_reader is a client that read nothing.",
        ("code",),
    ),
    Metric(
        "headway_time_to_first_token_seconds",
        "histogram",
        "Arrival of the call to its first output token, as the server sees it.",
        buckets=TTFT_BUCKETS_S,
    ),
    Metric(
        "headway_inter_token_latency_seconds",
        "histogram",
        "Gap between consecutive tokens of one request; a chunk of n tokens counts as n gaps of gap/n.",
        buckets=ITL_BUCKETS_S,
    ),
    Metric(
        "headway_request_duration_seconds",
        "histogram",
        "Arrival of the call to the end of its last output.",
        buckets=DURATION_BUCKETS_S,
    ),
    # The parts of a call's time, end to end. Sequences have a queue, a prefill and a decode; calls have the rest.
    Metric("headway_network_seconds", "histogram", "Receiving the body of a call.", buckets=TTFT_BUCKETS_S),
    Metric(
        "headway_tokenise_seconds",
        "histogram",
        "Checking, templating and tokenising a call, from the last byte of its body on.",
        buckets=TTFT_BUCKETS_S,
    ),
    Metric(
        "headway_queue_seconds",
        "histogram",
        "Admission to the first step that works on it.",
        buckets=DURATION_BUCKETS_S,
    ),
    Metric("headway_prefill_seconds", "histogram", "First step to first token.", buckets=DURATION_BUCKETS_S),
    Metric("headway_decode_seconds", "histogram", "First token to last token.", buckets=DURATION_BUCKETS_S),
    Metric(
        "headway_gateway_seconds",
        "histogram",
        "What is left of a call: routing, admission, handing its tokens to the client.",
        buckets=TTFT_BUCKETS_S,
    ),
)

METRICS: Mapping[str, Metric] = MappingProxyType({metric.name: metric for metric in _TABLE})
