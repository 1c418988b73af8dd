"""Connections that are used again: whose answer is whose, and what a request does when its connection is gone."""

from __future__ import annotations

import asyncio
import io
from functools import partial
from itertools import pairwise
from typing import cast

import pytest

from headway.loadtest.bench.options import ClientOptions, Concurrency, Options, TextOptions, WindowOptions
from headway.loadtest.bench.tester import bench
from headway.loadtest.client.address import parse_url
from headway.loadtest.client.client import Client
from headway.loadtest.client.inbox import Inbox
from headway.loadtest.client.limits import Limits
from headway.loadtest.client.request import RequestTemplate
from headway.loadtest.record import Fate, Record
from headway.loadtest.report.csv_file import HEADER, is_records, read_records, write_records
from headway.loadtest.report.tables import evidence
from headway.loadtest.runner import measure
from headway.loadtest.runner.plan import OpenLoad
from headway.loadtest.runner.run import run
from headway.wire.http_connection import Connection
from headway.wire.http_pool import Pool
from headway.wire.http_pool import Server as Address
from headway.workload.item import Arrival, Item
from tests.loadtest.servers import Turn, plan_for, serving, stream, talks, words

MS = 1_000_000
SURPLUS = stream(*words(9))


def spaced(number: int, every_ms: int) -> OpenLoad:
    return OpenLoad([Arrival(place * every_ms * MS, Item(5, 3)) for place in range(number)])


def in_order(record: Record) -> bool:
    return 0 <= record.sent_ns <= record.headers_ns <= record.first_ns <= record.last_ns <= record.ended_ns


# -- more than was asked for -------------------------------------------------------------------------------------------


async def test_a_second_answer_to_one_request_is_nobodys() -> None:
    async def twice(turn: Turn) -> None:
        turn.writer.write(stream(*words(3)) + SURPLUS)

    async with serving(twice) as server:
        measured = await run(plan_for(server.url, requests=5))
    assert [record.fate for record in measured.records] == [Fate.OK] * 5
    assert [record.chunks for record in measured.records] == [3] * 5
    assert all(map(in_order, measured.records))
    assert measured.connections == 5, "one that says too much is not used again"
    assert len(server.asked) == 5


class Spoken:
    """A transport that a test speaks for."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.aborted = False

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def abort(self) -> None:
        self.aborted = True

    def get_write_buffer_size(self) -> int:
        return 0


async def test_a_connection_that_is_not_made_in_time_is_a_timeout() -> None:
    """As a request that is not answered in time: how long it would have taken is not known."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()

    async def never(connection: Connection, server: Address) -> None:
        del connection, server
        await asyncio.sleep(60)

    pool = Pool(Address("192.0.2.1", 9), connect_timeout_s=0.05, connect=never)
    client = Client(loop, pool, RequestTemplate(parse_url("http://192.0.2.1:9")[0], "m"), Limits(), None)
    record = Record(0, "", "", 1, 3, 0)
    client.send(record, b"", lambda *_: ended.set())
    async with asyncio.timeout(5):
        await ended.wait()
    await client.close()
    assert (record.fate, record.error) == (Fate.TIMEOUT, "no connection within 0.05 s")
    assert record.fate.given_up


async def test_a_second_answer_that_is_stamped_and_not_read_is_not_the_next_requests() -> None:
    """It lies in the inbox when the first answer's end starts the next request on the same connection."""
    loop = asyncio.get_running_loop()
    async with serving(talks) as server:
        address, _ = parse_url(server.url)
        pool = Pool(Address("127.0.0.1", server.port), inbox=Inbox(loop))
        client = Client(loop, pool, RequestTemplate(address, "m"), Limits(), None)
        wire, connection = Spoken(), Connection(pool)
        connection.connection_made(cast("asyncio.BaseTransport", wire))
        pool.release(connection, client.zero_ns)
        body = b'{"max_tokens": 3}'
        request = b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
        first, second = (Record(place, "", "", 1, 3, 0) for place in range(2))
        ended = asyncio.Event()

        def on_end(record: Record, free_ns: int) -> None:
            if record is first:
                client.send(second, request, on_end)
            else:
                ended.set()

        client.send(first, request, on_end)
        assert len(wire.written) == 1
        connection.data_received(stream(*words(3)))
        connection.data_received(SURPLUS)
        async with asyncio.timeout(5):
            await ended.wait()
        await client.close()
    assert len(wire.written) == 2, "the second went over the same connection, to begin with"
    assert wire.aborted
    assert [(record.fate, record.chunks) for record in (first, second)] == [(Fate.OK, 3)] * 2
    assert (first.replaced, second.replaced) == (0, 1)
    assert in_order(second)


