"""Every way to be refused, at every stage: OpenAI's error shape, the right status, nothing left open."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import re
from typing import Any

import pytest

from headway.core.errors import ContextLengthExceeded, Draining, EngineFailed, Expired, HeadwayError, QueueFull
from headway.core.request import Request
from headway.wire import limits
from tests.gateway.driven import DrivenBackend, Instant, driving
from tests.gateway.fake import FakeBackend, says, serving

CHAT = "/v1/chat/completions"
HELLO: dict[str, Any] = {"messages": [{"role": "user", "content": "hello"}]}
IMAGE = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://example.org/x.png"}}]}
TOOLS = [{"type": "function", "function": {"name": "f"}}]


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
        (CHAT, {"messages": [{"role": "user", "content": "x" * 500_000}]}, 400, "context_length_exceeded", "messages"),
        (CHAT, {**HELLO, "min_tokens": 5, "max_tokens": 4}, 400, "invalid_value", "min_tokens"),
        (CHAT, {**HELLO, "logit_bias": {"9999": 1}}, 400, "invalid_value", "logit_bias.9999"),
        (CHAT, {**HELLO, "top_logprobs": 1}, 400, "invalid_value", "top_logprobs"),
        (CHAT, {**HELLO, "stream_options": {"include_usage": True}}, 400, "invalid_value", "stream_options"),
        (CHAT, {**HELLO, "repetition_penalty": 1e-45}, 400, "invalid_value", "repetition_penalty"),
        (CHAT, b'{"messages": [{"role": 1}], "messages": "x"}', 400, "invalid_value", "messages[0].role"),
        (CHAT, b'{"stop": [1], "stop": []}', 400, "invalid_value", "stop[0]"),
        (CHAT, {"messages": [{"role": "user"}]}, 400, "missing_required_parameter", "messages[0].content"),
        (CHAT, {"messages": [IMAGE]}, 400, "unsupported_feature", "messages[0].content[0].type"),
        (CHAT, {**HELLO, "tools": TOOLS}, 400, "unsupported_feature", "tools"),
        (CHAT, {**HELLO, "chat_template_kwargs": {"tools": 1}}, 400, "invalid_value", "chat_template_kwargs"),
        ("/v1/completions", {"prompt": []}, 400, "invalid_value", "prompt"),
        ("/v1/completions", {"prompt": [9999]}, 400, "invalid_value", "prompt[0]"),
        ("/v1/completions", {"prompt": ["x"] * 1025}, 400, "invalid_value", "prompt"),
        ("/v1/completions", {"prompt": "x", "suffix": "y"}, 400, "unsupported_parameter", "suffix"),
        ("/tokenize", {}, 400, "invalid_value", "prompt"),
        ("/tokenize", {"prompt": "x" * 30_000}, 400, "context_length_exceeded", "prompt"),
        ("/detokenize", {"tokens": [5] * 201}, 400, "invalid_value", "tokens"),
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
    assert re.match("[`A-Z0-9/]", error["message"])  # a sentence, which may begin with a field, a number or a path
    assert error["message"].endswith(".")
    assert headers["x-request-id"]
    assert ("allow" in headers) == (status == 405)
    assert not backend.streams


@pytest.mark.parametrize(
    ("path", "body", "code", "param"),
    [
        (CHAT, {**HELLO, "max_tokens": 500}, "context_length_exceeded", "max_tokens"),
        (CHAT, {**HELLO, "max_tokens": 10**6}, "context_length_exceeded", "max_tokens"),
        (CHAT, {**HELLO, "max_tokens": 10**30}, "context_length_exceeded", "max_tokens"),
        (CHAT, {**HELLO, "max_completion_tokens": 500}, "context_length_exceeded", "max_completion_tokens"),
        (CHAT, {"messages": [{"role": "user", "content": "x" * 300}]}, "context_length_exceeded", "messages"),
        ("/v1/completions", {"prompt": ["ok", "x" * 500]}, "context_length_exceeded", "prompt"),
        ("/v1/completions", {"prompt": ""}, "invalid_value", "prompt"),
        ("/v1/completions", {"prompt": ["ok", ""]}, "invalid_value", "prompt"),
        (CHAT, {**HELLO, "n": 9}, "invalid_value", "n"),  # more than may ever wait
        ("/v1/completions", {"prompt": ["x"] * 9}, "invalid_value", "prompt"),
        ("/v1/completions", {"prompt": ["x"] * 5, "n": 2}, "invalid_value", "n"),
    ],
)
async def test_what_can_never_fit_is_refused_by_the_core_and_told_by_the_clients_field(
    path: str, body: Any, code: str | None, param: str
) -> None:
    backend = DrivenBackend(Instant(), max_waiting=8)
    backend.driver.start()
    async with serving(backend) as client:
        status, told, headers = await client.post(path, body)
    error = check_shape(told)
    assert (status, error["code"], error["param"]) == (400, code, param)
    assert "retry-after" not in headers  # it would never help
    assert sum(backend.driver.front.refused.values()) == 1  # where refusals are counted
    assert backend.snapshot().requests == 0
    await backend.driver.close()


async def test_context_length_is_told_in_numbers() -> None:
    async with driving() as backend, serving(backend) as client:
        _, told, _ = await client.post(CHAT, {**HELLO, "max_tokens": 500})
        prompt_tokens = len(backend.tokenizer.encode("user: hello\nassistant:"))
        message = told["error"]["message"]
        for number in (256, prompt_tokens, 500):
            assert str(number) in message


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
    """The third of four samples is refused: so are the other three."""
    backend = FakeBackend()
    backend.refuse = lambda request: error if request.id.endswith("-2") else None
    async with serving(backend) as client:
        got, told, headers = await client.post(CHAT, {**HELLO, "n": 4, "stream": stream})
    assert got == status
    assert check_shape(told)["message"] == error.message
    assert headers.get("retry-after") == retry_after
    assert ("retry-after-ms" in headers) == (retry_after is not None)
    assert not backend.streams


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
        assert (await client.get("/load"))[1]["not_ready_reason"] == "The model is loading."
        backend.not_ready_reason = ""
        assert (await client.get("/ready"))[0] == 200


async def test_an_engine_that_is_down_for_good_fails_the_liveness_probe() -> None:
    backend = FakeBackend()
    backend.not_ready_reason, backend.dead = "The executor was lost 3 times in a row and stays down.", True
    async with serving(backend) as client:
        for path in ("/health", "/ready"):
            async with client.session.get(path) as response:
                assert response.status == 503
                assert check_shape(await response.json())["message"] == backend.not_ready_reason
                assert 1 <= int(response.headers["retry-after"]) <= 60


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
