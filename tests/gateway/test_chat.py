"""POST /v1/chat/completions over a fake backend: shapes, order, and what reaches the core."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from headway.core.request import Request
from headway.engine.stream import Delta
from tests.gateway.fake import FakeBackend, says, serving

CHAT = "/v1/chat/completions"
HELLO: dict[str, Any] = {"messages": [{"role": "user", "content": "hello"}]}


def choices(events: list[str]) -> list[dict[str, Any]]:
    return [choice for event in events if event != "[DONE]" for choice in json.loads(event)["choices"]]


async def test_a_whole_answer() -> None:
    backend = FakeBackend()
    async with serving(backend) as client:
        status, body, headers = await client.post(CHAT, {**HELLO, "model": "fake", "max_tokens": 9})
    assert status == 200
    assert body["id"].startswith("chatcmpl-")
    assert (body["object"], body["model"]) == ("chat.completion", "fake")
    assert body["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": " good day", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]
    prompt_tokens = len(backend.tokenizer.encode("user: hello\nassistant:"))
    assert body["usage"] == {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": 2,
        "total_tokens": prompt_tokens + 2,
        "prompt_tokens_details": {"cached_tokens": 1},
    }
    [request] = backend.requests
    assert list(request.prompt) == backend.tokenizer.encode("user: hello\nassistant:")
    assert request.max_tokens == 9
    assert backend.all_closed
    parts = dict(part.split(";dur=") for part in headers["server-timing"].split(", "))
    assert (parts["queue"], parts["prefill"], parts["decode"]) == ("2.00", "3.00", "4.00")
    assert list(parts) == ["network", "tokenise", "queue", "prefill", "decode", "gateway", "total"]
    assert float(parts["tokenise"]) > 0


@pytest.mark.parametrize("generation_config", ["auto", "none"])
async def test_what_the_model_recommends_fills_what_is_left_out(generation_config: str) -> None:
    backend = FakeBackend()
    backend.model.sampling_defaults = {"temperature": 0.2, "top_p": 0.9}
    async with serving(backend, generation_config=generation_config) as client:
        await client.post(CHAT, HELLO)
        await client.post("/v1/completions", {"prompt": "x", "temperature": 0.5})
        _, models = await client.get("/v1/models")
    told = [(request.params.temperature, request.params.top_p) for request in backend.requests]
    auto = generation_config == "auto"
    assert told == ([(0.2, 0.9), (0.5, 0.9)] if auto else [(1, 1), (0.5, 1)])
    assert models["data"][0]["sampling_defaults"] == {
        "temperature": 0.2 if auto else 1,
        "top_p": 0.9 if auto else 1,
        "top_k": 0,
        "min_p": 0,
        "repetition_penalty": 1,
    }


async def test_a_stream() -> None:
    async with serving(FakeBackend()) as client:
        *events, done = await client.stream(CHAT, HELLO)
    assert done == "[DONE]"
    assert choices(events) == [
        {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None},
        {"index": 0, "delta": {"content": " good"}, "logprobs": None, "finish_reason": None},
        {"index": 0, "delta": {"content": " day"}, "logprobs": None, "finish_reason": None},
        {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"},
    ]
    assert all("usage" not in json.loads(event) for event in events)


async def test_usage_in_a_stream() -> None:
    async with serving(FakeBackend()) as client:
        *events, last, _ = await client.stream(CHAT, {**HELLO, "stream_options": {"include_usage": True}})
        assert {json.loads(event)["usage"] for event in events} == {None}
        assert json.loads(last)["choices"] == []
        assert json.loads(last)["usage"]["completion_tokens"] == 2
        both = {"include_usage": True, "continuous_usage_stats": True}
        *events, last, _ = await client.stream(CHAT, {**HELLO, "stream_options": both})
        counts = [json.loads(event)["usage"]["completion_tokens"] for event in events]
        assert counts == [1, 1, 2, 2]


@pytest.mark.parametrize("stream", [False, True])
async def test_samples(stream: bool) -> None:
    """Each has its own index, id and seed; the prompt is counted once."""

    def script(request: Request) -> list[Delta]:
        k = request.id.rsplit("-", 1)[1]
        return says(request, f" {k}", " end")

    backend = FakeBackend(script)
    async with serving(backend) as client:
        if stream:
            told = choices(await client.stream(CHAT, {**HELLO, "n": 3, "seed": 2**63 - 1}))
            texts = ["".join(one["delta"].get("content", "") for one in told if one["index"] == k) for k in range(3)]
            assert sum(one["finish_reason"] == "stop" for one in told) == 3
        else:
            _, body, _ = await client.post(CHAT, {**HELLO, "n": 3, "seed": 2**63 - 1})
            assert [one["index"] for one in body["choices"]] == [0, 1, 2]
            texts = [one["message"]["content"] for one in body["choices"]]
            prompt_tokens = len(backend.tokenizer.encode("user: hello\nassistant:"))
            assert body["usage"]["prompt_tokens"] == prompt_tokens
            assert body["usage"]["completion_tokens"] == 6
    assert texts == [" 0 end", " 1 end", " 2 end"]
    assert len({request.id for request in backend.requests}) == 3
    assert [request.params.seed for request in backend.requests] == [2**63 - 1, 2**63, 2**63 + 1]
    assert backend.all_closed


async def test_without_a_seed_answers_differ() -> None:
    backend = FakeBackend()
    async with serving(backend) as client:
        await client.post(CHAT, HELLO)
        await client.post(CHAT, HELLO)
    assert len({request.params.seed for request in backend.requests}) == 2


async def test_max_tokens_by_default_is_what_the_context_leaves() -> None:
    backend = FakeBackend(max_model_len=100)
    async with serving(backend) as client:
        await client.post(CHAT, HELLO)
    [request] = backend.requests
    assert request.total_tokens == 100


async def test_logprobs() -> None:
    async with serving(FakeBackend()) as client:
        _, body, _ = await client.post(CHAT, {**HELLO, "logprobs": True, "top_logprobs": 2})
        content = body["choices"][0]["logprobs"]["content"]
        assert [one["token"] for one in content] == [" good", " day"]
        assert content[0] == {
            "token": " good",
            "logprob": -0.5,
            "bytes": list(b" good"),
            "top_logprobs": [
                {"token": "A", "logprob": -66.0, "bytes": [65]},
                {"token": "B", "logprob": -67.0, "bytes": [66]},
            ],
        }
        streamed = choices(await client.stream(CHAT, {**HELLO, "logprobs": True, "top_logprobs": 2}))
        assert [one["logprobs"]["content"][0] for one in streamed if one["logprobs"]] == content


async def test_a_logprob_json_cannot_hold() -> None:
    def script(request: Request) -> list[Delta]:
        deltas = says(request, " good")
        assert deltas[0].logprobs is not None
        deltas[0].logprobs = [type(deltas[0].logprobs[0])(5, float("-inf"), ())]
        return deltas

    async with serving(FakeBackend(script)) as client:
        _, body, _ = await client.post(CHAT, {**HELLO, "logprobs": True})
    assert body["choices"][0]["logprobs"]["content"][0]["logprob"] == -9999.0


async def test_conversations_go_through_the_template() -> None:
    backend = FakeBackend()
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [
        {"role": "developer", "content": "be short"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "42", "tool_call_id": "1"},
    ]
    async with serving(backend) as client:
        status, body, _ = await client.post(CHAT, {"messages": messages})
        assert status == 200, body
        text = backend.tokenizer.decode(backend.requests[0].prompt)
        assert text.startswith("system: be short\nuser: a\nb\nassistant: ")
        assert text.endswith("tool: 42\nassistant:")
        status, body, _ = await client.post(CHAT, {"messages": [{"role": "user", "content": None}]})
        assert (status, body["error"]["param"]) == (400, "messages[0].content")
        tools = [{"type": "function", "function": {"name": "f"}}]
        status, body, _ = await client.post(CHAT, {**HELLO, "tools": tools})
        assert (status, body["error"]["param"]) == (400, "tools")
        status, _, _ = await client.post(CHAT, {**HELLO, "tools": tools, "tool_choice": "none"})
        assert status == 200


async def test_deltas_that_are_ready_together_are_one_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixteen samples that a step advanced together cost one write."""
    gate = asyncio.Event()
    writes: list[bytes] = []
    from aiohttp import web

    write = web.StreamResponse.write

    async def counted(self: web.StreamResponse, data: bytes) -> None:
        writes.append(data)
        await write(self, data)

    monkeypatch.setattr(web.StreamResponse, "write", counted)
    backend = FakeBackend(lambda request: [*says(request, " a", " b")[:1], gate, *says(request, " b")])
    async with serving(backend) as client:
        reading = asyncio.create_task(client.stream(CHAT, {**HELLO, "n": 16}))
        while len(writes) < 1:
            await asyncio.sleep(0.005)
        gate.set()
        await reading
    assert len(writes) == 3  # the first tokens, the second, [DONE]


async def test_ids_and_traces_travel() -> None:
    async with serving(FakeBackend()) as client:
        trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
        _, _, headers = await client.post(CHAT, HELLO, **{"x-request-id": "mine-1", "traceparent": trace})
        assert (headers["x-request-id"], headers["traceparent"]) == ("mine-1", trace)
        _, _, headers = await client.post(CHAT, HELLO, **{"x-request-id": "a b" * 50, "traceparent": "x"})
        assert headers["x-request-id"].startswith("req_")
        assert "traceparent" not in headers
        async with client.session.post(CHAT, json={**HELLO, "stream": True}) as response:
            assert response.headers["x-request-id"].startswith("req_")
            timed = [part.split(";")[0] for part in response.headers["server-timing"].split(", ")]
            assert timed == ["network", "tokenise", "ttft"]
