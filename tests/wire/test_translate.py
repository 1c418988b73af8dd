"""Rules between fields, and those that need the vocabulary."""

from __future__ import annotations

from typing import Any

import pytest

from headway.core.errors import InvalidRequest
from headway.core.request import SamplingParams
from headway.wire import limits, translate
from headway.wire.requests import ChatRequest, CompletionRequest, Message, StreamOptions

VOCAB = 100


def chat(**fields: Any) -> ChatRequest:
    return ChatRequest(messages=[Message(role="user", content="x")], **fields)


def params(asked: ChatRequest | CompletionRequest) -> SamplingParams:
    return translate.sampling_params(asked, vocab_size=VOCAB)


def test_defaults_are_the_cores() -> None:
    assert params(chat()) == SamplingParams()
    assert params(CompletionRequest(prompt="x")) == SamplingParams()


MODELS = {"temperature": 0.2, "top_p": 0.9, "top_k": 40, "min_p": 0.1, "repetition_penalty": 1.1}


def test_the_models_defaults_fill_only_what_a_request_leaves_out() -> None:
    def filled(**fields: Any) -> SamplingParams:
        return translate.sampling_params(chat(**fields), vocab_size=VOCAB, defaults=MODELS)

    whole = SamplingParams(temperature=0.2, top_p=0.9, top_k=40, min_p=0.1, repetition_penalty=1.1)
    assert filled() == whole
    assert filled(temperature=None) == whole
    assert filled(temperature=0).temperature == 0
    assert filled(top_p=1, top_k=-1, min_p=0, repetition_penalty=1, temperature=1) == SamplingParams()
    assert filled(top_k=0).top_k == 0
    assert translate.sampling_params(chat(), vocab_size=VOCAB, defaults={"temperature": 0.0}).temperature == 0


def test_everything_arrives() -> None:
    asked = chat(
        temperature=0,
        top_p=0.5,
        top_k=-1,
        min_p=0.1,
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
    assert translate.prompts(CompletionRequest(prompt=prompt), VOCAB) == kinds


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
        translate.prompts(CompletionRequest(prompt=prompt), VOCAB)
    assert caught.value.param == param


def test_outputs_of_one_call_are_bounded() -> None:
    asked = CompletionRequest(prompt="x", n=128)
    assert translate.samples(asked, limits.MAX_SEQUENCES // 128) == 128
    with pytest.raises(InvalidRequest, match="1,152 sequences"):
        translate.samples(asked, 9)


def test_a_named_seed_counts_up_over_the_samples_of_every_prompt() -> None:
    draws = iter(range(100))
    assert translate.seeds(chat(seed=5, n=2), 2, lambda: next(draws)) == [5, 6, 5, 6]
    assert translate.seeds(chat(seed=-1, n=2), 1, lambda: next(draws)) == [2**64 - 1, 0]
    assert translate.seeds(chat(seed=0), 1, lambda: next(draws)) == [0]


def test_without_a_seed_every_output_has_one_of_its_own() -> None:
    draws = iter(range(100))
    assert translate.seeds(chat(n=2), 3, lambda: next(draws)) == [0, 1, 2, 3, 4, 5]


def test_max_tokens() -> None:
    assert translate.max_tokens(chat(), 50) == 50
    assert translate.max_tokens(chat(), -9) == 1  # the core says that not even one fits
    assert translate.max_tokens(CompletionRequest(prompt="x"), 50) == 16
    assert translate.max_tokens(CompletionRequest(prompt="x"), 5) == 5
    assert translate.max_tokens(chat(max_tokens=3), 50) == 3
    assert translate.max_tokens(chat(max_tokens=99), 50) == 99
    assert translate.max_tokens(chat(max_tokens=3, max_completion_tokens=4), 50) == 4
    with pytest.raises(InvalidRequest) as caught:
        translate.max_tokens(chat(max_completion_tokens=4, min_tokens=5), 50)
    assert caught.value.param == "min_tokens"


def test_max_tokens_is_named_as_the_client_named_it() -> None:
    assert translate.max_tokens_field(chat(max_tokens=3)) == "max_tokens"
    assert translate.max_tokens_field(chat(max_tokens=3, max_completion_tokens=4)) == "max_completion_tokens"
    assert translate.max_tokens_field(CompletionRequest(prompt="x")) == "max_tokens"


def test_stream_options_need_a_stream() -> None:
    translate.check_stream_options(chat(stream=True, stream_options=StreamOptions(include_usage=True)))
    for asked in (chat(stream_options=StreamOptions()), chat(stream=False, stream_options=StreamOptions())):
        with pytest.raises(InvalidRequest, match="needs `stream`") as caught:
            translate.check_stream_options(asked)
        assert caught.value.param == "stream_options"
