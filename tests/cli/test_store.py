"""`headway serve --store` as a process: work of the background outlives it, however it ends."""

from __future__ import annotations

import json
import sqlite3
import time
import urllib.request
from pathlib import Path
from typing import Any

import openai
import pytest

from headway.cli import status
from tests.cli.running import Server

pytestmark = pytest.mark.slow

SIMULATED = ("--executor", "simulated", "--served-model-name", "mine")
MESSAGES: Any = [{"role": "user", "content": "hello"}]
# About half a second each, so that a kill finds some that wait, some that run and some that are done.
BODY: Any = {
    "model": "mine",
    "messages": MESSAGES,
    "max_tokens": 60,
    "extra_body": {"background": True, "ignore_eos": True},
}
LINES = 40


def client_of(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0)


def ask(url: str, sent: Any = None) -> Any:
    """JSON of a GET, or of a POST where something is sent."""
    data = None if sent is None else json.dumps(sent).encode()
    with urllib.request.urlopen(urllib.request.Request(url, data), timeout=10) as response:
        return json.load(response)


def look(server: Server, name: str) -> Any:
    return ask(f"{server.url}/v1/background/{name}")


def ended(server: Server, name: str, timeout_s: float = 30.0) -> Any:
    deadline_s = time.monotonic() + timeout_s
    while (told := look(server, name))["status"] in ("queued", "in_progress"):
        assert time.monotonic() < deadline_s, told
        time.sleep(0.05)
    return told


def completed_rows(store: Path) -> list[tuple[str, int, int]]:
    """Id, tries and number of answers of what is completed, past our own code."""
    with sqlite3.connect(f"file:{store / 'store.db'}?mode=ro", uri=True) as database:
        return database.execute(
            "SELECT id, tries, (SELECT count(*) FROM job_bodies WHERE job = seq AND part = 'response') FROM jobs "
            "WHERE state = 'completed'"
        ).fetchall()


def batch_begun(server: Server) -> str:
    body = {"model": "mine", "messages": MESSAGES, "max_tokens": 8, "ignore_eos": True}
    lines = (
        json.dumps({"custom_id": f"item-{n}", "method": "POST", "url": "/v1/chat/completions", "body": body})
        for n in range(LINES)
    )
    client = client_of(server)
    file = client.files.create(file=("in.jsonl", "\n".join(lines).encode()), purpose="batch")
    return client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h").id


def batch_ended(server: Server, name: str, timeout_s: float = 30.0) -> None:
    """Every line once, in the order of the input."""
    client = client_of(server)
    deadline_s = time.monotonic() + timeout_s
    while (batch := client.batches.retrieve(name)).status not in ("completed", "failed", "expired", "cancelled"):
        assert time.monotonic() < deadline_s, batch
        time.sleep(0.05)
    assert (batch.status, batch.error_file_id) == ("completed", None)
    assert batch.output_file_id is not None
    output = [json.loads(line) for line in client.files.content(batch.output_file_id).text.splitlines()]
    assert [line["custom_id"] for line in output] == [f"item-{n}" for n in range(LINES)]
    assert {line["response"]["body"]["usage"]["completion_tokens"] for line in output} == {8}
    assert batch.usage is not None
    assert batch.usage.output_tokens == 8 * LINES


def killed_and_started_again(store: Path, *arguments: str) -> None:
    """Eight requests, two at a time, and a kill among them; then a stop that finds one at work."""
    serve = (*arguments, "--store", str(store), "--batch-slots", "2")
    with Server(*serve) as server:
        names = [client_of(server).chat.completions.create(**BODY, seed=number).id for number in range(8)]
        done = ended(server, names[0])
        batch = batch_begun(server)
        while not list((store / "spool").iterdir()):  # its first answers are on the disk
            time.sleep(0.02)
        server.process.kill()
        server.wait()
    with Server(*serve) as server:
        assert look(server, names[0]) == done  # what was finished is as it was
        assert client_of(server).batches.retrieve(batch).status != "completed"
        shown = [ended(server, name) for name in names]
        batch_ended(server, batch)
        assert {one["status"] for one in shown} == {"completed"}
        assert all(one["response"]["usage"]["completion_tokens"] == 60 for one in shown)
        assert ask(f"{server.url}/load")["requests"] == 0
        assert status(["serve", *serve, "--port", "0"]) == 2  # it is in use
        names.append(client_of(server).chat.completions.create(**BODY).id)
        while not ask(f"{server.url}/load")["running"]:
            time.sleep(0.02)
        server.signal()
        assert server.wait() == 0
    rows = completed_rows(store)
    assert sorted(name for name, _, _ in rows) == sorted(names)
    assert {answers for _, _, answers in rows} == {1}


def test_an_engine_that_is_killed_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    killed_and_started_again(tmp_path / "store", *SIMULATED)
    err = capsys.readouterr().err
    assert "is being written by headway serve (process" in err
    assert err.count("\n") == 1


def test_a_gateway_that_is_killed_goes_on(tmp_path: Path) -> None:
    with Server(*SIMULATED) as worker:
        client = client_of(worker)
        with pytest.raises(openai.BadRequestError, match="--store") as refused:
            client.chat.completions.create(**BODY)
        assert refused.value.param == "background"
        assert client.chat.completions.create(**{**BODY, "extra_body": {"background": False}}).choices
        killed_and_started_again(tmp_path / "store", "--worker", worker.url)


def test_an_engine_s_chat_goes_first_and_a_cancelled_request_leaves_it(tmp_path: Path) -> None:
    """With every slot of the background taken, somebody who waits is started at once."""
    with Server(*SIMULATED, "--store", str(tmp_path), "--max-num-seqs", "4") as server:
        client = client_of(server)
        long = {**BODY, "max_tokens": 2000}
        names = [client.chat.completions.create(**long).id for _ in range(6)]
        while [look(server, name)["status"] for name in names].count("in_progress") < 2:
            time.sleep(0.02)
        answer = client.chat.completions.create(model="mine", messages=MESSAGES, max_tokens=4)
        assert answer.choices
        assert [look(server, name)["status"] for name in names] == ["in_progress"] * 2 + ["queued"] * 4
        for name in names:
            assert ask(f"{server.url}/v1/background/{name}/cancel", {})["status"] == "cancelled"
        deadline_s = time.monotonic() + 5
        while ask(f"{server.url}/load")["requests"]:
            assert time.monotonic() < deadline_s, "cancelled work still runs"
            time.sleep(0.05)
        with pytest.raises(openai.BadRequestError, match="stream"):
            client.chat.completions.create(**BODY, stream=True)
        with pytest.raises(openai.NotFoundError):
            client.chat.completions.create(**{**BODY, "model": "another"})


def test_overlong_async_needs_a_store(capsys: pytest.CaptureFixture[str]) -> None:
    assert status(["serve", "--worker", "http://h:1", "--overlong", "async"]) == 2
    assert "give it a --store" in capsys.readouterr().err
