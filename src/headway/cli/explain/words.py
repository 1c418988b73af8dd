"""Words that a table elsewhere does not explain: levels, headers of answers, codes without an error class of their own,
and the words of `headway top`.

`headway explain` and docs/reference/words.md are made from these; a test holds them complete.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from headway.core.front.ladder import Level

LEVELS: Mapping[Level, str] = MappingProxyType(
    {
        Level.CLAMP_OUTPUT: "New requests get at most --clamp-output-tokens of output.",
        Level.DEMOTE_LONG: "Prompts of --long-prompt-tokens or more stand one priority lower.",
        Level.SHED_LOW_PRIORITY: "Priorities of 1 and lower (1, 2, …) get 429 with the code shed.",
        Level.DROP_OPTIONAL: "What a client called optional is left out, and its prompt is counted again.",
        Level.DIVERT_BATCH: "Batch work goes to --store, and none is begun from there.",
        Level.SHORTEN_CONTEXT: "Prompts get --short-context-ratio of --max-model-len, and more workers are asked for.",
    }
)

ANSWER_HEADERS: Mapping[str, str] = MappingProxyType(
    {
        "x-request-id": "The call's id: the client's own where it sent a usable one. Logs and /v1/requests know it.",
        "x-headway-worker": "Of a gateway: where the call ran, with that worker's score and the terms of it.",
        "x-headway-degraded": "Of a gateway: what levels of degradation, or limits, have changed in this call.",
        "x-headway-ignored-fields": "Fields of the body that mean nothing here.",
        "server-timing": "Where the time went, in ms; of a stream, up to its first token.",
        "retry-after": "With 429 and 503: whole seconds until it is worth asking again, at most 60.",
        "retry-after-ms": "The same in ms.",
        "x-ratelimit-limit-requests": "Calls that this key may make in a minute.",
        "x-ratelimit-remaining-requests": "How many are left now.",
        "x-ratelimit-reset-requests": "How long until all of them are there again.",
        "x-ratelimit-limit-tokens": "Tokens that this key may use in a minute.",
        "x-ratelimit-remaining-tokens": "How many are left now.",
        "x-ratelimit-reset-tokens": "How long until all of them are there again.",
    }
)

# Figures of a load test, and what their letters stand for; what they mean is told where they are computed.
FIGURES: Mapping[str, str] = MappingProxyType(
    {
        "TTFT": "time to first token",
        "ITL": "inter-token latency",
        "ICL": "inter-chunk latency",
        "TPOT": "time per output token",
        "E2E": "end to end",
        "lag": "schedule lag",
        "goodput": "",
        "finished well": "",
    }
)
FINISHED_WELL = (
    "Requests that were answered to their end without an error; whether in time as well is goodput's question."
)

# Of errors whose class has another code or none, or has more than this to say.
CODES: Mapping[str, str] = MappingProxyType(
    {
        "concurrency_limit": "The tenant has as many requests inside as it may have: wait for one of them.",
        "requests_per_minute": "The tenant has made its calls of this minute.",
        "tokens_per_minute": "The tenant has used its tokens of this minute.",
        "invalid_value": "A field has a value that it cannot have; `param` names it, the message tells the limit.",
        "missing_required_parameter": "A field that is needed was left out; `param` names it.",
        "unsupported_parameter": "A field asks for a feature that this server does not have.",
        "unsupported_feature": "What is asked for needs something that this server was started without.",
        "invalid_json": "The body is not one JSON object in UTF-8.",
        "invalid_body": "The body cannot be read: it broke off, or its form is not what the route takes.",
        "invalid_http": "The request is not valid HTTP.",
        "invalid_path": "A path with escapes or dots is not passed on.",
        "invalid_header": "A header cannot be passed on.",
        "request_too_large": "The body is larger than any that is read.",
        "request_timeout": "The body did not arrive in time.",
        "method_not_allowed": "The path is there, and takes another method.",
        "model_not_found": "No model of that name is served here; GET /v1/models lists those that are.",
        "request_not_found": "The request is not among the recent ones of this key.",
        "missing_api_key": "No API key was sent, and this gateway wants one.",
        "lane_not_allowed": "By its lengths the request belongs to a lane that this tenant may not use.",
        "workers_overloaded": "Every worker that was tried refused it for want of room.",
        "worker_refused": "A worker refused the request, in words that cannot be handed on.",
        "worker_unreachable": "There was no connection to the worker.",
        "worker_closed": "The worker broke its answer off.",
        "worker_timeout": "The worker was silent for too long.",
        "worker_garbage": "The worker's answer cannot be understood.",
        "worker_error": "The worker told an error in its stream.",
        "worker_removed": "The worker was removed while the request was on its way.",
        "engine_down": "The engine is down for good: start the server again.",
        "row_failed": "The engine could not compute this one sequence of a step.",
        "internal_error": "A defect of the server; its log has the request's id.",
        "slow_reader": "The client did not read its stream, and was cut off.",
        "already_exists": "Something of that id is in the store already.",
        "mismatched_model": "A line of a batch asks for another model than the first one.",
        "empty_file": "The file of a batch holds no request.",
        "input_file_not_found": "The file of a batch is not here.",
    }
)

# Codes that are answered with a status that no class of theirs has. Those of a batch's lines have none.
STATUS_CODES: Mapping[int, tuple[str, ...]] = MappingProxyType(
    {
        400: (
            *("invalid_value", "missing_required_parameter", "unsupported_parameter", "unsupported_feature"),
            *("invalid_json", "invalid_body", "invalid_http", "invalid_path", "invalid_header", "request_too_large"),
            "lane_not_allowed",
        ),
        401: ("missing_api_key",),
        404: ("model_not_found", "request_not_found"),
        405: ("method_not_allowed",),
        429: ("concurrency_limit", "requests_per_minute", "tokens_per_minute"),
        500: ("internal_error", "row_failed", "engine_down"),
        502: (
            *("worker_unreachable", "worker_closed", "worker_garbage", "worker_error", "worker_removed"),
            "worker_lost",
        ),
        503: ("workers_overloaded", "engine_down"),
        504: ("worker_timeout",),
    }
)

# Words of `headway top`, but for those that another table here explains: the name whose meaning they have.
COLUMNS: Mapping[str, str] = MappingProxyType(
    {
        "requests": "headway_requests_in_service",
        "sequences": "headway_sequences_running",
        "tokens": "headway_step_tokens",
        "queue": "headway_requests_waiting",
        "KV": "headway_kv_usage_ratio",
        "ladder": "headway_ladder_level",
        "pressure": "headway_ladder_pressure_ratio",
        "wanted": "headway_desired_replicas",
        "requests/s": "headway_requests_total",
        "tokens/s": "headway_prefill_tokens_total",
        "prefill": "headway_prefill_tokens_total",
        "decode": "headway_decode_tokens_total",
        "preemptions/s": "headway_preemptions_total",
        "in flight": "headway_worker_requests_in_flight",
        "window": "headway_worker_window_sequences",
        "running": "headway_worker_running",
        "waiting": "headway_worker_waiting",
        "on trial": "headway_worker_up",
        "down": "headway_worker_up",
        "draining": "headway_worker_draining",
        "limited/s": "headway_tenant_requests_total",
        "share": "headway:tenant_share:ratio_rate5m",
        "by weight": "headway:tenant_weight_share:ratio",
    }
)
COLUMN_WORDS: Mapping[str, str] = MappingProxyType(
    {
        "p50": "What half of them do not exceed; interpolated in a bucket of the histogram.",
        "p90": "What nine in ten of them do not exceed; interpolated in a bucket of the histogram.",
        "p99": "What 99 in a hundred of them do not exceed; interpolated in a bucket of the histogram.",
        "mean": "Their sum over their number, in the window.",
        "count": "How many there were in the window.",
        "worker": "A server that a gateway sends requests to, by its id.",
        "tenant": "Whose API key requests come with.",
    }
)
