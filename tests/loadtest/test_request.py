"""What is written to the server, and what is never written anywhere."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.loadtest.client.address import parse_url
from headway.loadtest.client.request import Accepted, RequestTemplate, RequestWriter
from headway.loadtest.errors import InvalidPlan
from headway.loadtest.redact import MASK, Redactor
from headway.loadtest.runner.run import run
from headway.workload.item import Item
from tests.loadtest.servers import error, plan_for, serving, whole


@pytest.mark.parametrize(
    ("url", "shown", "endpoint", "metrics"),
    [
        ("http://h:8000", "http://h:8000/v1", None, "/metrics"),
        ("h:8000", "http://h:8000/v1", None, "/metrics"),
        ("localhost", "http://localhost/v1", None, "/metrics"),
        ("https://h/v1/", "https://h/v1", None, "/metrics"),
        ("https://h:443/openai/v2", "https://h/openai/v2", None, "/openai/metrics"),
        ("http://h/v1/chat/completions", "http://h/v1", "chat", "/metrics"),
        ("http://h/completions", "http://h", "completions", "/metrics"),
        ("http://user:p%40ss@h/api", "http://h/api", None, "/api/metrics"),
        ("http://[::1]:9/v1?key=secret", "http://[::1]:9/v1", None, "/metrics"),
    ],
)
def test_urls(url: str, shown: str, endpoint: str | None, metrics: str) -> None:
    address, told = parse_url(url)
    assert (address.url, told, f"{address.root}/metrics") == (shown, endpoint, metrics)
    assert "secret" not in repr(address)
    assert "p@ss" not in repr(address)


@pytest.mark.parametrize(
    "url", ["ftp://h", "http://", "http://h:port", "http://h:99999", "http://a b", "http://[::1", ""]
)
def test_urls_that_are_none(url: str) -> None:
    with pytest.raises(InvalidPlan):
        parse_url(url)


def test_a_bad_url_does_not_show_its_password() -> None:
    with pytest.raises(InvalidPlan) as caught:
        parse_url("ftp://user:secret@h")
    assert "secret" not in str(caught.value)


def written(template: RequestTemplate, item: Item, prompt: Any) -> tuple[str, dict[str, str], Any]:
    """The request's first line, headers and body, read back."""
    head, _, body = RequestWriter(template)(item, prompt).partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    assert int(headers["content-length"]) == len(body)
    assert len(headers) == len(lines)
    return first, headers, json.loads(body)


ADDRESS, _ = parse_url("http://h:8000/v1?api=2")


def test_a_chat_request() -> None:
    template = RequestTemplate(ADDRESS, "m", slo_ttft_s=0.5, slo_itl_s=0.05, choices=2, extra={"seed": 7})
    first, headers, body = written(template, Item(10, 20), "hi")
    assert first == "POST /v1/chat/completions?api=2 HTTP/1.1"
    assert headers["host"] == "h:8000"
    assert (headers["x-slo-ttft-ms"], headers["x-slo-itl-ms"]) == ("500", "50")
    assert "accept-encoding" not in headers
    assert body == {
        "model": "m",
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "temperature": 0.0,
        "ignore_eos": True,
        "n": 2,
        "seed": 7,
        "max_tokens": 20,
        "min_tokens": 20,
        "messages": [{"role": "user", "content": "hi"}],
    }


def test_the_plainest_request() -> None:
    accepted = Accepted(False, False, False, False, False, "max_completion_tokens")
    template = RequestTemplate(ADDRESS, "m", "completions", stream=False, accepted=accepted)
    first, _, body = written(template, Item(1, 2), [1, 2, 3])
    assert first.startswith("POST /v1/completions")
    assert body == {"model": "m", "stream": False, "max_completion_tokens": 2, "prompt": [1, 2, 3]}


