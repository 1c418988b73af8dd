"""Rows of Azure's public LLM traces: CSV with TIMESTAMP, ContextTokens and GeneratedTokens, in any order of columns."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from headway.workload import lines
from headway.workload.errors import MAX_TOKENS, WorkloadError, check_number, check_whole, shown
from headway.workload.item import Item

_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_DATE = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)?", re.ASCII)
_SECONDS = re.compile(r"[+-]?\d{1,18}(\.\d*)?(e[+-]?\d{1,3})?", re.ASCII | re.IGNORECASE)
_WHOLE = re.compile(r"[+-]?\d{1,18}(\.0*)?", re.ASCII)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def azure_rows(path: str | Path, max_s: float) -> Iterator[tuple[int, int, Item]]:
    """Time (ns from wherever the file counts), line and item of every row.

    Raises:
        WorkloadError: a column is missing, or a row is wrong.
    """
    with lines.reading(path), Path(path).open(newline="", encoding="utf-8-sig") as file:
        reader = csv.reader(file)
        places: list[int] | None = None
        width = 0
        try:
            for row in reader:
                if not any(cell.strip() for cell in row):
                    continue
                if places is None:
                    places, width = _places(f"{path}:{reader.line_num}", row), len(row)
                    continue
                try:
                    if len(row) != width:
                        raise WorkloadError(f"it has {len(row)} columns and the header {width}")
                    at, input_len, output_len = (row[place].strip() for place in places)
                    seen = _time_ns(at, max_s), reader.line_num, Item(_tokens(input_len, 1), _tokens(output_len, 2))
                except WorkloadError as error:
                    raise lines.at_line(path, reader.line_num, error) from None
                yield seen
        except csv.Error as error:
            raise lines.at_line(path, reader.line_num, WorkloadError(f"it is no CSV: {error}")) from None


def _places(where: str, header: list[str]) -> list[int]:
    """Where the three columns are, however their names are capitalised."""
    names = [name.strip().lower() for name in header]
    missing = [column for column in _COLUMNS if column.lower() not in names]
    if missing:
        raise WorkloadError(
            f"{where}: the header lacks {', '.join(missing)}. The first line of such a trace names the columns "
            f"{', '.join(_COLUMNS)}, in any order. A trace of your own is lines of JSON, such as "
            '{"at_s": 0.5, "input_tokens": 100, "output_tokens": 50}',
            field=missing[0],
        )
    return [names.index(column.lower()) for column in _COLUMNS]


def _tokens(text: str, column: int) -> int:
    field = _COLUMNS[column]
    if not text:
        raise WorkloadError(f"{field} is missing", field=field)
    if not _WHOLE.fullmatch(text):
        raise WorkloadError(f"{field} must be a whole number, not {shown(text)}", field=field)
    return check_whole(field, int(text.partition(".")[0]), 1, MAX_TOKENS, "tokens")


def _time_ns(text: str, max_s: float) -> int:
    """A date with up to nine decimals, UTC where it does not say, or seconds."""
    field = _COLUMNS[0]
    if not text:
        raise WorkloadError(f"{field} is missing", field=field)
    if _SECONDS.fullmatch(text):
        return round(check_number(field, float(text), 0, max_s, "s") * 1e9)
    parts = _DATE.fullmatch(text)
    if parts is None:
        raise WorkloadError(
            f"{field} must be a date such as 2023-11-16 18:15:46.6805900, or seconds, not {shown(text)}", field=field
        )
    whole, decimals, zone = parts.groups()
    try:
        moment = datetime.fromisoformat(whole + ("+00:00" if zone in {None, "Z"} else zone))
        since = moment - _EPOCH
    except (ValueError, OverflowError) as error:
        raise WorkloadError(f"{field} is no date: {shown(text)} ({error})", field=field) from None
    return (since.days * 86_400 + since.seconds) * 1_000_000_000 + int((decimals or "0").ljust(9, "0"))
