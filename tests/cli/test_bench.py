"""`headway bench` as a person uses it: flags, exit statuses, files, Ctrl-C, and a sweep that was killed."""

from __future__ import annotations

import contextlib
import json
import os
import pkgutil
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headway.cli import status
from headway.cli.bench.flags import PROFILE_KEYS, keys_of
from headway.cli.bench.several import NO_LOAD_HOLDS, UNDECIDED, stable_code
from headway.loadtest.compare import DIFFERENT, SAME, UNKNOWN, compare
from headway.loadtest.probe import Requirements
from headway.loadtest.report.csv_file import load_records
from headway.loadtest.report.curve import stable_headline
from headway.loadtest.report.json_file import load_run
from headway.loadtest.result import Word
from headway.loadtest.stable import Stable
from tests.cli.running import Server

SHORT = ("--input-len", "40", "--output-len", "3", "--quiet")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with Server("--executor", "simulated") as server:
        yield server.url


@pytest.fixture(scope="module")
def saved(url: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run."""
    folder = tmp_path_factory.mktemp("saved") / "run"
    arguments = ["bench", url, "--concurrency", "4", "--num-prompts", "40", "--warmup", "0", *SHORT]
    status([*arguments, "--as", "vllm", "--note", "gpu=none", "--output", str(folder)])
    return folder


def started(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "headway", "bench", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


# -- help and flags ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "flags"),
    [
        *(([name], keys_of(name)) for name in (*PROFILE_KEYS, "sweep", "stable")),
        ([], keys_of("concurrency")),
    ],
    ids=lambda part: " ".join(part) if isinstance(part, list) else "",
)
def test_help_lists_every_flag(command: list[str], flags: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert status(["bench", *command, "--help"]) == 0
    shown = set(re.findall(r"--[\w-]+", capsys.readouterr().out))
    assert [name for key in flags for name in key.setting.names or [key.name] if f"--{name}" not in shown] == []


@pytest.mark.parametrize(
    ("command", "flag"),
    [
        ("mix", "--input-len"), ("mix", "--output-len"), ("trace", "--input-len"), ("trace", "--output-len"),
        ("trace", "--shared-prefix-tokens"), ("stable", "--percentile"), ("stable", "--duration"), ("sweep", "--json"),
    ],
)  # fmt: skip
def test_a_flag_that_means_nothing_to_a_command_is_none_of_it(
    command: str, flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status(["bench", command, "--help"]) == 0
    assert flag not in set(re.findall(r"--[\w-]+", capsys.readouterr().out))
    assert status(["bench", command, "http://localhost", *(["trace.csv"] * (command == "trace")), flag, "5"]) == 2
    assert flag in capsys.readouterr().err


@pytest.mark.parametrize("command", ["compare", "report", "stable", "sweep"])
def test_help_tells_the_exit_statuses_of_the_command(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert status(["bench", command, "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert shown.count("Exit status") == 1
    assert "TOO-FEW-SAMPLES" not in shown
    assert ("7 comparable and different" in shown) == (command == "compare")
    assert ("9 when no load holds" in shown) == (command == "stable")


def test_help_loads_no_numbers() -> None:
    code = "import sys; from headway.cli import status; status(['bench', '--help']); print('LOADED', *sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert {"numpy", "aiohttp", "plotly", "httptools"}.isdisjoint(done.stdout.partition("LOADED")[2].split())


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["http://127.0.0.1:1"], 1, "connection refused"),
        (["http://no.such.host.invalid"], 1, "has no address"),
        (["ftp://localhost"], 2, "use http or https"),
        (["URL", "--model", "gpt-9"], 1, "It serves:"),
        (["URL", "--warmup", "9", "--duration", "5"], 2, "leave nothing"),
        (["URL", "--concurrency", "0"], 2, "between 1"),
        (["URL", "--input-len", "long"], 2, "--input-len"),
        (["URL", "--extra-body", "{"], 2, "--extra-body"),
        (["URL", "--note", "gpu"], 2, "--note"),
        (["URL", "--note", "gpu=\udcff"], 2, "--note is not UTF-8"),
        (["URL", "--json", "OUT/x", "--html", "OUT/x"], 2, "Two outputs would go to"),
        (["URL", "--tenants", "a,b", "--tenant-key", "c=some-key"], 2, "--tenant-key c"),
        (["sweep", "URL", "--tenants", "a,b", "--tenant-key", "c=some-key", "--output", "OUT"], 2, "--tenant-key c"),
        (["URL", "--input-len", "100", "--shared-prefix-tokens", "200"], 2, "--shared-prefix-tokens 200"),
        (["URL", "--note", "device_count=some"], 2, "--note device_count"),
        (["sweep", "URL", "--vary", "api-key=one,two", "--output", "OUT"], 2, "--vary api-key"),
        (["URL", "--tokenizer", "nowhere"], 2, "--tokenizer nowhere"),
        (["URL", "--request-rate", "5"], 2, "headway bench rate"),
        (["rate", "URL", "--max-concurrency", "5"], 2, "never held back"),
        (["rate", "URL", "other"], 2, "the server's URL"),
        (["rate", "URL", "--request-rate", "inf"], 2, "--request-rate"),
        (["trace", "URL", "none.csv"], 2, "none.csv"),
        (["trace", "URL"], 2, "FILE"),
        (["stable", "URL"], 2, "--slo-ttft"),
        (["sweep", "URL", "--vary", "wings=2", "--output", "OUT"], 2, "wings"),
        (["sweep", "URL", "--profile", "trace", "--output", "OUT"], 2, "--trace FILE"),
        (["swep", "URL"], 2, "Did you mean sweep?"),
        (["stable", "URL", "--duration", "5"], 2, "--window"),
        (["compare", "none", "other", "--duration", "5"], 2, "measures nothing"),
        (["compare", "none", "other"], 1, "none"),
        (["report"], 2, "report takes"),
        (["report", "none.json"], 1, "none.json"),
    ],
)
def test_what_is_wrong_is_one_line(  # noqa: PLR0917 - fixtures and parameters
    url: str, tmp_path: Path, arguments: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [url if word == "URL" else word.replace("OUT", str(tmp_path)) for word in arguments]
    assert status(["bench", *words]) == code
    lines = [line for line in capsys.readouterr().err.splitlines() if line != "asking the server…"]  # when it is slow
    assert len(lines) == 1
    assert lines[0].startswith("headway: ")
    assert said in lines[0]


@pytest.mark.parametrize("command", ["burst", "ramp", "trace"])
def test_help_tells_what_is_left_out_at_both_ends(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    status(["bench", command, "--help"])
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "it counts from its first second" in shown
    assert "a tenth of the duration" not in shown


# -- a run -------------------------------------------------------------------------------------------------------------


def test_files_agree_with_each_other(saved: Path) -> None:
    run, lines = load_run(saved / "run.json"), load_records(saved / "run.csv")
    page = (saved / "run.html").read_text()
    assert len(lines) == 40
    assert sum(run.summary.overall.fates.values()) == run.summary.overall.requests == 40
    assert {line.record.fate.value for line in lines} == set(run.summary.overall.fates)
    assert run.load.profile == "concurrency"
    assert run.load.concurrency == 4
    assert run.environment.noted == {"gpu": "none"}
    assert set(run.summary.rivals) == {"vllm"}
    assert run.verdict.name in page
    assert "P99 TTFT (ms)" in page


def test_the_exit_status_is_the_verdict(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.json"
    code = status(["bench", "rate", url, "--rate", "20", "--requests", "12", *SHORT, "--json", str(path)])
    run = load_run(path)
    assert code == run.verdict.name.exit_code != 0, "12 requests tell no p99"
    shown = capsys.readouterr().out
    assert shown.startswith(run.verdict.name)
    assert f"wrote {path}" in shown


@pytest.mark.slow
def test_json_on_stdout_is_all_that_is_there(url: str) -> None:
    process = started(url, "--requests", "5", *SHORT, "--json", "-")
    out, err = process.communicate(timeout=120)
    assert json.loads(out)["verdict"]["name"] == Word.TOO_FEW_SAMPLES or process.returncode == 3
    assert "Load and throughput" in err


def test_a_disk_that_is_full_costs_no_report_and_no_other_file(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = ["--csv", "/dev/full", "--json", str(tmp_path / "run.json")]
    assert status(["bench", url, "--requests", "5", *SHORT, *files]) == 2
    shown = capsys.readouterr()
    assert "Load and throughput" in shown.out
    assert "/dev/full cannot be written: No space left on device." in shown.err
    assert load_run(tmp_path / "run.json").summary.overall.requests > 0


def test_a_key_of_the_environment_is_used_and_not_told(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "a-key-of-the-environment")
    status(["bench", url, "--requests", "5", *SHORT, "--output", str(tmp_path / "run")])
    shown = capsys.readouterr()
    told = [path.read_text() for path in (tmp_path / "run").iterdir()] + [shown.out, shown.err]
    assert len(told) == 5
    assert not [text for text in told if "a-key-of-the-environment" in text]


def test_ctrl_c_reports_what_was_measured(url: str, tmp_path: Path) -> None:
    process = started(
        url, "--duration", "60", "--requests", "2000", "--warmup", "0", *SHORT[:-1], "--output", str(tmp_path / "run")
    )
    assert process.stderr is not None
    for line in process.stderr:  # it says how far it is as soon as the load has begun
        if line.startswith("0:0"):
            break
    time.sleep(1.0)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    run = load_run(tmp_path / "run" / "run.json")
    assert run.interrupted
    assert run.elapsed_s < 50
    assert run.summary.overall.fates.get("ok", 0) > 0
    assert "interrupted" in out


@pytest.mark.parametrize(
    "place",
    ["headway.loadtest.bench.tester.summarise", pytest.param("headway.cli.bench.run.save", marks=pytest.mark.slow)],
)
def test_ctrl_c_after_the_load_costs_nothing(
    place: str, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """While figures are made, in a thread, and while they are saved."""
    really = pkgutil.resolve_name(place.replace(".summarise", ":summarise").replace(".save", ":save"))

    def impatient(*given: Any, **named: Any) -> Any:
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.05)
        return really(*given, **named)

    monkeypatch.setattr(place, impatient)
    handler = signal.getsignal(signal.SIGINT)
    code = status(["bench", url, "--requests", "5", *SHORT, "--output", str(tmp_path / "run")])
    assert code == load_run(tmp_path / "run" / "run.json").verdict.name.exit_code
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["run.csv", "run.html", "run.json"]
    assert capfd.readouterr().err.count("writing the report") == 1
    assert signal.getsignal(signal.SIGINT) is handler


# -- several runs ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_sweep_that_was_killed_goes_on(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["sweep", url, "--vary", "concurrency=1,2,3", "--duration", "1", "--requests", "20", *SHORT]
    arguments += ["--output", str(tmp_path)]
    process = started(*arguments)
    until_s = time.monotonic() + 60
    while not list(tmp_path.glob("001-*.json")) and time.monotonic() < until_s:
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    done = len(list(tmp_path.glob("0*.json")))
    assert 1 <= done < 3
    assert status(["bench", *arguments]) in {0, Word.CLIENT_LIMITED.exit_code}
    shown = capsys.readouterr().out
    assert f"{done} of 3 points had been measured before" in shown
    assert all(f"concurrency={slots}" in shown for slots in (1, 2, 3))
    assert "concurrency=3" in (tmp_path / "sweep.html").read_text()
    assert status(["bench", "report", str(tmp_path)]) == 0
    assert "concurrency=2" in capsys.readouterr().out
    [point] = tmp_path.glob("002-*.json")
    point.write_text("{")
    assert status(["bench", "report", str(tmp_path)]) == 0
    shown_again = capsys.readouterr()
    assert f"left out: {point}" in shown_again.err
    assert "concurrency=3" in shown_again.out
    assert "concurrency=2" not in shown_again.out


@pytest.mark.slow
def test_stable_finds_a_load_and_draws_it(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = status(
        [
            "bench",
            "stable",
            url,
            "--slo-e2e",
            "0.000002",
            "--by",
            "concurrency",
            "--start",
            "1",
            "--window",
            "2",
            "--sustain",
            "1",
            "--repeats",
            "3",
            "--warmup",
            "0",
            "--output",
            str(tmp_path),
            "--input-len",  # long enough that a busy machine is not late by a tenth of the TTFT
            "800",
            *SHORT[2:],
        ]
    )
    # Nobody keeps that promise; a machine that is too busy to see it says that instead, and everywhere.
    said = {NO_LOAD_HOLDS: "No load holds", Word.CLIENT_LIMITED.exit_code: "No load could be tried"}[code]
    assert said in capsys.readouterr().out
    assert said in (tmp_path / "stable.html").read_text()
    page = tmp_path / "again.html"
    assert status(["bench", "report", str(tmp_path), "--html", str(page)]) == 0
    assert said in capsys.readouterr().out
    assert said in page.read_text()
    assert status(["bench", "compare", str(tmp_path), str(tmp_path)]) == 1
    assert "holds a search for the stable region, not one run" in capsys.readouterr().err
    (tmp_path / "stable.json").unlink()  # as one that was broken off
    assert status(["bench", "report", str(tmp_path)]) == 0
    assert "has not ended" in capsys.readouterr().err


def found(bound: str, load: float | None = 8.0, *, converged: bool = True, breaks_at: float | None = None) -> Stable:
    return Stable(
        load=load, reason="the reason", bound=bound, breaks_at=breaks_at, tolerance=None, sustained=load is not None,
        converged=converged, probes=[],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("answer", "code", "tone", "word"),
    [
        (found("promise", breaks_at=8.2), 0, "good", "Stable up to 8"),
        (found("limit"), 0, "warn", "Stable at least 8"),
        (found("client"), Word.CLIENT_LIMITED.exit_code, "warn", "Stable at least 8"),
        (found("client", None), Word.CLIENT_LIMITED.exit_code, "warn", "No load could be tried"),
        (found("promise", None), NO_LOAD_HOLDS, "bad", "No load holds"),
        (found("promise", converged=False, breaks_at=9.0), UNDECIDED, "warn", "Stable at least 8"),
    ],
)
def test_what_is_not_the_servers_border_is_not_told_as_such(
    saved: Path, answer: Stable, code: int, tone: str, word: str
) -> None:
    assert stable_code(answer) == code
    said_tone, said, _, evidence = stable_headline(answer, load_run(saved / "run.json"), Requirements())
    assert said_tone == tone
    assert said.startswith(word)
    assert any("9" in line for line in evidence if "does not hold" in line) == (answer.breaks_at == 9.0)


# -- saved runs --------------------------------------------------------------------------------------------------------


def test_a_saved_run_is_shown_again(saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "again.html"
    assert status(["bench", "report", str(saved), "--as", "vllm", "--html", str(page)]) == 0
    shown = capsys.readouterr().out
    assert "Load and throughput" in shown
    assert "P99 TTFT (ms)" in shown
    assert status(["bench", "report", str(saved), "--as", "aiperf"]) == 0
    assert "--as aiperf: the run was made without it" in capsys.readouterr().err
    assert "Load and throughput" in page.read_text()
    assert status(["bench", "report", str(saved), str(saved / "run.json"), "--html", str(page)]) == 0
    assert "2 runs" in page.read_text()


def variant(saved: Path, folder: Path, slower: float = 1.0, **environment: Any) -> Path:
    """A copy of the run that is VALID, and whose latencies are longer."""
    folder.mkdir()
    run = json.loads((saved / "run.json").read_text())
    run["verdict"] = {"name": "VALID", "findings": []}
    run["environment"] |= environment
    for figures in run["summary"]["overall"]["distributions"].values():
        for interval in figures["percentiles"].values():
            if interval["value"] is not None:
                value = interval["value"] * slower
                interval |= {"value": value, "low": value * 0.99, "high": value * 1.01}
    path = folder / "run.json"
    path.write_text(json.dumps(run))
    return path


def test_compare_says_by_its_status_whether_two_runs_differ(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = str(variant(saved, tmp_path / "one"))
    slow = str(variant(saved, tmp_path / "slow", slower=2.0))
    other = str(variant(saved, tmp_path / "other", framework="vLLM 1"))
    page = tmp_path / "compare.html"
    assert status(["bench", "compare", one, one, "--html", str(page)]) == 0
    assert "Comparable" in page.read_text()
    assert status(["bench", "compare", one, slow]) == 7
    capsys.readouterr()
    assert status(["bench", "compare", one, other]) == 8
    assert "framework" in capsys.readouterr().out
    assert status(["bench", "compare", one, other, "--varied", "framework"]) == 0
    assert status(["bench", "compare", one, other, "--varied", "weather"]) == 2
    assert status(["bench", "compare", str(saved), str(saved)]) == 8, "too few samples to be VALID"


@pytest.mark.slow
def test_two_runs_of_our_own_server_can_be_compared_as_they_are(saved: Path, url: str, tmp_path: Path) -> None:
    """Nothing that comparing asks for is unknown, and nobody had to note it."""
    arguments = ["bench", url, "--concurrency", "4", "--num-prompts", "40", "--warmup", "0", *SHORT]
    status([*arguments, "--output", str(tmp_path / "again")])
    states = {
        one.name: one.state
        for one in compare(load_run(saved / "run.json"), load_run(tmp_path / "again" / "run.json")).conditions
    }
    assert {"precision", "quantisation", "device", "device_count", "framework"} <= states.keys()
    assert UNKNOWN not in states.values()
    # Its tokenizer counts bytes, so lengths are about right; forty requests may differ by chance.
    differ = {name for name, state in states.items() if state != SAME and not name.startswith("verdict")}
    assert differ <= {"input_tokens"}


@pytest.fixture(scope="module")
def silent_url() -> Iterator[str]:
    """A server that tells nothing of itself but its model."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
    process = subprocess.Popen([sys.executable, "-m", "tests.loadtest.speaking", str(port), "1"])
    try:
        until_s = time.monotonic() + 30
        while time.monotonic() < until_s:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
                break
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


@pytest.mark.slow
def test_notes_make_runs_of_a_silent_server_comparable(silent_url: str, tmp_path: Path) -> None:
    """As the guide has it: what the server does not tell is noted, and no report is edited."""
    notes = ("precision=fp8", "quantisation=none", "device=H100", "device_count=2", "memory=80GiB", "framework=own 1")
    runs = []
    for name, framework in (("one", "own 1"), ("two", "own 1"), ("other", "own 2")):
        given = [*notes[:-1], f"framework={framework}"]
        flags = [word for text in given for word in ("--note", text)]
        status(["bench", silent_url, "--requests", "30", *SHORT, *flags, "--output", str(tmp_path / name)])
        runs.append(load_run(tmp_path / name / "run.json"))
    told = runs[0].environment
    assert (told.precision, told.quantisation, told.device, told.device_count) == ("fp8", "none", "H100", 2)
    assert (told.memory_bytes, told.framework) == (80 * 2**30, "own 1")

    def states(a: int, b: int) -> dict[str, str]:
        found = compare(runs[a], runs[b]).conditions
        return {one.name: one.state for one in found if not one.name.startswith("verdict")}

    assert set(states(0, 1).values()) == {SAME}
    assert {name for name, state in states(0, 2).items() if state != SAME} == {"framework"}
    assert states(0, 2)["framework"] == DIFFERENT
