"""Arrivals are stamped by the kernel: a busy client does not take its own delay for the server's. Nothing is lost."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from headway.loadtest.client.kernel_time import Ancillary, KernelTime
from headway.loadtest.client.stamped_sockets import LOOK_S, StampedSockets
from headway.loadtest.runner.loop_lag import LoopLag
from headway.wire.http_connection import Connection, Headers, HttpFault
from headway.wire.http_pool import Pool, Server
from tests.wire.scripted import on_every_loop

MS = 1_000_000
HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


class Heard:
    """A `Receiver` that keeps all it is told."""

    reused = False

    def __init__(self) -> None:
        self.bodies: list[tuple[bytes, int]] = []
        self.over = asyncio.Event()
        self.fault: HttpFault | None = None

    def on_head(self, status: int, headers: Headers, now_ns: int) -> None: ...

    def on_body(self, data: bytes, now_ns: int) -> None:
        self.bodies.append((data, now_ns))

    def on_complete(self, now_ns: int) -> None:
        self.over.set()

    def on_broken(self, fault: HttpFault, now_ns: int, *, answered: bool) -> None:
        self.fault = fault
        self.over.set()


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[Pool, Connection, socket.socket]]:
    """A connection of a pool, and the server's end of it."""
    async with several(1) as (_, pool, [(connection, there)]):
        yield pool, connection, there


@asynccontextmanager
async def several(
    number: int,
) -> AsyncIterator[tuple[StampedSockets, Pool, list[tuple[Connection, socket.socket]]]]:
    """Connections of a pool, and the server's ends of them."""
    before = open_files()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sockets = StampedSockets(asyncio.get_running_loop())
        await asyncio.sleep(0.05)  # the kernel begins to stamp
        pool = Pool(Server("127.0.0.1", listener.getsockname()[1]), connect=sockets.connect)
        pairs: list[tuple[Connection, socket.socket]] = []
        with contextlib.ExitStack() as theirs:
            for _ in range(number):
                made: asyncio.Future[Connection | HttpFault] = asyncio.get_running_loop().create_future()
                pool.open(made.set_result)
                connection = await made
                assert isinstance(connection, Connection)
                pairs.append((connection, theirs.enter_context(listener.accept()[0])))
            yield sockets, pool, pairs
        await pool.close()
        sockets.close()
    assert open_files() == before, "none is left"


@on_every_loop
async def test_a_client_that_stands_still_measures_the_times_of_the_server() -> None:
    """It reads each chunk when it comes to it, up to 120 ms late, and knows when it came."""
    async with connected() as (_, connection, there):
        heard, sent_ns = Heard(), []
        connection.carry(heard, b"GET / HTTP/1.1\r\n\r\n")
        there.send(HEAD)
        for busy_s in (0.12, 0.0, 0.06, 0.12):
            sent_ns.append(time.monotonic_ns())
            there.send(b"1\r\na\r\n")
            time.sleep(busy_s)  # noqa: ASYNC251 # that is what it is about
            seen = len(heard.bodies)
            while len(heard.bodies) == seen:
                await asyncio.sleep(0)
        there.send(b"0\r\n\r\n")
        await heard.over.wait()
    late_ns = [at_ns - true_ns for (_, at_ns), true_ns in zip(heard.bodies, sent_ns, strict=True)]
    assert min(late_ns) > -MS
    assert max(late_ns) < 40 * MS, late_ns


@on_every_loop
async def test_what_is_read_at_once_has_the_time_of_its_last_byte() -> None:
    """There is one stamp a read: a client that is late loses the times between, and no more than its own delay."""
    async with connected() as (_, connection, there):
        heard = Heard()
        connection.carry(heard, b"GET / HTTP/1.1\r\n\r\n")
        there.send(HEAD)
        for piece in (b"1\r\na\r\n", b"1\r\nb\r\n0\r\n\r\n"):
            last_ns = time.monotonic_ns()
            there.send(piece)
            time.sleep(0.05)  # noqa: ASYNC251
        await heard.over.wait()
    assert [data for data, _ in heard.bodies] == [b"a", b"b"]
    assert all(abs(at_ns - last_ns) < 30 * MS for _, at_ns in heard.bodies)


@on_every_loop
async def test_what_the_socket_does_not_take_at_once_is_sent_when_it_does() -> None:
    big = bytes(range(256)) * 40_000
    async with connected() as (_, connection, there):
        connection.carry(Heard(), b"head", big)
        there.setblocking(False)
        got = bytearray()
        async with asyncio.timeout(20):
            while len(got) < len(big) + 4:
                got += await asyncio.get_running_loop().sock_recv(there, 1 << 20)
    assert bytes(got) == b"head" + big


