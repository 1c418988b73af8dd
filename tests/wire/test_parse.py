"""Bodies that cannot be answered are refused with the field, what was wrong with it, and what to do."""

from __future__ import annotations

import json
import time
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.errors import InvalidRequest
from headway.wire import limits, unsupported
from headway.wire.parse import parse
from headway.wire.requests import ChatRequest, CompletionRequest

CHAT = msgspec.json.Decoder(ChatRequest)
COMPLETION = msgspec.json.Decoder(CompletionRequest)
HELLO = {"role": "user", "content": "hello"}


def refused(body: bytes, decoder: msgspec.json.Decoder[Any] = CHAT) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        parse(body, decoder)
    assert caught.value.status == 400
    return caught.value


def chat(**fields: object) -> bytes:
    return json.dumps({"messages": [HELLO], **fields}).encode()


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"", "empty"),
        (b" \n ", "empty"),
        (b"{", "not valid JSON"),
        (b"[]", "one JSON object"),
        (b"null", "one JSON object"),
        (b'"text"', "one JSON object"),
        (b'{"messages": NaN}', "NaN"),
        (b'{"messages": [{"role": "user", "content": "\xff"}]}', "UTF-8"),
        (b'{"unknown": "\xff", "messages": []}', "UTF-8"),
        ('{"messages": []}'.encode("utf-16"), "UTF-8"),
        (b'{"messages": [{"role": "user", "content": "\\ud800"}]}', "not valid JSON"),
        (b"[" * 100_000, "nests"),
        (b'{"a":' * 70 + b"1" + b"}" * 70, "nests"),
        (b'{"unknown": ' + b"[" * 70 + b"]" * 70 + b', "messages": []}', "nests"),
        (b'{"prompt": "' + b"x" * limits.MAX_BODY_BYTES + b'"}', "limit is 8,388,608"),
    ],
)
def test_a_body_that_is_no_request(body: bytes, told: str) -> None:
    assert told in refused(body).message


@pytest.mark.parametrize(
    ("fields", "param", "told"),
    [
        ({"temperature": 3}, "temperature", "<= 2.0; got 3"),
        ({"temperature": -0.1}, "temperature", "got -0.1"),
        ({"temperature": "hot"}, "temperature", 'got "hot"'),
        ({"temperature": True}, "temperature", "got true"),
        ({"temperature": [1]}, "temperature", "got [1]"),
        ({"top_p": 0}, "top_p", ">= 1e-06"),
        ({"top_p": 1e-45}, "top_p", "got 1e-45"),
        ({"top_p": 1.1}, "top_p", "<= 1"),
        ({"top_k": -2}, "top_k", ">= -1"),
        ({"min_p": 2}, "min_p", "<= 1"),
        ({"frequency_penalty": 2.1}, "frequency_penalty", "<= 2"),
        ({"presence_penalty": -2.1}, "presence_penalty", ">= -2"),
        ({"repetition_penalty": 0}, "repetition_penalty", ">= 0.01"),
        ({"repetition_penalty": 1e-45}, "repetition_penalty", ">= 0.01; got 1e-45"),  # float32 makes infinities of it
        ({"repetition_penalty": 101}, "repetition_penalty", "<= 100"),
        ({"max_tokens": 0}, "max_tokens", ">= 1; got 0"),
        ({"max_tokens": -5}, "max_tokens", ">= 1"),
        ({"max_tokens": 1.5}, "max_tokens", "got 1.5"),
        ({"max_completion_tokens": 0}, "max_completion_tokens", ">= 1"),
        ({"min_tokens": -1}, "min_tokens", ">= 0"),
        ({"n": 0}, "n", "1 to 128"),
        ({"n": 129}, "n", "1 to 128"),
        ({"seed": 2**63}, "seed", "64-bit"),
        ({"seed": 10**40}, "seed", "64-bit"),
        ({"seed": 1.5}, "seed", "64-bit"),
        ({"logit_bias": {"5": 101}}, "logit_bias", "<= 100"),
        ({"logit_bias": [5]}, "logit_bias", "array"),
        ({"stop": "x" * 1_000_000}, "stop", "1 to 1000 characters each"),
        ({"stop": ["x"] * 20_000}, "stop", "at most 64 strings"),
        ({"stop": ["x", "y" * 1001]}, "stop[1]", "at most 64 strings"),
        ({"stop": ""}, "stop", ">= 1"),
        ({"stop": 5}, "stop", "got 5"),
        ({"stop_token_ids": [-1]}, "stop_token_ids[0]", ">= 0"),
        ({"top_logprobs": 21}, "top_logprobs", "<= 20"),
        ({"logprobs": 5}, "logprobs", "got 5"),
        ({"stream": "yes"}, "stream", 'got "yes"'),
        ({"stream_options": {"include_usage": 1}}, "stream_options.include_usage", "got 1"),
        ({"messages": []}, "messages", ">= 1"),
        ({"messages": None}, "messages", "got null"),
        ({"messages": "hello"}, "messages", 'got "hello"'),
        ({"messages": [HELLO, {"role": "user", "content": 5}]}, "messages[1].content", "got 5"),
        ({"messages": [HELLO, {"content": "x"}]}, "messages[1].role", "required"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role", "Use one of system"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages[0].content[0].type",
            "take text only",
        ),
        ({"model": ""}, "model", ">= 1"),
        ({"model": 7}, "model", "got 7"),
        ({"tools": [{"type": "function"}]}, "tools[0].function", "required"),
    ],
)
def test_a_wrong_field_is_named(fields: dict[str, Any], param: str, told: str) -> None:
    error = refused(chat(**fields))
    assert error.param == param
    assert param in error.message
    assert told in error.message
    assert len(error.message) < 400  # it does not send a million characters back


