"""Keys: they open every door that they should, and are told to nobody."""

from __future__ import annotations

import html
import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headway.loadtest.bench.files import Files, save
from headway.loadtest.bench.options import (
    ClientOptions,
    Concurrency,
    LongContext,
    Options,
    PromiseOptions,
    Rate,
    ServerOptions,
    TextOptions,
    WindowOptions,
)
from headway.loadtest.bench.template import template_of
from headway.loadtest.bench.tester import Result, bench
from headway.loadtest.errors import InvalidPlan, ResultFailed
from headway.loadtest.redact import SHORT as SHORT_KEY
from headway.loadtest.redact import Redactor
from tests.loadtest.servers import Turn, error, serving, talks, whole

HERE = ClientOptions(processes=0, scrape_interval=0.2, drain=20.0)
SHORT = TextOptions(input_len="60", output_len="4")


def options(**parts: Any) -> Options:
    window = parts.pop("window", WindowOptions(duration=1.0, requests=60, warmup=0.0, cooldown=0.0))
    return Options(**{"client": HERE, "text": SHORT, "window": window, **parts})


async def test_a_server_that_only_lets_tenants_in_tells_them_what_it_is() -> None:
    async def script(turn: Turn) -> None:
        asked = turn.asked
        if asked.headers.get("authorization") not in {"Bearer ones-key", "Bearer twos-key"}:
            turn.write(whole(error("who?"), status=401))
        elif asked.path == "/tokenize":
            turn.write(whole(json.dumps({"count": len(asked.json["prompt"].split())}).encode()))
        elif asked.method == "POST":
            await talks(turn)
        elif asked.path == "/v1/models":
            turn.write(whole(b'{"data": [{"id": "m", "max_model_len": 2000}]}'))
        elif asked.path == "/metrics":
            turn.write(whole(b"vllm:num_requests_running 1\n", type="text/plain"))
        else:
            turn.write(whole(b"{}", status=404))

    text = TextOptions(output_len="4", tenants="one,two")
    async with serving(script, pages=True) as server:
        wanted = options(text=text, server=ServerOptions(model="m", tenant_key=("one=ones-key", "two=twos-key")))
        window = WindowOptions(requests=4, warmup=0.0, cooldown=0.0)
        result = await bench(server.url, LongContext(concurrency=1), replace(wanted, window=window))
    run = result.run
    assert run.load.settings["input lengths by"].startswith("the server's /tokenize")
    assert {record.asked_input_tokens for record in result.records} == {(2000 - 4) * 9 // 10}, "of what it takes"
    assert (run.signals.source, run.environment.flags["max_model_len"]) == ("vllm", "2000")
    assert run.environment.framework == "vLLM"


KEYS = ("a-key-of-everybody", "tenant-ones-key", "header-cookie-secret", "user-s-password", "query-string-key")


async def test_no_key_is_in_any_file(tmp_path: Path) -> None:
    async def telltale(turn: Turn) -> None:
        """Says in its error everything that it was told."""
        if turn.asked.json["max_tokens"] == 9:
            turn.write(whole(error(json.dumps([turn.asked.path, turn.asked.headers])), status=400))
        else:
            turn.write(whole(json.dumps({"choices": [{"message": {"content": "w"}}]}).encode()))

    server_options = ServerOptions(
        model="m", api_key=KEYS[0], tenant_key=(f"one={KEYS[1]}",), header=(f"X-Secret-Cookie={KEYS[2]}",), stream=False
    )
    text = replace(SHORT, output_len="9", tenants="one,two", tokenizer="none")
    async with serving(telltale) as server:
        url = server.url.replace("//", f"//user:{KEYS[3]}@") + f"?api_key={KEYS[4]}"
        result = await bench(url, Rate(request_rate=30), options(server=server_options, text=text))
        assert any(KEYS[1] in asked.headers.get("authorization", "") for asked in server.asked)
    files = Files(tmp_path / "run.json", tmp_path / "run.csv", tmp_path / "run.html")
    save(result, files)
    for path in files.paths:
        content = path.read_text()
        assert [key for key in KEYS if key in content] == []
    assert [key for key in KEYS if key in whole_of(result)] == []


def whole_of(result: Result | ResultFailed) -> str:
    """Every field of it."""
    texts = [repr(result), str(result), *(repr(record) for record in result.records)]
    return "".join([*texts, msgspec.json.encode(result.run).decode() if isinstance(result, Result) else ""])


ECHOING = "the-only-key-there-is"


async def echo(turn: Turn) -> None:
    """Has the key in all that a record keeps of an answer."""
    if turn.number % 2:
        turn.write(whole(error(f"{ECHOING} is no good"), status=400))
        return
    body = {"choices": [{"message": {"content": "w"}, "finish_reason": f"stop {ECHOING}"}], "usage": {}}
    turn.write(whole(json.dumps(body).encode(), server_timing=f"a;desc={ECHOING};dur=1"))


@pytest.mark.parametrize("fails", [False, True])
async def test_no_key_is_in_any_field_of_a_result(fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> object:
        raise RuntimeError(f"no figures of {ECHOING}")

    if fails:
        monkeypatch.setattr("headway.loadtest.bench.tester.summarise", broken)
    text = replace(SHORT, tokenizer="none", tenants=f"one,{ECHOING}")
    wanted = options(
        server=ServerOptions(model="m", api_key=ECHOING, stream=False), text=text, noted=(("by", f"him {ECHOING}"),)
    )
    async with serving(echo) as server:
        made: Result | ResultFailed
        try:
            made = await bench(server.url, Concurrency(concurrency=2), wanted)
        except ResultFailed as failed:
            made = failed
    assert isinstance(made, ResultFailed) is fails
    assert made.records
    assert {"error", "server_timing"} <= {
        name for record in made.records for name in ("error", "server_timing") if "***" in getattr(record, name)
    }
    assert ECHOING not in whole_of(made)


def test_a_header_is_written_either_way() -> None:
    headers = template_of(
        "localhost", ServerOptions(header=("A=b=c", "Authorization: Bearer x=y")), PromiseOptions()
    ).headers
    assert headers == {"A": "b=c", "Authorization": "Bearer x=y"}
    with pytest.raises(InvalidPlan) as caught:
        template_of("localhost", ServerOptions(header=("sk-something",)), PromiseOptions())
    assert "sk-something" not in str(caught.value)


@pytest.mark.parametrize("promise", [PromiseOptions(slo_ttft=1.0), PromiseOptions(slo_itl=0.02)])
def test_nothing_is_promised_about_tokens_that_are_not_seen(promise: PromiseOptions) -> None:
    with pytest.raises(InvalidPlan, match="leave out --no-stream, or promise --slo-e2e"):
        template_of("localhost", ServerOptions(stream=False), promise)
    assert not template_of("localhost", ServerOptions(stream=False), PromiseOptions(slo_e2e=1.0)).stream


KEY_CHARACTERS = st.characters(min_codepoint=33, max_codepoint=0x17F, exclude_categories=["Cc", "Z"])


@given(st.text(KEY_CHARACTERS, min_size=SHORT_KEY, max_size=80))
@example("k/y+with=all&<of>\"it'")
def test_a_key_is_hidden_in_whatever_form_a_server_echoes_it(key: str) -> None:
    clean = Redactor([key]).text
    forms = {
        quote(key),
        quote(key, safe=""),
        quote(key, safe="").lower() if key.islower() else quote(key),
        json.dumps(key)[1:-1],
        json.dumps(key)[1:-1].replace("/", "\\/"),
        html.escape(key),
        markupsafe_like(key),
        "".join(one if one.isalnum() else f"&#{ord(one)};" for one in key),
        "".join(f"&#x{ord(one):x};" for one in key),
    }
    for form in forms:
        assert clean(f"to /login/{form} !") == "to /login/*** !", form


def markupsafe_like(text: str) -> str:
    """Numbers where html.escape has a name."""
    return html.escape(text).replace("&quot;", "&#34;").replace("&#x27;", "&#39;")
