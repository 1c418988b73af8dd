"""One line a request, for spreadsheets and for `compare`; and back into records.

Times are seconds after the start of the run, written with the nanosecond: nothing is lost. An empty cell is unknown.
Single gaps are not here, only each request's own median, p99 and longest. A text that a spreadsheet would take for a
formula is written with an apostrophe before it, which the reader takes off. Control characters are written as escapes,
so that a line of the file is a request and no terminal is steered by it.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from headway.loadtest.record import CountedBy, Fate, Record
from headway.loadtest.redact import Redactor, harmless
from headway.loadtest.report.columns import RequestGaps, batches, gaps_of_each
from headway.loadtest.report.json_file import ReportError
from headway.loadtest.table import tabulate

RUN = "run"
_FORMULA = ("=", "+", "-", "@", "'")


@dataclass(frozen=True, slots=True)
class Line:
    """A record without its single gaps, and what is known of them."""

    record: Record
    gaps: RequestGaps | None  # None: fewer than two visible chunks
    run_id: str = ""  # empty: an older headway wrote it


@dataclass(frozen=True, slots=True)
class _Column:
    """`read` is None for what follows from other columns."""

    name: str
    meaning: str
    write: Callable[[Record, RequestGaps | None], str]
    read: Callable[[str], object] | None = None
    field: str = ""  # of the record, where its name is another


def _seconds(ns: int) -> str:
    return "" if ns < 0 else f"{ns // 10**9}.{ns % 10**9:09}"


def _ns(text: str) -> int:
    if not text:
        return -1
    whole, point, rest = text.partition(".")
    if not (whole.isdecimal() and (not point or rest.isdecimal()) and len(rest) <= 9):
        raise ValueError("seconds from 0, with at most nine decimals, are expected")
    return int(whole) * 10**9 + int(rest.ljust(9, "0"))


def _known(value: float) -> str:
    return "" if value < 0 else repr(value)


def _count(text: str) -> int:
    return int(text) if text else -1


def _plain(text: str) -> str:
    text = harmless(text)
    return f"'{text}" if text.startswith(_FORMULA) else text


def _unplain(text: str) -> str:
    return harmless(text.removeprefix("'"))  # older files are as the server wrote it


def _between(start_ns: int, end_ns: int) -> str:
    return _seconds(end_ns - start_ns) if start_ns >= 0 and end_ns >= 0 else ""


def _yes(text: str) -> bool:
    if text not in {"0", "1"}:
        raise ValueError("0 or 1 is expected")
    return text == "1"


def _time(name: str, meaning: str) -> _Column:
    field = name.removesuffix("_s") + "_ns"
    return _Column(name, meaning, lambda r, _: _seconds(getattr(r, field)), _ns, field)


def _text(name: str, meaning: str) -> _Column:
    return _Column(name, meaning, lambda r, _: _plain(getattr(r, name)), _unplain)


def _number(name: str, meaning: str) -> _Column:
    return _Column(name, meaning, lambda r, _: _known(getattr(r, name)), _count)


def _gap(name: str, meaning: str) -> _Column:
    field = name.removeprefix("itl_")
    return _Column(name, meaning, lambda _, g: "" if g is None else f"{getattr(g, field):.9f}")


COLUMNS: tuple[_Column, ...] = (
    _number("index", "place in the schedule"),
    _text("kind", "share of the mix"),
    _text("tenant", "whose request it is"),
    _Column("fate", "how it ended", lambda r, _: r.fate.value, Fate),
    _number("status", "HTTP status; 0: no answer arrived"),
    _time("scheduled_s", "when it was due; in a closed loop, when its slot became free"),
    _time("sent_s", "when its bytes were given to the socket"),
    _time("headers_s", "when the response's head had arrived"),
    _time("first_s", "when its first visible token arrived"),
    _time("last_s", "when its last visible token arrived"),
    _time("ended_s", "when the stream, or the attempt, was over"),
    _Column("ttft_s", "first token after the scheduled time", lambda r, _: _between(r.scheduled_ns, r.first_ns)),
    _Column("ttft_from_send_s", "first token after the actual send", lambda r, _: _between(r.sent_ns, r.first_ns)),
    _Column("ended_after_s", "end after the scheduled time", lambda r, _: _between(r.scheduled_ns, r.ended_ns)),
    _gap("itl_p50_s", "median gap between its tokens"),
    _gap("itl_p99_s", "p99 of the gaps between its tokens"),
    _gap("itl_max_s", "longest gap between its tokens"),
    _number("asked_input_tokens", "input tokens that were asked for"),
    _number("asked_output_tokens", "output tokens that were asked for"),
    _number("input_tokens", "input tokens as the server counted them"),
    _number("cached_tokens", "of these, found in the server's prefix cache"),
    _number("output_tokens", "output tokens"),
    _Column("counted", "by what output tokens were counted", lambda r, _: r.counted.value, CountedBy),
    _number("recounted_tokens", "output tokens by the client's tokenizer"),
    _number("first_tokens", "tokens in the first visible chunk of each choice"),
    _number("chunks", "visible chunks"),
    _Column("reasoning", "1: the first visible token was reasoning", lambda r, _: str(int(r.reasoning)), _yes),
    _text("finish_reason", "as the server said"),
    _number("retries", "times it was sent again after a refusal that said when"),
    _Column(
        "retry_after_s", "what the last refusal said", lambda r, _: _known(r.retry_after_s), lambda t: float(t or -1)
    ),
    _text("server_timing", "the response's Server-Timing header"),
    _text("error", "the server's or the system's words"),
    _number("replaced", "times it was sent again because the kept connection it went over turned out to be closed"),
    _number("hidden_tokens", "of the output tokens: reasoning that was counted and never shown"),
    _number("choices", "choices that showed something"),
    # A column and no line of its own: whatever reads a CSV reads it, older ones of ours too.
    _Column(RUN, "id of the run, as in the JSON beside it", lambda *_: ""),
)
HEADER = tuple(column.name for column in COLUMNS)
_SINCE_ALWAYS = HEADER[: HEADER.index("replaced")]  # older files end here


def write_records(out: TextIO, records: Sequence[Record], run_id: str = "") -> None:
    """In order of schedule. `out` is opened with `newline=""`."""
    clean = Redactor().text
    writer = csv.writer(_Lines(out))
    writer.writerow(HEADER)
    table = tabulate(records)
    for rows, times in batches(table.timings):
        for record, gaps in zip(table.records[rows], gaps_of_each(times), strict=True):
            row = [column.write(record, gaps) for column in COLUMNS]
            for place in _TEXTS:
                row[place] = clean(row[place])
            row[-1] = run_id
            writer.writerow(row)


class _Lines:
    """The writer quotes the signs of its line end, so it is given both; the file's lines end in LF all the same."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def write(self, line: str) -> None:
        self._out.write(line.removesuffix("\r\n") + "\n")