@pytest.mark.parametrize("size", [3, 100_000])
@on_every_loop
async def test_what_came_before_a_reset_is_read_and_the_reset_is_told(size: int) -> None:
    """Both lie there when the client looks for the first time."""
    async with connected() as (pool, connection, there):
        heard = Heard()
        connection.carry(heard, b"GET / HTTP/1.1\r\n\r\n")
        there.recv(1024)
        there.sendall(HEAD + b"%x\r\n" % (2 * size) + b"a" * size)
        there.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        time.sleep(0.05)  # noqa: ASYNC251 # what is sent is there
        there.close()
        time.sleep(0.05)  # noqa: ASYNC251 # and so is the reset
        async with asyncio.timeout(5):
            await heard.over.wait()
        assert sum(len(data) for data, _ in heard.bodies) == size
        assert "reset" in str(heard.fault)
        assert not pool.connections


@on_every_loop
async def test_who_answers_a_request_it_does_not_read_is_heard() -> None:
    async with connected() as (_, connection, there):
        heard = Heard()
        connection.carry(heard, b"head", bytes(10_000_000))
        there.sendall(b"HTTP/1.1 413 Too Large\r\ncontent-length: 70000\r\n\r\n" + b"a" * 70_000)
        time.sleep(0.05)  # noqa: ASYNC251
        there.close()  # with much of the request unread: that is a reset
        async with asyncio.timeout(5):
            await heard.over.wait()
        assert sum(len(data) for data, _ in heard.bodies) == 70_000
        assert heard.fault is None


class OldStamps(KernelTime):
    """Of what a lost segment kept from being read until now."""

    def arrived_ns(self, ancillary: Ancillary, taken_ns: int) -> int:
        return super().arrived_ns(ancillary, taken_ns) - 300 * MS


@on_every_loop
async def test_nothing_arrived_before_the_client_last_looked_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.loadtest.client.stamped_sockets.KernelTime", OldStamps)
    async with connected() as (_, connection, there):
        heard = Heard()
        connection.carry(heard, b"GET / HTTP/1.1\r\n\r\n")
        there.send(HEAD)
        await asyncio.sleep(0.4)
        sent_ns = time.monotonic_ns()
        there.send(b"1\r\na\r\n0\r\n\r\n")
        async with asyncio.timeout(5):
            await heard.over.wait()
    assert heard.bodies[0][1] > sent_ns - 2 * LOOK_S * 1e9, "300 ms earlier nobody could have read it"


@pytest.mark.parametrize("reset", [False, True])
@on_every_loop
async def test_the_servers_end_is_told(reset: bool) -> None:
    async with connected() as (pool, connection, there):
        heard = Heard()
        connection.carry(heard, b"GET / HTTP/1.1\r\n\r\n")
        if reset:
            there.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        there.recv(1024)  # else closing is a reset
        there.close()
        async with asyncio.timeout(5):
            await heard.over.wait()
        assert heard.fault is not None
        assert ("reset" in str(heard.fault)) == reset
        assert not connection.alive
        assert not pool.connections


@on_every_loop
async def test_who_pauses_hears_nothing_until_it_resumes() -> None:
    async with connected() as (_, connection, there):
        heard = Heard()
        connection.carry(heard, b"GET / HTTP/1.1\r\n\r\n")
        connection.pause()
        there.send(HEAD + b"1\r\na\r\n0\r\n\r\n")
        await asyncio.sleep(0.05)
        assert not heard.bodies
        connection.resume()
        async with asyncio.timeout(5):
            await heard.over.wait()
        assert heard.bodies[0][0] == b"a"
        assert connection.alive, "and may be used again"


@on_every_loop
async def test_an_aborted_one_is_closed_and_silent() -> None:
    async with connected() as (_, connection, there):
        heard = Heard()
        connection.carry(heard, b"GET / HTTP/1.1\r\n\r\n")
        transport = connection._transport
        assert transport is not None
        connection.close()
        transport.write(b"nothing")
        transport.resume_reading()
        transport.abort()
        there.settimeout(5)
        there.recv(1024)
        assert there.recv(1024) == b""
        assert not heard.over.is_set()


class Slow(Heard):
    """It takes longer over each word than the client reads until others get their turn."""

    def __init__(self, there: socket.socket | None = None) -> None:
        super().__init__()
        self._there = there  # that has more to say at once

    def on_body(self, data: bytes, now_ns: int) -> None:
        time.sleep(0.002)
        super().on_body(data, now_ns)
        if self._there is not None:
            self._there.send(b"1\r\na\r\n")


@on_every_loop
async def test_how_long_the_kernel_keeps_what_has_arrived_is_the_clients_lateness() -> None:
    """The loop turns every 2 ms, and what arrives is read after all that came before: 64 words take 128 ms."""
    async with several(64) as (sockets, _, pairs):
        heard = [Slow() for _ in pairs]
        for slow, (connection, there) in zip(heard, pairs, strict=True):
            connection.carry(slow, b"GET / HTTP/1.1\r\n\r\n")
            there.send(HEAD + b"1\r\na\r\n0\r\n\r\n")
        lag = LoopLag(asyncio.get_running_loop(), time.monotonic_ns(), sockets)
        async with asyncio.timeout(5):
            for slow in heard:
                await slow.over.wait()
        await asyncio.sleep(0.03)
        assert max(lag.close()) > 60 * MS


