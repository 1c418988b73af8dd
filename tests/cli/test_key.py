"""The key of the environment: sent where it may go, said, and never told."""

from __future__ import annotations

import pytest

from headway.cli.bench.flags import ReportOptions, options
from headway.cli.key import is_private, key_of_environment


def key_for(url: str, **settings: object) -> str | None:
    return options(dict(settings), ReportOptions(), url).server.api_key


@pytest.mark.parametrize(
    ("url", "sent"),
    [
        ("https://api.example.com/v1", True),
        ("http://localhost:8000", True),
        ("127.0.0.1:8000", True),
        ("http://[::1]:8000", True),
        ("http://10.1.2.3", True),
        ("http://gpu-box:8000/v1", True),
        ("http://vllm.svc.cluster.local", True),
        ("http://api.example.com/v1", False),
        ("http://8.8.8.8", False),
        ("http://[2606:4700::1111]", False),
        ("http://localhost.example.com", False),
    ],
)
def test_a_key_goes_where_nobody_else_reads_it(
    url: str, sent: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("HEADWAY_API_KEY", raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", "the-key-itself")
    assert key_for(url) == ("the-key-itself" if sent else None)
    said = capsys.readouterr().err
    assert said.startswith(f"headway: {'with' if sent else 'without'} the key of OPENAI_API_KEY")
    assert "the-key-itself" not in said


def test_a_key_that_is_given_goes_anywhere(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("HEADWAY_API_KEY", "of-the-environment")
    assert key_for("http://api.example.com", api_key="given") == "given"
    assert key_for("http://localhost", header=("Authorization: Bearer given",)) is None
    assert capsys.readouterr().err == ""


def test_without_a_server_there_is_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_API_KEY", "of-the-environment")
    assert options({}, ReportOptions()).server.api_key is None


@pytest.mark.parametrize("url", ["", "http://[::1", "http://"])
def test_what_is_no_url_gets_no_key(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks there says what is wrong with it."""
    monkeypatch.setenv("HEADWAY_API_KEY", "of-the-environment")
    assert key_of_environment(url) is None


def test_a_zone_is_no_part_of_an_address() -> None:
    assert is_private("fe80::1%eth0")
