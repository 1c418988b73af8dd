"""Every exported name with its kind, labels and meaning. The exporter and the reference are made from this table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

# vLLM's buckets, which hold OpenTelemetry's of GenAI, and finer ones below: dashboards made for other servers fit.
TTFT_BUCKETS_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *(20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
VLLM_ITL_BUCKETS_S = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5),
    *(5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
ITL_BUCKETS_S = (0.001, 0.0025, 0.005, *VLLM_ITL_BUCKETS_S)
OTEL_DURATION_BUCKETS_S = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
VLLM_DURATION_BUCKETS_S = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
DURATION_BUCKETS_S = tuple(sorted({*OTEL_DURATION_BUCKETS_S, *VLLM_DURATION_BUCKETS_S}))
TOKENS_BUCKETS = tuple(float(digit * 10**power) for power in range(7) for digit in (1, 2, 5))
# By tenant and the like: coarser, since there are so many of them.
BY_LATENCY_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 60.0, 180.0, 600.0)
BY_ITL_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5, 10.0)


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
    Metric("headway_lane_running", "gauge", "Requests that were started and have not ended, by lane.", ("lane",)),
    Metric("headway_model_waiting", "gauge", "Requests that wait, by model.", ("model",)),
    Metric("headway_model_running", "gauge", "Requests that were started and have not ended, by model.", ("model",)),
    Metric("headway_max_num_seqs", "gauge", "The limit of sequences running at once."),
    Metric("headway_max_num_batched_tokens", "gauge", "The limit of tokens in one step."),
    Metric("headway_slo_ttft_seconds", "gauge", "--slo-ttft: what a request is promised that does not say otherwise."),
    Metric("headway_slo_itl_seconds", "gauge", "--slo-itl: the same between tokens."),
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
    Metric(
        "headway_requests_total",
        "counter",
        "Requests once each, by how they ended: good and late were answered, limited, refused and invalid not let in.",
        ("outcome",),
    ),
    Metric(
        "headway_promises_total",
        "counter",
        "Promises to requests that were answered, kept or broken.",
        ("promise", "kept"),
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
    Metric(
        "headway_request_input_tokens", "histogram", "Prompt tokens of an answered request.", buckets=TOKENS_BUCKETS
    ),
    Metric(
        "headway_request_output_tokens", "histogram", "Output tokens of an answered request.", buckets=TOKENS_BUCKETS
    ),
    Metric("headway_cached_tokens_total", "counter", "Prompt tokens of requests that ended, found in a prefix cache."),
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

# How a request ended, each in exactly one way.
OUTCOMES: Mapping[str, str] = MappingProxyType(
    {
        "good": "It was answered, and everything that it was promised was kept.",
        "late": "It was answered, and a promise to it was broken.",
        "failed": "It was let in and its answer is an error, or broke off.",
        "cancelled": "Its client left, or read nothing any more.",
        "expired": "It waited too long, and was told so.",
        "limited": "It was not let in, by a limit of its tenant or a full queue: status 429.",
        "refused": "It was not let in, for want of capacity: status 503 and the like.",
        "invalid": "It was not let in, since it asked for what cannot be: status 400, 404 and the like.",
    }
)

DIMENSIONS = ("tenant", "lane", "worker", "model")
_OF_ONE: dict[str, tuple[Literal["counter", "histogram"], str, tuple[float, ...]]] = {
    "requests_total": ("counter", "Requests that ended, by {} and outcome.", ()),
    "input_tokens_total": ("counter", "Prompt tokens of requests that ended, by {}.", ()),
    "cached_tokens_total": ("counter", "Those of them that were found in a prefix cache, by {}.", ()),
    "output_tokens_total": ("counter", "Output tokens of requests that ended, by {}.", ()),
    "time_to_first_token_seconds": ("histogram", "TTFT by {}; counted when the request ends.", BY_LATENCY_BUCKETS_S),
    "inter_token_latency_seconds": ("histogram", "ITL by {}; counted when the request ends.", BY_ITL_BUCKETS_S),
    "request_duration_seconds": ("histogram", "E2E of requests that were answered, by {}.", BY_LATENCY_BUCKETS_S),
}


def of_dimension(dimension: str) -> dict[str, Metric]:
    """The metrics that there are by tenant, lane, worker or model, by what they count."""
    made = {}
    for what, (kind, meaning, buckets) in _OF_ONE.items():
        labels = (dimension, "outcome") if what == "requests_total" else (dimension,)
        made[what] = Metric(f"headway_{dimension}_{what}", kind, meaning.format(dimension), labels, buckets)
    return made


def _by_dimension(*dimensions: str) -> Mapping[str, Metric]:
    return MappingProxyType({one.name: one for each in dimensions for one in of_dimension(each).values()})


METRICS: Mapping[str, Metric] = MappingProxyType(
    {metric.name: metric for metric in _TABLE} | dict(_by_dimension("lane", "model"))
)
# Of a gateway beside those: an engine alone has neither tenants nor workers.
GATEWAY_DIMENSIONS: Mapping[str, Metric] = _by_dimension("tenant", "worker")