@pytest.mark.parametrize("number", [b"1e999", b"-1e999", b"1" + b"0" * 400])
def test_numbers_beyond_every_type(number: bytes) -> None:
    body = b'{"messages": [{"role": "user", "content": "x"}], "temperature": %b}' % number
    assert refused(body).param == "temperature"


def test_a_prompt_of_the_wrong_kind() -> None:
    assert refused(b"{}", COMPLETION).param == "prompt"
    assert refused(b'{"prompt": 5}', COMPLETION).param == "prompt"
    assert refused(b'{"prompt": [1.5]}', COMPLETION).param == "prompt[0]"
    assert refused(b'{"prompt": [[1, "x"]]}', COMPLETION).param == "prompt[0][1]"
    assert refused(b'{"prompt": [-1]}', COMPLETION).param == "prompt[0]"


def test_null_means_the_default_and_unknown_fields_are_ignored() -> None:
    fields = {name: None for name in ChatRequest.__struct_fields__ if name != "messages"}
    asked = parse(chat(**fields, something_new={"a": [1]}, metadata={}, store=True, parallel_tool_calls=True), CHAT)
    assert asked.temperature is None


def test_depth_is_found_in_one_pass() -> None:
    """Strings full of quotes, escapes and brackets, closed or not, must not make the search backtrack."""
    for hostile in (rb"\"" * 2_000_000, rb"\\" * 2_000_000, b"[" * 4_000_000, rb'"\"' * 1_000_000):
        begun = time.perf_counter()
        with pytest.raises(InvalidRequest):
            parse(b"[" * 65 + b'"' + hostile, CHAT)
        assert time.perf_counter() - begun < 10


def test_brackets_in_strings_do_not_nest() -> None:
    assert parse(chat(user="[{" * 500), CHAT).user == "[{" * 500


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=10,
)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b'{"messages": [{"role": 1}], "messages": "x"}', "messages[0].role"),
        (b'{"messages": [{"role": "user", "content": "x"}], "stop": [1], "stop": []}', "stop[0]"),
        (b'{"messages": [{"role": "user", "content": "x"}], "stop": [1], "stop": {}}', "stop[0]"),
        (b'{"messages": [{"role": "robot"}], "messages": 5}', "messages[0].role"),
        (b'{"temperature": 9, "temperature": 1e999, "messages": []}', "temperature"),
    ],
)
def test_of_two_equal_keys_the_wrong_one_is_named(body: bytes, param: str) -> None:
    """What the client sent is looked up in the last of them, where the path may lead nowhere."""
    assert refused(body).param == param


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """Any fields in any order, some of them twice."""
    pairs = draw(st.lists(st.tuples(st.sampled_from(ChatRequest.__struct_fields__), json_values), max_size=6))
    if draw(st.booleans()):
        pairs.insert(draw(st.integers(0, len(pairs))), ("messages", draw(st.sampled_from([[HELLO], [{"role": 1}]]))))
    return b"{%b}" % b", ".join(b"%b: %b" % (json.dumps(k).encode(), json.dumps(v).encode()) for k, v in pairs)


@given(bodies())
def test_any_json_is_accepted_or_refused_in_our_words(body: bytes) -> None:
    try:
        parse(body, CHAT)
        unsupported.refuse_unsupported(body, unsupported.CHAT, ())
    except InvalidRequest as error:
        assert error.message


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_in_our_words(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        parse(body, COMPLETION)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("response_format", {"type": "json_object"}),
        ("functions", [{"name": "f"}]),
        ("tool_choice", "required"),
        ("modalities", ["text", "audio"]),
        ("audio", {"voice": "x"}),
        ("web_search_options", {}),
        ("prediction", {"type": "content"}),
        ("best_of", 2),
        ("echo", 0),  # equal to False in Python, another thing in JSON
    ],
)
def test_a_lacking_feature_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(InvalidRequest) as caught:
        unsupported.refuse_unsupported(chat(**{field: value}), unsupported.CHAT, ())
    assert caught.value.param == field
    assert caught.value.code == "unsupported_parameter"


def test_a_lacking_feature_with_a_number_no_type_holds() -> None:
    with pytest.raises(InvalidRequest, match="prediction"):
        unsupported.refuse_unsupported(b'{"prediction": 1e999}', unsupported.CHAT, ())


@pytest.mark.parametrize("table", [unsupported.CHAT, unsupported.COMPLETION])
def test_asking_for_nothing_is_fine(table: dict[str, tuple[Any, ...]]) -> None:
    for field, harmless in table.items():
        for value in (None, *harmless):
            assert unsupported.refuse_unsupported(json.dumps({field: value}).encode(), table, ()) == ()


def test_what_nobody_knows_is_named() -> None:
    body = chat(maxtokens=5, echo=False, metadata={}, temperature=1)
    known = ChatRequest.__struct_fields__
    assert unsupported.refuse_unsupported(body, unsupported.CHAT, known) == ("maxtokens", "metadata")


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        ("image_url", "unsupported_feature"),
        ("input_image", "unsupported_feature"),
        ("input_audio", "unsupported_feature"),
        ("video_url", "unsupported_feature"),
        ("file", "unsupported_feature"),
        ("txt", "invalid_value"),
        (5, "invalid_value"),
    ],
)
def test_a_part_that_is_no_text_is_a_feature_this_server_lacks(kind: object, code: str) -> None:
    error = refused(chat(messages=[{"role": "user", "content": [{"type": kind}]}]))
    assert (error.param, error.code) == ("messages[0].content[0].type", code)