@on_every_loop
async def test_in_a_flood_every_socket_has_its_turn() -> None:
    async with several(8) as (_, _, pairs):
        heard = [Slow(there) for _, there in pairs]
        for slow, (connection, there) in zip(heard, pairs, strict=True):
            connection.carry(slow, b"GET / HTTP/1.1\r\n\r\n")
            there.send(HEAD + b"1\r\na\r\n")
        async with asyncio.timeout(5):
            while sum(len(slow.bodies) for slow in heard) < 80:
                await asyncio.sleep(0)
        assert min(len(slow.bodies) for slow in heard) >= 8


@on_every_loop
async def test_what_the_first_of_a_look_closes_is_not_heard_though_it_was_read() -> None:
    async with several(2) as (_, _, pairs):
        (first, _), (second, _) = pairs

        class Closes(Heard):
            """The other one, with its first word."""

            def __init__(self, other: Connection) -> None:
                super().__init__()
                self.other = other

            def on_body(self, data: bytes, now_ns: int) -> None:
                super().on_body(data, now_ns)
                self.other.close()

        heard = {first: Closes(second), second: Closes(first)}
        for connection, there in pairs:
            connection.carry(heard[connection], b"GET / HTTP/1.1\r\n\r\n")
            there.send(HEAD + b"1\r\na\r\n")
        time.sleep(0.05)  # noqa: ASYNC251 # both lie there at one look
        await asyncio.sleep(0.05)
    assert sorted(len(one.bodies) for one in heard.values()) == [0, 1]


@on_every_loop
async def test_who_always_has_more_than_a_look_takes_holds_up_nobody() -> None:
    fat = bytes(0x8000)

    class Fat(Heard):
        """Its server has sent the next by the time it has heard one."""

        def on_body(self, data: bytes, now_ns: int) -> None:
            with contextlib.suppress(BlockingIOError):
                pairs[0][1].send(fat)

    async with several(3) as (_, _, pairs):
        pairs[0][1].setblocking(False)
        pairs[0][0].carry(Fat(), b"GET / HTTP/1.1\r\n\r\n")
        pairs[0][1].send(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000000000\r\n\r\n" + fat)
        others = [Heard() for _ in pairs[1:]]
        for heard, (connection, there) in zip(others, pairs[1:], strict=True):
            connection.carry(heard, b"GET / HTTP/1.1\r\n\r\n")
            there.send(HEAD)
        for number in range(1, 6):
            for _, there in pairs[1:]:
                there.send(b"1\r\na\r\n")
            async with asyncio.timeout(5):
                while any(len(heard.bodies) < number for heard in others):
                    await asyncio.sleep(0)
        pairs[0][0].close()


@on_every_loop
async def test_what_did_not_fit_into_one_read_was_there_all_the_same() -> None:
    """A client that stands still reads it in several, none of which is later than what the server sent last."""
    async with connected() as (_, connection, there):
        heard = Heard()
        connection.carry(heard, b"GET / HTTP/1.1\r\n\r\n")
        there.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        there.send(HEAD)
        for _ in range(2):
            there.sendall(b"ea60\r\n" + b"a" * 60_000 + b"\r\n")
            time.sleep(0.005)  # noqa: ASYNC251
        sent_ns = time.monotonic_ns()
        time.sleep(0.12)  # noqa: ASYNC251
        async with asyncio.timeout(5):
            while sum(len(data) for data, _ in heard.bodies) < 120_000:
                await asyncio.sleep(0)
    assert max(at_ns for _, at_ns in heard.bodies) < sent_ns + 60 * MS


@on_every_loop
async def test_a_defect_in_one_leaves_none_of_the_others_unheard() -> None:
    class Breaks(Heard):
        def on_body(self, data: bytes, now_ns: int) -> None:
            super().on_body(data, now_ns)
            raise ZeroDivisionError

    told: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context["exception"]))
    async with several(3) as (_, _, pairs):
        heard = [Breaks() for _ in pairs]
        for breaks, (connection, there) in zip(heard, pairs, strict=True):
            connection.carry(breaks, b"GET / HTTP/1.1\r\n\r\n")
            there.send(HEAD + b"1\r\na\r\n")
        time.sleep(0.05)  # noqa: ASYNC251 # all lie there at one look
        await asyncio.sleep(0.05)
    assert [len(one.bodies) for one in heard] == [1, 1, 1]
    assert [type(one) for one in told] == [ZeroDivisionError] * 3
