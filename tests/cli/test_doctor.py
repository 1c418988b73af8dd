"""`headway doctor` from outside: what it prints, what it exits with, and what it says of what it was given."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path

import pytest

from headway.cli import status
from headway.doctor import live
from headway.doctor.facts import Facts
from headway.doctor.live import observe
from headway.wire.asker import Asker
from tests.doctor.serving import Reply, Table, json_of, serving, text

FAST = ("--window", "2", "--interval", "0.2")


def vllm(running: int, waiting: int, ttft_s: float) -> Table:
    """A server that starts ten requests between two looks, each with this TTFT."""
    looks = count()

    def metrics(_: str) -> Reply:
        done = 10 * next(looks)
        lines = [
            f"vllm:num_requests_running {running}",
            f"vllm:num_requests_waiting {waiting}",
            "vllm:kv_cache_usage_perc 0.2",
            f"vllm:request_success_total {done}",
        ]
        for name, value in (("time_to_first_token_seconds", ttft_s), ("request_queue_time_seconds", ttft_s - 0.05)):
            bound = next(one for one in (0.1, 1.0, 5.0) if value <= one)
            lines += [f'vllm:{name}_bucket{{le="{edge}"}} {done if edge >= bound else 0}' for edge in (0.1, 1.0, 5.0)]
            lines += [f'vllm:{name}_bucket{{le="+Inf"}} {done}', f"vllm:{name}_sum {done * value}"]
        return text("\n".join(lines) + "\n")

    return {"/metrics": metrics, "/health": text("")}


def test_healthy_is_one_line_and_zero(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(vllm(4, 0, 0.08)) as url:
        assert status(["doctor", url, *FAST]) == 0
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert "healthy" in out


def test_a_finding_names_cause_evidence_and_setting(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(vllm(8, 6, 3.0)) as url:
        assert status(["doctor", url, *FAST]) == 3
    out = capsys.readouterr().out
    assert "[slot-limit" in out
    assert "seen:" in out
    assert "--max-num-seqs" in out
    assert "TTFT gets worse as concurrency rises" in out
    assert "Not told: itl_s" in out


def test_whose_key_it_is_is_said_once_however_long_it_watches(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    looked: list[Asker] = []

    def twice(asker: Asker, _window_s: float, interval_s: float) -> Facts:
        looked.append(asker)
        if len(looked) > 2:
            raise KeyboardInterrupt
        return observe(asker, 3 * interval_s, interval_s)

    monkeypatch.setenv("HEADWAY_API_KEY", "of-the-environment")
    monkeypatch.setattr(live, "observe", twice)
    with serving(vllm(4, 0, 0.08)) as url, pytest.raises(SystemExit, match="130"):
        status(["doctor", url, *FAST, "--watch"])
    assert len(looked) == 3
    assert capsys.readouterr().err.count("with the key of HEADWAY_API_KEY") == 1


def test_a_server_that_starts_again_does_not_end_the_watch(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is said that it is gone, once, and what it does when it is back; one that never was there is an error."""
    looks = count()

    def between_restarts(asker: Asker, _window_s: float, interval_s: float) -> Facts:
        match next(looks):
            case 1 | 2 | 3:
                return observe(Asker("http://127.0.0.1:9"), 3 * interval_s, interval_s)
            case 6:
                raise KeyboardInterrupt
        return observe(asker, 3 * interval_s, interval_s)

    monkeypatch.setattr(live, "observe", between_restarts)
    with serving(vllm(8, 6, 3.0)) as url, pytest.raises(SystemExit, match="130"):
        status(["doctor", url, "--window", "2", "--interval", "0.1", "--watch"])
    said = capsys.readouterr()
    assert said.err.count("nothing listens there") == 1
    assert said.out.count("   asks:") == 2  # before, and once more after it


