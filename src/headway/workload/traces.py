"""Traces: what was really asked, and when. Read from three formats, told apart by what is in the file.

Azure's CSV        a header with TIMESTAMP, ContextTokens, GeneratedTokens; the time as a date or in seconds
Mooncake's JSONL   timestamp (ms), input_length, output_length, hash_ids (one for each 512 tokens of the prompt)
our own JSONL      at_s, input_tokens, output_tokens, and optionally tenant, kind, messages, and prefix_blocks with
                   prefix_block_tokens: equal block numbers are equal text, as in `Item`

Times are taken from the first request on, so the first is due at 0.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal

import msgspec

from headway.workload import lines
from headway.workload.azure import azure_rows
from headway.workload.errors import MAX_S, MAX_TOKENS, WorkloadError, check_number, check_whole, shown
from headway.workload.item import Arrival, Item
from headway.workload.schedule import MAX_REQUESTS

MOONCAKE_BLOCK_TOKENS = 512
_OWN_FIELDS = frozenset({"at_s", *(field.name for field in dataclasses.fields(Item))})
# Times in files may count from anywhere, 1970 for instance; from the first request on, `MAX_S` is the limit.
_MAX_RAW_S = 1e11
_MAX_BLOCK = 2**63 - 1
_KNOWN = (
    "Known are Azure's CSV (TIMESTAMP,ContextTokens,GeneratedTokens), Mooncake's JSON lines (timestamp, input_length, "
    "output_length, hash_ids) and our own JSON lines (at_s, input_tokens, output_tokens)"
)

Seen = tuple[int, int, Item]  # time in ns from wherever the file counts, line, item


@dataclass(frozen=True, slots=True)
class Cut:
    """What is taken of a trace, and how fast.

    `start_s`, `duration_s` and `limit` (of requests) choose a slice in the trace's own time. `time_scale` stretches the
    gaps: 2 is twice as slow, at half the rate; 0.5 twice as fast. Lengths above the maxima are shortened (`over` =
    "clip") or their requests left out ("skip"); given messages cannot be shortened, so theirs are always left out.
    """

    time_scale: float = 1.0
    start_s: float = 0.0
    duration_s: float | None = None
    limit: int | None = None
    max_input_tokens: int | None = None
    max_output_tokens: int | None = None
    over: Literal["clip", "skip"] = "clip"

    def __post_init__(self) -> None:
        check_number("time_scale", self.time_scale, 1e-6, 1e6)
        check_number("start_s", self.start_s, 0, MAX_S, "s")
        if self.duration_s is not None:
            check_number("duration_s", self.duration_s, 1e-9, MAX_S, "s")
        if self.limit is not None:
            check_whole("limit", self.limit, 1, MAX_REQUESTS, "requests")
        for field in ("max_input_tokens", "max_output_tokens"):
            if getattr(self, field) is not None:
                check_whole(field, getattr(self, field), 1, MAX_TOKENS, "tokens")
        if self.over not in {"clip", "skip"}:
            raise WorkloadError(f"over must be clip or skip, not {shown(self.over)}", field="over")


@dataclass(frozen=True, slots=True)
class LoadedTrace:
    """What was read, and what was done to it on the way: nothing is changed silently."""

    arrivals: list[Arrival]
    name: str  # of the file, without its folder
    format: str  # "azure", "mooncake" or "own"
    rows: int  # in the whole file
    clipped: int = 0  # requests that were shortened
    skipped: int = 0  # requests that were left out because of their length
    resorted: int = 0  # requests that were earlier than the line before, and were put in order
    ignored: tuple[str, ...] = ()  # fields of our own format that it does not have

    @property
    def duration_s(self) -> float:
        """From the first request to the last."""
        return self.arrivals[-1].at_ns / 1e9

    @property
    def description(self) -> str:
        """One line for people, everything that was changed included."""
        taken = f"{len(self.arrivals):,}" + (f" of {self.rows:,}" if len(self.arrivals) != self.rows else "")
        changes = {
            "shortened": self.clipped,
            "left out for their length": self.skipped,
            "put in order": self.resorted,
        }
        parts = [f"{taken} requests of {self.name} ({self.format} trace) in {self.duration_s:,.4g} s"]
        parts += [f"{count:,} {what}" for what, count in changes.items() if count]
        parts += [f"unknown fields ignored: {', '.join(self.ignored)}"] if self.ignored else []
        return "; ".join(parts)


def read_trace(path: str | Path, cut: Cut = Cut(), *, sort: bool = False) -> LoadedTrace:
    """The trace in `path`, all of whose lines are checked, also those outside the slice.

    Raises:
        WorkloadError: the file cannot be read, its format is unknown, a line is wrong (the message names file, line and
            field), times go back and `sort` is false, or nothing is left of it.
    """
    form, rows, ignored = _open(path)
    seen = list(rows)
    if not seen:
        raise WorkloadError(f"{path} holds no request; a trace needs at least one", field="path")
    resorted = _in_order(path, seen, sort=sort)
    first_ns = seen[0][0]
    if (span_s := (seen[-1][0] - first_ns) / 1e9) > MAX_S:
        raise WorkloadError(
            f"{path} spans {span_s:,.0f} s; the limit is {MAX_S:,.0f} s (26 days). Cut the file in pieces", field="at_s"
        )
    clipped = skipped = 0
    arrivals: list[Arrival] = []
    base_ns = 0
    for at_ns, item in _slice(((at_ns - first_ns, item) for at_ns, _, item in seen), cut):
        kept = _shorten(item, cut)
        if kept is None:
            skipped += 1
            continue
        clipped += kept is not item
        base_ns = base_ns if arrivals else at_ns
        arrivals.append(Arrival(round((at_ns - base_ns) * cut.time_scale), kept))
        if len(arrivals) == cut.limit:
            break
    if not arrivals:
        raise WorkloadError(
            f"nothing is left of {path}: of its {len(seen):,} requests in {span_s:,.4g} s, {skipped:,} are too long "
            "and the others outside start_s and duration_s. Ask for another part or longer prompts",
            field="start_s",
        )
    return LoadedTrace(arrivals, Path(path).name, form, len(seen), clipped, skipped, resorted, tuple(sorted(ignored)))


def write_trace(path: str | Path, arrivals: Iterable[Arrival]) -> None:
    """Writes our own format. `read_trace` gives the same arrivals back when the first is at 0.

    Raises:
        WorkloadError: a time is below 0 or beyond 26 days, a message is no JSON, or the file cannot be written.
    """
    try:
        with Path(path).open("wb") as file:
            file.writelines(_line(number, arrival) for number, arrival in enumerate(arrivals, 1))
    except OSError as error:
        raise WorkloadError(f"cannot write {path}: {error.strerror or error}", field="path") from error


def _line(number: int, arrival: Arrival) -> bytes:
    item = arrival.item
    row: dict[str, Any] = {
        "at_s": check_number(f"at_s of arrival {number}", arrival.at_ns / 1e9, 0, MAX_S, "s"),
        "input_tokens": item.input_tokens,
        "output_tokens": item.output_tokens,
    }
    for field in ("kind", "tenant", "prefix_blocks", "prefix_block_tokens", "messages"):
        if (value := getattr(item, field)) not in ("", (), 0, None):
            row[field] = value
    try:
        return msgspec.json.encode(row) + b"\n"
    except (TypeError, ValueError) as error:
        raise WorkloadError(f"arrival {number} cannot be written as JSON: {error}", field="messages") from error


def _open(path: str | Path) -> tuple[str, Iterator[Seen], set[str]]:
    """The format, the requests as they stand in the file, and a set that fills with names of unknown fields."""
    ignored: set[str] = set()
    with lines.reading(path), Path(path).open("rb") as file:
        first = next((line for line in file if line.strip(b"\xef\xbb\xbf \t\r\n")), b"")
    if not first:
        raise WorkloadError(f"{path} is empty; a trace needs at least one request", field="path")
    start = first.removeprefix(b"\xef\xbb\xbf").lstrip()
    if not start.startswith(b"{"):
        if b"," in start and not start.startswith(b"["):
            return "azure", azure_rows(path, _MAX_RAW_S), ignored
        raise WorkloadError(f"{path} is no trace: it begins with {shown(start[:40])}. {_KNOWN}", field="path")
    number, row = next(lines.json_lines(path))
    if row.keys() & {"at_s", "input_tokens"}:
        return "own", _json_rows(path, lambda row: _own(row, ignored)), ignored
    if row.keys() & {"input_length", "output_length", "hash_ids"}:
        return "mooncake", _json_rows(path, _mooncake), ignored
    raise WorkloadError(f"{path}:{number}: no trace has the fields {shown(', '.join(row))}. {_KNOWN}", field="path")


def _json_rows(path: str | Path, convert: Callable[[lines.Row], tuple[int, Item]]) -> Iterator[Seen]:
    for number, row in lines.json_lines(path):
        try:
            at_ns, item = convert(row)
        except WorkloadError as error:
            raise lines.at_line(path, number, error) from None
        yield at_ns, number, item


def _mooncake(row: lines.Row) -> tuple[int, Item]:
    at_ms = check_number("timestamp", lines.required(row, "timestamp"), 0, _MAX_RAW_S * 1e3, "ms")
    input_len, output_len = _tokens(row, "input_length"), _tokens(row, "output_length")
    blocks = _blocks(row, "hash_ids")
    return round(at_ms * 1e6), Item(
        input_len, output_len, prefix_blocks=blocks, prefix_block_tokens=MOONCAKE_BLOCK_TOKENS if blocks else 0
    )


def _own(row: lines.Row, ignored: set[str]) -> tuple[int, Item]:
    ignored |= row.keys() - _OWN_FIELDS
    at_s = check_number("at_s", lines.required(row, "at_s"), 0, _MAX_RAW_S, "s")
    blocks = _blocks(row, "prefix_blocks")
    size = row.get("prefix_block_tokens")
    size = 0 if size is None else check_whole("prefix_block_tokens", size, 0, MAX_TOKENS, "tokens")
    if blocks and not size:
        raise WorkloadError("prefix_block_tokens is missing, and prefix_blocks need it", field="prefix_block_tokens")
    return round(at_s * 1e9), Item(
        _tokens(row, "input_tokens"),
        _tokens(row, "output_tokens"),
        kind=lines.name(row, "kind"),
        tenant=lines.name(row, "tenant"),
        prefix_blocks=blocks,
        prefix_block_tokens=size,
        messages=lines.messages(row) if row.get("messages") is not None else None,
    )


def _tokens(row: lines.Row, field: str) -> int:
    return check_whole(field, lines.required(row, field), 1, MAX_TOKENS, "tokens")


def _blocks(row: lines.Row, field: str) -> tuple[int, ...]:
    value = row.get(field)
    if value is None:
        return ()
    if not isinstance(value, list):
        raise WorkloadError(f"{field} must be a list of whole numbers, not {shown(value)}", field=field)
    return tuple(check_whole(f"{field}[{place}]", block, 0, _MAX_BLOCK) for place, block in enumerate(value))


def _in_order(path: str | Path, seen: list[Seen], *, sort: bool) -> int:
    """How many requests were earlier than the line before; they are put in order if that is allowed."""
    back = [place for place in range(1, len(seen)) if seen[place][0] < seen[place - 1][0]]
    if back and not sort:
        at_ns, number, _ = seen[back[0]]
        earlier_s = (seen[back[0] - 1][0] - at_ns) / 1e9
        raise WorkloadError(
            f"{path}:{number}: its time is {earlier_s:,.6g} s earlier than the line before; {len(back):,} of "
            f"{len(seen):,} requests go back in time. Sort the file by time, or have it sorted while reading (sort)",
            field="at_s",
        )
    if back:
        seen.sort(key=itemgetter(0))  # those at the same time keep their order
    return len(back)


def _slice(seen: Iterator[tuple[int, Item]], cut: Cut) -> Iterator[tuple[int, Item]]:
    start_ns = cut.start_s * 1e9
    end_ns = math.inf if cut.duration_s is None else start_ns + cut.duration_s * 1e9
    return ((at_ns, item) for at_ns, item in seen if start_ns <= at_ns < end_ns)


def _shorten(item: Item, cut: Cut) -> Item | None:
    """The item within the maxima; itself where it is so already, None where it is left out."""
    input_len = min(item.input_tokens, cut.max_input_tokens or MAX_TOKENS)
    output_len = min(item.output_tokens, cut.max_output_tokens or MAX_TOKENS)
    if (input_len, output_len) == (item.input_tokens, item.output_tokens):
        return item
    if cut.over == "skip" or (item.messages is not None and input_len < item.input_tokens):
        return None
    blocks = item.prefix_blocks
    if blocks:
        blocks = blocks[: -(-input_len // item.prefix_block_tokens)]
    return dataclasses.replace(item, input_tokens=input_len, output_tokens=output_len, prefix_blocks=blocks)
