"""`headway generate`: from a prompt to text on stdout."""

from __future__ import annotations

import io
import sys

import pytest

from headway.cli import status


def generated(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert status(["generate", *arguments, "--executor", "simulated"]) == 0
    return capsys.readouterr().out


def test_it_prints_the_completion_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    text = generated(capsys, "hello", "--max-tokens", "5")
    assert len(text.split()) == 5
    assert text.endswith("\n")


@pytest.mark.slow
def test_the_same_prompt_gives_the_same_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert generated(capsys, "hello", "--max-tokens", "8") == generated(capsys, "hello", "--max-tokens", "8")


@pytest.mark.slow
def test_chat_and_raw_are_different_prompts(capsys: pytest.CaptureFixture[str]) -> None:
    chat = generated(capsys, "hello", "--max-tokens", "8")
    assert chat == generated(capsys, "hello", "--max-tokens", "8", "--chat")
    assert chat != generated(capsys, "hello", "--max-tokens", "8", "--raw")


def test_a_dash_reads_standard_input(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    expected = generated(capsys, "hello", "--max-tokens", "4")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"hello")))
    assert generated(capsys, "-", "--max-tokens", "4") == expected


def test_standard_input_that_is_no_text(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff\xff")))
    assert status(["generate", "-"]) == 2
    assert "not UTF-8" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (["--max-tokens", "0"], 2, "It must be at least 1."),
        (["--temperature", "-1"], 2, "It must be between 0 and 2."),
        (["--temperature", "nan"], 2, "It must be a finite number."),
        (["--top-p", "2"], 2, "It must be between 0 and 1."),
        (["--max-tokns", "2"], 2, "Unknown option: --max-tokns. Did you mean --max-tokens?"),
        (["--max-num-seqs", "2"], 2, "Unknown option: --max-num-seqs"),
        (["--max-tokens", "99999999"], 1, "maximum context length is"),
        (["--model", "no-such-model", "--executor", "openvino"], 1, "no-such-model"),
    ],
)
def test_mistakes(capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, expected: str) -> None:
    executor = [] if "--executor" in arguments else ["--executor", "simulated"]
    assert status(["generate", "hello", *executor, *arguments]) == code
    complaint = capsys.readouterr().err
    assert expected in complaint
    assert "Traceback" not in complaint


def test_without_a_prompt(capsys: pytest.CaptureFixture[str]) -> None:
    assert status(["generate", "--max-tokns"]) == 2
    assert "Unknown option: --max-tokns" in capsys.readouterr().err
    assert status(["generate"]) == 2
    assert "PROMPT" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.model
def test_the_default_model_knows_the_capital_of_france(capsys: pytest.CaptureFixture[str]) -> None:
    assert status(["generate", "What is the capital of France?", "--max-tokens", "16", "--kv-cache-gib", "0.1"]) == 0
    assert "Paris" in capsys.readouterr().out
