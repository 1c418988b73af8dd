"""The default model behind the real command and the official client: what a newcomer sees after `make serve`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from headway.models import DEFAULT_MODEL
from tests.cli.running import Server

pytestmark = pytest.mark.model

CAPITAL: list[ChatCompletionMessageParam] = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def real() -> Iterator[openai.OpenAI]:
    with (
        Server(DEFAULT_MODEL, "--kv-cache-gib", "0.1") as running,
        openai.OpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0, timeout=60) as client,
    ):
        yield client


def chat(client: openai.OpenAI, **fields: Any) -> Any:
    settings = {"model": DEFAULT_MODEL, "messages": CAPITAL, "max_tokens": 24, "temperature": 0}
    return client.chat.completions.create(**{**settings, **fields})


def test_it_knows_the_capital_of_france_and_stops_by_itself(real: openai.OpenAI) -> None:
    answer = chat(real)
    [choice] = answer.choices
    assert "Paris" in choice.message.content
    assert choice.finish_reason == "stop"
    assert "<|" not in choice.message.content  # what ends a turn is not told
    assert 1 < answer.usage.completion_tokens < 24
    assert 20 < answer.usage.prompt_tokens < 60


def test_it_makes_sense_without_being_told_how_to_sample(real: openai.OpenAI) -> None:
    """At OpenAI's own defaults this model writes nonsense; its makers recommend others."""
    told = [
        real.chat.completions.create(model=DEFAULT_MODEL, messages=CAPITAL, max_tokens=24, seed=seed)
        for seed in range(4)
    ]
    assert all("Paris" in (answer.choices[0].message.content or "") for answer in told)


def test_streaming_says_the_same(real: openai.OpenAI) -> None:
    chunks = list(chat(real, stream=True, stream_options={"include_usage": True}))
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    whole = chat(real)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert whole.usage.prompt_tokens_details.cached_tokens > 0  # asked for the second time


def test_logprobs_are_of_the_tokens_told(real: openai.OpenAI) -> None:
    [choice] = chat(real, logprobs=True, top_logprobs=3).choices
    content = choice.logprobs.content
    assert "".join(one.token for one in content) == choice.message.content
    for one in content:
        assert math.isfinite(one.logprob)
        assert one.logprob <= 0
        assert one.top_logprobs[0].token == one.token  # greedy takes the likeliest
        assert sum(math.exp(top.logprob) for top in one.top_logprobs) <= 1.001


def test_a_stop_string_ends_it_before(real: openai.OpenAI) -> None:
    text = chat(real).choices[0].message.content
    [choice] = chat(real, stop=["Paris"]).choices
    assert (choice.message.content, choice.finish_reason) == (text[: text.index("Paris")], "stop")


@pytest.mark.slow
def test_samples_differ_and_a_seed_repeats_them(real: openai.OpenAI) -> None:
    def texts() -> list[str]:
        told = chat(real, n=2, temperature=1.0, seed=3, extra_body={"ignore_eos": True}).choices
        return [choice.message.content for choice in told]

    first = texts()
    assert len(set(first)) == 2
    assert texts() == first


def test_what_does_not_fit_is_told_by_its_field(real: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        chat(real, max_tokens=10**6)
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "max_tokens")