def test_a_prometheus_that_starts_again_does_not_end_the_watch(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    looks = count()

    def answer(_: str) -> Reply:
        match next(looks):
            case 0:
                return json_of('{"status": "success", "data": {"result": [0, "0"]}}')
            case 1:
                return json_of(
                    '{"status": "success", "data": {"result": [{"metric": {"__name__": "vllm:num_requests_running"}, '
                    '"values": [[0, "1"], [1, "1"], [2, "1"]]}]}}'
                )
        return 503, "text/plain", "Service Unavailable"

    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("headway.cli.doctor.time.sleep", sleep)
    with serving({"/api/v1/query": answer}) as url, pytest.raises(SystemExit, match="130"):
        status(["doctor", "--prometheus", url, "--window", "2", "--interval", "0.1", "--watch"])
    assert slept == [2, 0.1, 0.1]
    assert capsys.readouterr().err.count("It is asked again") == 1


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(vllm(8, 6, 3.0)) as url:
        assert status(["doctor", url, *FAST, "--json"]) == 3
    said = capsys.readouterr()
    assert said.err == f"watching {url} for 2 s\n", "it takes a while, and says so beside the JSON"
    told = json.loads(said.out)
    assert told["verdict"] == "findings"
    assert told["findings"][0]["cause"] == "slot-limit"
    assert told["findings"][0]["changes"][0]["setting"] == "max_num_seqs"


def test_a_promise_of_ones_own(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(vllm(8, 6, 0.9)) as url:
        assert status(["doctor", url, *FAST, "--slo-ttft", "0.2"]) == 3
    assert "[slot-limit" in capsys.readouterr().out


def test_a_server_without_metrics_is_four(capsys: pytest.CaptureFixture[str]) -> None:
    with serving({"/v1/models": json_of('{"data": []}')}) as url:
        assert status(["doctor", url, *FAST]) == 4
    assert "headway bench" in capsys.readouterr().out


def test_an_idle_server_is_four(capsys: pytest.CaptureFixture[str]) -> None:
    page = "vllm:num_requests_running 0\nvllm:num_requests_waiting 0\nvllm:prompt_tokens_total 5\n"
    with serving({"/metrics": text(page)}) as url:
        assert status(["doctor", url, *FAST]) == 4
    assert "nothing was asked of it" in capsys.readouterr().out


def test_a_prometheus_that_wants_a_login_is_told_how(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HEADWAY_PROMETHEUS_TOKEN", raising=False)
    table = {"/api/v1/query": json_of('{"status": "success", "data": {"result": []}}')}
    with serving(table, wants="Bearer token") as url:
        assert status(["doctor", "--prometheus", url]) == 1
        err = capsys.readouterr().err
        assert "401" in err
        assert "HEADWAY_PROMETHEUS_TOKEN" in err
        monkeypatch.setenv("HEADWAY_PROMETHEUS_TOKEN", "token")
        assert status(["doctor", "--prometheus", url]) == 1
    assert "has nothing of a known server" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "nothing to look at"),
        (["http://x", "--window", "1"], "--window"),
        (["http://x", "--interval", "40"], "--interval"),
        (["--step-log", "x", "--watch"], "--watch"),
        (["--step-log", "/nowhere/x"], "cannot be read"),
        (["--prometheus", "http://x", "--since", "soon"], "--since"),
        (["http://x", "--since", "5m"], "--window"),
        (["http://user:pw@x"], "has a user"),
    ],
)
def test_asked_wrongly(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert status(["doctor", *arguments]) == 2
    err = capsys.readouterr().err
    assert says in err
    assert "pw" not in err


def test_a_promise_that_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(vllm(1, 0, 0.08)) as url:
        assert status(["doctor", url, *FAST, "--slo-itl", "-1"]) == 2
    assert "--slo-itl" in capsys.readouterr().err


def test_nobody_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert status(["doctor", "http://127.0.0.1:9", *FAST]) == 1
    err = capsys.readouterr().err
    assert "cannot be asked" in err
    assert "Traceback" not in err
