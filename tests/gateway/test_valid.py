"""Whatever is asked within the rules is answered, and the answer keeps the promises the request made of it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from headway.executors.simulated_text import VOCAB_SIZE
from tests.gateway.driven import driving
from tests.gateway.fake import Client, serving

MAX_MODEL_LEN = 256


def maybe(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional={name: st.none() | values for name, values in fields.items()})


# JSON carries no lone surrogates.
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
tokens = st.integers(0, VOCAB_SIZE - 1)
stops = st.text(alphabet="abe tn🌊", min_size=1, max_size=3)
sampling = maybe(
    max_tokens=st.integers(1, 20),
    min_tokens=st.just(1),
    temperature=st.floats(0, 2),
    top_p=st.floats(1e-6, 1),
    top_k=st.integers(-1, 100),
    min_p=st.floats(0, 1),
    seed=st.integers(-(2**63), 2**63 - 1),
    frequency_penalty=st.floats(-2, 2),
    presence_penalty=st.floats(-2, 2),
    repetition_penalty=st.floats(0.01, 100),
    logit_bias=st.dictionaries(tokens.map(str), st.floats(-100, 100), max_size=3),
    n=st.integers(1, 5),
    stop=stops | st.lists(stops, max_size=4),
    stop_token_ids=st.lists(tokens, max_size=3),
    ignore_eos=st.booleans(),
    priority=st.integers(-5, 5),
    user=texts,
    metadata=st.dictionaries(texts, texts, max_size=2),
    stream_options=maybe(include_usage=st.booleans(), continuous_usage_stats=st.booleans()),
)
contents = texts | st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": texts}), max_size=2)
messages = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["system", "user", "assistant"]), "content": contents}),
    min_size=1,
    max_size=3,
)
chats = st.fixed_dictionaries({"messages": messages}, optional={"logprobs": st.booleans()})
text_prompts = texts.filter(bool)
prompts = (
    text_prompts
    | st.lists(text_prompts, min_size=1, max_size=3)
    | st.lists(tokens, min_size=1, max_size=9)
    | st.lists(st.lists(tokens, min_size=1, max_size=9), min_size=1, max_size=3)
)
completions = st.fixed_dictionaries({"prompt": prompts}, optional={"logprobs": st.integers(0, 5)})


async def both_ways(client: Client, path: str, body: dict[str, Any]) -> tuple[Any, list[dict[str, Any]]]:
    """The whole answer, and the chunks of the same streamed."""
    status, whole, _ = await client.post(path, {**body, "stream_options": None})  # they are of streams only
    assert status == 200, whole
    *events, done = await client.stream(path, body)
    assert done == "[DONE]"
    return whole, [json.loads(event) for event in events]


def check_promises(body: dict[str, Any], whole: Any, prompt_count: int) -> None:
    n = body.get("n") or 1
    assert [choice["index"] for choice in whole["choices"]] == list(range(n * prompt_count))
    limit = body.get("max_tokens") or MAX_MODEL_LEN
    usage = whole["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert len(whole["choices"]) <= usage["completion_tokens"] <= limit * len(whole["choices"])
    stop = body.get("stop") or []
    for choice in whole["choices"]:
        text = choice["text"] if "text" in choice else choice["message"]["content"]
        assert choice["finish_reason"] in {"stop", "length"}
        assert not any(one in text for one in ([stop] if isinstance(stop, str) else stop))


def run(path: str, body: dict[str, Any], prompt_count: int) -> None:
    async def scenario() -> None:
        async with driving() as backend, serving(backend) as client:
            whole, chunks = await both_ways(client, path, body)
        check_promises(body, whole, prompt_count)
        finished = [one["index"] for chunk in chunks for one in chunk["choices"] if one["finish_reason"]]
        assert sorted(finished) == list(range(len(whole["choices"])))
        asked_usage = (body.get("stream_options") or {}).get("include_usage")
        assert (chunks[-1]["choices"] == []) == bool(asked_usage)
        if body.get("seed") is not None or body.get("temperature") == 0:  # else the two draws differ
            assert streamed_text(chunks, len(whole["choices"])) == [
                one["text"] if "text" in one else one["message"]["content"] for one in whole["choices"]
            ]
            if asked_usage:  # the second of two equal prompts finds the first one's KV
                assert counted(chunks[-1]["usage"]) == counted(whole["usage"])

    asyncio.run(scenario())


def counted(usage: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in usage.items() if name != "prompt_tokens_details"}


def streamed_text(chunks: list[dict[str, Any]], count: int) -> list[str]:
    out = [""] * count
    for chunk in chunks:
        for choice in chunk["choices"]:
            out[choice["index"]] += choice["text"] if "text" in choice else choice["delta"].get("content", "")
    return out


@settings(max_examples=60, deadline=None)
@given(chats, sampling)
def test_chats(asked: dict[str, Any], how: dict[str, Any]) -> None:
    run("/v1/chat/completions", asked | how, 1)


@settings(max_examples=60, deadline=None)
@given(completions, sampling)
def test_completions(asked: dict[str, Any], how: dict[str, Any]) -> None:
    prompt = asked["prompt"]
    count = len(prompt) if isinstance(prompt, list) and not isinstance(prompt[0], int) else 1
    run("/v1/completions", asked | how, count)
