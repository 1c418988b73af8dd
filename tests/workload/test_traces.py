"""Traces: three formats told apart by content, every bad line named, and our own survives writing and reading."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headway.workload.errors import MAX_S, MAX_TOKENS, WorkloadError
from headway.workload.item import Arrival, Item
from headway.workload.traces import Cut, read_trace, write_trace

in_a_folder = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
REAL = Path(__file__).parents[3] / "shared" / "data" / "traces"

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:46.6805901,396,109
2023-11-16 18:15:50.9951690,879,55
2023-11-17 00:00:00,91,16
"""
MOONCAKE = [
    {"timestamp": 500, "input_length": 1100, "output_length": 5, "hash_ids": [0, 1, 2]},
    {"timestamp": 500, "input_length": 600, "output_length": 52, "hash_ids": [0, 9]},
    {"timestamp": 3500.25, "input_length": 40, "output_length": 1, "hash_ids": [10]},
]
OWN = [
    {"at_s": 10.0, "input_tokens": 100, "output_tokens": 10, "tenant": "a", "kind": "chat"},
    {"at_s": 10.25, "input_tokens": 200, "output_tokens": 20, "prefix_blocks": [1, 2], "prefix_block_tokens": 64},
    {"at_s": 12, "input_tokens": 9, "output_tokens": 3, "messages": [{"role": "user", "content": "Hello"}]},
]


def write(tmp_path: Path, rows: str | list[Any], name: str = "trace.txt") -> Path:
    """Under a name that says nothing."""
    path = tmp_path / name
    text = rows if isinstance(rows, str) else "\n".join(r if isinstance(r, str) else json.dumps(r) for r in rows)
    path.write_bytes(text.encode())
    return path


def times(path: Path, cut: Cut = Cut(), **how: Any) -> list[int]:
    return [arrival.at_ns for arrival in read_trace(path, cut, **how).arrivals]


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_azure_is_read_to_the_last_decimal(tmp_path: Path, ending: str, mark: str) -> None:
    trace = read_trace(write(tmp_path, mark + AZURE.strip().replace("\n", ending)))
    assert trace.format == "azure"
    assert trace.arrivals == [
        Arrival(0, Item(374, 44)),
        Arrival(100, Item(396, 109)),
        Arrival(4_314_579_000, Item(879, 55)),
        Arrival(20_653_319_410_000, Item(91, 16)),
    ]
    assert trace.description.startswith("4 requests of trace.txt (azure trace) in ")


@pytest.mark.parametrize(
    ("stamps", "after_ns"),
    [
        (["0.5", "1.25"], 750_000_000),
        (["0", "3"], 3_000_000_000),
        (["1.5e2", "151"], 1_000_000_000),
        (["2024-05-12 00:00:00.009930+00:00", "2024-05-12 00:00:00.009931+00:00"], 1000),
        (["2024-05-12T00:00:00Z", "2024-05-12T02:00:01+02:00"], 1_000_000_000),
        (["2024-02-29 23:59:59.999999999", "2024-03-01 00:00:00"], 1),
    ],
)
def test_a_time_is_a_date_or_seconds(tmp_path: Path, stamps: list[str], after_ns: int) -> None:
    rows = [f"7,{stamp},x,5" for stamp in stamps]
    path = write(tmp_path, "\n".join(["generatedtokens, Timestamp ,model,CONTEXTTOKENS", *rows]))
    assert read_trace(path).arrivals == [Arrival(0, Item(5, 7)), Arrival(after_ns, Item(5, 7))]


def test_mooncake_keeps_its_blocks(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path, MOONCAKE))
    assert trace.format == "mooncake"
    assert trace.arrivals == [
        Arrival(0, Item(1100, 5, prefix_blocks=(0, 1, 2), prefix_block_tokens=512)),
        Arrival(0, Item(600, 52, prefix_blocks=(0, 9), prefix_block_tokens=512)),
        Arrival(3_000_250_000, Item(40, 1, prefix_blocks=(10,), prefix_block_tokens=512)),
    ]


