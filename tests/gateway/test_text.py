"""Text from tokens to the client, with the real driver: whole characters, and stop strings that never leak."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.core.scheduler.step import Outcome, Step
from tests.gateway.driven import DrivenBackend, Instant, Scripted, driving
from tests.gateway.fake import Client, serving, until

TEXT = "naïve 🌊 waves — 波が来る END\nmore"
TOKENS = list(TEXT.encode())  # one token a byte: every character beyond ASCII is split over tokens


async def said(client: Client, **fields: Any) -> list[tuple[str, str]]:
    """(text, finish reason) of every choice, told whole; streaming must have told the same, piece by piece."""
    body = {"prompt": "x", "max_tokens": 200, **fields}
    status, whole, _ = await client.post("/v1/completions", body)
    assert status == 200, whole
    *events, done = await client.stream("/v1/completions", body)
    assert done == "[DONE]"
    pieces: dict[int, list[str]] = {}
    reasons: dict[int, str] = {}
    for event in events:
        for choice in json.loads(event)["choices"]:
            pieces.setdefault(choice["index"], []).append(choice["text"])
            assert "\ufffd" not in choice["text"]
            if choice["finish_reason"]:
                reasons[choice["index"]] = choice["finish_reason"]
    outputs = [(choice["text"], choice["finish_reason"]) for choice in whole["choices"]]
    assert [("".join(pieces[i]), reasons[i]) for i in range(len(outputs))] == outputs
    return outputs


def cut_at(text: str, stops: list[str]) -> tuple[str, str]:
    """What is left of `text` when it is generated character by character until a stop string is complete."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            return text[: end - max(map(len, found))], "stop"
    return text, "stop"


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize(
    "stop", ["🌊", "ï", "END", "波が", " EN", "ve 🌊 wa", "zzz", ["が来", "—"], ["waves", "aves —"]]
)
async def test_samples_times_stop_times_unicode(n: int, stop: str | list[str]) -> None:
    expected = cut_at(TEXT, [stop] if isinstance(stop, str) else stop)
    async with driving(lambda: Scripted(TOKENS)) as backend, serving(backend) as client:
        assert await said(client, n=n, stop=stop) == [expected] * n


@settings(max_examples=25, deadline=None)
@given(
    text=st.text(alphabet="abé🌊\n", min_size=1, max_size=25),
    stops=st.lists(st.text(alphabet="abé🌊\n", min_size=1, max_size=4), max_size=3),
)
def test_any_stop_strings_in_any_text(text: str, stops: list[str]) -> None:
    async def scenario() -> None:
        async with driving(lambda: Scripted(list(text.encode()))) as backend, serving(backend) as client:
            assert await said(client, stop=stops, n=2) == [cut_at(text, stops)] * 2

    asyncio.run(scenario())


async def test_logprobs_cover_exactly_the_text_that_was_told() -> None:
    async with driving(lambda: Scripted(list(b"one two END three"))) as backend, serving(backend) as client:
        body = {"prompt": "x", "max_tokens": 50, "stop": " END", "logprobs": 0}
        _, told, _ = await client.post("/v1/completions", body)
        [choice] = told["choices"]
        assert choice["text"] == "one two"
        assert "".join(choice["logprobs"]["tokens"]) == "one two"
        assert choice["logprobs"]["text_offset"] == list(range(7))


async def test_length_and_stop_reasons() -> None:
    async with driving(lambda: Scripted(list(b"abcdef"))) as backend, serving(backend) as client:
        assert await said(client, max_tokens=3) == [("abc", "length")]
        assert await said(client, max_tokens=50) == [("abcdef", "stop")]


async def test_a_character_that_never_becomes_whole_is_told_as_such() -> None:
    async with driving(lambda: Scripted(list("a🌊".encode())[:3])) as backend, serving(backend) as client:
        status, told, _ = await client.post("/v1/completions", {"prompt": "x", "max_tokens": 50})
        assert (status, told["choices"][0]["text"]) == (200, "a\ufffd")


async def test_offsets_are_into_the_text_whatever_the_tokens_are() -> None:
    """A character of four tokens has one place, and so has what stands after it; bytes that are none take one each."""
    text = "é🌊z"
    async with driving(lambda: Scripted(list(text.encode()))) as backend, serving(backend) as client:
        _, told, _ = await client.post("/v1/completions", {"prompt": "x", "max_tokens": 50, "logprobs": 0})
        [choice] = told["choices"]
        assert choice["text"] == text
        assert choice["logprobs"]["text_offset"] == [0, 0, 1, 1, 1, 1, 2]
    broken = [0x41, 0xFF, 0xE2, 0x42]
    async with driving(lambda: Scripted(broken)) as backend, serving(backend) as client:
        _, told, _ = await client.post("/v1/completions", {"prompt": "x", "max_tokens": 50, "logprobs": 0})
        [choice] = told["choices"]
        assert choice["text"] == "A\ufffd\ufffdB"
        assert choice["logprobs"]["text_offset"] == [0, 1, 2, 2]


async def test_a_call_that_does_not_fit_now_is_refused_whole() -> None:
    """With somebody waiting, eight more are too many; alone, they are not."""
    gate = threading.Event()

    class Held(Instant):
        def run(self, step: Step) -> Outcome:
            gate.wait(10)
            return super().run(step)

    backend = DrivenBackend(Held(), max_waiting=8)
    backend.driver.start()
    async with serving(backend) as client:
        first = asyncio.create_task(client.post("/v1/completions", {"prompt": "x", "max_tokens": 2}))
        await until(lambda: backend.snapshot().running == 1)
        second = asyncio.create_task(client.post("/v1/completions", {"prompt": "x", "max_tokens": 2}))
        await until(lambda: backend.snapshot().waiting == 1)
        status, told, headers = await client.post("/v1/completions", {"prompt": "x", "n": 8})
        assert (status, told["error"]["code"]) == (429, "queue_full")
        assert int(headers["retry-after"]) >= 1
        assert backend.snapshot().requests == 2
        gate.set()
        assert [(await one)[0] for one in (first, second)] == [200, 200]
        status, told, _ = await client.post("/v1/completions", {"prompt": "x", "n": 8})
        assert (status, len(told["choices"])) == (200, 8)
    await backend.driver.close()
