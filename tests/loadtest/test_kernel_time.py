"""What arrives is stamped by the kernel: a busy client does not take its own delay for the server's."""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from headway.loadtest.client import kernel_time
from headway.loadtest.client.kernel_time import SO_TIMESTAMPNS, ConnectStamped, KernelTime, StampedTransport
from headway.wire.http_connection import Connection, Headers, HttpFault, Pool, Server

MS = 1_000_000
HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


def stamp(real_ns: int) -> list[tuple[int, int, bytes]]:
    return [(socket.SOL_SOCKET, SO_TIMESTAMPNS, struct.pack("@qq", *divmod(real_ns, 10**9)))]


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


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[Pool, Connection, socket.socket]]:
    """A connection of a pool, and the server's end of it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        pool = Pool(Server("127.0.0.1", listener.getsockname()[1]), connect=ConnectStamped())
        made: asyncio.Future[Connection | HttpFault] = asyncio.get_running_loop().create_future()
        pool.open(made.set_result)
        connection = await made
        assert isinstance(connection, Connection)
        there, _ = listener.accept()
        with there:
            yield pool, connection, there
        await pool.close()


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


def test_no_time_lies_in_the_future_or_runs_with_a_clock_that_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    now = {"mono": 50 * 10**9, "real": 1_000 * 10**9}
    monkeypatch.setattr(kernel_time, "monotonic_ns", lambda: now["mono"])
    monkeypatch.setattr(kernel_time, "time_ns", lambda: now["real"])
    clock = KernelTime()
    assert clock.arrived_ns(stamp(now["real"] - 30 * MS)) == now["mono"] - 30 * MS
    assert clock.arrived_ns(stamp(now["real"] + 30 * MS)) == now["mono"], "never later than now"
    assert clock.arrived_ns([]) == now["mono"], "not stamped"
    arrived = stamp(now["real"])
    now["real"] += 3_600 * 10**9
    now["mono"] += MS
    assert clock.arrived_ns(arrived) == now["mono"], "an hour's step is no hour's delay"
    assert clock.arrived_ns(arrived) == now["mono"], "nor for the next connection that is read"
    now["real"] += 2 * 10**9
    now["mono"] += 2 * 10**9
    assert clock.arrived_ns(stamp(now["real"] - 30 * MS)) == now["mono"] - 30 * MS


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


@pytest.mark.parametrize("reset", [False, True])
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


async def test_an_aborted_one_is_closed_and_silent() -> None:
    async with connected() as (_, connection, there):
        heard = Heard()
        connection.carry(heard, b"GET / HTTP/1.1\r\n\r\n")
        transport = connection._transport
        assert isinstance(transport, StampedTransport)
        connection.close()
        transport.write(b"nothing")
        transport.resume_reading()
        transport.abort()
        there.settimeout(5)
        there.recv(1024)
        assert there.recv(1024) == b""
        assert not heard.over.is_set()
