"""Bad servers and bad networks, on real sockets: every request gets one end, and the right one."""

from __future__ import annotations

import asyncio
import datetime as dt
import errno
import json
from email.utils import format_datetime
from typing import Any

import pytest

from headway.loadtest.client.exchange import describe
from headway.loadtest.client.limits import Limits
from headway.loadtest.client.reading import CUT_OFF, NOT_DONE
from headway.loadtest.client.refusal import least_wait_s, retry_after_s
from headway.loadtest.record import CLIENT_ERROR, CountedBy, Fate
from headway.loadtest.runner.run import run
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
    records_of,
    said,
    serving,
    stream,
    talks,
    usage,
    whole,
    words,
)

SHORT = Limits(timeout_s=0.3, linger_s=0.1, drain_s=5.0, give_up_s=5.0)


# -- streams -----------------------------------------------------------------------------------------------------------


async def test_a_good_stream() -> None:
    record = await record_of(talks, output_tokens=5)
    assert (record.fate, record.status, record.error) == (Fate.OK, 200, "")
    assert (record.output_tokens, record.chunks, record.counted) == (5, 5, CountedBy.USAGE)
    assert 0 <= record.scheduled_ns <= record.sent_ns < record.headers_ns <= record.first_ns <= record.last_ns
    assert record.last_ns <= record.ended_ns
    assert record.finish_reason == "length"


async def test_a_server_that_tells_no_usage() -> None:
    record = await record_of(answering(stream(said("a"), said("b"), said(finish="stop"), DONE)))
    assert (record.fate, record.counted, record.output_tokens) == (Fate.OK, CountedBy.CHUNKS, 2)


async def test_its_text_is_counted_by_the_tokenizer_instead() -> None:
    script = answering(stream(said("a b c"), said(" d"), said(finish="stop"), DONE))
    record = await record_of(script, count_tokens=word_count)
    assert (record.counted, record.output_tokens, record.recounted_tokens) == (CountedBy.TOKENIZER, 4, 4)
    assert (record.first_tokens, list(record.gap_tokens)) == (2, [2])


async def test_usage_is_checked_against_the_tokenizer() -> None:
    script = answering(stream(said("a b c"), said(" d"), said(finish="stop"), usage(9), DONE))
    record = await record_of(script, count_tokens=word_count)
    assert (record.counted, record.output_tokens, record.recounted_tokens) == (CountedBy.USAGE, 9, 4)


def word_count(text: str) -> int:
    return len(text.split())


async def test_a_tokenizer_that_fails_is_told_once_and_costs_no_record() -> None:
    def fails(text: str) -> int:
        raise ValueError("no vocabulary")

    async with serving(talks) as server:
        measured = await run(plan_for(server.url, requests=3, count_tokens=fails))
    assert [record.fate for record in measured.records] == [Fate.OK] * 3
    assert len(measured.notes) == 1
    assert "no vocabulary" in measured.notes[0]


async def test_never_done_but_finished_is_well_with_a_note() -> None:
    record = await record_of(answering(stream(said("a"), said(finish="stop"))))
    assert (record.fate, record.error) == (Fate.OK, NOT_DONE)


async def test_never_done_and_never_closed() -> None:
    """All is said, and the server keeps the line: the request ended when it had said all."""
    record = await record_of(answering(head(), piece(said("a")), piece(said(finish="stop"))))
    assert (record.fate, record.error) == (Fate.OK, NOT_DONE)
    assert record.ended_ns - record.last_ns < 100_000_000


async def test_done_and_never_closed() -> None:
    record = await record_of(answering(head(), piece(said("a")), piece(DONE)))
    assert (record.fate, record.error) == (Fate.OK, "")


@pytest.mark.parametrize("last", [b"", said("b"), said("b")[:-9]], ids=["nothing", "a token", "half an event"])
async def test_a_stream_that_ends_early(last: bytes) -> None:
    """By the rules of HTTP it ended well; nobody said that the answer did."""
    script = answering(head(), piece(said("a")), piece(last) if last else b"", END)
    record = await record_of(script)
    assert (record.fate, record.error) == (Fate.SERVER_ERROR, CUT_OFF)
    assert record.first_ns > 0