_TEXTS = tuple(HEADER.index(name) for name in ("kind", "tenant", "finish_reason", "server_timing", "error"))


def is_records(head: bytes) -> bool:
    """Whether a file that begins so is one of these."""
    return head.startswith(",".join(_SINCE_ALWAYS).encode())


def load_records(path: Path) -> list[Line]:
    """Raises `ReportError` with the line and the column of what cannot be read."""
    try:
        with path.open(encoding="utf-8", newline="") as text:
            return list(read_records(text, str(path)))
    except OSError as error:
        raise ReportError(f"{path}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ReportError(f"{path}: not UTF-8 at byte {error.start}: this is no CSV of `headway bench`") from error


def read_records(text: TextIO, name: str) -> Iterator[Line]:
    """`name` is what errors call the file."""
    reader = csv.reader(text, strict=True)
    try:
        header = next(reader, [])
        _check_header(header, name)
        for row in reader:
            if len(row) != len(header):
                raise ReportError(
                    f"{name}:{reader.line_num}: {len(row)} cells, and the header has {len(header)}: "
                    "the file was cut off or changed"
                )
            yield _line(dict(zip(header, row, strict=True)), f"{name}:{reader.line_num}")
    except csv.Error as error:
        raise ReportError(f"{name}:{reader.line_num}: {error}: the file was cut off or changed") from error


def _check_header(header: Sequence[str], name: str) -> None:
    if not header:
        raise ReportError(f"{name}: the file is empty; a CSV of `headway bench` begins with a line of column names")
    if missing := [column for column in _SINCE_ALWAYS if column not in header]:
        raise ReportError(
            f"{name}:1: no column {', '.join(missing[:5])}{' …' * (len(missing) > 5)}: this is no CSV of "
            "`headway bench`, or another version's"
        )
    if len(set(header)) != len(header):
        raise ReportError(f"{name}:1: a column stands there twice")


def _line(cells: dict[str, str], place: str) -> Line:
    values: dict[str, object] = {}
    for column in COLUMNS:
        if column.read is not None and column.name in cells:
            try:
                values[column.field or column.name] = column.read(cells[column.name])
            except ValueError as error:
                raise ReportError(f"{place}: column {column.name}: {cells[column.name]!r}: {error}") from error
    return Line(Record(**values), _gaps(cells, place), cells.get(RUN, ""))  # type: ignore[arg-type]  # each column reads its field's type


def _gaps(cells: dict[str, str], place: str) -> RequestGaps | None:
    names = ("itl_p50_s", "itl_p99_s", "itl_max_s")
    if not any(cells[name] for name in names):
        return None
    try:
        return RequestGaps(*(float(cells[name]) for name in names))
    except ValueError as error:
        raise ReportError(f"{place}: columns {', '.join(names)}: {error}") from error
