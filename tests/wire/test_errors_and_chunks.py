"""Error bodies, retry headers, and stream events: what is concatenated must be what the types say."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.errors import Draining, HeadwayError, InvalidRequest, QueueFull
from headway.wire.chunks import ChatChunks, CompletionChunks
from headway.wire.errors import error_body, error_text, retry_headers
from headway.wire.responses import ChatLogprobs, PromptTokensDetails, UsageBody
from headway.wire.sse import EventParser

USAGE = UsageBody(
    prompt_tokens=1, completion_tokens=2, total_tokens=3, prompt_tokens_details=PromptTokensDetails(cached_tokens=0)
)


def test_the_error_body_is_openais() -> None:
    error = InvalidRequest('bad "thing"', param="n", code="invalid_value")
    assert json.loads(error_body(error)) == {
        "error": {"message": 'bad "thing"', "type": "invalid_request_error", "param": "n", "code": "invalid_value"}
    }
    assert json.loads(error_body(HeadwayError("x")))["error"]["code"] is None


@pytest.mark.parametrize(
    ("wait_s", "seconds", "milliseconds"),
    [(0.0, "1", "1"), (0.25, "1", "250"), (1.0, "1", "1000"), (1.2, "2", "1200"), (1e9, "60", "60000"), (-3, "1", "1")],
)
def test_retry_headers(wait_s: float, seconds: str, milliseconds: str) -> None:
    told = {"Retry-After": seconds, "retry-after-ms": milliseconds}
    assert retry_headers(QueueFull("full", retry_after_s=wait_s)) == told
    assert retry_headers(Draining("stopping", retry_after_s=wait_s)) == told
    assert retry_headers(InvalidRequest("no")) == {}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"error": {"message": "a"}}', "a"),
        (b'{"error": "b"}', "b"),
        (b'{"detail": "c"}', "c"),
        (b'{"detail": [{"loc": ["x"], "msg": "d"}]}', '[{"loc":["x"],"msg":"d"}]'),
        (b'{"message": "e"}', "e"),
        (b"plain", "plain"),
        (b"\xff", "�"),
        (b"", ""),
        (b"[" * 100_000, "[" * 100_000),
        (b'{"error": ' * 500 + b'"deep"' + b"}" * 500, "deep"),
    ],
)
def test_words_of_errors(body: bytes, words: str) -> None:
    assert error_text(body) == words


def read(data: bytes) -> list[dict[str, object]]:
    return [json.loads(event.data) for event in EventParser().feed(data)]


@given(st.text(), st.text(min_size=1), st.integers(0, 127), st.sampled_from([None, msgspec.UNSET, USAGE]))
def test_chat_events_are_json_whatever_the_text(
    text: str, model: str, index: int, usage: UsageBody | msgspec.UnsetType | None
) -> None:
    chunks = ChatChunks("id-1", 5, model)
    data = (
        chunks.role(index, usage)
        + chunks.text(index, text, None, usage)
        + chunks.text(index, text, ChatLogprobs(content=[]), usage)
        + chunks.finish(index, "stop", usage)
    )
    role, content, with_logprobs, finish = read(data)
    tail = {} if usage is msgspec.UNSET else {"usage": msgspec.to_builtins(usage)}
    same = {"id": "id-1", "object": "chat.completion.chunk", "created": 5, "model": model, **tail}
    choice = {"index": index, "logprobs": None, "finish_reason": None}
    assert role == {**same, "choices": [{**choice, "delta": {"role": "assistant", "content": ""}}]}
    assert content == {**same, "choices": [{**choice, "delta": {"content": text}}]}
    logprobs: dict[str, object] = {"content": [], "refusal": None}
    assert with_logprobs == {**same, "choices": [{**choice, "delta": {"content": text}, "logprobs": logprobs}]}
    assert finish == {**same, "choices": [{**choice, "delta": {}, "finish_reason": "stop"}]}


@given(st.text(), st.sampled_from([None, "stop", "length"]))
def test_completion_events_are_json_whatever_the_text(text: str, reason: str | None) -> None:
    chunks = CompletionChunks("id-1", 5, "m")
    event, usage = read(chunks.text(3, text, None, reason, msgspec.UNSET) + chunks.usage(USAGE))
    same = {"id": "id-1", "object": "text_completion", "created": 5, "model": "m"}
    assert event == {**same, "choices": [{"index": 3, "text": text, "logprobs": None, "finish_reason": reason}]}
    assert usage == {**same, "choices": [], "usage": msgspec.to_builtins(USAGE)}