def test_our_own_has_everything(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path, ["", *OWN, ""]))
    assert trace.format == "own"
    assert trace.arrivals == [
        Arrival(0, Item(100, 10, "chat", "a")),
        Arrival(250_000_000, Item(200, 20, prefix_blocks=(1, 2), prefix_block_tokens=64)),
        Arrival(2_000_000_000, Item(9, 3, messages=[{"role": "user", "content": "Hello"}])),
    ]
    assert not trace.ignored


def test_fields_that_are_not_ours_are_told(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path, [{**OWN[0], "tennant": "a", "id": 5}]))
    assert trace.ignored == ("id", "tennant")
    assert "unknown fields ignored: id, tennant" in trace.description


names = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | names, lambda v: st.lists(v, max_size=2)
)
messages = st.lists(
    st.fixed_dictionaries({"role": names, "content": names}, optional={"name": values}), min_size=1, max_size=3
)
items = st.builds(
    Item,
    st.integers(1, MAX_TOKENS),
    st.integers(1, MAX_TOKENS),
    names,
    names,
    st.lists(st.integers(0, 2**63 - 1), max_size=4).map(tuple),
    st.integers(1, 1000),
    st.none() | messages,
)
gaps = st.integers(0, 10) | st.integers(0, 10**13)


@in_a_folder
@given(load=st.lists(st.tuples(gaps, items), min_size=1, max_size=20))
def test_what_is_written_is_read(tmp_path: Path, load: list[tuple[int, Item]]) -> None:
    at_ns = itertools.accumulate([0, *(gap for gap, _ in load[1:])])
    arrivals = [Arrival(at, item) for at, (_, item) in zip(at_ns, load, strict=True)]
    path = tmp_path / "load"
    write_trace(path, arrivals)
    trace = read_trace(path)
    assert trace.arrivals == arrivals
    assert (trace.format, trace.ignored, trace.clipped, trace.skipped) == ("own", (), 0, 0)


def test_what_cannot_be_written_is_refused(tmp_path: Path) -> None:
    bad: list[tuple[Path, Arrival, str]] = [
        (tmp_path / "x", Arrival(-1, Item(1, 1)), "at_s of arrival 1 must be 0 to"),
        (tmp_path / "x", Arrival(2**60, Item(1, 1)), "at_s of arrival 1 must be 0 to"),
        (tmp_path / "x", Arrival(0, Item(1, 1, messages=[{"role": object()}])), "arrival 1 cannot be written as JSON"),
        (tmp_path, Arrival(0, Item(1, 1)), f"cannot write {tmp_path}"),
    ]
    for path, arrival, what in bad:
        with pytest.raises(WorkloadError, match=what):
            write_trace(path, [arrival])


@in_a_folder
@given(scale=st.sampled_from([0.1, 0.5, 1.0, 2.0, 10.0]), start=st.integers(0, 19), count=st.integers(1, 20))
def test_a_slice_begins_at_its_first_request_and_is_stretched_after(
    tmp_path: Path, scale: float, start: int, count: int
) -> None:
    rows = [{"at_s": second, "input_tokens": second + 1, "output_tokens": 1} for second in range(20)]
    path = write(tmp_path, rows)
    for cut in (
        Cut(scale, start_s=start, duration_s=count),
        Cut(scale, start_s=start, limit=count),
        Cut(scale, start_s=max(0, start - 0.5), duration_s=count),
    ):
        arrivals = read_trace(path, cut).arrivals
        kept = range(start, min(start + count, 20))
        assert [arrival.item.input_tokens for arrival in arrivals] == [second + 1 for second in kept]
        assert [arrival.at_ns for arrival in arrivals] == [round((s - start) * scale * 1e9) for s in kept]


def test_a_scale_of_two_is_twice_as_slow(tmp_path: Path) -> None:
    assert times(write(tmp_path, OWN), Cut(time_scale=2)) == [0, 500_000_000, 4_000_000_000]


