"""What happens around a handler: ignored fields are named, calls are logged, pages are let in by their origin."""

from __future__ import annotations

import logging
import re
from typing import Any

import pytest

from headway.core.errors import QueueFull
from tests.gateway.fake import FakeBackend, serving

CHAT = "/v1/chat/completions"
HELLO: dict[str, Any] = {"messages": [{"role": "user", "content": "hello"}]}
IGNORED = "x-headway-ignored-fields"
PAGE = "https://page.example"


@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
@pytest.mark.parametrize("stream", [False, True])
async def test_fields_that_are_ignored_are_named(path: str, stream: bool) -> None:
    body = {**HELLO} if path == CHAT else {"prompt": "x"}
    async with serving(FakeBackend()) as client:
        for more, told in (({}, None), ({"maxtokens": 5, "metadata": {}, "echo": False}, "maxtokens, metadata")):
            async with client.session.post(path, json={**body, **more, "stream": stream}) as response:
                assert response.status == 200
                assert response.headers.get(IGNORED) == told


async def test_names_that_a_client_made_up_are_tamed() -> None:
    names = ["ä\r\nSet-Cookie: x", "y" * 1000, "", *(f"f{i}" for i in range(30))]
    async with serving(FakeBackend()) as client:
        status, _, headers = await client.post(CHAT, {**HELLO, **dict.fromkeys(names, 1)})
    assert status == 200
    told = headers[IGNORED]
    assert told.startswith(f"???Set-Cookie??x, {'y' * 64}, , f0")
    assert told.endswith("f12, and 17 more")
    assert "set-cookie" not in headers


async def test_a_refused_call_is_told_its_misspelling_too() -> None:
    backend = FakeBackend()
    backend.refuse = lambda request: QueueFull("full", retry_after_s=1)
    async with serving(backend) as client:
        status, _, headers = await client.post(CHAT, {**HELLO, "maxtokens": 5})
    assert (status, headers[IGNORED]) == (429, "maxtokens")


async def test_a_line_for_every_call(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "headway.gateway")
    async with serving(FakeBackend()) as client:
        _, body, headers = await client.post(CHAT, {**HELLO, "n": 2})
        await client.stream("/v1/completions", {"prompt": "abc"})
        await client.post(CHAT, {**HELLO, "temperature": 9})
        await client.get("/v1/models/\x1b[31m")
    chat, completion, refused, strange = caplog.messages
    prompt = body["usage"]["prompt_tokens"]
    number = r"\d+\.\d"
    assert re.fullmatch(
        f"request {headers['x-request-id']}: POST '{CHAT}' 200, prompt {prompt} tokens, output 4 tokens, "
        f"ttft {number} ms, total {number} ms",
        chat,
    )
    assert "POST '/v1/completions' 200, prompt 3 tokens, output 2 tokens, ttft" in completion
    assert re.search(f"POST '{CHAT}' 400, total {number} ms$", refused)
    assert strange.isprintable()


async def test_no_lines_unless_asked(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "headway.gateway")
    async with serving(FakeBackend()) as client:
        await client.post(CHAT, HELLO)
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("allowed", "told"), [((), None), ((PAGE,), PAGE), (("*",), "*"), (("https://other.example",), None)]
)
async def test_a_page_reads_answers_only_from_an_allowed_origin(allowed: tuple[str, ...], told: str | None) -> None:
    name = "Access-Control-Allow-Origin"
    asks = {"Origin": PAGE, "Access-Control-Request-Method": "POST"}
    asks["Access-Control-Request-Headers"] = "authorization,content-type"
    async with serving(FakeBackend(), allowed_origins=allowed) as client:
        async with client.session.options(CHAT, headers=asks) as response:
            assert response.status == (405 if told is None else 204)
            assert response.headers.get(name) == told
            if told is not None:
                assert response.headers["Access-Control-Allow-Headers"] == "authorization,content-type"
        for stream in (False, True):
            body = {**HELLO, "stream": stream}
            async with client.session.post(CHAT, json=body, headers={"Origin": PAGE}) as response:
                assert response.headers.get(name) == told
        async with client.session.get("/nothing", headers={"Origin": PAGE}) as response:
            assert response.headers.get(name) == told  # a page may know why it was refused
        async with client.session.get("/health") as response:
            assert name not in response.headers


async def test_no_page_may_administrate() -> None:
    async with (
        serving(FakeBackend(), allowed_origins=("*",)) as client,
        client.session.get("/admin/config", headers={"Origin": PAGE}) as response,
    ):
        assert response.status == 403
