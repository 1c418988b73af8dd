"""Laws of cutting calls down and of counting them."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.errors import ContextLengthExceeded, InvalidRequest
from headway.gateway.fleet.counting import FIRST_RATIO, PREFIX_BYTES, Counting, prefix_of
from headway.gateway.fleet.cutting import drop_optional, trim
from headway.gateway.fleet.scan import scan_chat, scan_completion

roles = st.sampled_from(["system", "developer", "user", "assistant", "tool"])
contents = st.text(max_size=40)
conversations = st.lists(st.fixed_dictionaries({"role": roles, "content": contents}), min_size=1, max_size=12)


def chat(messages: list[dict[str, Any]], **more: Any) -> bytes:
    return json.dumps({"model": "m", "messages": messages, **more}).encode()


def words(messages: list[dict[str, Any]]) -> int:
    return sum(1 + len(message["content"]) for message in messages)


@given(conversations, st.integers(1, 200))
def test_trimming_keeps_instructions_order_and_the_last_turn(messages: list[dict[str, Any]], to_tokens: int) -> None:
    scan = scan_chat(chat(messages))
    before = words(messages)
    try:
        fields, tokens = trim(scan, before, to_tokens, lambda fields: words(json.loads(fields["messages"] or b"")))
    except ContextLengthExceeded:
        return
    kept = json.loads(fields["messages"] or b"") if fields else messages
    assert tokens == words(kept) <= max(to_tokens, 0)
    assert [one for one in messages if one in kept or one["role"] in ("system", "developer")] == [
        one for one in messages if one in kept
    ]  # every instruction is still there
    left = iter(messages)
    assert all(any(one == other for other in left) for one in kept)  # in their order
    users = [one for one in messages if one["role"] == "user"]
    if users:
        assert users[-1] in kept
    if before <= to_tokens:
        assert not fields


@given(conversations, st.data())
def test_what_is_called_optional_and_nothing_else_is_left_out(
    messages: list[dict[str, Any]], data: st.DataObject
) -> None:
    places = data.draw(st.sets(st.integers(0, len(messages) - 1)))
    scan = scan_chat(chat(messages, headway={"optional": [f"messages:{place}" for place in places]}))
    if len(places) == len(messages):
        with pytest.raises(InvalidRequest):
            drop_optional(scan)
        return
    fields = drop_optional(scan)
    kept = json.loads(fields["messages"] or b"") if fields else messages
    assert kept == [one for place, one in enumerate(messages) if place not in places]


@pytest.mark.parametrize(
    ("body", "prompts", "ids"),
    [
        ({"prompt": "once"}, 1, None),
        ({"prompt": ["a", "b"]}, 2, None),
        ({"prompt": [1, 2, 3]}, 1, 3),
        ({"prompt": [[1, 2], [3]]}, 2, 3),
    ],
)
def test_prompts_of_every_shape(body: dict[str, Any], prompts: int, ids: int | None) -> None:
    scan = scan_completion(json.dumps(body).encode())
    assert (scan.prompts, scan.token_ids) == (prompts, ids)
    assert Counting().estimate(scan) >= (ids or 1)


@pytest.mark.parametrize("prompt", [[], ["a", 1], [True], [[]] * 0, {"a": 1}, 7, None, [[1], "a"], [["a"]]])
def test_prompts_of_no_shape(prompt: Any) -> None:
    with pytest.raises(InvalidRequest) as refused:
        scan_completion(json.dumps({"prompt": prompt}).encode())
    assert refused.value.param == "prompt"


@given(st.binary(max_size=40))
def test_any_bytes_are_read_or_refused(body: bytes) -> None:
    for scan in (scan_chat, scan_completion):
        with contextlib.suppress(InvalidRequest):
            scan(body)


@given(st.lists(st.binary(max_size=900), min_size=2, max_size=2), st.binary(max_size=600))
def test_prefixes_are_equal_as_far_as_the_texts_are(tails: list[bytes], shared: bytes) -> None:
    one, other = (prefix_of(shared + tail, "tenant") for tail in tails)
    same = 0
    while same < min(map(len, tails)) and tails[0][same] == tails[1][same]:
        same += 1
    blocks = (len(shared) + same) // PREFIX_BYTES
    assert one[:blocks] == other[:blocks]
    assert len(one) == len(shared + tails[0]) // PREFIX_BYTES
    assert not set(one) & set(prefix_of(shared + tails[0], "other tenant"))


def test_a_picture_is_not_text() -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 100_000}}
    scan = scan_chat(chat([{"role": "user", "content": [{"type": "text", "text": "what is it?"}, picture]}]))
    assert 1_000 < Counting().estimate(scan) < 2_000
    counting = Counting()
    counting.learn(scan, 900)
    assert counting.ratio("m") == FIRST_RATIO