def test_long_requests_are_shortened_or_left_out_and_told(tmp_path: Path) -> None:
    path = write(tmp_path, [*OWN, {"at_s": 13, "input_tokens": 50, "output_tokens": 500}])
    trace = read_trace(path, Cut(max_input_tokens=100, max_output_tokens=100))
    assert [(a.item.input_tokens, a.item.output_tokens) for a in trace.arrivals] == [
        (100, 10),
        (100, 20),
        (9, 3),
        (50, 100),
    ]
    assert trace.arrivals[1].item.prefix_blocks == (1, 2)
    assert (trace.clipped, trace.skipped) == (2, 0)
    assert "2 shortened" in trace.description
    assert read_trace(path, Cut(max_input_tokens=64)).arrivals[1].item.prefix_blocks == (1,)
    trace = read_trace(path, Cut(max_input_tokens=60, over="skip"))
    assert [a.item.input_tokens for a in trace.arrivals] == [9, 50]
    assert [a.at_ns for a in trace.arrivals] == [0, 1_000_000_000]
    assert (trace.clipped, trace.skipped) == (0, 2)
    assert "2 of 4 requests" in trace.description
    assert "2 left out for their length" in trace.description
    # Text that was given cannot be shortened.
    assert read_trace(path, Cut(max_input_tokens=5)).skipped == 1


def test_times_that_go_back_are_refused_or_put_in_order(tmp_path: Path) -> None:
    rows = [
        {"at_s": at, "input_tokens": put, "output_tokens": 1} for at, put in ((5, 1), (7, 2), (6, 3), (6, 4), (4, 5))
    ]
    path = write(tmp_path, rows)
    with pytest.raises(
        WorkloadError, match=rf"{path}:3: its time is 1 s earlier than the line before; 2 of 5 requests go back"
    ):
        read_trace(path)
    trace = read_trace(path, sort=True)
    assert [(a.at_ns, a.item.input_tokens) for a in trace.arrivals] == [
        (0, 5),
        (1_000_000_000, 1),
        (2_000_000_000, 3),
        (2_000_000_000, 4),
        (3_000_000_000, 2),
    ]
    assert trace.resorted == 2
    assert "2 put in order" in trace.description


BAD_NUMBERS: list[tuple[Any, str]] = [
    (-1, "not -1"),
    (float("nan"), "not nan"),
    (float("inf"), "not inf"),
    (float("-inf"), "not -inf"),
    (None, "is missing"),
    ("5", "must be a number, not '5'"),
    (True, "must be a number, not True"),
    ([5], "must be a number, not [5]"),
    (10**30, "must be"),
    (1e300, "must be"),
]
FIELDS = {
    "mooncake": (MOONCAKE[1], ["timestamp", "input_length", "output_length"]),
    "own": (OWN[1], ["at_s", "input_tokens", "output_tokens"]),
}


@pytest.mark.parametrize(("value", "what"), BAD_NUMBERS, ids=lambda value: str(value)[:10])
@pytest.mark.parametrize(("name", "place"), list(itertools.product(FIELDS, range(3))))
def test_a_bad_number_is_named(tmp_path: Path, name: str, place: int, value: Any, what: str) -> None:
    good, fields = FIELDS[name]
    path = write(tmp_path, [good, "", {**good, fields[place]: value}, good])
    with pytest.raises(WorkloadError) as error:
        read_trace(path)
    said = str(error.value)
    assert said.startswith(f"{path}:3: {fields[place]} ")
    assert what in said
    assert said.endswith("Correct the line or remove it.")
    assert error.value.field == fields[place]


