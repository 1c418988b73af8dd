"""Only what was decided is changed in a body; for each kind what it takes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.errors import InvalidRequest
from headway.workers.kinds import KINDS
from headway.workers.patch import patched
from headway.workers.worker import Call, Decided

CHAT = "/v1/chat/completions"


def sent(body: dict[str, Any] | bytes, kind: str = "vllm", *, streams: bool = False, **decided: Any) -> dict[str, Any]:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    call = Call(CHAT, raw, streams=streams, decided=Decided(**decided))
    value = json.loads(patched(call, KINDS[kind]).body)
    assert isinstance(value, dict)
    return value


BODIES = st.dictionaries(
    st.sampled_from(["model", "messages", "seed", "temperature", "x", "n", "stop", "user"]),
    st.none()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5)
    | st.lists(st.integers()),
)


@given(BODIES, st.sampled_from(sorted(KINDS)), st.integers(1, 99), st.integers(-9, 9), st.text(min_size=1, max_size=4))
def test_nothing_but_what_was_decided_is_changed(body, kind, most, priority, salt):
    after = sent(body, kind, max_tokens=most, priority=priority, cache_salt=salt)
    assert {name: after[name] for name in body} == body
    assert after.keys() - body.keys() <= {"max_tokens", "priority", "cache_salt"}


def test_where_nothing_is_decided_the_bytes_are_the_clients():
    body = b' {"model" : "m", "temperature":0.10, "seed": 12345678901234567890123, "messages":[ ]}\n'
    for kind in KINDS.values():
        assert patched(Call(CHAT, body), kind).body == body


def test_other_calls_are_not_even_read():
    assert patched(Call("/v1/embeddings", b"no json"), KINDS["vllm"]).body == b"no json"
    assert patched(Call(CHAT, b"no json", method="PUT"), KINDS["vllm"]).body == b"no json"


@pytest.mark.parametrize("body", [b"no json", b"[]", b'{"a":1,"a":2}', b'{"stream_options":{"a":1,"a":2}}'])
def test_a_body_that_cannot_be_forwarded_exactly_is_refused(body):
    with pytest.raises(InvalidRequest):
        patched(Call(CHAT, body, streams=True), KINDS["vllm"])


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({}, {"max_tokens": 9}),
        ({"max_tokens": None}, {"max_tokens": 9}),
        ({"max_tokens": 5}, {"max_tokens": 5}),
        ({"max_tokens": 10}, {"max_tokens": 9}),
        ({"max_completion_tokens": 10}, {"max_completion_tokens": 9}),
        ({"max_completion_tokens": 5, "max_tokens": 100}, {"max_completion_tokens": 5, "max_tokens": 9}),
        ({"max_tokens": 100, "min_tokens": 50}, {"max_tokens": 9, "min_tokens": 9}),
        ({"max_tokens": "many"}, {"max_tokens": 9}),
    ],
)
def test_output_is_limited_under_every_name(asked, expected):
    assert sent(asked, max_tokens=9) == expected


def test_llamacpps_own_limit_is_no_way_around():
    assert sent({"n_predict": -1}, "llamacpp", max_tokens=9) == {"n_predict": 9}
    assert sent({"n_predict": 5, "max_tokens": 99}, "llamacpp", max_tokens=9) == {"n_predict": 5, "max_tokens": 9}


def test_priority_goes_where_it_is_taken():
    body = json.dumps({"priority": 3}).encode()
    for name, takes in {"headway": True, "vllm": False, "sglang": False, "llamacpp": False, "openai": False}.items():
        call = Call(CHAT, body, decided=Decided(priority=-1))
        assert json.loads(patched(call, KINDS[name]).body) == ({"priority": -1} if takes else {})
        told = json.loads(patched(call, KINDS[name], sends_priority=True).body)
        assert told.get("priority") == {"headway": -1, "vllm": -1, "sglang": 1}.get(name)


def test_a_clients_salt_divides_and_never_leads_to_another_tenant():
    plain = sent({}, cache_salt="t1")["cache_salt"]
    assert plain == "t1"
    own = {tenant: sent({"cache_salt": "mine"}, cache_salt=tenant)["cache_salt"] for tenant in ("t1", "t2")}
    assert len({plain, *own.values()}) == 3
    assert sent({"cache_salt": "t2"}, cache_salt="t1")["cache_salt"] not in ("t2", *own.values())
    assert "cache_salt" not in sent({}, "llamacpp", cache_salt="t1")


@pytest.mark.parametrize(
    ("options", "after", "added"),
    [
        (None, {"include_usage": True}, True),
        ({}, {"include_usage": True}, True),
        ({"include_usage": False, "x": 1}, {"include_usage": True, "x": 1}, True),
        ({"include_usage": True}, {"include_usage": True}, False),
        ("odd", "odd", False),
    ],
)
def test_a_stream_is_asked_for_its_usage(options, after, added):
    call = Call(CHAT, json.dumps({"stream": True, "stream_options": options}).encode(), streams=True)
    result = patched(call, KINDS["vllm"])
    assert json.loads(result.body)["stream_options"] == after
    assert result.usage_added is added


def test_a_stream_is_left_alone_when_usage_is_not_wanted():
    assert sent({"stream": True}, streams=True, usage=False) == {"stream": True}
    assert sent({"stream": False}) == {"stream": False}


def test_our_own_field_is_for_us():
    assert sent({"a": 1, "headway": {"optional": []}}) == {"a": 1}


def test_fields_that_were_cut_are_replaced():
    after = sent({"messages": [1, 2], "tools": [], "b": 1}, replaced={"messages": b"[2]", "tools": None}, model="m2")
    assert after == {"messages": [2], "b": 1, "model": "m2"}
