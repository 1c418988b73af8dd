"""The page and its data of one engine: what is there, who sees what, and what nobody sees."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import re
from typing import Any

import pytest

from headway.core.errors import EngineFailed
from headway.gateway.dashboard.page import page
from tests.gateway.driven import driving
from tests.gateway.fake import Client, FakeBackend, says, serving, until

HELLO = {"messages": [{"role": "user", "content": "a very secret prompt"}]}
DATA = "/dashboard/data"


async def told(client: Client, query: str = "", **headers: str) -> dict[str, Any]:
    async with client.session.get(DATA + query, headers=headers) as response:
        assert response.status == 200, await response.text()
        assert response.headers["Cache-Control"] == "no-store"
        found: dict[str, Any] = await response.json()
        return found


async def test_a_browser_is_shown_the_page_and_anything_else_the_index() -> None:
    async with serving(FakeBackend()) as client:
        async with client.session.get("/", headers={"Accept": "text/html,*/*;q=0.8"}) as response:
            assert response.content_type == "text/html"
            assert (await response.text()) == page().text.decode()
            assert "Accept" in response.headers["Vary"]
        assert (await client.get("/"))[1]["server"] == "headway"
        async with client.session.get("/dashboard") as response:
            etag = response.headers["ETag"]
            assert response.content_type == "text/html"
        async with client.session.head("/dashboard") as response:
            assert (response.status, response.headers["ETag"]) == (200, etag)
        async with client.session.get("/dashboard", headers={"If-None-Match": etag}) as response:
            assert response.status == 304


async def test_the_page_allows_itself_its_own_scripts_and_this_server_alone() -> None:
    async with serving(FakeBackend()) as client, client.session.get("/dashboard") as response:
        policy, text = response.headers["Content-Security-Policy"], await response.text()
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert (rules["default-src"], rules["connect-src"], rules["frame-ancestors"]) == ("'none'", "'self'", "'none'")
    for tag, rule in (("script", "script-src"), ("style", "style-src")):
        (source,) = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        assert rules[rule] == f"'sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()}'"
    assert not re.search(r"\son\w+=", text), "the policy would not run a handler in markup"
    assert not re.search(r"\sstyle=", text)
    assert not re.search(r"(?:https?:)?//[\w.-]+\.\w+", text), "nothing is fetched from elsewhere"


async def test_an_engines_numbers_are_its_snapshots() -> None:
    async with serving(FakeBackend()) as client:
        now = await told(client)
    assert (now["kind"], now["see"], now["keys"], now["models"]) == ("engine", "operator", False, ["fake"])
    row = dict(zip(now["columns"], now["rows"][-1], strict=False))
    assert (row["requests"], row["sequences"], row["waiting"]) == (3, 2, 1)
    assert (row["step_tokens"], row["kv_tokens"], row["kv.used"]) == (34, 500, 0.25)
    assert (row["lane.short"], row["lane.long-prompt"]) == (1, 0)
    assert now["limits"] == {"sequences": 8, "step_tokens": 128, "max_model_len": 200}
    assert set(now["absent"]) == {"workers", "tenants", "ladder"}
    assert "workers" not in now, "what is not there is not an empty list"


async def test_the_steps_of_a_real_driver() -> None:
    async with driving() as backend, serving(backend) as client:
        await client.post("/v1/chat/completions", {**HELLO, "max_tokens": 6, "ignore_eos": True})
        now = await told(client)
        counters = backend.driver.scheduler.counters
    assert "steps" not in now["absent"]
    assert sum(step[1] for step in now["steps"]) == counters.prefill_tokens
    assert sum(step[2] for step in now["steps"]) == counters.decode_tokens
    assert all(step[4] >= 1 and step[5] >= 0 for step in now["steps"])


async def test_a_request_is_remembered_with_its_parts_and_without_its_texts() -> None:
    async with serving(FakeBackend()) as client:
        _, body, headers = await client.post("/v1/chat/completions", HELLO, **{"x-request-id": "mine"})
        await client.post("/v1/chat/completions", {**HELLO, "temperature": 9})  # refused: it had no time to tell of
        now = await told(client, "?window=60&order=total&request=mine")
        nobody = await told(client, "?request=nobodys")
    assert headers["x-request-id"] == "mine"
    (slow,) = now["slow"]
    assert {**slow, "ago_s": 0} == {**now["request"], "ago_s": 0}
    assert (slow["id"], slow["state"], slow["bad"], slow["tokens"]["output"]) == ("mine", "stop", False, 2)
    assert [name for name, _, _ in slow["parts"]] == ["network", "tokenise", "queue", "prefill", "decode"]
    assert [round(took, 6) for name, _, took in slow["parts"] if name in {"queue", "prefill", "decode"}] == [
        0.002,
        0.003,
        0.004,
    ]
    assert nobody["request"] is None
    seen = json.dumps([now, nobody])
    assert "secret" not in seen
    assert body["choices"][0]["message"]["content"].strip() not in seen


async def test_a_request_that_fails_in_its_stream_says_why() -> None:
    backend = FakeBackend(lambda request: [*says(request, " good", " day")[:1], EngineFailed("it crashed")])
    async with serving(backend) as client:
        await client.stream("/v1/completions", {"prompt": "x"})
        (slow,) = (await told(client))["slow"]
    assert (slow["state"], slow["bad"]) == ("engine_failed", True)


ELSEWHERE = [
    {"X-Forwarded-For": "10.1.2.3"},
    {"Origin": "http://a.page"},
    {"Host": "a.page"},
    {"Host": "a.page:8000"},
    {"Host": "localhost.a.page"},
    {"Sec-Fetch-Site": "cross-site"},
]


@pytest.mark.parametrize("headers", ELSEWHERE, ids=str)
async def test_single_requests_are_for_this_machine(headers: dict[str, str]) -> None:
    """Also not for a page of another name that was pointed at this machine (DNS rebinding)."""
    async with serving(FakeBackend()) as client:
        await client.post("/v1/chat/completions", HELLO, **{"x-request-id": "mine"})
        now = await told(client, **headers)
    assert (now["see"], now["slow"]) == ("public", None)
    assert "mine" not in json.dumps(now)


@pytest.mark.parametrize("host", ["localhost", "localhost:8000", "127.0.0.1:8000", "[::1]:8000"])
async def test_this_machine_has_these_names(host: str) -> None:
    async with serving(FakeBackend()) as client:
        assert (await told(client, Host=host))["see"] == "operator"


@pytest.mark.parametrize(
    ("query", "param"),
    [("after=-1", "after"), ("after=x", "after"), ("window=5", "window"), ("window=1e3", "window"),
     ("window=901", "window"), ("order=tpot", "order"), ("after=" + "9" * 40, "after"),
     ("after=" + "0" * 5000, "after"), ("window=" + "0" * 16 + "60" + "9" * 20, "window")],
)  # fmt: skip
async def test_a_wrong_query_is_refused_by_name(query: str, param: str) -> None:
    async with serving(FakeBackend()) as client:
        status, body = await client.get(f"{DATA}?{query}")
    assert (status, body["error"]["param"]) == (400, param)


async def test_only_new_rows_are_told() -> None:
    async with serving(FakeBackend()) as client:
        first = await told(client)
        assert len(first["rows"]) == first["number"] >= 1
        again = await told(client, f"?after={first['number']}")
        assert len(again["rows"]) == again["number"] - first["number"]
        assert first["run"] == again["run"]
    async with serving(FakeBackend()) as client:
        assert (await told(client))["run"] != first["run"]


async def test_an_engine_that_a_gateway_started_keeps_no_history() -> None:
    async with serving(FakeBackend(), secret="s") as client:
        for path, status in (("/dashboard/data", 404), ("/", 200)):
            async with client.session.get(
                path, headers={"Authorization": "Bearer s", "Accept": "text/html"}
            ) as response:
                assert (response.status, response.content_type) == (status, "application/json")
        async with client.session.get("/dashboard/data") as response:
            assert response.status == 401


async def test_a_snapshot_that_fails_ends_no_history(caplog: pytest.LogCaptureFixture) -> None:
    backend = FakeBackend()
    async with serving(backend) as client:
        before = (await told(client))["number"]
        snapshot, backend.snapshot = backend.snapshot, lambda: 1 / 0  # type: ignore[method-assign,assignment,return-value]
        await until(lambda: "could not read" in caplog.text)
        backend.snapshot = snapshot  # type: ignore[method-assign]

        async def more() -> bool:
            return int((await told(client))["number"]) > before

        while not await more():
            await asyncio.sleep(0.05)