@pytest.mark.parametrize(
    ("name", "changes", "what"),
    [
        ("own", {"input_tokens": 0}, "input_tokens must be 1 to 10,000,000 tokens, not 0"),
        ("own", {"input_tokens": 1.5}, "input_tokens must be a whole number, not 1.5"),
        ("own", {"tenant": 5}, "tenant must be a text"),
        ("own", {"kind": ["x"]}, "kind must be a text"),
        ("own", {"prefix_blocks": 5}, "prefix_blocks must be a list of whole numbers, not 5"),
        ("own", {"prefix_blocks": [1, -2]}, r"prefix_blocks[1] must be 0 to"),
        ("own", {"prefix_blocks": [1, "x"]}, r"prefix_blocks[1] must be a number, not 'x'"),
        ("own", {"prefix_block_tokens": None}, "prefix_block_tokens is missing"),
        ("own", {"prefix_block_tokens": ""}, "prefix_block_tokens must be a number, not ''"),
        ("own", {"messages": []}, "messages must be a list of at least one message"),
        ("own", {"messages": [{"content": "x"}]}, "messages[0].role must be a text"),
        ("mooncake", {"hash_ids": "abc"}, "hash_ids must be a list of whole numbers, not 'abc'"),
        ("mooncake", {"hash_ids": [1.5]}, "hash_ids[0] must be a whole number"),
        ("mooncake", {"output_length": 0}, "output_length must be 1 to"),
    ],
)
def test_a_bad_field_is_named(tmp_path: Path, name: str, changes: dict[str, Any], what: str) -> None:
    good, _ = FIELDS[name]
    path = write(tmp_path, [good, {**good, **changes}])
    with pytest.raises(WorkloadError) as error:
        read_trace(path)
    assert str(error.value).startswith(f"{path}:2: {what}")


@pytest.mark.parametrize(
    ("row", "what"),
    [
        ("2023-11-16 18:15:47,5", "it has 2 columns and the header 3"),
        ("2023-11-16 18:15:47,5,6,7", "it has 4 columns and the header 3"),
        (",5,6", "TIMESTAMP is missing"),
        ("yesterday,5,6", "TIMESTAMP must be a date such as"),
        ("2023-13-45 18:15:47,5,6", "TIMESTAMP is no date: '2023-13-45 18:15:47'"),
        ("2023-11-16 18:15:47+99:00,5,6", "TIMESTAMP is no date"),
        ("0000-11-16 18:15:47,5,6", "TIMESTAMP is no date"),
        ("2023-11-16 18:15:47.12345678901,5,6", "TIMESTAMP must be a date such as"),
        ("nan,5,6", "TIMESTAMP must be a date such as"),
        ("-5,5,6", "TIMESTAMP must be 0 to"),
        ("1e300,5,6", "TIMESTAMP must be 0 to"),
        ("2023-11-16 18:15:47,,6", "ContextTokens is missing"),
        ("2023-11-16 18:15:47,nan,6", "ContextTokens must be a whole number, not 'nan'"),
        ("2023-11-16 18:15:47,-5,6", "ContextTokens must be 1 to 10,000,000 tokens, not -5"),
        ("2023-11-16 18:15:47,5.5,6", "ContextTokens must be a whole number, not '5.5'"),
        ("2023-11-16 18:15:47,5,0", "GeneratedTokens must be 1 to"),
        ("2023-11-16 18:15:47,5,six", "GeneratedTokens must be a whole number, not 'six'"),
        ("2023-11-16 18:15:47,5,1_0", "GeneratedTokens must be a whole number, not '1_0'"),
        ("2023-11-16 18:15:47,5,999999999999", "GeneratedTokens must be 1 to"),
    ],
)
def test_a_bad_row_of_azures_is_named(tmp_path: Path, row: str, what: str) -> None:
    path = write(tmp_path, "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.5,374.0,44\n\n" + row + "\n")
    with pytest.raises(WorkloadError) as error:
        read_trace(path)
    assert str(error.value).startswith(f"{path}:4: {what}")


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "is empty; a trace needs at least one request"),
        (b"\n \r\n\xef\xbb\xbf\n", "is empty"),
        (b"TIMESTAMP,ContextTokens,GeneratedTokens\n", "holds no request"),
        (b"TIMESTAMP,ContextTokens\n1,2\n", ":1: the header lacks GeneratedTokens"),
        (b"1,2,3\n", ":1: the header lacks TIMESTAMP"),
        (b'[{"at_s": 1}]', "is no trace: it begins with b'[{"),
        (b"hello\n", "is no trace: it begins with b'hello"),
        (b"\x00\x01\x02", "is no trace"),
        (b'{"a": 1, "b": 2}\n', ":1: no trace has the fields 'a, b'. Known are"),
        (b'\n{"at_s": 1', ":2: a line must hold a JSON object"),
        (b'{"at_s": 1, "input_tokens": 5, "output_tokens": 5}\n[5]\n', ":2: a line must hold a JSON object, not [5]"),
        (b'{"at_s": 1, "input_tokens": 5, "output_tokens": 5}\n\xff\xfe\n', ":2: a line must hold a JSON object"),
        (b"TIMESTAMP,ContextTokens,GeneratedTokens\n\xff\xff,1,2\n", ":2: this is not UTF-8 text"),
        (b'{"at_s": ' + b"[" * 5000, ":1: a line must hold a JSON object"),
        (b'{"at_s": 1' + b"0" * 5000 + b', "input_tokens": 5, "output_tokens": 5}', ":1: "),
        (b'{"input_tokens": 5, "output_tokens": 5}\n', ":1: at_s is missing"),
        (b'{"input_length": 5, "output_length": 5}\n', ":1: timestamp is missing"),
    ],
)
def test_what_is_no_trace_is_refused(tmp_path: Path, content: bytes, what: str) -> None:
    path = tmp_path / "trace"
    path.write_bytes(content)
    with pytest.raises(WorkloadError) as error:
        read_trace(path)
    assert str(path) in str(error.value)
    assert what in str(error.value)