@settings(deadline=None)
@given(st.text(), st.text())
def test_any_text_arrives(role: str, content: str) -> None:
    messages = [{"role": role, "content": content}]
    _, _, body = written(RequestTemplate(ADDRESS, "m"), Item(1, 1), messages)
    assert body["messages"] == messages


def test_a_whole_body_is_sent_as_it_is() -> None:
    assert written(RequestTemplate(ADDRESS, "m"), Item(1, 1), b'{"x": 1}')[2] == {"x": 1}


def test_tenants() -> None:
    template = RequestTemplate(
        ADDRESS,
        "m",
        headers={"Authorization": "Bearer shared", "X-Team": "t"},
        tenant_header="X-Tenant",
        tenant_headers={"a": {"authorization": "Bearer of-a"}},
    )
    _, of_a, _ = written(template, Item(1, 1, tenant="a"), "")
    _, of_b, _ = written(template, Item(1, 1, tenant="b"), "")
    _, of_none, _ = written(template, Item(1, 1), "")
    assert (of_a["authorization"], of_a["x-tenant"], of_a["x-team"]) == ("Bearer of-a", "a", "t")
    assert (of_b["authorization"], of_b["x-tenant"]) == ("Bearer shared", "b")
    assert "x-tenant" not in of_none


@pytest.mark.parametrize(
    "fields",
    [
        {"extra": {"stream": False}},
        {"extra": {"n": 2}},
        {"choices": 0},
        {"headers": {"a b": "c"}},
        {"headers": {"a": "b\r\nc: d"}},
        {"headers": {"Host": "other"}},
        {"headers": {"a": "☃"}},
        {"tenant_headers": {"a": {"x": "\n"}}},
        {"tenant_header": "a:b"},
    ],
)
def test_what_cannot_be_asked(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidPlan):
        RequestTemplate(ADDRESS, "m", **fields)


def test_prompts_of_the_other_endpoint() -> None:
    with pytest.raises(InvalidPlan, match="Token ids"):
        RequestWriter(RequestTemplate(ADDRESS, "m"))(Item(1, 1), [1])
    with pytest.raises(InvalidPlan, match="messages"):
        RequestWriter(RequestTemplate(ADDRESS, "m", "completions"))(Item(1, 1), [{"role": "user", "content": ""}])
    with pytest.raises(InvalidPlan, match="character"):
        RequestWriter(RequestTemplate(ADDRESS, "m", tenant_header="x-tenant"))(Item(1, 1, tenant="☃"), "")


# -- keys --------------------------------------------------------------------------------------------------------------


def test_texts_are_masked_folded_and_cut() -> None:
    redact = Redactor(["sk-1", "sk-123", ""]).line
    assert redact("key sk-123 and\n\tsk-1") == f"key {MASK} and {MASK}"
    assert len(redact("x" * 1000)) == 240
    assert Redactor(["x"]).line("x is no key for max_tokens: (x)") == f"{MASK} is no key for max_tokens: ({MASK})"
    assert "sk-1" not in repr(redact)


async def test_no_key_is_ever_told() -> None:
    """A server that echoes everything it was sent."""
    secrets = ["sk-main", "of-tenant", "dXNlcjpwYXNz", "pass-word", "in-query"]

    async def echo(turn: Any) -> None:
        turn.write(whole(error(f"bad key {turn.asked.headers} {turn.asked.path}"), status=403))

    async with serving(echo) as server:
        url = server.url.replace("//", "//user:pass-word@") + "/v1?key=in-query"
        for headers in ({"X-Api-Key": "sk-main"}, {"Authorization": "Bearer sk-main"}, {}):
            tenants = {"t": {"X-Tenant-Token": "of-tenant"}}
            plan = plan_for(url, requests=2, headers=headers, tenant_headers=tenants)
            object.__setattr__(plan.load, "items", [Item(1, 1, tenant="t")] * 2)
            measured = await run(plan)
            assert "bad key" in measured.records[0].error
            for secret in secrets:
                assert secret not in repr((measured, measured.records, plan))
