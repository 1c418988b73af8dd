"""Rules between fields, and those that need the vocabulary."""

from __future__ import annotations

from typing import Any

import pytest

from headway.core.errors import InvalidRequest
from headway.core.request import SamplingParams
from headway.wire import checks, limits
from headway.wire.requests import ChatRequest, CompletionRequest, Message

VOCAB = 100


def chat(**fields: Any) -> ChatRequest:
    return ChatRequest(messages=[Message(role="user", content="x")], **fields)


def params(asked: ChatRequest | CompletionRequest, seed: int = 7) -> SamplingParams:
    return checks.sampling_params(asked, vocab_size=VOCAB, seed=seed)


def test_defaults_are_the_cores() -> None:
    assert params(chat(), seed=0) == SamplingParams()
    assert params(CompletionRequest(prompt="x"), seed=0) == SamplingParams()


def test_everything_arrives() -> None:
    asked = chat(
        temperature=0,
        top_p=0.5,
        top_k=-1,
        min_p=0.1,
        seed=-1,
        frequency_penalty=1,
        presence_penalty=-1,
        repetition_penalty=1.5,
        logit_bias={"5": 3, "0": -100},
        logprobs=True,
        top_logprobs=3,
        min_tokens=2,
        ignore_eos=True,
        stop_token_ids=[9],
        stop=["a", "b"],
    )
    assert params(asked) == SamplingParams(
        temperature=0.0,
        top_p=0.5,
        top_k=0,
        min_p=0.1,
        seed=2**64 - 1,
        frequency_penalty=1.0,
        presence_penalty=-1.0,
        repetition_penalty=1.5,
        logit_bias=((5, 3.0), (0, -100.0)),
        logprobs=3,
        min_tokens=2,
        ignore_eos=True,
        stop_token_ids=(9,),
        stop=("a", "b"),
    )
    assert params(chat(stop="a")).stop == ("a",)
    assert params(chat()).seed == 7


@pytest.mark.parametrize("key", ["100", "-1", "x", "", "1.0", " 5", "٥", "1_0", "9" * 5000])
def test_logit_bias_keys_are_token_ids(key: str) -> None:
    with pytest.raises(InvalidRequest, match="0 to 99") as caught:
        params(chat(logit_bias={key: 1.0}))
    assert caught.value.param is not None
    assert caught.value.param.startswith("logit_bias.")
    assert len(caught.value.message) < 300


def test_logprobs_in_both_shapes() -> None:
    assert params(chat(logprobs=True)).logprobs == 0
    assert params(chat(logprobs=False)).logprobs is None
    assert params(chat(top_logprobs=0)).logprobs is None
    with pytest.raises(InvalidRequest) as caught:
        params(chat(top_logprobs=2))
    assert caught.value.param == "top_logprobs"
    assert params(CompletionRequest(prompt="x", logprobs=0)).logprobs == 0
    assert params(CompletionRequest(prompt="x", logprobs=4)).logprobs == 4


@pytest.mark.parametrize(
    ("prompt", "kinds"),
    [
        ("text", ["text"]),
        ("", [""]),
        (["a", "b"], ["a", "b"]),
        ([1, 2, 3], [[1, 2, 3]]),
        ([[1], [2, 3]], [[1], [2, 3]]),
    ],
)
def test_the_four_kinds_of_prompt(prompt: Any, kinds: list[Any]) -> None:
    assert checks.prompts(CompletionRequest(prompt=prompt), VOCAB) == kinds


@pytest.mark.parametrize(
    ("prompt", "param"),
    [
        ([], "prompt"),
        ([[]], "prompt[0]"),
        ([[1], []], "prompt[1]"),
        (["a", 1], "prompt[1]"),
        ([1, "a"], "prompt[1]"),
        ([[1], "a"], "prompt[1]"),
        ([1, 100], "prompt[1]"),
        ([[1], [2, 100]], "prompt[1][1]"),
    ],
)
def test_prompts_that_are_none(prompt: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        checks.prompts(CompletionRequest(prompt=prompt), VOCAB)
    assert caught.value.param == param


def test_sequences_of_one_call_are_bounded() -> None:
    asked = CompletionRequest(prompt="x", n=128)
    checks.check_sizes(asked, limits.MAX_SEQUENCES // 128)
    with pytest.raises(InvalidRequest, match="1,152 sequences"):
        checks.check_sizes(asked, 9)


def test_max_tokens() -> None:
    assert checks.max_tokens(chat(), 50) == 50
    assert checks.max_tokens(chat(max_tokens=3), 50) == 3
    assert checks.max_tokens(chat(max_tokens=3, max_completion_tokens=4), 50) == 4
    with pytest.raises(InvalidRequest) as caught:
        checks.max_tokens(chat(max_completion_tokens=4, min_tokens=5), 50)
    assert caught.value.param == "min_tokens"