@in_a_folder
@given(
    start=st.sampled_from(
        [b"", AZURE.encode(), json.dumps(OWN[0]).encode() + b"\n", json.dumps(MOONCAKE[0]).encode() + b"\n"]
    ),
    rest=st.binary(max_size=60) | st.text(max_size=60).map(str.encode),
)
def test_nothing_but_our_own_error_comes_out(tmp_path: Path, start: bytes, rest: bytes) -> None:
    path = tmp_path / "trace"
    path.write_bytes(start + rest)
    try:
        assert read_trace(path).arrivals
    except WorkloadError as error:
        assert str(path) in str(error)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(WorkloadError, match=f"cannot read {path}: "):
            read_trace(path)


def test_a_slice_of_nothing_says_how_long_the_trace_is(tmp_path: Path) -> None:
    path = write(tmp_path, OWN)
    with pytest.raises(WorkloadError, match=r"nothing is left of .*: of its 3 requests in 2 s, 0 are too long"):
        read_trace(path, Cut(start_s=100))
    with pytest.raises(WorkloadError, match="3 are too long"):
        read_trace(path, Cut(max_input_tokens=1, over="skip"))


def test_a_trace_longer_than_its_times_are_exact_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, [{**OWN[0], "at_s": 0}, {**OWN[0], "at_s": MAX_S * 1.1}])
    with pytest.raises(WorkloadError, match=r"spans .* the limit is .* .26 days"):
        read_trace(path)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("time_scale", 0),
        ("time_scale", -1),
        ("time_scale", float("nan")),
        ("start_s", -1),
        ("duration_s", 0),
        ("limit", 0),
        ("limit", 1.5),
        ("max_input_tokens", 0),
        ("max_output_tokens", -1),
        ("over", "drop"),
    ],
)
def test_a_bad_cut_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(WorkloadError, match=f"^{field} must be ") as error:
        Cut(**{field: value})
    assert error.value.field == field


@pytest.mark.slow
def test_real_traces_are_read_whole() -> None:
    """Where they are; the project carries only the small ones above."""
    sizes = {
        "azure_llm_2023_conv.csv": 19_366,
        "azure_llm_2023_code.csv": 8_819,
        "mooncake_fast25_conversation.jsonl": 12_031,
    }
    for name, requests in sizes.items():
        if (path := REAL / name).exists():
            trace = read_trace(path)
            assert len(trace.arrivals) == trace.rows == requests
            assert trace.arrivals[0].at_ns == 0
            assert 3400 < trace.duration_s < 3610
            for arrival in trace.arrivals:
                blocks = -(-arrival.item.input_tokens // 512) if trace.format == "mooncake" else 0
                assert len(arrival.item.prefix_blocks) == blocks


def test_half_a_character_in_a_trace_is_named(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    row = '{"at_s": 0, "input_tokens": 1, "output_tokens": 1, "tenant": "TENANT"}\n'
    path.write_text(row.replace("TENANT", "a") + row.replace("TENANT", "\\ud800"))
    with pytest.raises(WorkloadError, match=r"own.jsonl:2: .*half of a character"):
        read_trace(path)
