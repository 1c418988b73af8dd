"""What came back against what was asked: empty answers, wrong lengths, streams that are none."""

from __future__ import annotations

from array import array

import numpy as np
import pytest

from headway.loadtest.record import IN_ONE_PIECE, CountedBy, Record
from headway.loadtest.result import Load, Verdict, Word
from tests.loadtest import queues
from tests.loadtest.runs import load, run

COUNT = 2000


def calm(tokens: int = 5) -> list[Record]:
    """An idle server that takes 0.1 s for each request; 100 input tokens and `tokens` output tokens were asked."""
    due = np.linspace(0, COUNT * 0.2, COUNT, endpoint=False)
    return queues.records(queues.single(due, np.full(COUNT, 0.1)), tokens=tokens)


def emptied(record: Record, *, counted: int = 0) -> None:
    record.first_ns = record.last_ns = -1
    record.first_tokens = record.chunks = 0
    record.gaps_ns, record.gap_tokens = array("q"), array("H")
    record.output_tokens = counted


def judged(records: list[Record], what: Load | None = None) -> Verdict:
    return run(records, what or load(COUNT * 0.2)).verdict


def test_what_was_asked_for_needs_no_remark():
    found = judged(calm())
    assert (found.name, found.findings, found.remarks) == (Word.VALID, [], [])


@pytest.mark.parametrize("counted", [0, -1])
def test_answers_without_a_token_are_errors(counted):
    records = calm()
    for record in records[::2]:
        emptied(record, counted=counted)
    found = judged(records)
    assert found.name == Word.SERVER_ERRORS
    assert "1000 of 2000 answers were empty (50.0%, 1% allowed)" in found.findings[0].evidence
    assert not found.remarks


def test_reasoning_that_was_never_shown_is_told_and_slows_nothing_down():
    """900 of 1,000 tokens are thoughts that nobody sees; the other 100 come 0.5 ms apart, and 0.5 ms it is."""
    records = calm(tokens=100)
    for record in records:
        record.asked_output_tokens, record.output_tokens, record.hidden_tokens = 1000, 1000, 900
    found = run(records, load(COUNT * 0.2))
    assert found.summary.overall.distributions["tpot"].mean == pytest.approx(0.05 / 99)
    told = "1,800,000 of 2,000,000 output tokens (90%) were reasoning that was not shown"
    assert [told in remark for remark in found.verdict.remarks] == [True]


def test_a_few_empty_answers_are_told():
    records = calm()
    for record in records[::200]:
        emptied(record)
    found = judged(records)
    assert found.name == Word.VALID
    assert "10 of 2000 answers were empty (0.5%)" in found.remarks[0]


def test_streams_that_show_no_text_though_tokens_are_counted_are_told():
    records = calm()
    for record in records[::100]:
        emptied(record, counted=5)
    found = judged(records)
    assert found.name == Word.VALID
    assert "20 of 2000 answers showed no text (1.0%), though the server's usage counts tokens" in found.remarks[0]
    for record in records[::3] + records[1::3]:
        emptied(record, counted=5)
    found = judged(records)
    assert found.name == Word.SERVER_ERRORS
    assert "answers showed no text (67.0%, 50% allowed)" in found.findings[0].evidence
    assert "no text" not in "".join(found.remarks)


def test_who_is_answered_in_one_piece_misses_no_text():
    records = calm()
    for record in records:
        emptied(record, counted=5)
        record.error = IN_ONE_PIECE
    assert not judged(records).findings


@pytest.mark.parametrize(("counted", "word"), [(5, Word.VALID), (-1, Word.VALID), (0, Word.SERVER_ERRORS)])
def test_an_answer_in_one_piece_is_empty_when_the_server_says_so(counted, word):
    records = calm()
    for record in records:
        emptied(record, counted=counted)
    assert judged(records, load(COUNT * 0.2, settings={"stream": "no"})).name == word


def test_more_tokens_than_were_allowed_are_told():
    records = calm()
    records[7].output_tokens = 50
    assert "in 1 of 2,000 answers (up to 50 where 5 were asked)" in judged(records).remarks[0]
    records[7].counted = CountedBy.TOKENIZER  # counted again, text may give other numbers
    assert not judged(records).remarks


def test_every_choice_may_have_as_many_tokens():
    records = calm()
    for record in records:
        record.output_tokens = 10
    assert not judged(records, load(COUNT * 0.2, settings={"n": "2"})).remarks
    assert judged(records).remarks


@pytest.mark.parametrize(("counted", "told"), [(100, False), (130, False), (180, True), (10, True), (-1, False)])
def test_inputs_of_another_length_are_told(counted, told):
    """A template adds some tokens; 80 % more, or a tenth, is another prompt."""
    records = calm()
    for record in records:
        record.input_tokens = counted
    remarks = judged(records).remarks
    assert remarks == ([f"the server counts {counted} input tokens where 100 were asked (medians)"] if told else [])


@pytest.mark.parametrize(("share", "told"), [(0.4, False), (0.6, True)])
def test_outputs_that_are_mostly_too_short_are_told(share, told):
    records = calm()
    for record in records[: int(share * COUNT)]:
        record.asked_output_tokens = 10
    remarks = judged(records).remarks
    assert bool(remarks) == told
    if told:
        assert remarks[0].startswith("outputs are over 20% shorter than asked in 1,200 of 2,000 answers")


@pytest.mark.parametrize("pieces", [1, 5])
def test_a_stream_that_comes_in_one_piece_is_none(pieces):
    """Whether in one chunk, or in several that arrive together."""
    records = calm()
    for record in records:
        record.last_ns = record.first_ns
        record.chunks = pieces
        record.first_tokens = 6 - pieces
        record.gaps_ns, record.gap_tokens = array("q", [0] * (pieces - 1)), array("H", [1] * (pieces - 1))
    remarks = judged(records).remarks
    assert remarks == ["all tokens of an answer arrive at once (2,000 of 2,000 answers): ITL says nothing"]


def test_an_answer_of_one_token_is_no_stream_in_one_piece():
    assert not judged(calm(tokens=1)).remarks
