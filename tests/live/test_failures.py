"""The executor dies under a real server: who was served is told so, and the next is served again."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import openai
import pytest

from tests.cli.running import Server


def executor_pids(server: Server) -> list[int]:
    """The children of the server that run an executor."""
    tasks = Path(f"/proc/{server.process.pid}/task").glob("*/children")
    children = [int(pid) for task in tasks for pid in task.read_text().split()]
    return [pid for pid in children if b"resource_tracker" not in Path(f"/proc/{pid}/cmdline").read_bytes()]


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs Linux's /proc")
def test_a_crash_mid_stream_is_an_error_and_not_an_end() -> None:
    with Server("--executor", "simulated") as server:
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=30)
        body = {"ignore_eos": True}
        stream = client.completions.create(model="simulated", prompt="x", max_tokens=3000, stream=True, extra_body=body)
        next(iter(stream))
        for pid in executor_pids(server):
            os.kill(pid, signal.SIGKILL)
        with pytest.raises(openai.APIError) as caught:
            for _ in stream:
                pass
        assert caught.value.code == "engine_failed"
        deadline = time.monotonic() + 20
        while True:  # refused with 503 until the executor is back
            try:
                client.completions.create(model="simulated", prompt="x", max_tokens=2)
                break
            except openai.InternalServerError as error:
                assert error.status_code == 503
                assert error.response.headers["retry-after"]
                assert time.monotonic() < deadline
                time.sleep(0.05)
