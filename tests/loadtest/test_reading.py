"""What streams say, read from bytes: each rule of reading, and the law that cutting the bytes changes nothing."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headway.loadtest.client.reading import CUT_OFF, NOT_DONE, Reading, read_whole
from headway.loadtest.client.shares import evenly, shares
from headway.loadtest.record import CountedBy, Record
from tests.loadtest.servers import DONE, event, said, usage

STEP_NS = 1000


def read(*pieces: bytes, choices: int = 1, keep_text: bool = False) -> tuple[Record, Reading]:
    """Each piece arrives 1 µs after the one before it."""
    record = Record(0, "", "", 5, 3, 0)
    reading = Reading(record, choices=choices, keep_text=keep_text)
    for place, data in enumerate(pieces):
        reading.feed(data, place * STEP_NS)
    reading.judge()
    reading.settle()
    return record, reading


def test_a_plain_stream() -> None:
    record, reading = read(
        said(role="assistant", content=""),
        said("a"),
        said("b"),
        said("c"),
        said(finish="length"),
        usage(3, 11, 4),
        DONE,
    )
    assert not reading.failed
    assert reading.error == ""
    assert (record.first_ns, record.last_ns) == (1 * STEP_NS, 3 * STEP_NS)
    assert list(record.gaps_ns) == [STEP_NS, STEP_NS]
    assert (record.first_tokens, list(record.gap_tokens), record.chunks) == (1, [1, 1], 3)
    assert (record.input_tokens, record.cached_tokens, record.output_tokens) == (11, 4, 3)
    assert record.counted is CountedBy.USAGE
    assert record.finish_reason == "length"
    assert not record.reasoning


def test_a_role_an_empty_delta_and_an_empty_choice_are_no_tokens() -> None:
    empty = event({"choices": [{"index": 0, "delta": {}, "finish_reason": None}]})
    bare = event({"choices": [{"index": 0}]})
    record, _ = read(said(role="assistant"), empty, bare, said(""), said(None), said("x", finish="stop"), DONE)
    assert record.first_ns == 5 * STEP_NS
    assert record.chunks == 1
    assert len(record.gaps_ns) == 0


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_reasoning_is_the_first_token(name: str) -> None:
    thought: dict[str, Any] = {name: "Hm"}
    record, reading = read(
        said(None, role="assistant"), said(None, **thought), said("Yes", finish="stop"), DONE, keep_text=True
    )
    assert record.reasoning
    assert record.first_ns == STEP_NS
    assert len(record.gaps_ns) == 1
    assert reading.text == "HmYes"


def test_tool_calls_refusals_and_parts_are_visible() -> None:
    call = {"index": 0, "id": "t", "type": "function", "function": {"name": "look", "arguments": ""}}
    record, reading = read(
        said(tool_calls=[call]),
        said(tool_calls=[{"index": 0, "function": {"arguments": '{"a"'}}]),
        said(tool_calls=[{"index": 0, "function": {"arguments": ""}}]),
        said(refusal="no"),
        said(function_call={"name": "old"}),
        event({"choices": [{"delta": {"content": [{"type": "text", "text": "part"}]}}]}),
        said(finish="tool_calls"),
        DONE,
        keep_text=True,
    )
    assert record.chunks == 5
    assert reading.text == 'look{"a"nooldpart'
    assert record.finish_reason == "tool_calls"


def test_completions_streams() -> None:
    record, reading = read(
        event({"choices": [{"index": 0, "text": "a", "finish_reason": None}]}),
        event({"choices": [{"index": 0, "text": "", "finish_reason": None}]}),
        event({"choices": [{"index": 0, "text": "b", "finish_reason": "length"}]}),
        DONE,
    )
    assert record.chunks == 2
    assert not reading.failed


def test_several_tokens_in_a_chunk_by_the_running_count() -> None:
    record, _ = read(
        said(role="assistant", content="", count=0),
        said("abc", count=3),
        said("", count=4),  # half a character: it is seen with the next
        said("de", count=6),
        said("f", count=7),
        said(finish="stop", count=8),
        usage(8),
        DONE,
    )
    assert record.counted is CountedBy.USAGE_BY_CHUNK
    assert (record.first_tokens, list(record.gap_tokens)) == (3, [3, 1])
    assert record.output_tokens == 8


def test_a_total_is_shared_evenly() -> None:
    record, _ = read(said("a"), said("b"), said("c"), said(finish="length"), usage(8), DONE)
    assert record.counted is CountedBy.USAGE
    assert record.first_tokens + sum(record.gap_tokens) == record.output_tokens == 8
    assert max(record.first_tokens, *record.gap_tokens) - min(record.first_tokens, *record.gap_tokens) <= 1


def test_the_end_token_is_counted_and_not_seen() -> None:
    record, _ = read(said("a"), said("b"), said(finish="stop"), usage(3), DONE)
    assert (record.first_tokens, list(record.gap_tokens), record.output_tokens) == (1, [1], 3)


def test_usage_in_the_last_chunk_with_a_choice() -> None:
    record, _ = read(said("a"), said("b"), said("c", finish="length", count=3), DONE)
    assert (record.counted, record.output_tokens, record.input_tokens) == (CountedBy.USAGE, 3, 7)


def thoughtful(completion: int, reasoning: int, **more: int) -> bytes:
    told = {"completion_tokens": completion, "completion_tokens_details": {"reasoning_tokens": reasoning}}
    return event({"choices": [], "usage": told | more})


@pytest.mark.parametrize(
    ("told", "output", "hidden"),
    [
        (thoughtful(10, 7), 10, 7),
        (thoughtful(3, 7, prompt_tokens=5, total_tokens=15), 3, 0),  # counted beside the completion
        (thoughtful(10, 7, prompt_tokens=5, total_tokens=15), 10, 7),
        (thoughtful(7, 7), 3, 0),  # makes no sense beside text: one a chunk
    ],
)
def test_reasoning_that_was_never_shown_is_not_spread_over_what_was(told: bytes, output: int, hidden: int) -> None:
    record, _ = read(said("a"), said("b"), said("c", finish="length"), told, DONE)
    assert (record.first_tokens, list(record.gap_tokens)) == (1, [1, 1])
    assert (record.output_tokens, record.hidden_tokens) == (output, hidden)


def test_reasoning_that_was_shown_is_not_hidden() -> None:
    thought: dict[str, Any] = {"reasoning_content": "Hm"}
    record, _ = read(said(None, **thought), said("a"), said("b", finish="length"), thoughtful(9, 3), DONE)
    assert (record.first_tokens, list(record.gap_tokens), record.hidden_tokens) == (3, [3, 3], 0)


def test_a_summary_of_much_reasoning_does_not_stand_for_all_of_it() -> None:
    thought: dict[str, Any] = {"reasoning_content": "Thinking"}
    words = [said("a") for _ in range(15)]
    record, _ = read(said(None, **thought), *words, said("b", finish="length"), thoughtful(516, 500), DONE)
    assert (record.output_tokens, record.hidden_tokens) == (516, 499)
    assert (record.first_tokens, list(record.gap_tokens)) == (1, [1] * 16)


def test_a_running_count_tells_hidden_reasoning_with_the_first_word() -> None:
    def counted(text: str, count: int, **more: Any) -> bytes:
        choice = {"index": 0, "delta": {"content": text}, "finish_reason": more.get("finish")}
        return event({"choices": [choice], "usage": {"completion_tokens": count}})

    record, _ = read(counted("a", 8), counted("b", 9), counted("c", 10, finish="length"), thoughtful(10, 7), DONE)
    assert (record.counted, record.first_tokens, list(record.gap_tokens)) == (CountedBy.USAGE_BY_CHUNK, 1, [1, 1])
    assert (record.output_tokens, record.hidden_tokens) == (10, 7)


def test_an_answer_in_one_piece_tells_hidden_reasoning_as_well() -> None:
    usage = b'"usage": {"completion_tokens": 9, "completion_tokens_details": {"reasoning_tokens": 7}}'
    for message, hidden in ((b'"content": "a"', 7), (b'"content": "a", "reasoning_content": "Hm"', 0)):
        record = Record(0, "", "", 5, 3, 0)
        assert read_whole(record, b'{"choices": [{"message": {%b}}], %b}' % (message, usage))[0] == ""
        assert (record.output_tokens, record.hidden_tokens) == (9, hidden)


def test_without_usage_a_chunk_is_a_token() -> None:
    record, _ = read(said("a b c"), said("d"), said(finish="stop"), DONE)
    assert (record.counted, record.output_tokens, record.input_tokens) == (CountedBy.CHUNKS, 2, -1)


def test_a_usage_that_is_the_same_in_every_chunk_is_no_running_count() -> None:
    record, _ = read(said("a", count=6), said("b", count=6), said("c", count=6, finish="length"), DONE)
    assert (record.counted, record.output_tokens) == (CountedBy.USAGE, 6)
    assert record.first_tokens + sum(record.gap_tokens) == 6


def test_a_usage_of_nothing_beside_text_is_no_count() -> None:
    record, _ = read(said("a"), said("b", finish="stop"), usage(0), DONE)
    assert (record.counted, record.output_tokens) == (CountedBy.CHUNKS, 2)


@pytest.mark.parametrize("together", [True, False], ids=["over all choices", "each by itself"])
def test_choices_have_gaps_of_their_own(together: bool) -> None:
    """a: 0, 2, 4 µs, b: 1, 3 µs; the server counts over both or for each."""
    counts = (1, 2, 3, 4, 5) if together else (1, 1, 2, 2, 3)
    texts = [said("x", index=place % 2, count=count) for place, count in enumerate(counts)]
    ends = [said(index=0, finish="length"), said(index=1, finish="length")]
    record, reading = read(*texts, *ends, usage(5), DONE, choices=2)
    assert not reading.failed
    assert record.counted is CountedBy.USAGE_BY_CHUNK
    assert list(record.gaps_ns) == [2 * STEP_NS] * 3
    assert (record.first_tokens, list(record.gap_tokens), record.output_tokens) == (2, [1, 1, 1], 5)
    assert (record.first_ns, record.choices) == (0, 2)


def test_one_choice_that_ends_does_not_end_the_others() -> None:
    _, reading = read(said("a", index=0, finish="stop"), said("b", index=1), choices=2)
    assert reading.failed
    assert reading.error == CUT_OFF


def test_endings() -> None:
    assert read(said("a"))[1].error == CUT_OFF
    assert read(said("a", finish="stop"))[1].error == NOT_DONE
    assert not read(said("a", finish="stop"))[1].failed
    assert not read(said("a"), DONE)[1].failed
    assert read()[1].error == CUT_OFF
    silent, reading = read(said(finish="stop"), usage(1), DONE)
    assert not reading.failed
    assert (silent.first_ns, silent.output_tokens, silent.first_tokens) == (-1, 1, 0)


@pytest.mark.parametrize(
    "failing",
    [
        event({"error": {"message": "no memory", "code": 500}}),
        event({"error": "no memory"}),
        event({"object": "error", "message": "no memory", "code": 500}),
        b'event: error\ndata: {"message": "no memory"}\n\n',
        b"event: error\ndata: no memory\n\n",
    ],
)
def test_an_error_event_inside_a_good_stream(failing: bytes) -> None:
    record, reading = read(said("a"), failing, DONE)
    assert reading.failed
    assert reading.error == "error event: no memory"
    assert record.chunks == 1


@pytest.mark.parametrize("junk", [b"data: {not json\n\n", b"data: 17\n\n", b'data: {"choices": 3}\n\n'])
def test_an_event_that_is_no_chunk_is_an_error(junk: bytes) -> None:
    _, reading = read(said("a"), junk, said("b", finish="stop"), DONE)
    assert reading.failed
    assert "not a completion chunk" in reading.error


def test_an_event_of_another_kind_is_passed_over() -> None:
    record, reading = read(event({"type": "ping"}), said("a", finish="stop"), DONE)
    assert not reading.failed
    assert record.chunks == 1


def test_bytes_that_are_no_utf8_are_read_as_the_standard_says() -> None:
    broken = said("QQ").replace(b"QQ", b"\xff\xfe")
    for pieces in ([said("a"), broken], [said("a") + broken], [bytes([byte]) for byte in said("a") + broken]):
        record, reading = read(*pieces, said(finish="stop"), DONE, keep_text=True)
        assert not reading.failed
        assert reading.text == "a��"
        assert record.chunks == 2


def test_text_is_kept_only_when_it_will_be_counted() -> None:
    assert read(said("a", finish="stop"), DONE)[1].text is None


def test_an_answer_in_one_piece() -> None:
    record = Record(0, "", "", 5, 3, 0)
    body = b'{"choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}], "usage": {"completion_tokens": 2}}'
    assert read_whole(record, body) == ("", "hi")
    assert (record.output_tokens, record.counted, record.first_ns) == (2, CountedBy.USAGE, -1)
    assert read_whole(record, b"{}")[0]
    assert read_whole(record, b"nonsense")[0]
    assert "no memory" in read_whole(record, b'{"error": {"message": "no memory"}}')[0]


# -- laws --------------------------------------------------------------------------------------------------------------

DELTAS = st.one_of(
    st.builds(
        said, st.sampled_from(["", "a", "b c", "é\n", '"quoted"', "\\u00e9"]), count=st.none() | st.integers(0, 9)
    ),
    st.builds(said, st.none(), reasoning=st.sampled_from(["", "hm"])),
    st.builds(said, st.none(), index=st.integers(0, 2), finish=st.sampled_from(["stop", "length"])),
    st.builds(said, st.sampled_from(["x", "yz"]), index=st.integers(0, 2), count=st.none() | st.integers(0, 9)),
    st.builds(usage, st.integers(0, 20)),
    st.sampled_from(
        [
            b": ping\n\n",
            b":\n\n",
            b"event: error\ndata: broken\n\n",
            b"event: other\n",
            b"id: 1\nretry: 10\n\n",
            b"data: {\n\n",
            b'data: {"choices":\ndata: []}\n\n',
            b'data:{"choices":[{"delta":{"content":"tight"}}]}\n\n',
            b"\xef\xbb\xbf",
            b"\n",
            DONE,
            event({"error": {"message": "e"}}),
        ]
    ),
)
STREAMS = st.lists(DELTAS, max_size=12).map(b"".join)


def timeless(record: Record) -> dict[str, Any]:
    told = dataclasses.asdict(record)
    for name in ("first_ns", "last_ns"):
        told[name] = told[name] >= 0
    told["gaps_ns"] = len(told["gaps_ns"])
    return told


@settings(deadline=None)
@given(
    STREAMS, st.sampled_from([b"\n", b"\r\n", b"\r"]), st.lists(st.integers(0, 4000), max_size=20), st.integers(1, 3)
)
@example(DONE + b"event: error\ndata: broken\n\n", b"\n", [], 1)
def test_cutting_the_bytes_changes_nothing_but_times(data: bytes, line_end: bytes, at: list[int], choices: int) -> None:
    data = data.replace(b"\n", line_end)
    expected, reading = read(*[bytes([byte]) for byte in data], choices=choices, keep_text=True)
    edges = [0, *sorted(place % (len(data) + 1) for place in at), len(data)]
    for pieces in ([data], [data[low:high] for low, high in itertools.pairwise(edges)]):
        record, other = read(*pieces, choices=choices, keep_text=True)
        assert timeless(record) == timeless(expected)
        assert (other.failed, other.error, other.done, other.text) == (
            reading.failed,
            reading.error,
            reading.done,
            reading.text,
        )


@settings(deadline=None)
@given(STREAMS)
def test_the_parts_of_a_record_agree(data: bytes) -> None:
    record, reading = read(data, choices=3)
    assert len(record.gaps_ns) == len(record.gap_tokens)
    assert record.chunks >= len(record.gaps_ns)
    assert (record.chunks > 0) == (record.first_ns >= 0) == (record.last_ns >= 0)
    assert reading.finished or reading.failed


@settings(deadline=None)
@given(st.integers(0, 500), st.integers(1, 60))
def test_shares_are_even_and_whole(total: int, chunks: int) -> None:
    shared = evenly(total, chunks)
    assert len(shared) == chunks
    assert min(shared) >= 1
    assert max(shared) - min(shared) <= 1
    assert sum(shared) == max(total, chunks)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 5)), min_size=2, max_size=30), st.booleans(), st.booleans())
def test_running_counts_are_taken_apart_again(chunks: list[tuple[int, int]], together: bool, total_told: bool) -> None:
    """Whichever way a server counts, the tokens of each chunk come out, if its total tells which way."""
    owners = [owner for owner, _ in chunks]
    running: dict[int, int] = {}
    counts = []
    for owner, tokens in chunks:
        key = 0 if together else owner
        running[key] = running.get(key, 0) + tokens
        counts.append(running[key])
    total = sum(running.values())
    if len(set(owners)) > 1 and not total_told:
        return  # both ways of counting may give such numbers
    shared = shares(owners, counts, total if total_told else None, 0)
    assert shared.counted is CountedBy.USAGE_BY_CHUNK
    assert shared.total == total
    if len(set(owners)) == 1 or sum(shared.tokens) == total:
        assert shared.tokens == [tokens for _, tokens in chunks] or len(set(owners)) > 1
