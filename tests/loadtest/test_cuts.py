"""The law of the wire: however the network cuts a server's bytes, the record is the same but for its times."""

from __future__ import annotations

import asyncio
import itertools
from time import monotonic_ns
from typing import Any, cast

from hypothesis import given, settings
from hypothesis import strategies as st

from headway.loadtest.client.address import parse_url
from headway.loadtest.client.client import Client
from headway.loadtest.client.exchange import Exchange
from headway.loadtest.client.limits import Limits
from headway.loadtest.client.request import RequestTemplate
from headway.loadtest.record import Record
from headway.wire.http_connection import Connection
from headway.wire.http_pool import Pool, Server
from tests.loadtest.servers import DONE, END, error, event, head, piece, said, stream, usage, whole, words
from tests.loadtest.test_reading import timeless

ADDRESS, _ = parse_url("http://localhost")


class Wire:
    """A transport that nothing leaves by."""

    def write(self, data: bytes) -> None: ...
    def abort(self) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0


def record_of(pieces: list[bytes], *, choices: int, closes: bool) -> Record:
    """What a client makes of bytes that arrive in these pieces, after which the connection closes or stays."""

    async def happens() -> Record:
        loop = asyncio.get_running_loop()
        pool = Pool(Server("127.0.0.1", 1))
        client = Client(loop, pool, RequestTemplate(ADDRESS, "m", choices=choices), Limits(), None)
        connection = Connection(pool)
        connection.connection_made(cast("asyncio.BaseTransport", Wire()))
        pool.release(connection, monotonic_ns())
        record = Record(0, "", "", 1, 1, 0)
        exchange = Exchange(client, record, b"", lambda record, free_ns: None)
        exchange.send()
        client.zero_ns = now_ns = monotonic_ns()
        for place, data in enumerate(pieces, start=1):
            if data:
                connection.read(data, now_ns + place)
        if closes and connection.alive:
            connection.read(b"", now_ns + len(pieces) + 1)
        if not exchange.ended:
            exchange.cancel(now_ns + len(pieces) + 1)
        await client.close()
        return record

    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(happens())
    finally:
        loop.close()


def facts(record: Record) -> dict[str, Any]:
    told = timeless(record)
    for name in ("sent_ns", "headers_ns", "ended_ns"):
        told[name] = told[name] >= 0
    return told


TOLD = event({"error": {"message": "no"}})
EVENTS = st.lists(
    st.sampled_from([*words(3), said("x", index=1), said(finish="stop", index=1), b": hi\n\n", TOLD, usage(4), DONE]),
    max_size=8,
)
ANSWERS = st.one_of(
    EVENTS.map(lambda events: stream(*events)),
    EVENTS.map(lambda events: head() + b"".join(map(piece, events))),  # never ends
    EVENTS.map(lambda events: head(transfer_encoding="") + b"".join(events)),  # ends with the connection
    EVENTS.map(
        lambda events: (
            b"HTTP/1.1 100 Continue\r\n\r\n" + head(server_timing="queue;dur=3") + piece(b"".join(events)) + END
        )
    ),
    st.sampled_from(
        [
            whole(error("full"), status=429, retry_after="3"),
            whole(error("down"), status=500),
            whole(b'{"choices": [{"text": "a"}], "usage": {"completion_tokens": 5}}'),
            b"HTTP/1.1 503 X\r\nretry-after: 2\r\nconnection: close\r\n\r\nno room",
            b"nonsense\r\n\r\n",
            b"HTTP/1.1 200 OK\r\ncontent-le",
        ]
    ),
)


@settings(deadline=None)
@given(ANSWERS, st.lists(st.integers(0, 5000), max_size=20), st.integers(1, 2), st.booleans())
def test_cutting_a_servers_bytes_changes_nothing_but_times(
    data: bytes, at: list[int], choices: int, closes: bool
) -> None:
    expected = facts(record_of([data], choices=choices, closes=closes))
    edges = [0, *sorted(place % (len(data) + 1) for place in at), len(data)]
    pieces = [data[low:high] for low, high in itertools.pairwise(edges)]
    assert facts(record_of(pieces, choices=choices, closes=closes)) == expected


@settings(deadline=None)
@given(ANSWERS, st.booleans())
def test_byte_by_byte(data: bytes, closes: bool) -> None:
    single = [bytes([byte]) for byte in data]
    assert facts(record_of(single, choices=1, closes=closes)) == facts(record_of([data], choices=1, closes=closes))
