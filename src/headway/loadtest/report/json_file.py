"""A `Run` as a JSON file, and back. One line a field of the run, so that it can be searched and compared by line."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec

from headway.loadtest.errors import LoadTestError
from headway.loadtest.redact import Redactor
from headway.loadtest.result import SCHEMA_VERSION, Run

AGAIN = "Run the test again, or read the file with the headway that wrote it."

# What sets a version apart from this one: its figures and ours cannot stand side by side.
OLDER = {1: "Its percentiles leave out requests that were given up, so they are too low."}


class ReportError(LoadTestError):
    """A report file that cannot be read: which one, where in it, and what to do."""


class _Version(msgspec.Struct):
    schema_version: int | None = None


def run_bytes(run: Run) -> bytes:
    """The file's content. The version stands first."""
    fields: dict[str, Any] = msgspec.structs.asdict(Redactor().struct(run))
    ordered = {"schema_version": fields.pop("schema_version"), **fields}
    lines = (b"%b: %b" % (msgspec.json.encode(name), msgspec.json.encode(value)) for name, value in ordered.items())
    return b"{\n" + b",\n".join(lines) + b"\n}\n"


def is_run(head: bytes) -> bool:
    """Whether a file that begins so is one of these, of whatever version."""
    return re.match(rb'\{\s*"schema_version": *\d', head) is not None


def load_run(path: Path) -> Run:
    """Raises `ReportError` for a file that is absent, damaged, of another version or no run at all."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ReportError(f"{path}: cannot be read: {error.strerror or error}") from error
    return parse_run(content, str(path))


def parse_run(content: bytes, name: str) -> Run:
    """`name` is what errors call the file."""
    if not content.strip():
        raise ReportError(f"{name}: the file is empty: the run that should have written it was cut off. {AGAIN}")
    try:
        version = msgspec.json.decode(content, type=_Version).schema_version
        if version is None:
            raise ReportError(
                f"{name}: no field `schema_version`: this is no report of `headway bench` (--json writes one)"
            )
        if version != SCHEMA_VERSION:
            why = f" {OLDER[version]}" if version in OLDER else ""
            raise ReportError(
                f"{name}: `schema_version` is {version}, and this headway reads {SCHEMA_VERSION} only.{why} {AGAIN}"
            )
        run = msgspec.json.decode(content, type=Run)
    except msgspec.ValidationError as error:
        raise ReportError(f"{name}: {_with_field(str(error))}. The file was changed or damaged. {AGAIN}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ReportError(f"{name}: not whole JSON{_line_of(content, str(error))}: {error}. {AGAIN}") from error
    _check_signals(run, name)
    return Redactor().struct(run)  # whoever wrote it


def _with_field(message: str) -> str:
    """The codec's words, with the field first: "Expected `float`, got `str` - at `$.load.rate`"."""
    said, _, place = message.partition(" - at ")
    field = place.strip("`").removeprefix("$").removeprefix(".") or "the whole file"
    if place.startswith("key"):
        field = place
    return f"field `{field}`: {said[:1].lower()}{said[1:]}"


def _line_of(content: bytes, message: str) -> str:
    found = re.search(r"byte (\d+)", message)
    lines = content.count(b"\n", 0, int(found[1])) if found else 0
    return f" (line {lines + 1})" if found else ""


def _check_signals(run: Run, name: str) -> None:
    points = len(run.signals.times_s)
    for series, values in run.signals.series.items():
        if len(values) != points:
            raise ReportError(
                f"{name}: field `signals.series.{series}`: {len(values)} values for {points} times. "
                f"The file was changed or damaged. {AGAIN}"
            )


def json_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of the file, for those who read it with another tool."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **msgspec.json.schema(Run)}
