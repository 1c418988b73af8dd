"""Numbers that are none: the line says what the flag takes."""

from __future__ import annotations

import pytest

from headway.cli import status


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--duration", "1m"], "--duration: it takes seconds, such as 60, not '1m'."),
        (["--duration", "a while"], "--duration: it takes seconds, such as 60, not 'a while'."),
        (["--warmup=0.5h"], "--warmup: it takes seconds, such as 1800, not '0.5h'."),
        (["--requests", "1k"], "--requests: it takes a whole number, such as 100, not '1k'."),
        (["--temperature", "hot"], "--temperature: it takes a number, such as 0.5, not 'hot'."),
    ],
)
def test_a_number_that_is_none_is_told_with_what_is_wanted(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status(["bench", "http://localhost:1", *arguments]) == 2
    assert capsys.readouterr().err == f"headway: Invalid value for {said}\n"
