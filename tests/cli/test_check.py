"""`headway check` from outside: a file, a server, a page, and what it exits with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headway.cli import status
from tests.cli.running import Server
from tests.doctor.serving import Reply, Table, json_of, serving, text

CONFIG = """max-model-len = 4096
kv-cache-gib = 1.5
queue-timeout = 20.0
api-keys = "keys.json"
store = "work"
[[worker]]
url = "http://a:8000"
[[worker]]
url = "http://b:8000"
pool = "batch"
[[tenant]]
name = "*"
max-input-tokens = 8000
[[tenant]]
name = "chat"
max-input-tokens = 2000
max-output-tokens = 512
max-concurrency = 4
"""


def test_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "headway.toml"
    path.write_text(CONFIG)
    assert status(["check", str(path), "--json"]) == 4  # nothing is denied; load tests are not in a file
    items = json.loads(capsys.readouterr().out)["items"]
    verdicts = {item["number"]: item["verdict"] for item in items}
    assert [number for number in verdicts if verdicts[number] == "cannot tell"] == [2, 4, 5, 6, 8]
    assert all(verdicts[number] == "yes" for number in (1, 3, 7, 9, 10))
    path.write_text(CONFIG.replace('name = "*"', 'name = "*"\nmax-output-tokens = 100'))
    status(["check", str(path), "--json"])
    limits = json.loads(capsys.readouterr().out)["items"][4]
    assert limits["verdict"] == "yes"
    assert "8,000 tokens" in limits["evidence"]


def test_a_file_with_engines_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "headway.toml"
    path.write_text("local-workers = 2\nmax-model-len = 4096\nkv-cache-gib = 1.5\n")
    status(["check", str(path), "--json"])
    items = json.loads(capsys.readouterr().out)["items"]
    assert [items[number - 1]["verdict"] for number in (4, 8)] == ["yes", "yes"]
    assert "4,096 tokens" in items[4]["evidence"]


def test_a_goal_is_what_serve_takes_it_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "headway.toml"
    tables = '[[worker]]\nurl = "http://a:8000"\n[[tenant]]\nname = "*"\nmax-concurrency = 9\n'
    path.write_text('goal = "chat"\napi-keys = "k"\n' + tables)
    status(["check", str(path), "--json"])
    overload = json.loads(capsys.readouterr().out)["items"][8]
    assert overload["verdict"] == "yes", overload
    assert "timeout 20.0 s" in overload["evidence"]


def test_a_file_with_little_in_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "headway.toml"
    path.write_text("port = 9000\n")
    assert status(["check", str(path)]) == 3
    out = capsys.readouterr().out
    assert out.count("do: ") >= 4


def test_a_file_that_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "headway.toml"
    path.write_text("max-num-seq = 9\n")
    assert status(["check", str(path)]) == 2
    assert "max-num-seqs" in capsys.readouterr().err


def test_another_server_and_its_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "check.html"
    table = {
        "/metrics": text("vllm:num_requests_running 1\nvllm:num_requests_waiting 0\nvllm:kv_cache_usage_perc 0.1\n"),
        "/v1/models": json_of('{"data": [{"id": "m", "max_model_len": 8192}]}'),
    }
    with serving(table) as url:
        assert status(["check", url, "--html", str(page)]) == 3
    out = capsys.readouterr().out
    assert "vllm exports running, waiting requests" in out
    assert "8,192 tokens" in out
    assert "Checklist of http://127.0.0.1" in page.read_text()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nowhere.toml"], "nowhere.toml"),
        (["http://x", "--duration", "0"], "--duration"),
        (["http://x", "--concurrency", "0"], "--concurrency"),
    ],
)
def test_asked_wrongly(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert status(["check", *arguments]) == 2
    assert says in capsys.readouterr().err


def test_a_file_cannot_be_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "headway.toml"
    path.write_text(CONFIG)
    assert status(["check", str(path), "--run"]) == 2
    assert "--run" in capsys.readouterr().err


def test_nobody_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert status(["check", "http://127.0.0.1:9"]) == 1
    assert "cannot be asked" in capsys.readouterr().err


def test_load_tests_are_as_long_as_they_must_be_and_say_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []

    def bench(command: list[str], **_: object) -> object:
        """Writes what `headway bench` would: 2.5 requests a second in a closed loop."""
        asked.append(command)
        loop = "open" if "rate" in command else "closed"
        figures = {name: {"samples": 300, "percentiles": {}} for name in ("ttft", "itl", "e2e")}
        overall = {"distributions": figures, "request_rate": 2.5}
        run = {"load": {"loop": loop}, "summary": {"overall": overall}, "verdict": {"name": "VALID"}}
        Path(command[command.index("--json") + 1]).write_text(json.dumps(run))
        return None

    monkeypatch.setattr("subprocess.run", bench)
    table = {"/metrics": text("vllm:num_requests_running 1\n")}
    with serving(table) as url:
        status(["check", url, "--run", "--json"])
        said = capsys.readouterr()
        items = {item["number"]: item for item in json.loads(said.out)["items"]}
        assert items[2]["verdict"] == "yes"
        assert not any("--duration" in command for command in asked)  # the load test knows what its percentile needs
        assert asked[1][asked[1].index("--request-rate") + 1] == "1.8"  # of 2.5, a rate that it holds
        assert "for 1 to 10 minutes" in said.err
        assert "for 147 s" in said.err
        asked.clear()
        status(["check", url, "--run", "--duration", "30", "--rate", "7", "--concurrency", "2", "--json"])
    assert [command[command.index("--duration") + 1] for command in asked] == ["30", "30"]
    assert "--concurrency 2" in " ".join(asked[0])
    assert "--request-rate 7" in " ".join(asked[1])


@pytest.mark.parametrize(
    ("most", "models", "says"),
    [
        (8192, '{"data": [{"id": "m", "max_model_len": 8192}]}', "was refused"),
        (10**9, '{"data": [{"id": "m", "max_model_len": 8192}]}', "was let in"),
        (0, '{"data": [{"id": "m", "max_model_len": 8192}]}', ""),  # a 400 for whatever it is asked
        (8192, '{"data": ["m", 3]}', ""),
    ],
)
def test_too_many_tokens_are_refused_where_few_are_not(
    most: int,
    models: str,
    says: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def completion(body: str) -> Reply:
        return (400, "text/plain", "no") if json.loads(body)["max_tokens"] > most else text("data: [DONE]\n\n")

    monkeypatch.setattr("headway.cli.check._with_those_missing", lambda tests, *_, **__: tests)
    table: Table = {"/v1/models": json_of(models), "/v1/completions": completion}
    with serving(table) as url:
        status(["check", url, "--run", "--json"])
    items = {item["number"]: item for item in json.loads(capsys.readouterr().out)["items"]}
    assert [words for words in ("was refused", "was let in") if words in items[5]["evidence"]] == [says] * bool(says)


@pytest.mark.slow
def test_a_real_server_and_its_load_tests(capsys: pytest.CaptureFixture[str]) -> None:
    with Server("--executor", "simulated", "--queue-timeout", "20") as server:
        assert status(["check", server.url, "--run", "--duration", "5", "--json"]) in (3, 4)
    items = {item["number"]: item for item in json.loads(capsys.readouterr().out)["items"]}
    assert all(items[number]["verdict"] == "yes" for number in (1, 3, 4, 6, 7, 8))
    assert items[2]["verdict"] == "cannot tell"  # so short a run says so of itself
    assert "TOO-FEW-SAMPLES" in items[2]["evidence"]
    assert "refused when it was tried" in items[5]["evidence"]