async def test_a_connection_that_breaks_in_a_stream() -> None:
    async def script(turn: Turn) -> None:
        turn.write(head(), piece(said("a")))
        await turn.writer.drain()
        await asyncio.sleep(0.05)
        turn.close() if turn.number else turn.reset()

    for record in await records_of(script, requests=2):
        assert record.fate is Fate.SERVER_ERROR
        assert record.error.startswith("stream ended early: connection ")
        assert record.chunks == 1


async def test_a_connection_that_breaks_after_the_finish_reason() -> None:
    record = await record_of(answering(head(), piece(said("a", finish="stop")), close=True))
    assert (record.fate, record.error) == (Fate.OK, NOT_DONE)


async def test_a_body_that_ends_with_the_connection() -> None:
    """HTTP/1.0 style: neither a length nor chunks."""
    answer = head(transfer_encoding="") + b"".join(words(3))
    for record in await records_of(answering(answer, close=True), requests=2):
        assert (record.fate, record.output_tokens, record.error) == (Fate.OK, 3, "")


async def test_crlf_comments_pings_and_two_events_in_a_packet() -> None:
    events = [b": ping\n\n", said(role="assistant"), b":\n\n", said("a") + said("b"), said("c", finish="stop"), DONE]
    answer = head() + b"".join(piece(one.replace(b"\n", b"\r\n")) for one in events) + END
    record = await record_of(answering(answer))
    assert (record.fate, record.chunks) == (Fate.OK, 3)


async def test_interim_answers_are_passed_over() -> None:
    record = await record_of(answering(b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n", stream(*words(3))))
    assert (record.fate, record.status, record.chunks) == (Fate.OK, 200, 3)


async def test_an_error_event_in_a_good_answer() -> None:
    failing = event({"error": {"message": "out of memory", "type": "server_error"}})
    record = await record_of(answering(stream(said("a"), failing)))
    assert (record.fate, record.status) == (Fate.SERVER_ERROR, 200)
    assert record.error == "error event: out of memory"


async def test_compression_is_not_asked_for_and_not_taken() -> None:
    async with serving(answering(head(content_encoding="gzip"), piece(b"\x1f\x8b\x08"), END)) as server:
        (record,) = (await run(plan_for(server.url))).records
    assert "accept-encoding" not in server.asked[0].headers
    assert record.fate is Fate.SERVER_ERROR
    assert "compressed" in record.error


async def test_a_server_that_does_not_stream() -> None:
    body = b'{"choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}], "usage": {"completion_tokens": 2}}'
    record = await record_of(answering(whole(body)))
    assert (record.fate, record.first_ns, record.output_tokens) == (Fate.OK, -1, 2)
    assert "one piece" in record.error


async def test_without_streaming_there_is_no_first_token() -> None:
    body = b'{"choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}], "usage": {"completion_tokens": 2}}'
    async with serving(answering(whole(body))) as server:
        (record,) = (await run(plan_for(server.url, stream=False))).records
    assert server.asked[0].json["stream"] is False
    assert (record.fate, record.error, record.first_ns, record.output_tokens) == (Fate.OK, "", -1, 2)


# -- refusals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "headers", "fate"),
    [
        (429, {}, Fate.LIMITED),
        (429, {"retry_after": "1"}, Fate.LIMITED),
        (503, {"retry_after": "1"}, Fate.LIMITED),
        (503, {}, Fate.SERVER_ERROR),
        (500, {}, Fate.SERVER_ERROR),
        (400, {}, Fate.REFUSED),
        (401, {}, Fate.REFUSED),
        (307, {"location": "http://elsewhere/"}, Fate.REFUSED),
    ],
)
async def test_a_status_is_a_fate(status: int, headers: dict[str, str], fate: Fate) -> None:
    record = await record_of(answering(whole(error("told why"), status=status, **headers)))
    assert (record.fate, record.status) == (fate, status)
    assert ("told why" in record.error) == (status != 307)
    assert record.retry_after_s == (1.0 if "retry_after" in headers else -1.0)
    assert record.retries == 0


async def test_a_refusal_is_obeyed_when_asked() -> None:
    """Twice refused, then served: one record, whose schedule and first sending are those of the first attempt."""

    async def script(turn: Turn) -> None:
        if turn.number < 2:
            turn.write(whole(error("full"), status=429, retry_after="1", retry_after_ms="60"))
        else:
            await talks(turn)

    limits = Limits(respect_retry_after=True)
    async with serving(script) as server:
        (record,) = (await run(plan_for(server.url, limits=limits))).records
    assert (record.fate, record.status, record.retries, record.retry_after_s) == (Fate.OK, 200, 2, 0.06)
    assert record.error == ""
    assert [asked.body for asked in server.asked] == [server.asked[0].body] * 3
    assert record.first_ns - record.scheduled_ns > 120_000_000
    assert record.sent_ns - record.scheduled_ns < record.first_ns - 120_000_000


async def test_a_server_that_says_at_once_is_not_flooded() -> None:
    script = answering(whole(error("full"), status=429, retry_after="0"))
    async with serving(script) as server:
        limits = Limits(timeout_s=1.0, respect_retry_after=True)
        (record,) = (await run(plan_for(server.url, limits=limits))).records
    assert (record.fate, record.retries, len(server.asked)) == (Fate.LIMITED, 3, 4), "after 0.1, 0.2 and 0.4 s"
    assert [least_wait_s(retries) for retries in (0, 1, 2, 3, 4, 2000)] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]


