"""`headway serve` as a process: what it says, and how it ends."""

from __future__ import annotations

import asyncio
import json
import shlex
import shutil
import subprocess
import time
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from tests.cli.running import Server

SIMULATED = ("--executor", "simulated")


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30)) as session:
        yield session


async def first_token(response: aiohttp.ClientResponse) -> None:
    async for line in response.content:
        if line.startswith(b"data: {"):
            return


def long_request(session: aiohttp.ClientSession, url: str, tokens: int) -> aiohttp.client._RequestContextManager:
    body = {"prompt": "once", "max_tokens": tokens, "ignore_eos": True, "stream": True}
    return session.post(f"{url}/v1/completions", json=body)


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_banner_tells_what_is_in_effect_and_a_command_that_answers() -> None:
    with Server(*SIMULATED, "--max-num-seqs", "7", "--served-model-name", "mine") as server:
        said = "".join(server.log)
        assert "mine (simulated" in said
        assert "7 sequences and 256 tokens a step" in said
        command = shlex.split(server.log[-1].removeprefix("Try"))
        answer = subprocess.run([*command, "--silent"], capture_output=True, timeout=30, check=True)
        assert json.loads(answer.stdout)["choices"][0]["message"]["content"]


def test_a_signal_ends_an_idle_server_at_once_and_cleanly() -> None:
    with Server(*SIMULATED) as server:
        start = time.monotonic()
        server.signal()
        assert server.wait() == 0
        assert time.monotonic() - start < 3.0


async def test_the_first_signal_finishes_what_runs_and_refuses_what_is_new(client: aiohttp.ClientSession) -> None:
    with Server(*SIMULATED) as server:
        async with long_request(client, server.url, 200) as running:
            await first_token(running)
            server.signal()
            await asyncio.sleep(0.2)
            async with client.post(f"{server.url}/v1/completions", json={"prompt": "late"}) as late:
                assert late.status == 503
                assert int(late.headers["Retry-After"]) >= 1
                assert (await late.json())["error"]["code"] == "not_ready"
            async with client.get(f"{server.url}/ready") as ready:
                assert ready.status == 503
            rest = await running.content.read()
            assert b'"finish_reason":"length"' in rest
            assert rest.rstrip().endswith(b"data: [DONE]")
        assert await asyncio.to_thread(server.wait) == 0


async def test_the_second_signal_stops_at_once_and_tells_the_client(client: aiohttp.ClientSession) -> None:
    with Server(*SIMULATED) as server:
        async with long_request(client, server.url, 5000) as running:
            await first_token(running)
            server.signal()
            await asyncio.sleep(0.2)
            start = time.monotonic()
            server.signal()
            rest = await running.content.read()
            assert b'"error"' in rest
            assert b"[DONE]" not in rest
        assert await asyncio.to_thread(server.wait) == 0
        assert time.monotonic() - start < 5.0
        assert "a second signal came: 1 requests are ended with an error" in "".join(server.log)


async def test_draining_is_bounded(client: aiohttp.ClientSession) -> None:
    with Server(*SIMULATED, "--drain-timeout", "0.5") as server:
        async with long_request(client, server.url, 5000) as running:
            await first_token(running)
            start = time.monotonic()
            server.signal()
            assert b'"error"' in await running.content.read()
        assert await asyncio.to_thread(server.wait) == 0
        assert 0.4 < time.monotonic() - start < 5.0


def test_settings_come_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "headway.toml"
    path.write_text('executor = "simulated"\nmax-num-seqs = 5\nserved-model-name = "from-a-file"\n')
    with Server("--config", str(path)) as server:
        assert "from-a-file (simulated" in "".join(server.log)
        assert "5 sequences" in "".join(server.log)
