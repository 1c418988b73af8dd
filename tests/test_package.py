"""What `from headway import …` offers."""

from __future__ import annotations

import subprocess
import sys

import pytest

import headway
from headway.core import errors


@pytest.mark.parametrize("name", headway.__all__)
def test_every_name_is_there(name: str) -> None:
    assert getattr(headway, name).__name__ == name


def test_dir_lists_what_is_offered() -> None:
    assert dir(headway) == headway.__all__


def test_errors_are_those_that_are_raised() -> None:
    assert headway.EngineFailed is errors.EngineFailed
    assert issubclass(headway.QueueFull, headway.HeadwayError)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Engin'"):
        getattr(headway, "Engin")  # noqa: B009 - mypy knows that it is not there


def test_an_error_costs_no_runtime_to_import() -> None:
    code = "import sys; from headway import HeadwayError; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert {"numpy", "openvino", "tokenizers"}.isdisjoint(loaded.stdout.split())