@pytest.mark.parametrize("reason", ["error", "abort"])
@pytest.mark.parametrize("streamed", [True, False])
async def test_an_answer_that_the_server_gave_up_is_an_error(reason: str, streamed: bool) -> None:
    body = {"choices": [{"message": {"content": "w"}, "finish_reason": reason}]}
    answer = stream(said("w"), said(finish=reason), DONE) if streamed else whole(json.dumps(body).encode())
    record = await record_of(answering(answer), stream=streamed)
    assert (record.fate, record.finish_reason) == (Fate.SERVER_ERROR, reason)
    assert record.error == f"the server gave the answer up: finish_reason {reason}"


async def test_a_run_that_ends_while_a_refused_request_waits() -> None:
    script = answering(whole(error("full"), status=429, retry_after="3"))
    limits = Limits(respect_retry_after=True, drain_s=0.1)
    record = await record_of(script, limits=limits)
    assert (record.fate, record.status, record.error) == (Fate.LIMITED, 429, "HTTP 429: full")


async def test_a_refusal_without_a_time_is_not_sent_again() -> None:
    async with serving(answering(whole(error("full"), status=429))) as server:
        (record,) = (await run(plan_for(server.url, limits=Limits(respect_retry_after=True)))).records
    assert (record.fate, record.retries, len(server.asked)) == (Fate.LIMITED, 0, 1)


async def test_a_wait_longer_than_the_limit_is_not_waited() -> None:
    script = answering(whole(error("full"), status=503, retry_after="60"))
    limits = Limits(timeout_s=5.0, respect_retry_after=True)
    record = await record_of(script, limits=limits)
    assert (record.fate, record.retry_after_s) == (Fate.LIMITED, 60.0)


def test_when_a_refused_client_may_come_again() -> None:
    assert retry_after_s({}) == -1
    assert retry_after_s({b"retry-after": b"2"}) == 2
    assert retry_after_s({b"retry-after": b"2", b"retry-after-ms": b"150"}) == 0.15
    assert retry_after_s({b"retry-after": b"-2"}) == -1
    assert retry_after_s({b"retry-after": b"nan"}) == -1
    assert retry_after_s({b"retry-after": b"soon"}) == -1
    soon = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=30)
    assert 25 < retry_after_s({b"retry-after": format_datetime(soon, usegmt=True).encode()}) <= 30


# -- connections -------------------------------------------------------------------------------------------------------


async def test_an_answer_that_never_comes() -> None:
    async def script(turn: Turn) -> None:
        await asyncio.sleep(60)

    record = await record_of(script, limits=SHORT)
    assert (record.fate, record.status, record.first_ns) == (Fate.TIMEOUT, 0, -1)
    assert record.error == "no answer within 0.3 s"


async def test_a_stream_that_stops_in_the_middle() -> None:
    async def script(turn: Turn) -> None:
        turn.write(head(), piece(said("a")), piece(said("b")))
        await turn.writer.drain()
        await asyncio.sleep(60)

    record = await record_of(script, limits=SHORT)
    assert (record.fate, record.chunks, record.output_tokens) == (Fate.TIMEOUT, 2, 2)
    assert record.error == "no end of the answer within 0.3 s"


