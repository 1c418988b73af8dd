"""Connections and their pool, on real sockets: what is handed over, what never is, and when one is used again."""

from __future__ import annotations

import asyncio
from time import monotonic_ns

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.wire import http_client
from headway.wire.http_client import client_of
from headway.wire.http_connection import Connection, Cut, Headers, HttpFault
from headway.wire.http_pool import Pool
from headway.wire.http_pool import Server as Address
from tests.wire.scripted import (
    END,
    Script,
    Turn,
    answering,
    ask,
    chunk,
    chunked_head,
    on_every_loop,
    scripted,
    until,
    whole,
)

# -- what is handed over -----------------------------------------------------------------------------------------------


class Heard:
    """A receiver that remembers."""

    reused = False

    def __init__(self) -> None:
        self.status = 0
        self.headers: Headers = []
        self.data = b""
        self.end = ""

    def on_head(self, status: int, headers: Headers, now_ns: int) -> None:
        assert not self.status, "one head an answer"
        self.status, self.headers = status, list(headers)

    def on_body(self, data: bytes, now_ns: int) -> None:
        assert self.status
        assert not self.end
        self.data += data

    def on_complete(self, now_ns: int) -> None:
        assert not self.end, "one end an answer"
        self.end = "complete"

    def on_broken(self, fault: HttpFault, now_ns: int, *, answered: bool) -> None:
        assert not self.end, "one end an answer"
        self.end = type(fault).__name__


class Wire:
    """A transport that goes nowhere."""

    def __init__(self) -> None:
        self.aborted = False

    def write(self, data: bytes) -> None: ...
    def get_write_buffer_size(self) -> int:
        return 0

    def abort(self) -> None:
        self.aborted = True


ANSWERS = [
    whole(b"hello"),
    whole(b""),
    chunked_head() + chunk(b"one") + chunk(b"two\n\n") + END,
    b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + whole(b"later"),
    b"HTTP/1.1 200 X\r\nSet-Cookie: a\r\nset-cookie: b\r\ncontent-length: 1\r\n\r\nx",
    chunked_head() + chunk(b"x") + b"0\r\ntrailer: t\r\n\r\n",
    whole(b"good") + whole(b"nobody asked"),
    whole(b"good") + b"garbage",
    b"HTTP/1.1 204 X\r\n\r\n",
    b"HTTP/1.1 200 X\r\n\r\nuntil the end",
    b"HTTP/1.1 200 X\r\ncontent-length: 9\r\n\r\nshort",
    b"not http at all\r\n\r\n",
    b"HTTP/1.1 200 X\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nxx",
]


def hear(answer: bytes, cuts: list[int]) -> Heard:
    async def run() -> Heard:
        pool = Pool(Address("nowhere", 1))
        connection, heard = Connection(pool), Heard()
        connection.connection_made(Wire())  # type: ignore[arg-type]
        connection.carry(heard, b"GET / HTTP/1.1\r\n\r\n")
        at = 0
        for cut in sorted({*cuts, len(answer)}):
            if at < cut:
                connection.data_received(answer[at:cut])
            at = max(at, cut)
        connection.connection_lost(None)
        await pool.close()
        return heard

    return asyncio.run(run())


@given(st.sampled_from(ANSWERS), st.lists(st.integers(1, 120), max_size=8))
def test_how_an_answer_is_cut_changes_nothing(answer, cuts):
    pieces, at_once = hear(answer, [cut for cut in cuts if cut < len(answer)]), hear(answer, [])
    assert vars(pieces) == vars(at_once)


def test_what_each_answer_says():
    heard = [hear(answer, []) for answer in ANSWERS]
    assert [one.end for one in heard] == ["complete"] * 10 + ["Cut", "NotHttp", "NotHttp"]
    assert [one.data for one in heard[:4]] == [b"hello", b"", b"onetwo\n\n", b"later"]
    assert heard[4].headers[:2] == [(b"set-cookie", b"a"), (b"set-cookie", b"b")]
    assert heard[5].headers == heard[2].headers, "a trailer is no header"
    assert heard[6].data == heard[7].data == b"good", "a byte more than was asked for reaches nobody"


@on_every_loop
async def test_an_answer_to_head_has_no_body():
    async with scripted(answering(b"HTTP/1.1 200 X\r\ncontent-length: 99\r\n\r\n")) as server:
        client = server.client()
        assert await ask(client, "HEAD") == (200, b"")
        await client.close()


@on_every_loop
async def test_a_request_arrives_as_it_was_given():
    async with scripted(answering(whole(b"{}"))) as server:
        client = server.client()
        body = bytes(range(256)) * 1024
        await ask(client, "POST", "/v1/x?y=1", headers=[(b"x-a", b"1")], body=body)
        turn = server.asked[0]
        assert (turn.method, turn.path, turn.body) == ("POST", "/v1/x?y=1", body)
        assert turn.headers["x-a"] == "1"
        assert turn.headers["host"] == f"127.0.0.1:{server.port}"
        await client.close()


@pytest.mark.parametrize("header", [(b"a", b"1\r\nb: 2"), (b"a b", b"1"), (b"", b"1"), (b"a", b"\0")])
@on_every_loop
async def test_no_header_becomes_two(header):
    client = client_of(Address("127.0.0.1", 9), "x")
    with pytest.raises(ValueError, match="cannot be sent"):
        client.ask("GET", "/", headers=[header])
    with pytest.raises(ValueError, match="no request line"):
        client.ask("GET", "/a b")
    await client.close()


