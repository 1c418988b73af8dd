"""Text leaves whole: characters are never split, stop strings never leak, tokens travel with their text."""

from __future__ import annotations

import codecs

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.scheduler.step import TokenLogprob
from headway.engine.text import StopMatcher, TextStage


class Bytes:
    """A detokenizer whose tokens are bytes: every character beyond ASCII is split over tokens."""

    def __init__(self) -> None:
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, tokens) -> str:
        return self.decoder.decode(bytes(tokens))

    def flush(self) -> str:
        return self.decoder.decode(b"", final=True)


def run(text: str, stops: list[str], at_once: int = 1, min_tokens: int = 0):
    """All pieces of `text`, fed as bytes."""
    stage = TextStage(Bytes(), stops, min_tokens)
    data = text.encode()
    pieces = []
    for start in range(0, len(data), at_once):
        if stage.stopped:
            break
        chunk = list(data[start : start + at_once])
        pieces.append(stage.add(chunk, [TokenLogprob(token, -1.0) for token in chunk]))
    pieces.append(stage.finish(with_logprobs=True))
    return stage, pieces


def cut(text: str, stops: list[str]) -> str:
    """What remains of `text`: up to the stop string that ends first, the longest of those that end there."""
    for end in range(1, len(text) + 1):
        lengths = [len(stop) for stop in stops if text[:end].endswith(stop)]
        if lengths:
            return text[: end - max(lengths)]
    return text


short = st.text(alphabet="abé🙂", max_size=30)
stop_lists = st.lists(st.text(alphabet="abé🙂", min_size=1, max_size=4), max_size=4)


@given(short, stop_lists, st.integers(1, 5))
def test_what_comes_out_is_the_text_up_to_the_first_stop_string(text, stops, at_once):
    stage, pieces = run(text, stops, at_once)
    assert "".join(piece.text for piece in pieces) == cut(text, stops)
    assert stage.stopped == (cut(text, stops) != text)


@given(short, stop_lists)
def test_no_piece_ever_shows_a_part_of_a_stop_string_that_follows(text, stops):
    """At any moment, what has been sent is a prefix of the final text: nothing has to be taken back."""
    _, pieces = run(text, stops)
    sent = ""
    for piece in pieces:
        sent += piece.text
        assert cut(text, stops).startswith(sent)


@given(short, stop_lists)
def test_text_is_held_back_only_while_it_may_be_a_stop_string(text, stops):
    stage = TextStage(Bytes(), stops)
    seen, sent = b"", ""
    for byte in text.encode():
        if stage.stopped:
            return
        seen += bytes([byte])
        sent += stage.add([byte], None).text
        if not stage.stopped:
            whole = seen.decode(errors="ignore")
            held = whole[len(sent) :]
            assert whole.startswith(sent)
            assert not held or any(stop.startswith(held) for stop in stops)


@given(short, stop_lists)
def test_tokens_and_logprobs_travel_with_their_text(text, stops):
    stage, pieces = run(text, stops)
    tokens = [token for piece in pieces for token in piece.tokens]
    assert [entry.token for piece in pieces for entry in piece.logprobs or ()] == tokens
    shown = cut(text, stops).encode()
    if not stage.stopped:
        assert bytes(tokens) == shown
    else:  # beyond what is shown, at most the first bytes of a character that never showed
        assert bytes(tokens).startswith(shown)
        assert bytes(tokens)[len(shown) :].decode(errors="ignore") == ""


def test_an_incomplete_character_at_the_end_is_shown_as_a_replacement():
    stage = TextStage(Bytes(), [])
    assert stage.add([0xF0, 0x9F], None).text == ""
    assert stage.finish().text == "\ufffd"


def test_an_end_token_is_not_shown():
    stage = TextStage(Bytes(), ["x"])
    piece = stage.add([ord("a"), ord("x")], None, hidden=1)
    assert (piece.text, piece.tokens, stage.stopped) == ("a", [ord("a")], False)


def test_min_tokens_lets_an_early_stop_string_pass():
    stage, pieces = run("ab ab", ["ab"], min_tokens=3)
    assert "".join(piece.text for piece in pieces) == "ab "
    assert stage.stopped


def test_a_long_stop_string_costs_no_more_than_its_length():
    """A naive search of a 100,000-character stop string over this text would take minutes."""
    matcher = StopMatcher(["a" * 100_000 + "b"])
    for _ in range(300_000):
        assert matcher.feed("a") == 0
    assert matcher.held == 100_000
    assert matcher.feed("b") == 100_001


@pytest.mark.parametrize("stops", [[], [""], ["", ""]])
def test_empty_stop_strings_stop_nothing(stops):
    stage, pieces = run("hello", stops)
    assert "".join(piece.text for piece in pieces) == "hello"
    assert not stage.stopped
