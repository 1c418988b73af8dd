"""A body that is forwarded means to its reader what it meant to us."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.errors import InvalidRequest
from headway.wire.json_fields import JsonFields

SPACE = st.text(" \t\n\r", max_size=3)
# Values as people write them, and as no encoder would write them again.
VALUES = st.one_of(
    st.sampled_from(["1.10", "1e400", "-0", "0.1000000000000000055511151231257827", "123456789012345678901234567890"]),
    st.sampled_from(['"\\u00e9"', '"\\/"', '"a\\"b}"', "[ 1 , [ ] ]", '{ "x" : { "x" : 1 } }', "true", "null", '""']),
    st.recursive(
        st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=6),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
        max_leaves=5,
    ).map(json.dumps),
)
KEYS = st.one_of(st.sampled_from(["a", "b", "max_tokens", 'q"', "é", "\\", ""]), st.text(max_size=4))


@st.composite
def objects(draw) -> tuple[bytes, dict[str, str]]:
    members = draw(st.dictionaries(KEYS, VALUES, max_size=5))
    written = []
    for key, value in members.items():
        name = json.dumps(key, ensure_ascii=draw(st.booleans()))
        spaces = [draw(SPACE) for _ in range(4)]
        written.append(f"{spaces[0]}{name}{spaces[1]}:{spaces[2]}{value}{spaces[3]}")
    text = draw(SPACE) + "{" + (",".join(written) or draw(SPACE)) + "}" + draw(SPACE)
    return text.encode(), members


@given(objects())
def test_unchanged_it_is_the_very_same_bytes(made):
    body, members = made
    fields = JsonFields(body)
    assert fields.encoded() == body
    assert {key: fields.raw(key) for key in members} == {key: value.encode() for key, value in members.items()}


@given(objects(), st.dictionaries(KEYS, st.none() | VALUES, max_size=3))
def test_only_what_was_changed_is_changed(made, changes):
    body, members = made
    fields = JsonFields(body)
    for key, value in changes.items():
        fields.set(key, None if value is None else value.encode())
    changed = fields.encoded()
    expected = {key: value for key, value in {**members, **changes}.items() if value is not None}
    again = JsonFields(changed)
    assert {key: again.raw(key) for key in expected} == {key: value.encode() for key, value in expected.items()}
    assert json.loads(changed).keys() == expected.keys()


@given(objects(), VALUES)
def test_replacing_a_value_leaves_every_other_byte(made, value):
    body, members = made
    for key, old in members.items():
        fields = JsonFields(body)
        fields.set(key, value.encode())
        changed = fields.encoded()
        assert len(changed) == len(body) - len(old.encode()) + len(value.encode())
        same = next((at for at in range(min(len(body), len(changed))) if body[at] != changed[at]), len(body))
        tail = len(body) - same - len(old.encode())
        assert tail <= 0 or changed.endswith(body[len(body) - tail :])


@given(objects(), st.data())
def test_a_key_that_stands_there_twice_is_refused(made, data):
    body, members = made
    if not members:
        return
    key = data.draw(st.sampled_from(sorted(members)))
    value = data.draw(st.sampled_from([members[key], "1", '{"a":1}']))
    text = body.decode()
    at = text.rindex("}")
    twice = text[:at] + f", {json.dumps(key)}: {value}" + text[at:]
    with pytest.raises(InvalidRequest, match="twice"):
        JsonFields(twice.encode())
    with pytest.raises(InvalidRequest, match="twice"):
        JsonFields(("{" + f"{json.dumps(key)}: {value}, " + text[text.index("{") + 1 :]).encode())


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"1", b"null", b"{", b'{"a":}', b'{"a":1,}', b"{a:1}", b'{"a":1} x', b'{"a":"\xff"}', b'"{}"']
)
def test_what_is_no_object_is_refused(body):
    with pytest.raises(InvalidRequest) as refused:
        JsonFields(body)
    assert refused.value.status == 400
    assert refused.value.code == "invalid_json"


def test_nesting_costs_no_stack():
    deep = b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    with contextlib.suppress(InvalidRequest):
        assert JsonFields(deep).encoded() == deep
