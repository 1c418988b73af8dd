"""Servers that mean ill or are broken: numbers that make no sense, answers without end, keys said back in disguise."""

from __future__ import annotations

import asyncio
import itertools
import json
from typing import Any
from urllib.parse import quote

import pytest

from headway.loadtest.client import exchange, reading
from headway.loadtest.client.address import parse_url
from headway.loadtest.client.request import RequestTemplate
from headway.loadtest.errors import InvalidPlan, LoadTestError
from headway.loadtest.record import CountedBy, Fate
from headway.loadtest.redact import MASK, Redactor, hidden_in
from headway.loadtest.result import Load, Slo
from headway.loadtest.runner.run import run
from headway.loadtest.side.aside import aside
from headway.loadtest.side.discover import discover
from headway.loadtest.summary import summarise
from headway.loadtest.table import tabulate
from tests.loadtest.servers import (
    DONE,
    END,
    Turn,
    answering,
    error,
    event,
    head,
    piece,
    plan_for,
    record_of,
    said,
    serving,
    stream,
    talks,
    usage,
    whole,
    words,
)

# -- numbers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("index", [-1, 65_536, 10**30])
async def test_a_choice_that_cannot_be_is_the_servers_error(index: int) -> None:
    script = answering(stream(said("a"), said("b", index=index), said(finish="stop"), DONE))
    async with serving(script) as server:
        measured = await run(plan_for(server.url, requests=2))
    assert {record.fate for record in measured.records} == {Fate.SERVER_ERROR}
    assert "choices[0].index" in measured.records[0].error
    summarise(tabulate(measured.records), Load("concurrency", "closed", "two"), Slo())


async def test_the_last_index_that_can_be() -> None:
    script = answering(stream(*[said("a", index=index) for index in (65_535, 65_534, 65_535)], DONE))
    record = await record_of(script)
    assert record.fate is Fate.OK
    assert len(record.gaps_ns) == len(record.gap_tokens) == 1


MORE = [pytest.param(odd, marks=pytest.mark.slow) for odd in (1e300, 10**30, 2.5, True)]


@pytest.mark.parametrize("odd", ["7", -1, 2**31, [], *MORE], ids=str)
async def test_a_usage_that_makes_no_sense_costs_the_usage_only(odd: Any) -> None:
    for told in ({"prompt_tokens": 7, "completion_tokens": odd}, {"prompt_tokens": odd, "completion_tokens": 2}, odd):
        last = event({"choices": [], "usage": told})
        record = await record_of(answering(stream(said("a"), said("b"), said(finish="length"), last, DONE)))
        assert (record.fate, record.counted, record.output_tokens) == (Fate.OK, CountedBy.CHUNKS, 2)
        assert "usage is ignored" in record.error


async def test_more_tokens_than_a_chunk_can_hold_are_not_believed() -> None:
    record = await record_of(answering(stream(said("a"), said("b"), said(finish="length"), usage(2**31 - 1), DONE)))
    assert (record.fate, record.counted, record.output_tokens) == (Fate.OK, CountedBy.CHUNKS, 2)
    assert record.first_tokens + sum(record.gap_tokens) == record.output_tokens
    assert "not believed" in record.error


async def test_the_most_that_chunks_can_hold() -> None:
    record = await record_of(answering(stream(said("a"), said("b"), said(finish="length"), usage(2 * 65_535), DONE)))
    assert (record.counted, record.output_tokens, record.error) == (CountedBy.USAGE, 131_070, "")
    assert record.first_tokens + sum(record.gap_tokens) == record.output_tokens


# -- without end -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lines", ["one", "many"])
async def test_an_event_without_end(monkeypatch: pytest.MonkeyPatch, lines: str) -> None:
    monkeypatch.setattr(reading, "MAX_EVENT_BYTES", 2**20)

    async def script(turn: Turn) -> None:
        turn.write(head(), piece(b"data: x"))
        for _ in range(3000):
            turn.write(piece(b"x" * 65_536 if lines == "one" else b"data: y\n" * 8192))
            await turn.writer.drain()

    record = await record_of(script)
    assert (record.fate, record.error) == (Fate.TOO_LONG, "an event is longer than 1 MB")


