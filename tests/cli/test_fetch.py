"""`headway fetch`, and the progress it shows."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from headway.cli import progress, status
from headway.models import Progress

HALF = Progress("fetch", "a-model", 50, 100)


@pytest.mark.model
def test_it_says_how_to_serve_the_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert status(["fetch"]) == 0
    assert capsys.readouterr().out == "smollm2-135m is ready: headway serve smollm2-135m\n"


@pytest.mark.model
def test_scripts_are_told_where_the_model_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert status(["fetch", "--print-path"]) == 0
    folder = Path(capsys.readouterr().out.removesuffix("\n"))
    assert {"openvino_model.xml", "tokenizer.json"} <= {path.name for path in folder.iterdir()}


def test_a_model_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert status(["fetch", "no-such-model"]) == 1
    complaint = capsys.readouterr().err
    assert complaint.startswith("headway: ")
    assert "no-such-model" in complaint


def test_elsewhere_than_on_a_terminal_a_stage_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.shown_progress("fetching") as report:
        report(HALF)
        report(Progress("fetch", "a-model", 100, 100))
        report(Progress("convert", "a-model"))
    assert capsys.readouterr().err == "Fetching a-model ...\nConverting a-model ...\n"


def test_on_a_terminal_there_is_a_bar_and_it_goes_away(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        progress, "Console", lambda *, stderr: Console(stderr=stderr, force_terminal=True, width=100, color_system=None)
    )
    with progress.shown_progress("fetching") as report:
        report(HALF)
    shown = capsys.readouterr().err
    assert "Fetching a-model" in shown
    assert "50/100" in shown
    assert shown.endswith("\x1b[2K"), "the line is erased"


def test_interrupting_ends_the_process_at_once_and_gives_the_cursor_back() -> None:
    code = (
        "import os, time, threading\n"
        "from headway.cli.progress import shown_progress\n"
        "with shown_progress('fetching'):\n"
        "    threading.Thread(target=time.sleep, args=(60,)).start()\n"  # a download that cannot be cancelled
        "    os.write(1, b'ready\\n')\n"
        "    time.sleep(60)\n"
    )
    environment = os.environ | {"FORCE_COLOR": "1"}  # rich takes this for a terminal
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGINT)
        _, shown = process.communicate(timeout=10)
    assert process.returncode == 130
    assert shown.endswith(b"headway: stopped while fetching\n")
    assert shown.rindex(b"\x1b[?25h") > shown.rindex(b"\x1b[?25l")