async def test_closed_or_reset_before_an_answer() -> None:
    async def script(turn: Turn) -> None:
        if turn.number == 1:
            turn.write(b"HTTP/1.1 200 O")  # half a head is no beginning
            await turn.writer.drain()
            await asyncio.sleep(0.02)
        turn.reset() if turn.number == 2 else turn.close()

    records = await records_of(script, requests=3)
    assert [record.fate for record in records] == [Fate.CONNECTION] * 3
    assert all("before an answer" in record.error for record in records)
    assert all(record.status == 0 and record.retries == 0 for record in records)


async def test_something_that_is_not_http() -> None:
    record = await record_of(answering(b"220 mail.example ESMTP\r\n"))
    assert record.fate is Fate.SERVER_ERROR
    assert "not HTTP/1.1" in record.error


async def test_a_kept_connection_that_the_server_dropped_is_replaced_once() -> None:
    async def script(turn: Turn) -> None:
        if turn.place:
            turn.close()  # the second request on a connection finds it closed
        else:
            await talks(turn)

    async with serving(script) as server:
        records = (await run(plan_for(server.url, requests=3))).records
    assert [record.fate for record in records] == [Fate.OK] * 3
    assert len(server.asked) == 5  # three answered, two into dropped connections
    assert [record.replaced for record in records] == [0, 1, 1]


async def test_a_kept_connection_that_breaks_after_a_byte_is_not_replaced() -> None:
    async def script(turn: Turn) -> None:
        if turn.place:
            turn.write(head())
            await turn.writer.drain()
            turn.close()
        else:
            await talks(turn)

    async with serving(script) as server:
        records = (await run(plan_for(server.url, requests=2))).records
    assert [record.fate for record in records] == [Fate.OK, Fate.SERVER_ERROR]
    assert len(server.asked) == 2


async def test_connections_are_kept_and_closed_as_the_server_says() -> None:
    async with serving(talks) as server:
        measured = await run(plan_for(server.url, requests=5))
        assert (measured.connections, server.connections) == (1, 2)  # one more to see that somebody is there

    async def closing(turn: Turn) -> None:
        turn.write(stream(*words(3)).replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n", 1))
        await turn.writer.drain()
        turn.close()

    async with serving(closing) as server:
        measured = await run(plan_for(server.url, requests=5))
        assert [record.fate for record in measured.records] == [Fate.OK] * 5
        assert measured.connections == 5


async def test_this_machine_running_out_of_files_is_its_own_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    connect = loop.sock_connect
    opened = 0

    async def few(*given: Any, **named: Any) -> Any:
        nonlocal opened
        opened += 1
        if opened > 3:  # the first only sees that somebody is there
            raise OSError(errno.EMFILE, "Too many open files")
        return await connect(*given, **named)

    monkeypatch.setattr(loop, "sock_connect", few)
    records = await records_of(talks, requests=4, concurrency=4)
    failed = [record for record in records if record.fate is not Fate.OK]
    assert [record.fate for record in failed] == [Fate.CONNECTION] * 2
    assert all(record.error.startswith(f"{CLIENT_ERROR}Too many open files") for record in failed)
    assert "ulimit -n" in failed[0].error


def test_whose_fault_an_error_is() -> None:
    for number in (errno.EMFILE, errno.EADDRNOTAVAIL):
        assert describe(OSError(number, "too many")).startswith(CLIENT_ERROR)
    assert describe(ConnectionRefusedError()) == "connection refused"
    assert describe(None) == "connection closed"
    assert not describe(OSError(errno.EHOSTUNREACH, "No route to host")).startswith(CLIENT_ERROR)


async def test_what_is_under_way_at_the_end_is_cancelled() -> None:
    async def script(turn: Turn) -> None:
        turn.write(head(), piece(said("a")))
        await turn.writer.drain()
        await asyncio.sleep(60)

    record = await record_of(script, limits=Limits(drain_s=0.2))
    assert (record.fate, record.error, record.chunks) == (Fate.CANCELLED, "", 1)
    assert record.ended_ns > record.first_ns
