"""POST /v1/completions over a fake backend."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headway.core.request import Request
from headway.core.scheduler.step import TokenLogprob
from headway.engine.stream import Delta
from tests.gateway.driven import driving
from tests.gateway.fake import FakeBackend, says, serving

COMPLETIONS = "/v1/completions"


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("go on", ["go on"]),
        (["go on", "now"], ["go on", "now"]),
        ([103, 111], [[103, 111]]),
        ([[103, 111], [110]], [[103, 111], [110]]),
    ],
)
async def test_every_kind_of_prompt(prompt: Any, prompts: list[Any]) -> None:
    backend = FakeBackend()
    async with serving(backend) as client:
        status, body, _ = await client.post(COMPLETIONS, {"prompt": prompt})
    assert status == 200
    expected = [backend.tokenizer.encode(one) if isinstance(one, str) else one for one in prompts]
    assert [list(request.prompt) for request in backend.requests] == expected
    assert {request.max_tokens for request in backend.requests} == {16}
    assert [choice["index"] for choice in body["choices"]] == list(range(len(prompts)))
    assert {choice["text"] for choice in body["choices"]} == {" good day"}
    assert body["usage"]["prompt_tokens"] == sum(map(len, expected))
    assert body["id"].startswith("cmpl-")


async def test_prompts_times_samples() -> None:
    """Choices are in the order of prompts, then samples; a prompt's seeds do not depend on its neighbours."""
    backend = FakeBackend()
    async with serving(backend) as client:
        _, body, _ = await client.post(COMPLETIONS, {"prompt": ["a", "bc"], "n": 2, "seed": 5})
    assert [(len(one.prompt), one.params.seed) for one in backend.requests] == [(1, 5), (1, 6), (2, 5), (2, 6)]
    assert len(body["choices"]) == 4
    assert body["usage"]["prompt_tokens"] == 3
    assert body["usage"]["prompt_tokens_details"] == {"cached_tokens": 2}


async def test_without_a_seed_equal_prompts_have_draws_of_their_own() -> None:
    backend = FakeBackend()
    async with serving(backend) as client:
        await client.post(COMPLETIONS, {"prompt": ["a", "a"], "n": 2})
    assert len({one.params.seed for one in backend.requests}) == 4


async def test_without_a_seed_equal_prompts_are_completed_independently() -> None:
    async with driving() as backend, serving(backend) as client:
        _, body, _ = await client.post(COMPLETIONS, {"prompt": ["a"] * 4, "ignore_eos": True, "max_tokens": 16})
    assert len({choice["text"] for choice in body["choices"]}) == 4


async def test_a_stream() -> None:
    async with serving(FakeBackend()) as client:
        *events, done = await client.stream(
            COMPLETIONS, {"prompt": ["a", "b"], "stream_options": {"include_usage": True}}
        )
    assert done == "[DONE]"
    *chunks, usage = [json.loads(event) for event in events]
    for index in (0, 1):
        told = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
        assert [(one["text"], one["finish_reason"]) for one in told] == [(" good", None), (" day", "stop")]
    assert usage["usage"]["completion_tokens"] == 4


async def test_logprobs() -> None:
    def script(request: Request) -> list[Delta]:
        deltas = says(request, " good", "x")
        deltas[1].logprobs = [TokenLogprob(0xE2, -0.25, ((0xE2, -0.25), (66, -2.0)))]
        return deltas

    async with serving(FakeBackend(script)) as client:
        _, body, _ = await client.post(COMPLETIONS, {"prompt": "a", "logprobs": 2})
        logprobs = body["choices"][0]["logprobs"]
        assert logprobs == {
            "tokens": [" good", "bytes:\\xe2"],
            "token_logprobs": [-0.5, -0.25],
            "top_logprobs": [{" good": -0.5, "A": -66.0, "B": -67.0}, {"bytes:\\xe2": -0.25, "B": -2.0}],
            "text_offset": [0, 5],
        }
        events = await client.stream(COMPLETIONS, {"prompt": "a", "logprobs": 2})
        told = [json.loads(event)["choices"][0]["logprobs"] for event in events[:-1]]
        assert [one["text_offset"] for one in told] == [[0], [5]]


async def test_a_delta_without_text_says_nothing() -> None:
    """Text may be held back while it could be a stop string; no empty events are sent for it."""

    def script(request: Request) -> list[Delta]:
        return [Delta("", [5]), *says(request, " good")]

    async with serving(FakeBackend(script)) as client:
        events = await client.stream(COMPLETIONS, {"prompt": "a"})
    assert len(events) == 2
