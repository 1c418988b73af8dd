"""One line a request: nothing that a record says is lost but its single gaps."""

from __future__ import annotations

import csv
import io
import unicodedata
from array import array
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.loadtest.record import CountedBy, Fate, Record
from headway.loadtest.report.csv_file import COLUMNS, HEADER, load_records, read_records, write_records
from headway.loadtest.report.json_file import ReportError
from tests.loadtest.report.sample_run import Sample

GAPS = {"gaps_ns", "gap_tokens"}
times = st.integers(-1, 10**16)
counts = st.integers(-1, 10**9)
# Words that look like keys are hidden, and that is tested elsewhere; so are control characters, which are no more in
# a record when it is written.
texts = st.text(st.characters(exclude_categories=["C", "Z", "L", "N"]) | st.sampled_from("abc =+-@',\""), max_size=20)


@st.composite
def records(draw: st.DrawFn) -> Record:
    gaps = draw(st.lists(st.tuples(st.integers(0, 10**12), st.integers(0, 65535)), max_size=5))
    first_ns = draw(st.integers(0, 10**15))
    return Record(
        index=draw(st.integers(0, 10**9)),
        kind=draw(texts),
        tenant=draw(texts),
        asked_input_tokens=draw(st.integers(0, 10**9)),
        asked_output_tokens=draw(st.integers(0, 10**9)),
        scheduled_ns=draw(st.integers(0, 10**15)),
        sent_ns=draw(times),
        headers_ns=draw(times),
        first_ns=first_ns if gaps else draw(times),
        last_ns=first_ns + sum(gap for gap, _ in gaps) if gaps else draw(times),
        ended_ns=draw(times),
        gaps_ns=array("q", [gap for gap, _ in gaps]),
        gap_tokens=array("H", [tokens for _, tokens in gaps]),
        first_tokens=draw(st.integers(0, 100)),
        chunks=draw(st.integers(0, 10**6)),
        fate=draw(st.sampled_from(Fate)),
        status=draw(st.integers(0, 599)),
        error=draw(texts),
        input_tokens=draw(counts),
        cached_tokens=draw(counts),
        output_tokens=draw(counts),
        counted=draw(st.sampled_from(CountedBy)),
        recounted_tokens=draw(counts),
        reasoning=draw(st.booleans()),
        finish_reason=draw(texts),
        retries=draw(st.integers(0, 5)),
        retry_after_s=draw(st.just(-1.0) | st.floats(0, 1e6)),
        server_timing=draw(texts),
    )


def written(some: list[Record]) -> str:
    out = io.StringIO(newline="")
    write_records(out, some)
    return out.getvalue()


def essence(record: Record) -> dict[str, object]:
    return {field.name: getattr(record, field.name) for field in fields(record) if field.name not in GAPS}


@settings(deadline=None)
@given(st.lists(records(), max_size=4))
def test_round_trip(some: list[Record]) -> None:
    text = written(some)
    back = [line.record for line in read_records(io.StringIO(text, newline=""), "it")]
    in_order = sorted(some, key=lambda record: (record.scheduled_ns, record.index))
    assert [essence(record) for record in back] == [essence(record) for record in in_order]
    again = io.StringIO(newline="")
    write_records(again, back)
    gaps = [HEADER.index(name) for name in ("itl_p50_s", "itl_p99_s", "itl_max_s")]
    without = [
        [[cell for place, cell in enumerate(row) if place not in gaps] for row in rows(t)]
        for t in (text, again.getvalue())
    ]
    assert without[0] == without[1]


def rows(text: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(text, newline="")))


def test_a_file(made: Sample, tmp_path: Path) -> None:
    path = tmp_path / "requests.csv"
    with path.open("w", encoding="utf-8", newline="") as out:
        write_records(out, made.records)
    lines = load_records(path)
    assert len(lines) == len(made.records)
    for line, record in zip(lines, made.records, strict=True):
        assert essence(line.record) == essence(record)
        gaps = np.array(record.gaps_ns) / 1e9
        if not len(gaps):
            assert line.gaps is None
            continue
        assert line.gaps is not None
        assert line.gaps.max_s == pytest.approx(gaps.max(), abs=1e-9)
        assert line.gaps.p50_s == pytest.approx(np.quantile(gaps, 0.5), abs=2e-9)
        assert line.gaps.p99_s == pytest.approx(np.quantile(gaps, 0.99), abs=2e-9)


