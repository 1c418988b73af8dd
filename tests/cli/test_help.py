"""The command line from outside: fast, complete, and quiet about its inside."""

from __future__ import annotations

import subprocess
import sys

import pytest

from headway.cli import status
from headway.cli.config import SERVE_KEYS

HEAVY = {"numpy", "openvino", "openvino_genai", "aiohttp", "gguf", "huggingface_hub"}


def headway(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "headway", *arguments], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize(
    "arguments",
    [[], ["--help"], ["help"], ["help", "serve"], ["serve", "--help"], ["generate", "--help"], ["fetch", "--help"]],
)
def test_help_answers(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert status(arguments) == 0
    assert "Usage: headway" in capsys.readouterr().out


def test_help_of_serve_lists_every_flag(capsys: pytest.CaptureFixture[str]) -> None:
    status(["serve", "--help"])
    shown = capsys.readouterr().out
    assert [key.name for key in SERVE_KEYS if f"--{key.name} " not in shown] == []


@pytest.mark.parametrize("word", ["--version", "version"])
def test_version(word: str) -> None:
    answer = headway(word)
    assert answer.returncode == 0
    assert answer.stdout.split(".")[0].isdigit()


@pytest.mark.parametrize(("arguments", "heavy"), [([], HEAVY | {"tokenizers", "jinja2"}), (["serve"], HEAVY)])
def test_help_loads_nothing_heavy(arguments: list[str], heavy: set[str]) -> None:
    code = (
        f"import sys; from headway.cli import status; status({[*arguments, '--help']}); print('LOADED', *sys.modules)"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert heavy & set(answer.stdout.partition("LOADED")[2].split()) == set()
