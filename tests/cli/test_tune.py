"""`headway tune` as a person runs it, against a real server with the simulated executor."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headway.cli import status
from headway.simulate.fit import Coefficient, StepFit, Valid, fit_bytes
from headway.simulate.fit import Server as FittedServer
from headway.simulate.fit.terms import COLUMNS
from tests.cli.running import Server

# What the simulated executor's steps cost, in ns.
COST = {"step_ns": 9e6, "prefill_token_ns": 480e3, "decode_seq_ns": 680e3, "context_token_ns": 1e3}
START = {"max_num_seqs": 1, "max_num_batched_tokens": 48}
LOAD = ("--request-rate", "6", "--input-len", "32:96", "--output-len", "4:12", "--slo-ttft", "1.5", "--slo-itl", "0.5")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    flags = [text for name, value in START.items() for text in (f"--{name.replace('_', '-')}", str(value))]
    with Server("--executor", "simulated", *flags) as server:
        yield server.url


@pytest.fixture
def fit(tmp_path: Path) -> str:
    """Of that executor, so that no probing load is needed."""
    path = tmp_path / "fit.json"
    coefficients = {name: COST.get(name, 0.0) for name in COLUMNS}
    found = StepFit(
        sources=["known"],
        coefficients={name: Coefficient(value=ns, low=ns, high=ns) for name, ns in coefficients.items()},
        residuals=[],
        valid=Valid(
            steps=1,
            max_prefill_tokens=8192,
            min_decode_seqs=1,
            max_decode_seqs=512,
            max_context_tokens=1 << 20,
            max_attention_tokens=1 << 30,
        ),
        server=FittedServer(policy="headway", num_blocks=2048, block_size=32),
    )
    path.write_bytes(fit_bytes(found))
    return str(path)


def settings_of(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{url}/admin/config", timeout=30) as answer:
        told = json.load(answer)
    return {name: told[name] for name in (*START, "long_prompt_slots", "long_output_slots", "slo_ttft", "slo_itl")}


def command(url: str, *flags: str) -> list[str]:
    return [sys.executable, "-m", "headway", "tune", url, *LOAD, *flags]


@pytest.mark.slow
def test_ctrl_c_gives_the_server_its_settings_back(url: str, fit: str, tmp_path: Path) -> None:
    before = settings_of(url)
    process = subprocess.Popen(
        command(url, "--fit", fit, "--duration", "6", "--drain", "1", "--json", str(tmp_path / "tune.json")),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("live test 2"):
            break
    give_up_s = time.monotonic() + 20
    while settings_of(url) == before and time.monotonic() < give_up_s:
        time.sleep(0.05)
    assert settings_of(url) != before, "the second test is of other settings"
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert settings_of(url) == before
    assert "INTERRUPTED" in out
    assert len(json.loads((tmp_path / "tune.json").read_bytes())["trials"]) == 1


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_from_a_bad_start_it_ends_with_better_settings_and_says_so(url: str, tmp_path: Path) -> None:
    """With the probing load, as a user would."""
    before, path, page = settings_of(url), tmp_path / "tune.json", tmp_path / "tune.html"
    done = subprocess.run(
        command(url, "--probe", "6", "--duration", "8", "--drain", "2", "--json", str(path), "--html", str(page)),
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(path.read_bytes())
    assert told["schema_version"] == 1
    assert len(told["trials"]) <= 5
    kept = told["decision"]["kept"]
    assert {name: settings_of(url)[name] for name in START} == {name: kept[name] for name in START}
    shares = [trial["measured"]["good_ratio"] for trial in told["trials"] if trial["settings"] == kept]
    at_first = [trial["measured"]["good_ratio"] for trial in told["trials"] if trial["current"]]
    assert sum(shares) / len(shares) >= sum(at_first) / len(at_first)
    assert "Live tests" in done.stdout
    assert page.read_text().startswith("<!doctype html>")
    changes = json.dumps({name: before[name] for name in START}).encode()
    request = urllib.request.Request(f"{url}/admin/reconfigure", changes, {"content-type": "application/json"})
    urllib.request.urlopen(request, timeout=30).close()


def test_a_promise_that_nothing_can_keep_is_refused_with_its_reason(
    url: str, fit: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = settings_of(url)
    flags = ("--request-rate", "1", "--input-len", "3000", "--slo-ttft", "0.5", "--duration", "5")
    assert status(["tune", url, "--fit", fit, *flags]) == 2
    assert "one prefill of p99 length" in capsys.readouterr().err
    assert settings_of(url) == before


@pytest.mark.slow
def test_a_gateway_is_not_tuned(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    with Server("--worker", url) as gateway:
        assert status(["tune", gateway.url, *LOAD]) in (1, 2)
    assert "gateway" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "Give either the URL of a server, or --local MODEL."),
        (["http://localhost:1", "--local", "m"], "Give either"),
        (["http://localhost:1"], "Nothing is promised"),
        (["http://localhost:1", "--slo-ttft", "1", "--live-tests", "1"], "live-tests"),
        (["http://localhost:1", "--slo-ttft", "1", "--request-rate", "0"], "request-rate"),
        (["http://localhost:1", "--slo-ttft", "nan"], "slo-ttft"),
        (["http://localhost:1", "--slo-ttft", "1", "--profile", "trace"], "--trace FILE"),
        (["http://localhost:1", "--slo-ttft", "1", "--profile", "burst", "--good", "2"], "good"),
        (["http://localhost:1", "--slo-ttft", "1", "--fit", "no such file"], "cannot be read"),
        (["--local", "m", "--slo-ttft", "1", "--serve-flags=--port 1"], "--port, which tune sets itself"),
        (["--local", "m", "--slo-ttft", "1", "--restart-command", "x"], "--local starts its own"),
    ],
)
def test_what_makes_no_sense_is_one_line(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert status(["tune", *arguments]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


def test_a_server_that_is_not_there_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert status(["tune", "http://127.0.0.1:1", "--slo-ttft", "1"]) == 1
    assert "No connection to 127.0.0.1:1" in capsys.readouterr().err


def test_a_local_server_that_does_not_start_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--serve-flags=--executor simulated", "--max-num-seqs", "64", "--max-num-batched-tokens", "8")
    assert status(["tune", "--local", "simulated", *LOAD, *flags]) == 1
    assert "did not start: max_num_seqs is 64" in capsys.readouterr().err
