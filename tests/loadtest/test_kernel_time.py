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
from headway.loadtest.client.kernel_time import NARROW_NS, SO_TIMESTAMPNS, KernelTime, ask_for_stamps
from headway.loadtest.client.stamped_transport import StampedTransport, connecting
from headway.wire.http_connection import Connection, Headers, HttpFault
from headway.wire.http_pool import Pool, Server

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
        pool = Pool(Server("127.0.0.1", listener.getsockname()[1]), connect=connecting(KernelTime()))
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


class Clocks:
    """Two clocks that a test sets; `interrupted_ns` pass between reading them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.mono_ns, self.real_ns, self.interrupted_ns = 50 * 10**9, 1_000 * 10**9, 0
        monkeypatch.setattr(kernel_time, "monotonic_ns", lambda: self.mono_ns)
        monkeypatch.setattr(kernel_time, "time_ns", self.read)

    def read(self) -> int:
        self.go(self.interrupted_ns)
        return self.real_ns

    def go(self, ns: int) -> None:
        self.mono_ns += ns
        self.real_ns += ns


def test_no_time_lies_in_the_future_or_runs_with_a_clock_that_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    now = Clocks(monkeypatch)
    clock = KernelTime()
    assert clock.arrived_ns(stamp(now.real_ns - 30 * MS)) == now.mono_ns - 30 * MS
    assert clock.arrived_ns(stamp(now.real_ns + 30 * MS)) == now.mono_ns, "never later than now"
    assert (clock.reads, clock.stamped) == (2, 2)
    assert clock.arrived_ns([]) == now.mono_ns, "not stamped"
    assert clock.arrived_ns([(socket.SOL_SOCKET, SO_TIMESTAMPNS, b"12345678")]) == now.mono_ns, "nor in 8 bytes"
    arrived = stamp(now.real_ns)
    now.real_ns += 3_600 * 10**9
    assert clock.arrived_ns(arrived) == now.mono_ns, "an hour's step is no hour's delay"
    assert clock.arrived_ns(arrived) == now.mono_ns, "nor for the next connection that is read"
    assert (clock.reads, clock.stamped) == (6, 2)
    now.go(2 * 10**9)
    assert clock.arrived_ns(stamp(now.real_ns - 30 * MS)) == now.mono_ns - 30 * MS


@pytest.mark.parametrize("interrupted_ns", [NARROW_NS, 900_000, 500 * MS])
def test_an_interruption_between_the_clocks_moves_no_time(monkeypatch: pytest.MonkeyPatch, interrupted_ns: int) -> None:
    now = Clocks(monkeypatch)
    clock = KernelTime()
    sent_ns = now.mono_ns
    arrived = stamp(now.real_ns)
    now.interrupted_ns = interrupted_ns
    assert clock.arrived_ns(arrived) == sent_ns
    now.interrupted_ns = 0
    assert clock.arrived_ns(stamp(now.real_ns)) == now.mono_ns
    assert clock.stamped == 2, "and no step was seen"


def test_a_system_without_stamps_is_none_the_worse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_time, "SO_TIMESTAMPNS", 9_999)
    with socket.socket() as sock:
        ask_for_stamps(sock)


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
