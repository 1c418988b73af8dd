"""`--local-workers N`, and a model beside `--worker`: processes that are started, fronted, started again and ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
import pytest

from headway.cli import status
from headway.cli.fleet.local import arguments, local_members, physical_cores
from headway.cli.layers import Layers
from tests.cli.running import Server

SIMULATED = ("--executor", "simulated", "--served-model-name", "mine")


def until(true: Callable[[], Any], timeout_s: float = 30.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.05)


def descendants(pid: int) -> set[int]:
    """Every process below `pid`."""
    found: set[int] = set()
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, file.read_text().split()):
            found |= {child} | descendants(child)
    return found


def alive(pids: set[int]) -> set[int]:
    def lives(pid: int) -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        except OSError:
            return False

    return {pid for pid in pids if lives(pid)}


def workers(server: Server) -> dict[str, dict[str, Any]]:
    with urllib.request.urlopen(f"{server.url}/admin/workers", timeout=10) as answer:
        return {one["id"]: one for one in json.load(answer)["data"]}


def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0, timeout=30)


def ask(server: Server) -> str:
    made = client(server).completions.with_raw_response.create(model="mine", prompt="once", max_tokens=3)
    return made.headers["x-headway-worker"].partition(";")[0]


def test_engines_are_started_and_come_back_and_nobody_else_may_call_them() -> None:
    with Server(*SIMULATED, "--local-workers", "2") as gateway:
        assert set(workers(gateway)) == {"local-0", "local-1"}
        assert ask(gateway) in workers(gateway)
        engine = workers(gateway)["local-0"]["url"]
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"{engine}/models", timeout=10)
        assert refused.value.code == 401
        assert b"answers it alone" in refused.value.read()
        below = descendants(gateway.process.pid)
        by_arguments = {pid: Path(f"/proc/{pid}/cmdline").read_text() for pid in below}
        engines = [pid for pid, said in by_arguments.items() if "headway.workers.lifeline" in said]
        assert len(engines) == 2
        assert all(f"--threads={max(1, physical_cores() // 2)}" in by_arguments[pid] for pid in engines)
        os.kill(engines[0], signal.SIGKILL)
        until(lambda: "killed by SIGKILL" in "".join(gateway.log))
        assert {ask(gateway) for _ in range(3)} <= {"local-0", "local-1"}, "the other one goes on"
        until(lambda: "".join(gateway.log).count(" is up at ") == 3)
        # A request finds out whether it may be trusted again.
        until(lambda: ask(gateway) and all(one["trust"] == "closed" for one in workers(gateway).values()))
        until(lambda: not any(one["not_well"] for one in workers(gateway).values()))
        below = descendants(gateway.process.pid)
        gateway.signal()
        assert gateway.wait() == 0
        until(lambda: not alive(below))


@pytest.mark.slow
def test_they_finish_what_runs_and_leave_with_the_gateway() -> None:
    with Server(*SIMULATED, "--local-workers", "1") as gateway:
        stream = iter(
            client(gateway).completions.create(
                model="mine", prompt="once", max_tokens=60, stream=True, extra_body={"ignore_eos": True}
            )
        )
        next(stream)
        below = descendants(gateway.process.pid)
        assert below
        gateway.signal()
        assert list(stream)[-1].choices[0].finish_reason == "length"
        assert gateway.wait() == 0
        until(lambda: not alive(below))


@pytest.mark.slow
def test_a_gateway_that_is_killed_leaves_nobody_behind() -> None:
    with Server(*SIMULATED, "--local-workers", "2") as gateway:
        below = descendants(gateway.process.pid)
        assert len(below) >= 2
        gateway.process.kill()
        gateway.wait()
        until(lambda: not alive(below))


@pytest.mark.slow
def test_a_model_is_served_beside_workers() -> None:
    with (
        Server(*SIMULATED) as worker,
        Server("some-model", *SIMULATED, "--worker", worker.url, "--max-num-seqs", "2") as gateway,
    ):
        name = worker.url.removeprefix("http://")
        assert set(workers(gateway)) == {"local-0", name}
        assert workers(gateway)["local-0"]["window"] == {"sequences": 2}
        streams = [
            iter(
                client(gateway).completions.create(
                    model="mine", prompt=f"{number}", max_tokens=200, stream=True, extra_body={"ignore_eos": True}
                )
            )
            for number in range(6)
        ]
        for stream in streams:
            next(stream)
        placed = {one["id"]: one["in_flight"]["requests"] for one in workers(gateway).values()}
        assert sum(placed.values()) == 6
        assert placed["local-0"] == 2, "its slots are known, and filled"


def test_an_engine_that_cannot_start_is_told_and_ends_the_start(capsys: pytest.CaptureFixture[str]) -> None:
    too_long = ("--max-model-len", "100000000")
    assert status(["serve", *SIMULATED, *too_long, "--local-workers", "1", "--port", "0"]) == 1
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("headway: No engine came up. local-0: its process ended with 2, saying: max_model_len is")


@pytest.mark.slow
def test_a_signal_while_they_start_ends_everything() -> None:
    command = [sys.executable, "-m", "headway", "serve", *SIMULATED, "--local-workers", "2", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        until(lambda: descendants(process.pid))
        below = descendants(process.pid)
        process.send_signal(signal.SIGTERM)
        said, _ = process.communicate(timeout=30)
    assert process.returncode == 143
    assert "headway: stopped while starting" in said
    until(lambda: not alive(below))


def test_what_each_is_told(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text('goal = "throughput"\nkv-cache-gib = 1.5\nmax-waiting = 9\nstep-log = "logs/steps.jsonl"\n')
    effective = Layers("m", path, {"local_workers": 3, "pace": True, "threads": 4}).read()
    said = arguments(effective, "local-1", 3)
    assert said[0] == "m"
    assert set(said[1:]) == {
        *("--goal=throughput", "--kv-cache-gib=1.5", "--pace", "--threads=4", "--step-log=logs/steps.local-1.jsonl")
    }
    specs = [member.spec for member in local_members(effective)]
    assert [(spec.id, spec.first_sequences, spec.most_sequences) for spec in specs] == [
        (f"local-{number}", 256, 256) for number in range(3)
    ]
    parsed = Layers(said[0], None, {"goal": "throughput"}).read()
    assert parsed.config.engine.max_num_seqs == 256, "what an engine makes of the same goal"
