"""What is written is read again, and nothing else is taken for it."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.loadtest.report.json_file import ReportError, json_schema, load_run, parse_run, run_bytes
from headway.loadtest.result import SCHEMA_VERSION, Run, Signals, Slo
from tests.loadtest.report.sample_run import Sample, changed


def test_round_trip(made: Sample, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_bytes(run_bytes(made.run))
    assert load_run(path) == made.run
    lines = path.read_text().splitlines()
    assert lines[1] == f'"schema_version": {SCHEMA_VERSION},'
    assert len(lines) == len(msgspec.structs.fields(Run)) + 2, "a line a field"


@settings(deadline=None)  # the first example pays for the fixture
@given(name=st.text(), value=st.text(), number=st.floats(allow_nan=False, allow_infinity=False))
def test_whatever_the_texts_and_numbers_are(made: Sample, name: str, value: str, number: float) -> None:
    load = msgspec.structs.replace(made.run.load, settings={f"n{name}": value})
    run = changed(made.run, load=load, slo=Slo(ttft_s=number), signals=Signals())
    # Texts may be redacted on the way; doing it again must not change them.
    once = parse_run(run_bytes(run), "it")
    assert parse_run(run_bytes(once), "it") == once
    assert once.slo.ttft_s == number


def test_an_absent_file(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match=r"no\.json: cannot be read: No such file"):
        load_run(tmp_path / "no.json")


def damaged(made: Sample, path: list[str], value: object) -> bytes:
    whole = json.loads(run_bytes(made.run))
    place = whole
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    return json.dumps(whole).encode()


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (["load", "rate"], "fast", r"field `load\.rate`: expected `float \| null`, got `str`"),
        (
            ["schema_version"],
            SCHEMA_VERSION + 1,
            f"`schema_version` is {SCHEMA_VERSION + 1}.*reads {SCHEMA_VERSION} only",
        ),
        (["schema_version"], "one", "field `schema_version`"),
        (["summary", "window_s"], [1.0], r"field `summary\.window_s`"),
        (["summary", "overall", "requests"], 1.5, r"field `summary\.overall\.requests`"),
        (["signals", "times_s"], [1.0], r"field `signals\.series\.\w+`: \d+ values for 1 times"),
        (["verdict"], None, "field `verdict`"),
    ],
)
def test_a_damaged_field_is_named(made: Sample, path: list[str], value: object, said: str) -> None:
    with pytest.raises(ReportError, match=said) as caught:
        parse_run(damaged(made, path, value), "run.json")
    assert str(caught.value).startswith("run.json: ")


@pytest.mark.parametrize(
    "content", [b"", b" \n", b"[]", b"{}", b"null", b"{", b'{"schema_version": 1}', b"\xff\xfe", b"<html>"]
)
def test_no_run_at_all(content: bytes) -> None:
    with pytest.raises(ReportError, match=r"run\.json: "):
        parse_run(content, "run.json")


def test_a_file_that_was_cut_off(made: Sample) -> None:
    whole = run_bytes(made.run)
    for length in range(1, len(whole) - 3, max(1, len(whole) // 50)):
        with pytest.raises(ReportError):
            parse_run(whole[:length], "run.json")


def test_no_key_is_written(made: Sample, tmp_path: Path) -> None:
    run = changed(made.run, environment=msgspec.structs.replace(made.run.environment, noted={"said": "sk-my-own-key"}))
    (tmp_path / "run.json").write_bytes(run_bytes(run))
    assert "my-own-key" not in (tmp_path / "run.json").read_text()
    (tmp_path / "run.json").write_bytes(msgspec.json.encode(run))  # as one that did not hide them would have
    assert load_run(tmp_path / "run.json").environment.noted == {"said": "***"}


def test_the_schema_names_every_field(made: Sample) -> None:
    schema = json_schema()
    run = schema["$defs"]["Run"]
    assert set(run["properties"]) == set(json.loads(run_bytes(made.run)))
    assert "schema_version" in run["properties"]


def test_a_file_whose_percentiles_mean_something_else_is_not_read(made: Sample) -> None:
    older = run_bytes(made.run).replace(b'"schema_version": 2', b'"schema_version": 1', 1)
    with pytest.raises(ReportError, match="leave out requests that were given up"):
        parse_run(older, "run.json")