# -- connections -------------------------------------------------------------------------------------------------------


@on_every_loop
async def test_a_connection_is_used_again_and_as_many_are_opened_as_are_needed():
    async with scripted(answering(whole(b"x"))) as server:
        client = server.client()
        for _ in range(5):
            assert await ask(client) == (200, b"x")
        assert server.connections == 1
        await asyncio.gather(*(ask(client) for _ in range(4)))
        assert server.connections == 4
        await client.close()
        await until(lambda: server.open == 0)
        assert not client.pool.connections


@on_every_loop
async def test_an_idle_connection_is_closed_before_the_server_would():
    async with scripted(answering(whole(b"x"))) as server:
        client = server.client()
        client.pool._idle_ns = 50_000_000
        await ask(client)
        assert len(client.pool.idle) == 1
        await until(lambda: server.open == 0)
        assert not client.pool.idle
        assert not client.pool.connections
        await client.close()


@pytest.mark.parametrize("more", [b"HTTP/1.1 200 X\r\ncontent-length: 6\r\n\r\nforged", b"junk"])
@on_every_loop
async def test_bytes_that_nobody_asked_for_answer_no_later_request(more):
    async def script(turn: Turn) -> None:
        await turn.write(whole(b"%d" % turn.place) + (more if turn.place == 0 else b""))

    async with scripted(script) as server:
        client = server.client()
        assert await ask(client) == (200, b"0")
        assert await ask(client) == (200, b"0"), "on another connection"
        assert server.connections == 2
        await client.close()


async def test_bytes_that_arrived_before_a_request_was_sent_do_not_answer_it():
    """They were stamped, and are read when the next request has been sent on the same connection."""
    connection, first, second, wire = Connection(Pool(Address("nowhere", 1))), Heard(), Heard(), Wire()
    connection.connection_made(wire)  # type: ignore[arg-type]
    connection.carry(first, b"GET / HTTP/1.1\r\n\r\n")
    arrived_ns = monotonic_ns()
    connection.read(whole(b"good"), arrived_ns)
    connection.carry(second, b"GET / HTTP/1.1\r\n\r\n")
    connection.read(whole(b"forged"), arrived_ns)
    assert (first.end, first.data) == ("complete", b"good")
    assert (second.status, second.data, second.end) == (0, b"", "NotHttp")
    assert wire.aborted


@on_every_loop
async def test_bytes_on_an_idle_connection_close_it():
    async def script(turn: Turn) -> None:
        await turn.write(whole(b"x"))
        await asyncio.sleep(0.05)
        await turn.write(b"HTTP/1.1 200 X\r\ncontent-length: 6\r\n\r\nforged")

    async with scripted(script) as server:
        client = server.client()
        await ask(client)
        await until(lambda: not client.pool.connections)
        assert await ask(client) == (200, b"x")
        await client.close()


# -- stale connections -------------------------------------------------------------------------------------------------


def closing_after(places: int, *, answer: bytes = b"") -> Script:
    """Answers so many requests of a connection; of the next it reads the head, says `answer` and closes."""

    async def script(turn: Turn) -> None:
        if turn.place < places:
            await turn.write(whole(b"x"))
        else:
            await turn.write(answer)
            turn.close()

    return script


@on_every_loop
async def test_a_connection_that_was_closed_meanwhile_is_replaced_once():
    async with scripted(closing_after(1)) as server:
        client = server.client()
        await ask(client)
        assert await ask(client, "POST", body=b"{}", repeatable=True) == (200, b"x")
        assert server.connections == 2
        await client.close()


@on_every_loop
async def test_what_may_not_be_repeated_never_goes_over_a_kept_connection():
    async with scripted(closing_after(1)) as server:
        client = server.client()
        await ask(client)
        assert await ask(client, "POST", body=b"{}") == (200, b"x")
        assert [turn.method for turn in server.asked] == ["GET", "POST"], "sent once"
        await client.close()


@on_every_loop
async def test_a_request_is_sent_twice_at_most():
    async with scripted(closing_after(0)) as server:
        client = server.client()
        with pytest.raises(Cut):
            await ask(client, "POST", body=b"{}", repeatable=True)
        assert len(server.asked) == 1, "a new connection was not stale"
        await client.close()


@on_every_loop
async def test_with_a_byte_of_an_answer_nothing_is_repeated():
    async with scripted(closing_after(1, answer=b"H")) as server:
        client = server.client()
        await ask(client)
        with pytest.raises(Cut):
            await ask(client, "POST", body=b"{}", repeatable=True)
        assert len(server.asked) == 2
        await client.close()


@on_every_loop
async def test_a_server_that_dies_of_a_request_is_not_asked_again(monkeypatch):
    monkeypatch.setattr(http_client, "STALE_NS", 20_000_000)

    async def script(turn: Turn) -> None:
        if turn.place:
            await asyncio.sleep(0.1)
            turn.reset()
        else:
            await turn.write(whole(b"x"))

    async with scripted(script) as server:
        client = server.client()
        await ask(client)
        with pytest.raises(Cut):
            await ask(client, "POST", body=b"{}", repeatable=True)
        assert len(server.asked) == 2
        await client.close()