# -- closed under a request --------------------------------------------------------------------------------------------


async def test_a_server_that_works_and_closes_has_failed() -> None:
    """It had read the request: sent again, the failure would be told as a slow success."""

    async def script(turn: Turn) -> None:
        if turn.place:
            await asyncio.sleep(1.2)
            turn.close()
        else:
            await talks(turn)

    async with serving(script) as server:
        first, second = (await run(plan_for(server.url, requests=2))).records
    assert (first.fate, second.fate) == (Fate.OK, Fate.CONNECTION)
    assert second.error == "connection closed before an answer"
    assert (second.replaced, second.retries, second.status) == (0, 0, 0)
    assert second.ended_ns - second.sent_ns >= 1_000 * MS
    assert len(server.asked) == 2


async def closes_kept(turn: Turn) -> None:
    """Every request but a connection's first finds it closed."""
    turn.close() if turn.place else await talks(turn)


async def test_a_report_tells_how_many_were_sent_again() -> None:
    options = Options(
        client=ClientOptions(processes=0, scrape_interval=0.2),
        text=TextOptions(input_len="10", output_len="3"),
        window=WindowOptions(duration=1.0, requests=6, warmup=0.0, cooldown=0.0),
    )
    async with serving(closes_kept) as server:
        result = await bench(server.url, Concurrency(concurrency=1), options)
    again = sum(record.replaced for record in result.records)
    assert again > 0
    assert {record.fate for record in result.records} == {Fate.OK}
    told = f"Kept connections: {again} of {len(result.records)} requests"
    assert [line for line in evidence(result.run) if line.startswith(told)]


# -- idle ones ---------------------------------------------------------------------------------------------------------


async def test_connections_that_the_server_closes_when_idle_cost_no_request() -> None:
    async def impatient(turn: Turn) -> None:
        await talks(turn)
        asyncio.get_running_loop().call_later(0.02, turn.close)

    async with serving(impatient) as server:
        measured = await run(plan_for(server.url, spaced(5, 300)))
    assert [(record.fate, record.chunks) for record in measured.records] == [(Fate.OK, 3)] * 5
    assert all(map(in_order, measured.records))
    assert measured.connections > 1


async def test_a_connection_that_was_idle_for_long_is_not_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A close that crosses with the next request is not risked: this server drops what comes over an old one."""
    monkeypatch.setattr(measure, "Pool", partial(Pool, idle_s=0.1))
    rested: list[Record] = []
    async with serving(closes_kept) as server:
        # On a busy machine an answer may come so late that the next request is sent before the limit.
        for _ in range(5):
            records = (await run(plan_for(server.url, spaced(5, 300)))).records
            assert {record.fate for record in records} == {Fate.OK}
            rested += [after for before, after in pairwise(records) if after.sent_ns - before.ended_ns > 150 * MS]
            if rested:
                break
    assert rested
    assert not any(record.replaced for record in rested)


# -- files -------------------------------------------------------------------------------------------------------------


def test_files_from_before_requests_sent_again_were_counted_can_be_read() -> None:
    out = io.StringIO(newline="")
    write_records(out, [Record(0, "", "", 1, 1, 0, replaced=1)])
    (told,) = read_records(io.StringIO(out.getvalue(), newline=""), "it")
    assert told.record.replaced == 1
    before = HEADER.index("replaced")
    older = "".join(",".join(line.split(",")[:before]) + "\n" for line in out.getvalue().splitlines())
    assert is_records(out.getvalue().encode())
    assert is_records(older.encode())
    (read,) = read_records(io.StringIO(older, newline=""), "it")
    assert read.record.replaced == 0
