"""No accepted request can make the executor fail: every number in range, the extremes above all, samples a token."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headway.core.errors import InvalidRequest
from headway.core.scheduler.step import Begin
from headway.executors.sampling import Sampler
from headway.wire import translate
from headway.wire.parse import parse
from headway.wire.requests import CompletionRequest

VOCAB = 600  # more than two of the sampler's blocks
STEPS = 4
DECODER = msgspec.json.Decoder(CompletionRequest)


def within(low: float, high: float) -> st.SearchStrategy[float]:
    """The range, its ends, and what is hardly not zero: subnormal in float32 and in float64."""
    tiny = [x for x in (5e-324, 1e-310, 1e-45, 1e-38, 1e-30, 1e-6, 9e-6, 1.1e-5) if low < x < high]
    return st.sampled_from([low, high, *tiny]) | st.floats(low, high)


tokens = st.integers(0, VOCAB - 1)
bodies = st.fixed_dictionaries(
    {},
    optional={
        "temperature": within(0, 2),
        "top_p": within(1e-6, 1),
        "top_k": st.sampled_from([-1, 0, 1, 2, VOCAB, 2**31 - 1]),
        "min_p": within(0, 1),
        "frequency_penalty": within(-2, 2),
        "presence_penalty": within(-2, 2),
        "repetition_penalty": within(0.01, 100),
        "logit_bias": st.dictionaries(tokens.map(str), within(-100, 100), max_size=5),
        "min_tokens": st.integers(0, STEPS + 1),
        "stop_token_ids": st.lists(tokens, max_size=3),
        "logprobs": st.integers(0, 20),
        "ignore_eos": st.booleans(),
        "seed": st.integers(-(2**63), 2**63 - 1),
    },
)
# Real logits lie within some tens; a model that is sure, one that is not, and one whose head is badly scaled.
scales = st.sampled_from([0.0, 1e-30, 1.0, 30.0, 1e4])


@settings(max_examples=300, deadline=None)
@example({"repetition_penalty": 0.01, "temperature": 2.0}, 1e4, 1)
@example({"temperature": 1e-30, "top_p": 1e-6, "min_p": 1.0}, 30.0, 2)
@example({"temperature": 1.1e-5, "repetition_penalty": 0.01, "logit_bias": {"0": 100.0, "00": 100.0}}, 1e4, 3)
@given(bodies, scales, st.integers(0, 2**32 - 1))
def test_what_is_accepted_is_sampled(body: dict[str, Any], scale: float, seed: int) -> None:
    asked = parse(json.dumps({"prompt": "x", **body}).encode(), DECODER)
    params = translate.sampling_params(asked, vocab_size=VOCAB)
    random = np.random.default_rng(seed)
    prompt = random.integers(0, VOCAB, 20).tolist()
    sampler = Sampler(VOCAB, [2])
    sampler.begin(1, Begin(params, prompt, STEPS))
    with np.errstate(over="raise", divide="raise", invalid="raise"):
        for step in range(STEPS):
            logits = (random.standard_normal((1, VOCAB)) * scale).astype(np.float32)
            [result] = sampler.sample([1], [len(prompt) + step], logits)
            [token] = result.tokens
            assert 0 <= token < VOCAB
            if params.logprobs is not None:
                assert result.logprobs is not None
                assert all(np.isfinite(one.logprob) for one in result.logprobs)
                assert all(np.isfinite(value) for one in result.logprobs for _, value in one.top)
            if result.ended is not None:
                break


@pytest.mark.parametrize(
    "field",
    ["temperature", "top_p", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty", "logit_bias"],
)
@pytest.mark.parametrize("value", ["1e39", "-1e39", "1e308", "1e999", "NaN", "Infinity", "-Infinity"])
def test_what_float32_cannot_hold_is_refused(field: str, value: str) -> None:
    sent = f'{{"5": {value}}}' if field == "logit_bias" else value
    with pytest.raises(InvalidRequest):
        parse(f'{{"prompt": "x", "{field}": {sent}}}'.encode(), DECODER)
