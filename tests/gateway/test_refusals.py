"""Every way to be refused, at every stage: OpenAI's error shape, the right status, nothing left open."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
from typing import Any

import aiohttp
import pytest

from headway.core.errors import ContextLengthExceeded, Draining, EngineFailed, Expired, HeadwayError, QueueFull
from headway.core.request import Request
from headway.wire import limits
from tests.gateway.fake import FakeBackend, says, serving

CHAT = "/v1/chat/completions"
HELLO: dict[str, Any] = {"messages": [{"role": "user", "content": "hello"}]}


def check_shape(body: Any) -> dict[str, Any]:
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    error: dict[str, Any] = body["error"]
    return error


@pytest.mark.parametrize(
    ("path", "body", "status", "code", "param"),
    [
        (CHAT, b"", 400, "invalid_json", None),
        (CHAT, b"{", 400, "invalid_json", None),
        (CHAT, b"[" * 1000, 400, "invalid_json", None),
        (CHAT, b"\xff", 400, "invalid_json", None),
        (CHAT, {**HELLO, "temperature": 9}, 400, "invalid_value", "temperature"),
        (CHAT, {**HELLO, "model": "other"}, 404, "model_not_found", "model"),
        (CHAT, {**HELLO, "response_format": {"type": "json_object"}}, 400, "unsupported_parameter", "response_format"),
        (CHAT, {**HELLO, "max_tokens": 500}, 400, "context_length_exceeded", "messages"),
        (CHAT, {**HELLO, "max_tokens": 10**30}, 400, "context_length_exceeded", "messages"),
        (CHAT, {"messages": [{"role": "user", "content": "x" * 300}]}, 400, "context_length_exceeded", "messages"),
        (CHAT, {"messages": [{"role": "user", "content": "x" * 500_000}]}, 400, "context_length_exceeded", "messages"),
        (CHAT, {**HELLO, "min_tokens": 5, "max_tokens": 4}, 400, "invalid_value", "min_tokens"),
        (CHAT, {**HELLO, "logit_bias": {"9999": 1}}, 400, "invalid_value", "logit_bias.9999"),
        (CHAT, {**HELLO, "top_logprobs": 1}, 400, "invalid_value", "top_logprobs"),
        ("/v1/completions", {"prompt": ""}, 400, "invalid_value", "prompt"),
        ("/v1/completions", {"prompt": []}, 400, "invalid_value", "prompt"),
        ("/v1/completions", {"prompt": [9999]}, 400, "invalid_value", "prompt[0]"),
        ("/v1/completions", {"prompt": ["ok", "x" * 500]}, 400, "context_length_exceeded", "prompt"),
        ("/v1/completions", {"prompt": ["x"] * 1025}, 400, "invalid_value", "prompt"),
        ("/v1/completions", {"prompt": "x", "suffix": "y"}, 400, "unsupported_parameter", "suffix"),
        ("/tokenize", {}, 400, "invalid_value", "prompt"),
        ("/detokenize", {"tokens": [-1]}, 400, "invalid_value", "tokens[0]"),
        ("/detokenize", {"tokens": [9999]}, 400, "invalid_value", "tokens[0]"),
        ("/v1/nothing", {}, 404, "not_found", None),
        ("/health", {}, 405, "method_not_allowed", None),
    ],
)
async def test_refused_before_the_backend(path: str, body: Any, status: int, code: str, param: str | None) -> None:
    backend = FakeBackend()
    async with serving(backend) as client:
        got, told, headers = await client.post(path, body)
    error = check_shape(told)
    assert (got, error["code"], error["param"]) == (status, code, param)
    assert error["type"] == "invalid_request_error"
    assert headers["x-request-id"]
    assert ("allow" in headers) == (status == 405)
    assert not backend.streams


async def test_context_length_is_told_in_numbers() -> None:
    async with serving(FakeBackend()) as client:
        _, told, _ = await client.post(CHAT, {**HELLO, "max_tokens": 500})
    prompt_tokens = len(FakeBackend().tokenizer.encode("user: hello\nassistant:"))
    message = told["error"]["message"]
    assert f"200 tokens, but {prompt_tokens + 500} were asked: {prompt_tokens} in" in message
    assert f"at most {200 - prompt_tokens}" in message


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("error", "status", "retry_after"),
    [
        (QueueFull("full", retry_after_s=2.5), 429, "3"),
        (Draining("stopping", retry_after_s=5), 503, "5"),
        (ContextLengthExceeded("too long"), 400, None),
    ],
)
async def test_refused_by_the_backend(stream: bool, error: HeadwayError, status: int, retry_after: str | None) -> None:
    """The third of four samples is refused: the two before it are closed."""
    backend = FakeBackend()
    backend.refuse = lambda request: error if request.id.endswith("-2") else None
    async with serving(backend) as client:
        got, told, headers = await client.post(CHAT, {**HELLO, "n": 4, "stream": stream})
    assert got == status
    assert check_shape(told)["message"] == error.message
    assert headers.get("retry-after") == retry_after
    assert ("retry-after-ms" in headers) == (retry_after is not None)
    assert len(backend.streams) == 2
    assert backend.all_closed


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("n", [1, 3])
async def test_failing_before_the_first_token_is_a_status(stream: bool, n: int) -> None:
    backend = FakeBackend(lambda request: [Expired("waited too long", retry_after_s=1)])
    async with serving(backend) as client:
        status, told, headers = await client.post(CHAT, {**HELLO, "stream": stream, "n": n})
    assert (status, check_shape(told)["code"]) == (503, "queue_timeout")
    assert headers["retry-after"] == "1"
    assert backend.all_closed


@pytest.mark.parametrize("n", [1, 3])
async def test_failing_mid_stream_is_an_error_event_and_no_done(n: int) -> None:
    def script(request: Request) -> list[Any]:
        return [*says(request, " good", " day")[:1], EngineFailed("the engine crashed")]

    backend = FakeBackend(script)
    async with serving(backend) as client:
        events = await client.stream(CHAT, {**HELLO, "n": n, "stream_options": {"include_usage": True}})
        status, told, _ = await client.post(CHAT, {**HELLO, "n": n})
    assert "[DONE]" not in events
    assert check_shape(json.loads(events[-1])) == {
        "message": "the engine crashed",
        "type": "server_error",
        "param": None,
        "code": "engine_failed",
    }
    assert (status, told["error"]["code"]) == (500, "engine_failed")
    assert backend.all_closed


async def test_a_stream_that_just_stops_is_a_failure() -> None:
    backend = FakeBackend(lambda request: says(request, " good", " day")[:1])
    async with serving(backend) as client:
        events = await client.stream(CHAT, HELLO)
        status, _, _ = await client.post(CHAT, HELLO)
    assert json.loads(events[-1])["error"]["code"] == "engine_failed"
    assert status == 500


async def test_a_defect_is_500_with_the_id_and_a_logged_traceback(caplog: pytest.LogCaptureFixture) -> None:
    backend = FakeBackend(lambda request: [ZeroDivisionError("secret detail")])
    with caplog.at_level(logging.ERROR, "headway.gateway"):
        async with serving(backend) as client:
            status, told, _ = await client.post(CHAT, HELLO, **{"x-request-id": "find-me", "Accept": "text/html"})
    error = check_shape(told)
    assert (status, error["type"], error["code"]) == (500, "server_error", "internal_error")
    assert "find-me" in error["message"]
    assert "secret" not in error["message"]
    [record] = caplog.records
    assert "find-me" in record.getMessage()
    assert record.exc_info is not None
    assert record.exc_info[0] is ZeroDivisionError
    assert backend.all_closed


async def test_a_defect_mid_stream_is_an_error_event() -> None:
    backend = FakeBackend(lambda request: [*says(request, " good", " x")[:1], ZeroDivisionError("secret")])
    async with serving(backend) as client:
        events = await client.stream(CHAT, HELLO)
    assert json.loads(events[-1])["error"]["code"] == "internal_error"
    assert backend.all_closed


async def test_not_ready() -> None:
    backend = FakeBackend()
    backend.not_ready_reason = "The model is loading."
    async with serving(backend) as client:
        for status, told, headers in (
            await client.post(CHAT, HELLO),
            await client.post("/v1/completions", b"not even looked at"),
        ):
            assert (status, told["error"]["message"]) == (503, "The model is loading.")
            assert 1 <= int(headers["retry-after"]) <= 60
        assert (await client.get("/ready"))[0] == 503
        assert (await client.get("/health"))[0] == 200
        backend.not_ready_reason = ""
        assert (await client.get("/ready"))[0] == 200


async def test_bodies_too_large() -> None:
    async with serving(FakeBackend()) as client:
        for data in (b" " * (limits.MAX_BODY_BYTES + 1), _in_pieces()):
            async with client.session.post(CHAT, data=data) as response:
                assert response.status == 413
                assert check_shape(await response.json())["code"] == "request_too_large"
        bomb = gzip.compress(b" " * (limits.MAX_BODY_BYTES * 20))
        async with client.session.post(CHAT, data=bomb, headers={"Content-Encoding": "gzip"}) as response:
            assert response.status in {400, 413}
            check_shape(await response.json())
        assert (await client.post(CHAT, HELLO))[0] == 200  # still there


async def _in_pieces():
    for _ in range(limits.MAX_BODY_BYTES // 65536 + 2):
        yield b" " * 65536


async def test_a_body_that_is_not_what_it_says() -> None:
    async with (
        serving(FakeBackend()) as client,
        client.session.post(CHAT, data=b"not gzip", headers={"Content-Encoding": "gzip"}) as response,
    ):
        assert response.status == 400
        check_shape(await response.json())


async def test_a_body_that_never_comes() -> None:
    async def stalled():
        yield b"{"
        await asyncio.sleep(60)

    async with (
        serving(FakeBackend(), body_timeout_s=0.2) as client,
        client.session.post(CHAT, data=stalled()) as response,
    ):
        assert response.status == 408
        check_shape(await response.json())


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/metrics", "/nothing", "/v1/models/x"])
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "HEAD"])
async def test_any_method_anywhere_is_answered(path: str, method: str) -> None:
    async with serving(FakeBackend()) as client, client.session.request(method, path) as response:
        assert response.status in {200, 404, 405}
        if response.status != 200 and method != "HEAD":
            check_shape(await response.json())


async def test_headers_too_large() -> None:
    async with serving(FakeBackend()) as client:
        try:
            async with client.session.get("/health", headers={"x": "y" * 100_000}) as response:
                assert response.status == 400
        except aiohttp.ClientConnectionError:
            pass  # the server may close while the headers are still being sent
        assert (await client.get("/health"))[0] == 200
