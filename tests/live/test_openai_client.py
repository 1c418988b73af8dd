"""The official client against a real server: what its users' code relies on."""

from __future__ import annotations

import concurrent.futures
import math
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from tests.cli.running import Server

MODEL = "simulated"
HELLO: list[ChatCompletionMessageParam] = [{"role": "user", "content": "tell me a story"}]


def chat(client: openai.OpenAI, **fields: Any) -> Any:
    return client.chat.completions.create(**{"model": MODEL, "messages": HELLO, "max_tokens": 12, **fields})


def complete(client: openai.OpenAI, **fields: Any) -> Any:
    return client.completions.create(**{"model": MODEL, "prompt": "once", "max_tokens": 12, **fields})


def test_chat(client: openai.OpenAI) -> None:
    answer = chat(client, temperature=0)
    [choice] = answer.choices
    assert choice.message.role == "assistant"
    assert choice.message.content
    assert choice.finish_reason in {"stop", "length"}
    assert answer.model == MODEL
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert 1 <= answer.usage.completion_tokens <= 12
    assert chat(client, temperature=0).choices == answer.choices


def test_streaming_says_the_same(client: openai.OpenAI) -> None:
    whole = chat(client, seed=5)
    chunks = list(chat(client, seed=5, stream=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert text == whole.choices[0].message.content
    reasons = [choice.finish_reason for chunk in chunks for choice in chunk.choices if choice.finish_reason]
    assert reasons == [whole.choices[0].finish_reason]
    assert [chunk.usage for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens
    assert chunks[-1].usage.prompt_tokens_details.cached_tokens >= 0  # the first of the two may have cached it
    assert len({chunk.id for chunk in chunks}) == 1


def test_the_helper_that_collects_a_stream(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(model=MODEL, messages=HELLO, seed=1) as stream:
        for _ in stream:
            pass
        final = stream.get_final_completion()
    assert final.choices[0].message.content == chat(client, max_tokens=None, seed=1).choices[0].message.content


@pytest.mark.parametrize("stream", [False, True])
def test_samples_differ_and_repeat(client: openai.OpenAI, stream: bool) -> None:
    def texts() -> list[str]:
        told = complete(client, n=4, seed=9, stream=stream, extra_body={"ignore_eos": True})
        if not stream:
            return [choice.text for choice in told.choices]
        out = [""] * 4
        for chunk in told:
            for choice in chunk.choices:
                out[choice.index] += choice.text
        return out

    first = texts()
    assert len(set(first)) == 4
    assert texts() == first


def test_a_stop_string_over_several_tokens_ends_the_text_before_it(client: openai.OpenAI) -> None:
    body = {"ignore_eos": True}
    text = complete(client, temperature=0, max_tokens=40, extra_body=body).choices[0].text
    stop = text[len(text) // 2 - 4 : len(text) // 2 + 5]
    expected = text[: text.index(stop)]
    answer = complete(client, temperature=0, max_tokens=40, stop=stop, extra_body=body)
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == (expected, "stop")
    seen = ""
    for chunk in complete(client, temperature=0, max_tokens=40, stop=["zzz", stop], stream=True, extra_body=body):
        seen += chunk.choices[0].text
        assert expected.startswith(seen)  # not one character of it leaks
    assert seen == expected


@pytest.mark.parametrize("prompt", ["héllo 🌊", ["one", "two"], [104, 105], [[104, 105], [106]]])
def test_every_kind_of_prompt(client: openai.OpenAI, prompt: Any) -> None:
    answer = complete(client, prompt=prompt)
    count = len(prompt) if isinstance(prompt, list) and not isinstance(prompt[0], int) else 1
    assert [choice.index for choice in answer.choices] == list(range(count))


def test_logprobs(client: openai.OpenAI) -> None:
    [choice] = chat(client, logprobs=True, top_logprobs=3).choices
    content = choice.logprobs.content
    assert "".join(one.token for one in content) == choice.message.content  # what ends a text is no part of it
    assert all(len(one.top_logprobs) == 3 and math.isfinite(one.logprob) for one in content)
    [choice] = complete(client, logprobs=2).choices
    assert len(choice.logprobs.tokens) == len(choice.logprobs.token_logprobs) == len(choice.logprobs.text_offset)
    assert all(len(top) in {2, 3} for top in choice.logprobs.top_logprobs)


def test_content_parts_and_unicode(client: openai.OpenAI) -> None:
    parts = [{"type": "text", "text": "größe"}, {"type": "text", "text": "波 🌊"}]
    assert chat(client, messages=[{"role": "user", "content": parts}]).usage.prompt_tokens > 15


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL


@pytest.mark.parametrize(
    ("fields", "status", "code", "param"),
    [
        ({"temperature": 3}, 400, "invalid_value", "temperature"),
        ({"max_tokens": 0}, 400, "invalid_value", "max_tokens"),
        ({"max_tokens": 10**6}, 400, "context_length_exceeded", "max_tokens"),
        ({"max_completion_tokens": 10**6, "max_tokens": None}, 400, "context_length_exceeded", "max_completion_tokens"),
        ({"n": 2, "max_tokens": 10**6}, 400, "context_length_exceeded", "max_tokens"),
        ({"stop": ["x"] * 20_000}, 400, "invalid_value", "stop"),
        ({"response_format": {"type": "json_object"}}, 400, "unsupported_parameter", "response_format"),
        ({"model": "gpt-x"}, 404, "model_not_found", "model"),
    ],
)
def test_errors_are_the_clients_own(
    client: openai.OpenAI, fields: dict[str, Any], status: int, code: str, param: str
) -> None:
    kind = {400: openai.BadRequestError, 404: openai.NotFoundError}[status]
    for stream in (False, True):
        with pytest.raises(kind) as caught:
            chat(client, stream=stream, **fields)
        assert (caught.value.code, caught.value.param) == (code, param)
        assert caught.value.request_id


@pytest.mark.slow
def test_a_full_queue_is_a_rate_limit_with_a_time_to_come_back() -> None:
    with Server("--executor", "simulated", "--max-num-seqs", "1", "--max-waiting", "1") as small:
        client = openai.OpenAI(base_url=f"{small.url}/v1", api_key="none", max_retries=0, timeout=30)
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            body = {"ignore_eos": True}
            calls = [pool.submit(complete, client, max_tokens=40, extra_body=body) for _ in range(8)]
            errors = [call.exception() for call in calls]
        refused = [error for error in errors if error is not None]
        assert refused
        assert len(refused) < 8
        for error in refused:
            assert isinstance(error, openai.RateLimitError)
            assert error.code == "queue_full"
            assert 1 <= int(error.response.headers["retry-after"]) <= 60
            assert int(error.response.headers["retry-after-ms"]) >= 1
        patient = client.with_options(max_retries=10)  # honours Retry-After by itself
        with concurrent.futures.ThreadPoolExecutor(3) as pool:
            assert all(pool.map(lambda _: complete(patient, max_tokens=2), range(3)))


@pytest.mark.slow
def test_more_outputs_than_may_wait_are_refused_once_and_for_all() -> None:
    """Not a 429: the official client would come back for ever."""
    with Server("--executor", "simulated", "--max-waiting", "4") as small:
        client = openai.OpenAI(base_url=f"{small.url}/v1", api_key="none", max_retries=0, timeout=30)
        for fields, param in (({"n": 5}, "n"), ({"prompt": ["x"] * 5}, "prompt")):
            with pytest.raises(openai.BadRequestError) as caught:
                complete(client, **fields)
            assert caught.value.param == param
        assert len(complete(client, n=4, max_tokens=2).choices) == 4


def test_without_a_seed_equal_prompts_have_completions_of_their_own(client: openai.OpenAI) -> None:
    answer = complete(client, prompt=["a"] * 3, extra_body={"ignore_eos": True})
    assert len({choice.text for choice in answer.choices}) == 3


def test_ids_and_timing_come_as_headers(client: openai.OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(
        model=MODEL, messages=HELLO, max_tokens=3, extra_headers={"x-request-id": "abc-1"}
    )
    assert raw.headers["x-request-id"] == "abc-1"
    for part in ("network", "tokenise", "queue", "prefill", "decode", "gateway", "total"):
        assert f"{part};dur=" in raw.headers["server-timing"]
