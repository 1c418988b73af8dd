"""JSON lines, each with its place in the file, so that an error can name it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from headway.workload.errors import WorkloadError, shown

Row = dict[str, Any]
MAX_NAME_CHARS = 200
# A character beyond U+FFFF, escaped; and half of one.
_PAIR = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}")
_HALF = re.compile(r"\\u[dD][89a-fA-F]")
_ADVICE = "Correct the line or remove it."


@contextmanager
def reading(path: str | Path) -> Iterator[None]:
    """Tells of a file that cannot be read in our own words."""
    try:
        yield
    except OSError as error:
        raise WorkloadError(f"cannot read {path}: {error.strerror or error}", field="path") from error
    except UnicodeDecodeError as error:
        raise WorkloadError(
            f"{path}{_undecodable(path)}: this is not UTF-8 text ({error.reason})", field="path"
        ) from error


def _undecodable(path: str | Path) -> str:
    """The first line that is no UTF-8, as an error names it."""
    with Path(path).open("rb") as file:
        return next((f":{number}" for number, line in enumerate(file, 1) if not is_text(line)), "")


def is_text(line: bytes) -> bool:
    """Whether a line of JSON is UTF-8, and no escape in it is half of a surrogate pair."""
    try:
        text = line.decode().replace(r"\\", "")  # an escaped backslash escapes nothing
    except UnicodeDecodeError:
        return False
    return _HALF.search(_PAIR.sub("", text)) is None


def at_line(path: str | Path, number: int, error: WorkloadError) -> WorkloadError:
    """`error` with where it was and what to do."""
    return WorkloadError(f"{path}:{number}: {error}. {_ADVICE}", field=error.field)


def json_lines(path: str | Path) -> Iterator[tuple[int, Row]]:
    """Number and object of every line that is not blank.

    Raises:
        WorkloadError: a line is not a JSON object, or the file cannot be read.
    """
    with reading(path), Path(path).open("rb") as file:
        for number, line in enumerate(file, 1):
            text = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
            if text.strip():
                try:
                    yield number, _object(text)
                except WorkloadError as error:
                    raise at_line(path, number, error) from None


def _object(line: bytes) -> Row:
    try:
        value = msgspec.json.decode(line)
    except (msgspec.DecodeError, RecursionError) as strict:
        value = _lenient(line, strict)
    if not isinstance(value, dict):
        raise WorkloadError(f"a line must hold a JSON object, not {shown(value)}")
    return value


def _lenient(line: bytes, strict: Exception) -> Any:
    """Python writes NaN and Infinity, which are no JSON. They are let through here, to be refused by field."""
    try:
        value = json.loads(line.decode())
        check_text(value)
        return value
    except WorkloadError:
        raise
    except (ValueError, RecursionError):
        raise WorkloadError(f"a line must hold a JSON object; this is none: {strict}") from None


def check_text(value: Any) -> None:
    """Raises WorkloadError where a text within is none: JSON can escape half of a surrogate pair, which is no UTF-8."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        sign = error.object[error.start]
        raise WorkloadError(
            f"\\u{ord(sign):04x} is half of a character (a surrogate without its other half), which is no text"
        ) from None


def required(row: Mapping[str, Any], field: str) -> Any:
    """The field's value. Raises WorkloadError where there is none."""
    value = row.get(field)
    if value is None:
        raise WorkloadError(f"{field} is missing", field=field)
    return value


def name(row: Mapping[str, Any], field: str) -> str:
    """A short text, empty where there is none."""
    value = row.get(field)
    if value is None:
        return ""
    if not isinstance(value, str) or len(value) > MAX_NAME_CHARS:
        raise WorkloadError(
            f"{field} must be a text of at most {MAX_NAME_CHARS} characters, not {shown(value)}", field=field
        )
    return value


def messages(row: Mapping[str, Any]) -> list[Row]:
    """The chat messages of a row: a list of objects that each have a role."""
    value = required(row, "messages")
    if not isinstance(value, list) or not value:
        raise WorkloadError(f"messages must be a list of at least one message, not {shown(value)}", field="messages")
    for place, message in enumerate(value):
        if not isinstance(message, dict):
            raise WorkloadError(f"messages[{place}] must be an object, not {shown(message)}", field="messages")
        if not isinstance(message.get("role"), str):
            raise WorkloadError(
                f"messages[{place}].role must be a text such as user, not {shown(message.get('role'))}",
                field="messages",
            )
        if not isinstance(message.get("content"), str | list | None):
            raise WorkloadError(
                f"messages[{place}].content must be a text or a list of parts, not {shown(message['content'])}",
                field="messages",
            )
    return value
