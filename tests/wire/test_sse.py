"""Server-sent events: what is framed is read back, and how the bytes are cut never changes what is read."""

from __future__ import annotations

import itertools
import json

from hypothesis import given
from hypothesis import strategies as st

from headway.wire.sse import DONE, Event, EventParser, event_bytes

# Small alphabet on purpose: line ends, colons and spaces must meet often.
fragments = st.sampled_from(
    [
        b"\n",
        b"\r",
        b"\r\n",
        b"data",
        b"data:",
        b"data: ",
        b"event: x",
        b"id: 7",
        b": note",
        b":",
        b" ",
        b"a",
        b"\xc3\xa9",
        b"\xff",
    ]
)
streams = st.lists(fragments, max_size=30).map(b"".join)


def read(pieces: list[bytes]) -> list[Event]:
    parser = EventParser()
    return [event for piece in pieces for event in parser.feed(piece)]


def cut(data: bytes, at: list[int]) -> list[bytes]:
    edges = [0, *sorted(i % (len(data) + 1) for i in at), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges)]


def reference(data: bytes) -> list[Event]:
    """The grammar, read from the whole stream at once."""
    text = data.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    events: list[Event] = []
    lines: list[str] = []
    kind, last_id = "message", ""
    for line in text.split(b"\n")[:-1]:
        name, _, value = line.partition(b":")
        told = value.removeprefix(b" ").decode("utf-8", "replace")
        if not line:
            if lines:
                events.append(Event("\n".join(lines), kind, last_id))
            lines, kind = [], "message"
        elif name == b"data":
            lines.append(told)
        elif name == b"event":
            kind = told or "message"
        elif name == b"id":
            last_id = told
    return events


@given(streams)
def test_the_grammar_is_the_standards(data: bytes) -> None:
    assert read([data]) == reference(data)


@given(streams, st.lists(st.integers(0, 10_000), max_size=12))
def test_any_cut_gives_the_same_events(data: bytes, at: list[int]) -> None:
    assert read(cut(data, at)) == read([data])
    assert read([bytes([byte]) for byte in data]) == read([data])


@given(st.lists(st.text()), st.lists(st.integers(0, 10_000), max_size=12))
def test_what_is_framed_is_read_back(texts: list[str], at: list[int]) -> None:
    data = b"".join(event_bytes(text.encode()) for text in texts)
    line_ends = [text.replace("\r\n", "\n").replace("\r", "\n") for text in texts]
    assert [event.data for event in read(cut(data, at))] == line_ends


@given(st.lists(st.text(min_size=1), min_size=1), st.integers(0, 10_000))
def test_json_events_survive_whatever_the_text(texts: list[str], at: int) -> None:
    data = b"".join(event_bytes(json.dumps(text, ensure_ascii=False).encode()) for text in texts) + DONE
    *events, done = read(cut(data, [at]))
    assert [json.loads(event.data) for event in events] == texts
    assert done.data == "[DONE]"


def test_a_named_event() -> None:
    assert read([event_bytes(b"x", event="error")]) == [Event("x", "error")]


def test_a_byte_order_mark_is_skipped_once() -> None:
    assert read([b"\xef\xbb", b"\xbfdata: a\n\n\xef\xbb\xbfdata: b\n\n"]) == [Event("a")]


def test_an_event_that_was_cut_off_is_none_and_shows() -> None:
    parser = EventParser()
    assert parser.feed(b"data: whole\n\ndata: half") == [Event("whole")]
    assert parser.incomplete
    assert parser.feed(b"\n") == []
    assert parser.incomplete
    assert parser.feed(b"\n") == [Event("half")]
    assert not parser.incomplete
