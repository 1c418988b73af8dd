"""Readers of what servers and load tests wrote. Every complaint names the file, the line and the field."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from headway.core.errors import ConfigError

_decode = msgspec.json.Decoder().decode


def text_of(path: Path) -> bytes:
    """A file's content. Raises `ConfigError`."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from error


def json_of(path: Path) -> dict[str, Any]:
    """A file that is one JSON object. Raises `ConfigError`."""
    try:
        value = _decode(text_of(path))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: no JSON: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: a JSON object is expected, not {type(value).__name__}")
    return value


def lines_of(path: Path, *, torn: Literal["raise", "skip"] = "raise") -> Iterator[Line]:
    """The objects of a file of JSON lines; empty lines are passed over, and a last one that was cut off.

    A crash or a full disk cuts lines short in the middle of a file as well; `torn` says what is done with those.
    Raises `ConfigError`: such a line, or a file that cannot be read.
    """
    lines = text_of(path).split(b"\n")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            value = _decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            if torn == "skip":
                continue
            if number == len(lines):
                return  # it is still being written, or the disk was full
            raise ConfigError(f"{path} line {number}: no JSON: {error}") from error
        if not isinstance(value, dict):
            if torn == "skip":
                continue
            raise ConfigError(f"{path} line {number}: a JSON object is expected, not {type(value).__name__}")
        yield Line(value, f"{path} line {number}")


class Line:
    """One object, and where it stands."""

    __slots__ = ("fields", "where")

    def __init__(self, fields: Mapping[str, Any], where: str) -> None:
        self.fields = fields
        self.where = where

    def wrong(self, what: str) -> ConfigError:
        """A complaint about this line."""
        return ConfigError(f"{self.where}: {what}")

    def number(self, *names: str, least: float = 0.0) -> float:
        """A number by any of its names. Raises `ConfigError`: absent, no number, NaN, or below `least`."""
        value = self.maybe(*names, least=least)
        if value is None:
            raise self.wrong(f"no field {' or '.join(map(repr, names))}")
        return value

    def maybe(self, *names: str, least: float = 0.0) -> float | None:
        """The same, or None where it is absent or null."""
        name = next((name for name in names if self.fields.get(name) is not None), None)
        if name is None:
            return None
        value = self.fields[name]
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.wrong(f"{name} is {value!r}, and must be a number")
        if not math.isfinite(value) or value < least:
            raise self.wrong(f"{name} is {value}, and must be a number of at least {least:g}")
        return float(value)

    def whole(self, *names: str, least: int = 0) -> int:
        """A whole number, as `number`."""
        value = self.number(*names, least=least)
        if value != int(value):
            raise self.wrong(f"{names[0]} is {value}, and must be a whole number")
        return int(value)


def is_step_log(path: Path) -> bool:
    """Does its first line say that it is a log of this project? What kind is asked later."""
    for line in lines_of(path):
        return line.fields.get("kind") == "header" or "log" in line.fields
    raise ConfigError(f"{path}: the file is empty")