async def test_comments_without_end_are_no_event(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MAX_EVENT_BYTES", 10_000)
    record = await record_of(answering(stream(*[b": " + b"p" * 5000 + b"\n\n"] * 5, *words(3))))
    assert record.fate is Fate.OK


async def test_a_stream_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Good events, one after another, for as long as anybody reads; the limit grows with what was asked for."""
    monkeypatch.setattr(reading, "MAX_STREAM_BYTES", 2**20)
    sent = 0

    async def script(turn: Turn) -> None:
        nonlocal sent
        turn.write(head())
        for _ in range(3000):
            turn.write(piece(said("x" * 1000)) + piece(b": ping\n\n"))
            sent += 1
            await turn.writer.drain()

    record = await record_of(script)
    assert (record.fate, record.error) == (Fate.TOO_LONG, "the stream is longer than 1 MB")
    assert record.first_ns >= 0
    monkeypatch.setattr(reading, "MAX_TOKEN_BYTES", 2**20)
    longer = await record_of(answering(stream(*[said("x" * 1000)] * 1500, *words(1))))
    assert longer.fate is Fate.OK, "of three tokens that were asked for"


async def test_an_answer_in_one_piece_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "MAX_BODY_BYTES", 2**20)
    record = await record_of(answering(whole(b"[" * 2**21)), stream=False)
    assert (record.fate, record.error) == (Fate.TOO_LONG, "the answer is longer than 1 MB")


# -- held connections --------------------------------------------------------------------------------------------------


async def test_a_connection_that_is_held_after_done_is_no_time_of_the_answer() -> None:
    async def script(turn: Turn) -> None:
        turn.write(head(), *map(piece, words(3)))
        await turn.writer.drain()
        await asyncio.sleep(0.3)
        turn.write(END)

    async with serving(script) as server:
        records = (await run(plan_for(server.url, requests=3))).records
    assert [record.fate for record in records] == [Fate.OK] * 3
    for record in records:
        assert record.ended_ns - record.last_ns < 200_000_000
    for before, after in itertools.pairwise(records):
        assert before.ended_ns <= after.scheduled_ns < before.ended_ns + 200_000_000


async def test_a_connection_whose_body_ended_late_serves_again() -> None:
    async def script(turn: Turn) -> None:
        turn.write(head(), *map(piece, words(3)))
        await turn.writer.drain()
        await asyncio.sleep(0.03)
        turn.write(END)

    async with serving(script) as server:
        measured = await run(plan_for(server.url, requests=8))
    assert measured.connections < 8
    assert [record.fate for record in measured.records] == [Fate.OK] * 8


async def test_the_end_of_a_body_that_comes_at_once_keeps_the_connection() -> None:
    async def script(turn: Turn) -> None:
        turn.write(head(), *map(piece, words(3)))
        await turn.writer.drain()
        await asyncio.sleep(0)
        turn.write(END)

    async with serving(script) as server:
        assert (await run(plan_for(server.url, requests=5))).connections < 5


# -- keys --------------------------------------------------------------------------------------------------------------

KEY = "q/K+ey=Of 7x%"
FORMS = [KEY, quote(KEY), quote(KEY, safe=""), "q%2fK%2bey%3dOf%207x%25", KEY.replace(" ", "+")]


def test_a_key_of_the_query_is_known_in_every_form() -> None:
    for written in (quote(KEY, safe=""), quote(KEY)):
        clean = RequestTemplate(parse_url(f"http://h/v1?code={written}&v=1")[0], "m").redactor()
        for form in FORMS:
            assert clean.text(f"no ({form}) here") == f"no ({MASK}) here"


def test_the_login_is_known_in_every_form() -> None:
    clean = RequestTemplate(parse_url("http://user:p%2Fss%20w0rd@h")[0], "m").redactor()
    for form in ("p/ss w0rd", "p%2Fss%20w0rd", "p%2fss%20w0rd", "p/ss%20w0rd"):
        assert clean.text(f"no ({form}) here") == f"no ({MASK}) here"


@pytest.mark.parametrize(
    "url",
    [
        "http://user:sec/retpw@h",
        "http://user:1/retpw@h",
        "http://user:sec?retpw@h",
        "http://user:sec#retpw@h",
        "user:sec/retpw@h",
        "ftp://user:sec/retpw@h",
        "http://user:sec retpw@h",
    ],
)
def test_a_password_that_breaks_the_url_is_not_told(url: str) -> None:
    with pytest.raises(InvalidPlan) as caught:
        parse_url(url)
    assert "sec" not in str(caught.value)
    assert "retpw" not in str(caught.value)


def test_what_has_no_name_of_a_secret_may_be_one() -> None:
    headers = {"X-Custom": "Scheme zx81-hunter2", "Accept-Language": "en", "X-Mode": "fast"}
    extra = {"options": {"pass": ["8d7f-aa01-zz"], "api_key": "abc"}, "effort": "medium", "seed_text": "12345678"}
    template = RequestTemplate(parse_url("http://h")[0], "m", headers=headers, extra=extra)
    clean = template.redactor()
    for secret in ("zx81-hunter2", "8d7f-aa01-zz", "abc"):
        assert clean.text(f"no ({secret}) here") == f"no ({MASK}) here"
    assert clean.text("fast en medium 12345678") == "fast en medium 12345678"
    named = RequestTemplate(parse_url("http://h")[0], "org/m0del-7b", extra={"draft": "m0del-7b"})
    assert named.redactor().text("org/m0del-7b") == "org/m0del-7b"


@pytest.mark.parametrize("value", ["application/json", "2024-10-21", "json_object", "text/event-stream", "v1.2", "no"])
def test_ordinary_values(value: str) -> None:
    assert hidden_in([value]) == []


@pytest.mark.parametrize("at", range(0, 330, 7))
async def test_a_key_at_any_place_is_masked_before_the_text_is_cut(at: int) -> None:
    key = "zx81hunter2zx81hunter2"
    template = RequestTemplate(parse_url("http://h")[0], "m", headers={"X-Custom": key})
    assert "zx8" not in template.redactor().line("z " * (at // 2) + key, 200)
    body = "y" * at + " " + key
    record = await record_of(answering(stream(f"data: {body}\n\n".encode())), headers={"X-Custom": key})
    assert record.fate is Fate.SERVER_ERROR
    assert "zx8" not in record.error


def test_a_key_behind_much_white_space() -> None:
    clean = Redactor(["zx81hunter2"])
    for at in range(16_384 - 14, 16_384 + 2):
        assert "zx8" not in clean.line(" " * at + "zx81hunter2")


@pytest.mark.parametrize("status", [401, 400])
@pytest.mark.parametrize("at", [190, 195, 290, 295])
async def test_discovery_masks_before_it_cuts(status: int, at: int) -> None:
    key = "zx81hunter2zx81hunter2"
    async with serving(answering(whole(error("y" * at + " " + key), status=status))) as server:
        template = RequestTemplate(parse_url(server.url)[0], "m", headers={"X-Custom": key})
        with pytest.raises(LoadTestError) as caught:
            await discover(template)
    assert "yyy" in str(caught.value)
    assert "zx8" not in str(caught.value)


# -- patience ----------------------------------------------------------------------------------------------------------


async def test_questions_aside_are_left_alone_when_nobody_waits() -> None:
    async def script(turn: Turn) -> None:
        await asyncio.sleep(60)

    async with serving(script) as server:
        asking = asyncio.create_task(discover(RequestTemplate(parse_url(server.url)[0], "m")))
        while not server.asked:
            await asyncio.sleep(0.01)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(asking, 5)


async def test_what_is_asked_aside_is_answered_or_raised() -> None:
    assert await aside(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        await aside(lambda: 1 // 0)


async def test_good_servers_stay_good() -> None:
    record = await record_of(talks, output_tokens=4)
    assert (record.fate, record.error) == (Fate.OK, "")
    assert json.dumps(record.output_tokens) == "4"
