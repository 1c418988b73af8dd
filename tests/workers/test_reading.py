"""What passes through to a client, and what is learnt on the way, however a stream was cut."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.errors import HeadwayError
from headway.wire.sse import EventParser
from headway.workers.reading import MAX_EVENT_BYTES, Reading, read_whole
from headway.workers.worker import Told
from tests.workers.speaking import DONE, completion, event, said, usage, usage_of, words

PARTS = st.one_of(
    st.text(max_size=12).map(said),
    st.just(b": a comment\n\n"),
    st.just(b"\n"),
    st.just(b'event: message\ndata: {"choices":[],\ndata: "id":"c"}\n\n'),
    st.just(b"id: 1\nretry: 5\n\n"),
    st.integers(0, 9).map(usage),
    st.just(said(finish="stop")),
)
BAD = st.sampled_from([b"", b"data: {nonsense}\n\n", event({"error": {"message": "out of memory"}}), b'data: {"choi'])
LINE_ENDS = st.sampled_from([b"\n", b"\r\n", b"\r"])


def fed(stream: bytes, cuts: list[int], **options) -> tuple[bytes, Reading]:
    reading, out, at = Reading(**options), b"", 0
    for cut in sorted({cut for cut in cuts if cut < len(stream)} | {len(stream)}):
        out += reading.feed(stream[at:cut])
        at = cut
    return out + reading.end(), reading


def outcome(out: bytes, reading: Reading) -> object:
    failure = None if reading.failure is None else (reading.failure.code, reading.failure.message)
    return EventParser().feed(out), reading.told, failure


@given(
    parts=st.lists(PARTS, max_size=6),
    bad=BAD,
    done=st.booleans(),
    line_end=LINE_ENDS,
    cuts=st.lists(st.integers(1, 900), max_size=12),
    usage_added=st.booleans(),
)
def test_how_a_stream_is_cut_changes_nothing(*, parts, bad, done, line_end, cuts, usage_added):
    stream = (b"".join(parts) + bad + (DONE if done else b"")).replace(b"\n", line_end)
    pieces = outcome(*fed(stream, cuts, usage_added=usage_added))
    assert pieces == outcome(*fed(stream, [], usage_added=usage_added))


@given(st.lists(PARTS, max_size=6), st.lists(st.integers(1, 900), max_size=12))
def test_a_stream_that_is_only_passed_on_stays_byte_for_byte(parts, cuts):
    stream = b"".join(parts) + DONE
    out, reading = fed(stream, cuts)
    assert out == stream
    assert reading.told.complete
    assert reading.failure is None


@given(st.lists(PARTS, max_size=6), BAD, st.lists(st.integers(1, 900), max_size=12), LINE_ENDS)
def test_only_whole_events_are_handed_on(parts, bad, cuts, line_end):
    stream = (b"".join(parts) + bad).replace(b"\n", line_end)
    reading, at = Reading(), 0
    for cut in sorted({cut for cut in cuts if cut < len(stream)} | {len(stream)}):
        out = reading.feed(stream[at:cut])
        at = cut
        assert out == b"" or out.endswith(b"\n\n")
        assert b"nonsense" not in out
        assert b"out of memory" not in out
        assert not EventParser().feed(out) or all(json.loads(one.data) for one in EventParser().feed(out))


def test_usage_is_read_and_its_event_taken_out_only_if_it_was_added():
    stream = b"".join([*words(3)[:-1], usage(5), DONE])
    kept, reading = fed(stream, [])
    assert kept == stream
    assert (reading.told.prompt_tokens, reading.told.output_tokens, reading.told.cached_tokens) == (7, 5, 3)
    assert reading.told.exact
    for cuts in ([], [len(stream) - 20], list(range(1, len(stream)))):
        taken, reading = fed(stream, cuts, usage_added=True)
        assert taken == b"".join(words(3)), "all but the usage"
        assert reading.told.output_tokens == 5


def test_usage_that_comes_with_words_is_never_taken_out():
    last = said("end", finish="stop", usage=usage_of(9))
    out, reading = fed(said("a") + last + DONE, [], usage_added=True)
    assert out == said("a") + last + DONE
    assert reading.told.output_tokens == 9


def test_without_usage_chunks_with_words_are_counted():
    reading = Reading()
    reading.feed(b"".join(words(4)[:3]))
    assert (reading.told.output_tokens, reading.told.exact, reading.told.complete) == (2, False, False)


def test_two_events_in_a_packet_are_two():
    out, reading = fed(said("a") + said("b") + said(finish="stop") + DONE, [])
    assert [json.loads(one.data)["choices"][0]["delta"] for one in EventParser().feed(out)[:3]] == [
        {"content": "a"},
        {"content": "b"},
        {},
    ]
    assert reading.told.output_tokens == 2


@pytest.mark.parametrize(
    ("stream", "choices", "code"),
    [
        (b"", 1, "worker_closed"),
        (said("a"), 1, "worker_closed"),
        (said("a") + b'data: {"choices":[{"ind', 1, "worker_closed"),
        (said(finish="stop"), 2, "worker_closed"),  # of two
        (b"data: {}\n", 1, "worker_closed"),
        (b"data: oops\n\n", 1, "worker_garbage"),
        (b"data: [1]\n\n", 1, "worker_garbage"),
        (b'data: {"choices":3}\n\n', 1, "worker_garbage"),
        (said("a") + event({"error": {"message": "m", "code": 500}}) + DONE, 1, "worker_error"),
        (event({"object": "error", "message": "m"}), 1, "worker_error"),
        (b"event: error\ndata: m\n\n", 1, "worker_error"),
        (b"data: " + b"x" * (MAX_EVENT_BYTES + 1), 1, "worker_garbage"),
    ],
)
def test_what_is_no_whole_stream_fails(stream, choices, code):
    out, reading = fed(stream, [], choices=choices)
    assert reading.failure is not None
    assert reading.failure.code == code
    assert out in (b"", said("a"), said(finish="stop"), b"data: {}\n")
    assert DONE not in out


def test_a_workers_own_words_are_told():
    _, reading = fed(event({"error": {"message": "CUDA out of memory", "type": "x"}}), [])
    assert reading.failure is not None
    assert "CUDA out of memory" in reading.failure.message
    assert json.loads(reading.failure.told)["error"]["type"] == "x"


def test_a_stream_that_forgets_done_gets_it():
    out, reading = fed(said("a", finish="stop"), [])
    assert out == said("a", finish="stop") + DONE
    assert reading.told.complete
    assert reading.told.finish_reasons == {0: "stop"}


def test_nothing_follows_done():
    out, _ = fed(DONE + said("more"), [])
    assert out == DONE


def test_a_character_that_is_none_spoils_nothing():
    stream = said("a").replace(b'"a"', b'"\xff"') + said(finish="stop") + DONE
    out, reading = fed(stream, [])
    assert out == stream
    assert reading.failure is None


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "worker_garbage"),
        (b"<html>", "worker_garbage"),
        (completion()[:-9], "worker_garbage"),
        (b"[]", "worker_garbage"),
        (b'{"choices":[]}', "worker_garbage"),
        (b'{"error":{"message":"m"}}', "worker_error"),
        (b'{"object":"error","message":"m"}', "worker_error"),
    ],
)
def test_an_answer_in_one_piece_that_is_none(body, code):
    failure = read_whole(Told(), body)
    assert isinstance(failure, HeadwayError)
    assert failure.code == code


def test_an_answer_in_one_piece():
    told = Told()
    assert read_whole(told, completion()) is None
    assert (told.prompt_tokens, told.output_tokens, told.exact, told.complete) == (7, 2, True, True)
    assert told.finish_reasons == {0: "stop"}
