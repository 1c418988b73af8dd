"""`Document`: a TOML file, read once, that knows on which line each key stands; and TOML's way to write values."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway.core.errors import ConfigError

_HEADER = re.compile(r"\s*\[\[\s*\"?([A-Za-z0-9_-]+)\"?\s*\]\]")
_ANY_HEADER = re.compile(r"\s*\[")


@dataclass(frozen=True, slots=True)
class Document:
    path: Path
    keys: Mapping[str, Any]
    lines: Sequence[str]

    def where(self, key: str) -> str:
        """`FILE:LINE` of a key, or a table, that stands at the top of the file."""
        return f"{self.path}:{_first(self.lines, key)}"

    def where_in(self, table: str, number: int, key: str) -> str:
        """`FILE:LINE` of a key of the so many-th `[[table]]`; of its head for a key that is not there."""
        return f"{self.path}:{_line(self.lines, table, number, key)}"


def read_document(path: Path) -> Document:
    """Raises ConfigError."""
    try:
        text = path.read_text(encoding="utf-8")
        return Document(path, tomllib.loads(text), text.splitlines())
    except OSError as error:
        raise ConfigError(f"{path}: the configuration file cannot be read: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not valid TOML: {error}.") from error


def toml(value: Any) -> str:
    """A value of a kind that settings have, as TOML."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml, value))}]"
    # JSON's text is TOML's, but that TOML wants what lies outside of Unicode's first plane as it is, and DEL escaped.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _first(lines: Sequence[str], key: str) -> int:
    wanted = re.compile(rf"\s*(\[?\[?\s*(['\"]?){re.escape(key)}\2\s*(=|\]|\.))")
    inside = False  # a table
    for place, line in enumerate(lines, 1):
        header = bool(_ANY_HEADER.match(line))
        if wanted.match(line) and (header or not inside):
            return place
        inside = inside or header
    return 1


def _line(lines: Sequence[str], table: str, number: int, key: str) -> int:
    seen, head = -1, 0
    wanted = re.compile(rf"\s*(['\"]?){re.escape(key)}\1\s*=")
    for place, line in enumerate(lines, 1):
        found = _HEADER.match(line)
        if found and found[1] == table:
            seen += 1
            head = place if seen == number else head
        elif seen == number and _ANY_HEADER.match(line) and "=" not in line.partition("#")[0]:
            break
        elif seen == number and wanted.match(line):
            return place
        if seen > number:
            break
    return head or 1
