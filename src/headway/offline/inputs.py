"""Reading the input, a piece at a time: OpenAI's batch lines, plain lines with a prompt, and the rows of a CSV file.

A line that is wrong is a `BadLine` that says what to do, and the next one is read all the same. What has no lines to
tell apart (no file, another encoding) raises `InputUnreadable`.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from string import Formatter
from typing import Any, BinaryIO

import msgspec

from headway.core.errors import ConfigError
from headway.offline.errors import InputUnreadable
from headway.offline.items import (
    CHAT,
    COMPLETIONS,
    URLS,
    BadLine,
    Item,
    hash_of_body,
    key_of_id,
    key_of_line,
)
from headway.wire.limits import MAX_BODY_BYTES

MAX_LINE_BYTES = MAX_BODY_BYTES + 64 * 1024
MAX_ID_CHARS = 512
BOM = b"\xef\xbb\xbf"
_OTHER_ENCODINGS = {b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16", b"\x1f\x8b": "gzip", b"PK": "zip"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """How lines become requests. `column` and `template` are for CSV: one of them, or a column named `prompt`."""

    column: str | None = None
    template: str | None = None
    id_column: str | None = None
    chat: bool = False  # plain prompts and rows are sent as a chat of one message


@dataclass(frozen=True, slots=True)
class Read:
    """One line, and how many bytes of the input have been read with it."""

    line: Item | BadLine
    position: int


def read(path: Path, format: Format) -> Iterator[Read]:
    """Every line that is not blank. Raises `InputUnreadable`, and `ConfigError` for columns that are not there."""
    try:
        file = path.open("rb")
    except OSError as error:
        raise InputUnreadable(f"The input {path} cannot be read: {error.strerror or error}.") from None
    with file:
        _check_encoding(path, file)
        if path.suffix.lower() == ".csv" or format.column is not None or format.template is not None:
            yield from _read_csv(path, file, format)
        else:
            yield from _read_lines(path, file, format)


def _check_encoding(path: Path, file: BinaryIO) -> None:
    try:
        start = file.read(4)
        file.seek(len(BOM) if start.startswith(BOM) else 0)
    except OSError as error:
        raise InputUnreadable(f"The input {path} cannot be read: {error.strerror or error}.") from None
    for mark, name in _OTHER_ENCODINGS.items():
        if start.startswith(mark):
            raise InputUnreadable(f"The input {path} is {name}; it must be plain text in UTF-8. Convert it first.")


# -- JSON lines --------------------------------------------------------------------------------------------------------


class _Line(msgspec.Struct):
    custom_id: Any = None
    method: Any = msgspec.UNSET
    url: Any = None
    body: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    prompt: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    messages: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    id: Any = None


_line = msgspec.json.Decoder(_Line)
_object = msgspec.json.Decoder(dict[str, msgspec.Raw])


def _read_lines(path: Path, file: BinaryIO, format: Format) -> Iterator[Read]:
    number = 0
    while True:
        try:
            text = file.readline(MAX_LINE_BYTES)
            number += 1
            too_long = len(text) == MAX_LINE_BYTES and not text.endswith(b"\n")
            while too_long and (rest := file.readline(MAX_LINE_BYTES)) and not rest.endswith(b"\n"):
                pass
        except OSError as error:
            raise InputUnreadable(f"The input {path} broke off in line {number}: {error.strerror or error}.") from None
        if not text:
            return
        if too_long:
            yield Read(_bad(number, None, "too_long", f"it is longer than {MAX_LINE_BYTES:,} bytes"), file.tell())
        elif stripped := text.strip():
            yield Read(line_of(number, stripped, format), file.tell())


def line_of(number: int, text: bytes, format: Format) -> Item | BadLine:
    """One line of JSON as an item, or what is wrong with it."""
    try:
        text.decode()
        line = _line.decode(text)
    except UnicodeDecodeError as error:
        return _bad(number, None, "invalid_json", f"it is not UTF-8 (byte {error.start})")
    except (msgspec.DecodeError, RecursionError) as error:
        return _bad(number, None, "invalid_json", f"it is not a JSON object: {error}")
    given = line.custom_id if line.custom_id is not None else line.id
    if line.body is msgspec.UNSET and (line.prompt is not msgspec.UNSET or line.messages is not msgspec.UNSET):
        return _plain(number, text, line, given, format)
    return _of_openai(number, line)


def _of_openai(number: int, line: _Line) -> Item | BadLine:
    custom_id = line.custom_id
    if complaint := _wrong_id(custom_id):
        return _bad(number, None, "invalid_custom_id", complaint)
    if line.body is msgspec.UNSET:
        return _bad(number, custom_id, "missing_body", "it has neither `body` nor `prompt`; add one")
    if line.url not in URLS:
        shown = "no `url`" if line.url is None else f"the url {line.url!r}"
        return _bad(number, custom_id, "invalid_url", f"it has {shown}; there are {' and '.join(URLS)}")
    if line.method is not msgspec.UNSET and line.method != "POST":
        return _bad(number, custom_id, "invalid_method", f"its method is {line.method!r}; it must be POST")
    body = bytes(line.body)
    if not body.startswith(b"{"):
        return _bad(number, custom_id, "invalid_body", "its `body` is not an object")
    return _item(number, custom_id, line.url, body)


def _plain(number: int, text: bytes, line: _Line, given: Any, format: Format) -> Item | BadLine:
    """`{"prompt": …}` or `{"messages": …}`, with sampling fields beside it, and an id if it likes."""
    given = f"line-{number}" if given is None else str(given) if isinstance(given, int) else given
    if complaint := _wrong_id(given):
        return _bad(number, None, "invalid_custom_id", complaint)
    fields = _object.decode(text)
    for name in ("custom_id", "id", "method", "url"):
        fields.pop(name, None)
    if line.messages is not msgspec.UNSET:
        return _item(number, given, CHAT, msgspec.json.encode(fields))
    assert line.prompt is not msgspec.UNSET
    if not format.chat:
        return _item(number, given, COMPLETIONS, msgspec.json.encode(fields))
    prompt = msgspec.json.decode(fields.pop("prompt"))
    if not isinstance(prompt, str):
        return _bad(number, given, "invalid_prompt", "its `prompt` is no text, which a chat message must be")
    return _item(number, given, CHAT, msgspec.json.encode({"messages": _messages(prompt), **fields}))


def _wrong_id(custom_id: Any) -> str:
    if custom_id is None:
        return "it has no `custom_id`; add one that no other line has"
    if not isinstance(custom_id, str) or not 0 < len(custom_id) <= MAX_ID_CHARS:
        return f"its `custom_id` is not a text of 1 to {MAX_ID_CHARS} characters"
    return ""


def _messages(prompt: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": prompt}]


def _item(number: int, custom_id: str, url: str, body: bytes) -> Item:
    return Item(number, custom_id, url, body, key_of_id(custom_id), hash_of_body(url, body))


def _bad(number: int, custom_id: str | None, code: str, what: str) -> BadLine:
    key = key_of_line(number) if custom_id is None else key_of_id(custom_id)
    return BadLine(number, custom_id, code, f"Line {number}: {what}.", key)


# -- CSV ---------------------------------------------------------------------------------------------------------------


def _read_csv(path: Path, file: BinaryIO, format: Format) -> Iterator[Read]:
    csv.field_size_limit(MAX_LINE_BYTES)
    rows = csv.reader(io.TextIOWrapper(file, "utf-8", newline=""), strict=True)
    columns: list[str] | None = None
    render: Template | None = None
    while True:
        number = rows.line_num + 1
        try:
            row = next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            if columns is None:
                raise InputUnreadable(f"The input {path} is no CSV: line {number}: {error}.") from None
            yield Read(_bad(number, None, "invalid_csv", f"it is no CSV row: {error}"), file.tell())
            continue
        except UnicodeDecodeError as error:
            raise InputUnreadable(
                f"The input {path} is not UTF-8: {error.reason} after line {number}. Convert it first."
            ) from None
        except OSError as error:
            raise InputUnreadable(f"The input {path} broke off in line {number}: {error.strerror or error}.") from None
        if not row:
            continue
        if columns is None:
            columns = row
            render = Template(columns, format)
        else:
            assert render is not None
            yield Read(_row(number, row, columns, render, format), file.tell())


def _row(number: int, row: list[str], columns: list[str], render: Template, format: Format) -> Item | BadLine:
    if len(row) != len(columns):
        return _bad(number, None, "invalid_csv", f"it has {len(row)} fields, and the first line names {len(columns)}")
    values = dict(zip(columns, row, strict=True))
    custom_id = values[format.id_column] if format.id_column is not None else f"row-{number}"
    if complaint := _wrong_id(custom_id):
        return _bad(number, None, "invalid_custom_id", complaint.replace("`custom_id`", f"{format.id_column!r}"))
    text = render(values)
    url, body = (CHAT, {"messages": _messages(text)}) if format.chat else (COMPLETIONS, {"prompt": text})
    return _item(number, custom_id, url, msgspec.json.encode(body))


class Template:
    """`{name}` stands for a column; `{{` and `}}` for braces. Raises `ConfigError` for a column that is not there."""

    def __init__(self, columns: list[str], format: Format) -> None:
        column = format.column or ("prompt" if "prompt" in columns and format.template is None else None)
        if format.template is None and column is None:
            raise ConfigError(f"Say with --column or --template which column is the prompt; {_known(columns)}")
        if format.template is not None and format.column is not None:
            raise ConfigError("Give --column or --template; a template can hold one column alone: {name}.")
        try:
            self._pieces = list(Formatter().parse(format.template)) if format.template is not None else []
        except ValueError as error:
            raise ConfigError(f"--template cannot be read: {error}. Write {{{{ and }}}} for braces.") from None
        if column is not None:
            self._pieces = [("", column, "", None)]
        named = [name for _, name, _, _ in self._pieces if name is not None]
        for name in (*named, *filter(None, [format.id_column])):
            if name not in columns:
                raise ConfigError(f"There is no column {name!r}; {_known(columns)}")
        if not named:
            raise ConfigError(f"--template names no column; write {{name}} for one. {_known(columns).capitalize()}")

    def __call__(self, values: dict[str, str]) -> str:
        return "".join(text + (values[name] if name is not None else "") for text, name, _, _ in self._pieces)


def _known(columns: list[str]) -> str:
    return f"the columns are {', '.join(map(repr, columns[:20]))}{' …' if len(columns) > 20 else ''}."
