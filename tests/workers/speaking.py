"""What servers of the field say: events of a stream, answers in one piece, pages of metrics."""

from __future__ import annotations

import json
from typing import Any

from tests.wire.scripted import END, chunk, chunked_head

DONE = b"data: [DONE]\n\n"


def event(value: Any) -> bytes:
    return b"data: %b\n\n" % json.dumps(value).encode()


def said(content: str | None = None, *, index: int = 0, finish: str | None = None, **more: Any) -> bytes:
    delta = {} if content is None else {"content": content}
    return event({"id": "c", "choices": [{"index": index, "delta": delta, "finish_reason": finish}], **more})


def usage_of(output: int, prompt: int = 7, cached: int = 3) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def usage(output: int) -> bytes:
    return event({"id": "c", "choices": [], "usage": usage_of(output)})


def words(number: int, *, finish: str = "length") -> list[bytes]:
    """A well-behaved stream that was not asked for its usage."""
    first = event({"id": "c", "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
    return [first, *(said(f"w{place} ") for place in range(number)), said(finish=finish), DONE]


def stream(*events: bytes) -> bytes:
    """A whole answer, each event a chunk of its own."""
    return chunked_head() + b"".join(map(chunk, events)) + END


def completion(text: str = "hello", **more: Any) -> bytes:
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    return json.dumps(
        {"id": "c", "object": "chat.completion", "choices": [choice], "usage": usage_of(2)} | more
    ).encode()


def models(*names: str, owner: str = "somebody") -> bytes:
    return json.dumps({"object": "list", "data": [{"id": name, "owned_by": owner} for name in names]}).encode()


def vllm_page(
    *,
    running: float = 3,
    waiting: float = 2,
    kv: float = 0.25,
    ttft: tuple[float, int] = (0, 0),
    steps: int = 0,
    step_tokens: float = 0,
    generated: float = 0,
) -> bytes:
    return f"""# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{engine="0",model_name="m"}} {running}
vllm:num_requests_waiting{{engine="0",model_name="m"}} {waiting}
vllm:num_requests_waiting_by_reason{{engine="0",model_name="m"}} 99
vllm:kv_cache_usage_perc{{engine="0",model_name="m"}} {kv}
vllm:cache_config_info{{block_size="16",engine="0",num_gpu_blocks="100",sliding_window="None"}} 1.0
vllm:generation_tokens_total{{engine="0",model_name="m"}} {generated}
vllm:time_to_first_token_seconds_bucket{{engine="0",le="0.001",model_name="m"}} 0.0
vllm:time_to_first_token_seconds_sum{{engine="0",model_name="m"}} {ttft[0]}
vllm:time_to_first_token_seconds_count{{engine="0",model_name="m"}} {ttft[1]}
vllm:iteration_tokens_total_sum{{engine="0",model_name="m"}} {step_tokens}
vllm:iteration_tokens_total_count{{engine="0",model_name="m"}} {steps}
process_start_time_seconds 1.7e+09
""".encode()
