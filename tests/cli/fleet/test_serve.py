"""`headway serve --worker URL` as a process, in front of a simulated headway worker that is one as well."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import openai
import pytest

from headway.cli import status
from headway.gateway.tenancy import KeyFile
from tests.cli.running import Server

SIMULATED = ("--executor", "simulated", "--served-model-name", "mine")
MESSAGES: Any = [{"role": "user", "content": "hello"}]


@pytest.mark.slow
def test_a_gateway_with_keys_and_limits_from_a_file(tmp_path: Path) -> None:
    keys = KeyFile(tmp_path / "keys")
    key, presented = keys.create("alice", time.time())
    with Server(*SIMULATED) as worker:
        config = tmp_path / "c.toml"
        config.write_text(
            f'api-keys = "{keys.path}"\n[[worker]]\nurl = "{worker.url}"\nid = "first"\n'
            '[[tenant]]\nname = "alice"\nrequests-per-minute = 2\n'
        )
        with Server("--config", str(config)) as gateway:
            said = "".join(gateway.log)
            assert f"first ({worker.url})" in said
            assert presented not in said
            client = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=presented, max_retries=0)
            assert [model.id for model in client.models.list()] == ["mine"]
            got = client.chat.completions.with_raw_response.create(model="mine", messages=MESSAGES, max_tokens=8)
            assert got.headers["x-headway-worker"].startswith("first;")
            assert got.headers["x-ratelimit-remaining-requests"] == "1"
            config.write_text(config.read_text().replace("requests-per-minute = 2", "requests-per-minute = 1000"))
            gateway.process.send_signal(signal.SIGHUP)
            deadline = time.monotonic() + 10
            while "read again; changed: tenant" not in "".join(gateway.log):
                assert time.monotonic() < deadline, "".join(gateway.log)
                time.sleep(0.05)
            stream = client.chat.completions.create(model="mine", messages=MESSAGES, max_tokens=8, stream=True)
            assert "".join(chunk.choices[0].delta.content or "" for chunk in stream)
            keys.revoke(key.id, time.time())
            time.sleep(2.5)  # it looks at the file about once a second
            with pytest.raises(openai.AuthenticationError):
                client.models.list()
            gateway.signal()
            assert gateway.wait() == 0


@pytest.mark.slow
def test_the_first_signal_lets_what_runs_finish() -> None:
    with Server(*SIMULATED) as worker, Server("--worker", worker.url) as gateway:
        client = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="unused", max_retries=0)
        stream = client.completions.create(
            model="mine", prompt="once", max_tokens=60, stream=True, extra_body={"ignore_eos": True}
        )
        chunks = iter(stream)
        next(chunks)
        gateway.signal()
        deadline = time.monotonic() + 10
        while "stopping" not in "".join(gateway.log) and time.monotonic() < deadline:
            time.sleep(0.05)
        with pytest.raises((openai.InternalServerError, openai.APIConnectionError)):
            client.completions.create(model="mine", prompt="once", max_tokens=2)
        assert list(chunks)[-1].choices[0].finish_reason == "length"
        with contextlib.suppress(subprocess.TimeoutExpired):
            gateway.wait()
        assert gateway.process.poll() == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--worker", "localhost:8000"], "is no address"),
        (["--worker", "http://h:1", "--host", "0.0.0.0"], "there are no API keys"),
        (["--worker", "http://h:1", "--api-keys", "nowhere/keys"], "cannot be read"),
        (["--worker", "http://h:1", "--worker", "http://h:1/"], "there is a worker 'h:1' already"),
        (["--worker", "http://h:1", "--min-replicas", "3", "--max-replicas", "2"], "fewer than min_replicas"),
        (["--worker", "http://h:1", "--ladder", "all=off"], "is no LEVEL=MODE"),
        (["--api-keys", "keys"], "is for a gateway"),
        (["--worker", "http://h:1", "--api-key", "x"], "headway keys create"),
    ],
)
def test_what_cannot_be_is_said_before_anything_is_started(
    capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    assert status(["serve", *arguments]) == 2
    err = capsys.readouterr().err
    assert says in err
    assert err.count("\n") == 1