def test_units_are_in_the_names_and_every_column_is_explained() -> None:
    assert len(set(HEADER)) == len(HEADER)
    for column in COLUMNS:
        assert column.meaning, column.name
        assert not column.name.endswith("_ns")
    read = {column.field or column.name for column in COLUMNS if column.read is not None}
    assert read == {field.name for field in fields(Record)} - GAPS


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@x", "'quoted"])
def test_no_cell_is_a_formula(text: str) -> None:
    record = Record(0, text, "", 1, 1, 0, error=text)
    cells = dict(zip(HEADER, rows(written([record]))[1], strict=True))
    assert cells["kind"] == cells["error"] == f"'{text}"


@given(st.text(st.characters(categories=["Cc", "Cs", "Zl", "Zp"]) | st.sampled_from('\u202e\u2066ab,"'), max_size=9))
def test_nothing_in_a_file_steers_a_terminal_or_ends_a_line(text: str) -> None:
    """Whatever a server says: a line a request, and the escapes come back as they are."""
    file = written([Record(0, "", "", 1, 1, 0, error=text, server_timing=text)])
    assert len(file.splitlines()) == 2
    assert not [sign for sign in file if unicodedata.category(sign) in {"Cc", "Cs", "Cf"} and sign != "\n"]
    (line,) = read_records(io.StringIO(file, newline=""), "it")
    assert written([line.record]) == file


def test_an_older_file_with_control_characters_is_read_without_them() -> None:
    text = broken("error", "\x1b[2Jgone\x07")
    assert [line.record.error for line in read_records(io.StringIO(text, newline=""), "it")][1] == "\\x1b[2Jgone\\x07"


def test_the_id_of_the_run_is_in_every_line() -> None:
    out = io.StringIO(newline="")
    write_records(out, [Record(0, "", "", 1, 1, 0), Record(1, "", "", 1, 1, 5)], "abc")
    assert [line.run_id for line in read_records(io.StringIO(out.getvalue(), newline=""), "it")] == ["abc", "abc"]


def test_no_key_is_written() -> None:
    out = io.StringIO(newline="")
    write_records(out, [Record(0, "", "", 1, 1, 0, error="sk-my-own-key-1: bad")])
    assert "my-own" not in out.getvalue()


def broken(column: str, value: str) -> str:
    table = rows(written([Record(0, "", "", 1, 1, 0), Record(1, "", "", 1, 1, 5)]))
    table[2][HEADER.index(column)] = value
    out = io.StringIO(newline="")
    csv.writer(out, lineterminator="\n").writerows(table)
    return out.getvalue()


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("fate", "dead"), ("scheduled_s", "-1"), ("scheduled_s", "1.0000000001"), ("sent_s", "nan"), ("sent_s", "1e3"),
        ("index", "1.5"), ("counted", "guess"), ("reasoning", "yes"), ("itl_p50_s", "x"), ("output_tokens", "many"),
    ],
)  # fmt: skip
def test_a_bad_cell_is_named(column: str, value: str) -> None:
    with pytest.raises(ReportError, match=rf"^it:3: column.* {column}"):
        list(read_records(io.StringIO(broken(column, value), newline=""), "it"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the file is empty"),
        ("a,b\n1,2\n", "it:1: no column index"),
        (",".join(HEADER) + "\n1,2\n", "it:2: 2 cells"),
        (",".join([*HEADER, "index"]) + "\n", "twice"),
        (",".join(HEADER) + '\n"1', "it:2: unexpected end of data"),
    ],
)
def test_no_csv_of_ours(text: str, said: str) -> None:
    with pytest.raises(ReportError, match=said):
        list(read_records(io.StringIO(text, newline=""), "it"))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match="cannot be read"):
        load_records(tmp_path / "absent.csv")
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ReportError, match="not UTF-8"):
        load_records(tmp_path / "binary.csv")
