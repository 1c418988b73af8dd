"""`headway serve` as a process: what it says, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from headway.cli import status
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
        assert "Model      mine (simulated: made-up text at a modelled pace)\n" in said
        assert "Warning" not in said
        assert "7 sequences and 256 tokens a step" in said
        command = shlex.split(server.log[-1].removeprefix("Try"))
        answer = subprocess.run([*command, "--silent"], capture_output=True, timeout=30, check=True)
        # Its text may be empty: a made-up answer sometimes ends at once.
        assert json.loads(answer.stdout)["choices"][0]["finish_reason"]


@pytest.mark.slow
def test_the_banner_tells_promises_and_unusual_choices_where_there_are_any() -> None:
    with Server(*SIMULATED) as server:
        assert not [line for line in server.log if line.startswith(("Promises", "Scheduling"))]
    unusual = ("--policy", "vllm", "--kv-full", "wait", "--no-pace")
    with Server(*SIMULATED, "--slo-ttft", "1", "--slo-itl", "0.15", *unusual) as server:
        said = "".join(server.log)
        assert "Promises   first token within 1 s; gaps up to 0.15 s\n" in said
        assert "Scheduling --policy vllm --kv-full wait --no-pace\n" in said


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_banner_warns_of_a_kv_cache_that_cuts_requests_short_and_its_command_fits() -> None:
    with Server(*SIMULATED, "--kv-cache-gib", "0.0015") as server:
        said = "".join(server.log)
        tokens = re.search(r"^KV cache   (\d+) tokens in \d MiB$", said, re.MULTILINE)
        assert tokens
        assert f"Warning    the KV cache cuts requests to {tokens[1]} tokens, and the model can do" in said
        command = shlex.split(server.log[-1].removeprefix("Try"))
        assert 0 < json.loads(command[-1])["max_tokens"] < int(tokens[1])
        answer = subprocess.run([*command, "--silent"], capture_output=True, timeout=30, check=True)
        assert "error" not in json.loads(answer.stdout)


def children(pid: int) -> list[int]:
    return [int(child) for task in Path(f"/proc/{pid}/task").glob("*/children") for child in task.read_text().split()]


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="children are found in /proc")
@pytest.mark.parametrize(
    ("number", "expected"), [pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow), (signal.SIGINT, 130)]
)
def test_a_signal_while_loading_ends_everything_and_says_so(number: signal.Signals, expected: int) -> None:
    command = [sys.executable, "-m", "headway", "serve", *SIMULATED, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        while not (started := children(process.pid)):
            assert process.poll() is None
        process.send_signal(number)
        said, _ = process.communicate(timeout=10)
    assert process.returncode == expected
    assert said == "\nheadway: stopped while starting\n"
    deadline = time.monotonic() + 5
    while any(Path(f"/proc/{child}").exists() for child in started):
        assert time.monotonic() < deadline, "the executor's process was left behind"
        time.sleep(0.01)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="children are found in /proc")
async def test_an_engine_that_is_down_for_good_leaves_a_server_that_says_so(client: aiohttp.ClientSession) -> None:
    with Server(*SIMULATED) as server:
        healthy, deadline = 200, time.monotonic() + 60
        while healthy == 200 and time.monotonic() < deadline:
            for child in children(server.process.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
            await asyncio.sleep(0.1)
            async with client.get(f"{server.url}/health") as answer:
                healthy = answer.status
        assert healthy == 503
        await asyncio.sleep(0.5)
        assert server.process.poll() is None, "it stays to say so"
        server.signal()
        assert await asyncio.to_thread(server.wait) == 0
        assert "".join(server.log).count("CRITICAL") == 1


def test_an_interrupt_while_the_program_is_imported_is_no_traceback() -> None:
    code = (
        "import sys\n"
        "class Interrupted:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'headway.cli': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupted())\n"
        "from headway.__main__ import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


@pytest.mark.parametrize("flag", ["--step-log", "--decision-log"])
def test_a_log_that_cannot_be_written_is_told_before_a_model_is_looked_for(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, flag: str
) -> None:
    assert status(["serve", "no-such-model", "--port", "0", flag, str(tmp_path / "no" / "log.jsonl")]) == 2
    complaint = capsys.readouterr().err
    assert "log.jsonl' cannot be written: No such file or directory." in complaint
    assert complaint.count("\n") == 1, "one line, no traceback"


@pytest.mark.slow
async def test_static_batches_are_served_and_their_padding_is_counted(client: aiohttp.ClientSession) -> None:
    with Server(*SIMULATED, "--batching", "static") as server:
        assert "Scheduling --batching static\n" in "".join(server.log)
        asked = {"prompt": ["one", "another and longer"], "max_tokens": 4, "ignore_eos": True}
        async with client.post(f"{server.url}/v1/completions", json=asked) as answer:
            assert [choice["finish_reason"] for choice in (await answer.json())["choices"]] == ["length"] * 2
        async with client.get(f"{server.url}/metrics") as metrics:
            padded = re.search(r"^headway_pad_tokens_total (\S+)$", await metrics.text(), re.MULTILINE)
            assert padded
            assert float(padded[1]) > 0


async def test_both_logs_are_written_and_complete(client: aiohttp.ClientSession, tmp_path: Path) -> None:
    steps, decisions = tmp_path / "steps.jsonl", tmp_path / "decisions.jsonl"
    with Server(*SIMULATED, "--step-log", str(steps), "--decision-log", str(decisions)) as server:
        async with long_request(client, server.url, 3) as running:
            await running.content.read()
        server.signal()
        assert await asyncio.to_thread(server.wait) == 0
    written, decided = ([json.loads(line) for line in path.read_text().splitlines()] for path in (steps, decisions))
    assert [line["kind"] for line in written] == ["header", "step", "step", "step", "request"]
    assert decided[0]["kind"] == "header"
    named = [line["decision"] for line in decided if "decision" in line]
    assert named == ["submit", "start", "end", "settle"]


@pytest.mark.slow
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
        assert "a second signal came: 1 request ended with an error" in "".join(server.log)


@pytest.mark.slow
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
