"""Exchanges, on real sockets: who leaves, who is slow, who is silent, what is garbage, and what is left behind."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from pathlib import Path

import pytest

from headway.wire import http_client, http_connection
from headway.wire.http_client import HIGH_BYTES, Exchange, Timeouts, client_of
from headway.wire.http_connection import Connection, Cut, HttpFault, NoConnection, NotHttp, TooSlow
from headway.wire.http_pool import Pool
from headway.wire.http_pool import Server as Address
from tests.wire.scripted import (
    END,
    QUICK,
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

# -- leaving -----------------------------------------------------------------------------------------------------------


@on_every_loop
async def test_closing_is_seen_by_the_server_at_every_stage():
    left: list[bool] = []

    async def script(turn: Turn) -> None:
        if turn.path == "/head":
            await turn.write(chunked_head())
        elif turn.path == "/body":
            await turn.write(chunked_head(), chunk(b"some"))
        left.append(await turn.gone())

    async with scripted(script) as server:
        client = server.client()
        for target in ("/nothing", "/head", "/body"):
            exchange = client.ask("GET", target)
            await until(lambda: len(server.asked) == len(left) + 1)
            if target != "/nothing":
                await exchange.head()
            if target == "/body":
                await exchange.read()
            exchange.close()
            exchange.close()
            await until(lambda: len(left) == len(server.asked))
        assert left == [True] * 3
        assert not client.pool.connections
        assert not client.pool.idle
        await client.close()


@on_every_loop
async def test_closing_while_connecting_leaves_nothing():
    async with scripted(answering(whole(b"x"))) as server:
        client = server.client()
        for turns in range(6):
            exchange = client.ask("GET", "/")
            for _ in range(turns):
                await asyncio.sleep(0)
            exchange.close()
        await until(lambda: not client.pool._opening)
        await until(lambda: client.pool.connections == set(client.pool.idle), 5)
        await until(lambda: server.open == len(client.pool.idle))
        await client.close()


@on_every_loop
async def test_a_closed_client_ends_whoever_waits():
    async def script(turn: Turn) -> None:
        await turn.gone()

    async with scripted(script) as server:
        client = server.client()
        waiting = [asyncio.create_task(ask(client)) for _ in range(3)]
        await until(lambda: len(server.asked) == 3)
        waiting.append(asyncio.create_task(ask(client)))  # still connecting
        await asyncio.sleep(0)
        await client.close()
        ends = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 5)
        assert all(isinstance(end, HttpFault) for end in ends)
        await until(lambda: server.open == 0)


@pytest.mark.parametrize("ends", [True, False])
@on_every_loop
async def test_a_released_exchange_keeps_its_connection_if_its_end_follows(ends, monkeypatch):
    monkeypatch.setattr(http_client, "LINGER_S", 0.1)

    async def script(turn: Turn) -> None:
        await turn.write(chunked_head(), chunk(b"data: [DONE]\n\n"))
        await asyncio.sleep(0.02)
        if ends:
            await turn.write(END)
        else:
            assert await turn.gone()

    async with scripted(script) as server:
        client = server.client()
        exchange = client.ask("POST", "/", body=b"x", repeatable=True)
        assert await exchange.read() == b"data: [DONE]\n\n"
        exchange.release()
        exchange.release()
        await until(lambda: bool(client.pool.idle) if ends else not client.pool.connections)
        await client.close()


# -- slow ends ---------------------------------------------------------------------------------------------------------


@on_every_loop
async def test_a_slow_reader_makes_the_server_wait_and_is_not_blamed():
    sent = 0

    async def script(turn: Turn) -> None:
        nonlocal sent
        await turn.write(chunked_head())
        for _ in range(2048):
            await turn.write(chunk(b"x" * 16_384))
            sent += 16_384
        await turn.write(END)

    async with scripted(script) as server:
        client = server.client(Timeouts(first_byte_s=0.2, between_bytes_s=0.2))
        exchange = client.ask("GET", "/")
        await exchange.head()
        before = -1
        while before != sent:  # until the server is held up
            before = sent
            await asyncio.sleep(0.3)
        assert sent < 32 * 2**20, "what fits into buffers, not all of it"
        assert exchange._buffered_bytes < HIGH_BYTES + 512 * 1024
        assert len(await exchange.read_all(1 << 30)) == 2048 * 16_384
        await client.close()


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        (Timeouts(first_byte_s=0.1), "no answer within 0.1 s"),
        (Timeouts(between_bytes_s=0.1), "nothing more within 0.1 s"),
        (Timeouts(total_s=0.1), "no end within 0.1 s"),
        (Timeouts(first_byte_s=5.0, between_bytes_s=0.1, total_s=9.0), "nothing more within 0.1 s"),
    ],
)
@on_every_loop
async def test_silence_has_limits(limit, words):
    left = asyncio.Event()

    async def script(turn: Turn) -> None:
        await turn.write(chunked_head())
        if "nothing more" in words:
            await turn.write(chunk(b"x"))
        assert await turn.gone()
        left.set()

    async with scripted(script) as server:
        client = server.client(limit)
        with pytest.raises(TooSlow, match=words):
            await asyncio.wait_for(ask(client), 5)
        await asyncio.wait_for(left.wait(), 5)
        assert not client.pool.connections
        await client.close()


@on_every_loop
async def test_bytes_in_time_are_no_silence():
    async def script(turn: Turn) -> None:
        await turn.write(chunked_head())
        for _ in range(8):
            await turn.write(chunk(b"x"))
            await asyncio.sleep(0.05)
        await turn.write(END)

    async with scripted(script) as server:
        client = server.client(Timeouts(first_byte_s=0.3, between_bytes_s=0.3))
        assert await ask(client) == (200, b"x" * 8)
        await client.close()


@on_every_loop
async def test_no_connection_says_why():
    client = client_of(Address("127.0.0.1", 9), "x")
    with pytest.raises(NoConnection, match="connection refused"):
        await ask(client)
    await client.close()

    async def silent(reader, writer):
        await reader.read()
        writer.close()

    listening = await asyncio.start_server(silent, "127.0.0.1", 0)
    address = Address("127.0.0.1", listening.sockets[0].getsockname()[1], ssl.create_default_context())
    client = client_of(address, "x", timeouts=Timeouts(connect_s=0.1))
    with pytest.raises(NoConnection, match=r"within 0\.1 s"):
        await ask(client)  # the handshake never ends
    await until(lambda: not client.pool.connections)
    await client.close()
    listening.close()


MANY_BYTES = 16 * http_connection.MAX_FRAMING_BYTES  # more than one read brings


# -- what is no answer -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "answer",
    [
        b"garbage\r\n\r\n",
        b"\0" * 100,
        b"HTTP/1.1 101 X\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
        b"HTTP/1.1 200 X\r\na: " + b"x" * (http_connection.MAX_FRAMING_BYTES + 1),
        b"HTTP/1.1 200 X\r\n" + b"a: b\r\n" * 20_000,
        chunked_head() + b"1;" + b"x" * MANY_BYTES,
        chunked_head() + b"zz\r\n",
        chunked_head() + chunk(b"x") + b"0\r\n" + b"a: b\r\n" * (MANY_BYTES // 6),
    ],
)
@on_every_loop
async def test_garbage_is_one_clear_fault(answer):
    async def script(turn: Turn) -> None:
        await turn.write(answer)
        await turn.gone()

    async with scripted(script) as server:
        client = server.client()
        with pytest.raises(NotHttp):
            await asyncio.wait_for(ask(client), 5)
        assert not client.pool.connections
        await client.close()


@on_every_loop
async def test_an_answer_that_is_too_large_is_given_up():
    async with scripted(answering(whole(b"x" * 1000))) as server:
        client = server.client()
        exchange = client.ask("GET", "/")
        with pytest.raises(NotHttp, match="larger than 999"):
            await exchange.read_all(999)
        await client.close()


@on_every_loop
async def test_what_arrived_before_a_fault_is_read_first():
    async with scripted(answering(chunked_head(), chunk(b"some"), close=True)) as server:
        client = server.client()
        exchange = client.ask("GET", "/")
        await asyncio.sleep(0.1)
        assert (await exchange.head()).status == 200
        assert await exchange.read() == b"some"
        with pytest.raises(Cut):
            await exchange.read()
        await client.close()


# -- TLS ---------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate(tmp_path_factory) -> Path:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    folder = tmp_path_factory.mktemp("tls")
    subprocess.run(
        "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1 "
        "-keyout key.pem -out cert.pem",
        shell=True,
        cwd=folder,
        check=True,
        capture_output=True,
    )
    return folder


@on_every_loop
async def test_tls_is_spoken_and_checked(certificate):
    ours = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ours.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
    async with scripted(answering(whole(b"secret")), tls=ours) as server:
        trusting = server.client(QUICK, ssl.create_default_context(cafile=str(certificate / "cert.pem")))
        assert await ask(trusting) == (200, b"secret")
        assert await ask(trusting) == (200, b"secret")
        assert server.connections == 1
        await trusting.close()
        doubting = server.client(QUICK, ssl.create_default_context())
        with pytest.raises(NoConnection, match="TLS failed"):
            await ask(doubting)
        await doubting.close()
        await until(lambda: server.open == 0)


# -- stamped first, read later -----------------------------------------------------------------------------------------


@on_every_loop
async def test_who_has_no_time_reads_later_and_keeps_the_time_of_arrival():
    class Later:
        def __init__(self) -> None:
            self.kept: list[tuple[Connection, bytes, int]] = []

        def put(self, connection: Connection, data: bytes, at_ns: int) -> None:
            self.kept.append((connection, data, at_ns))

    async with scripted(answering(whole(b"x"), close=True)) as server:
        later = Later()
        pool = Pool(Address("127.0.0.1", server.port), inbox=later)
        exchange = Exchange(pool, b"GET / HTTP/1.1\r\nhost: x\r\n\r\n", b"", QUICK, repeatable=True)
        exchange.start()
        await until(lambda: bool(later.kept) and not later.kept[-1][1])
        for connection, data, at_ns in later.kept:
            connection.read(data, at_ns)
        assert (await exchange.head()).status == 200
        assert await exchange.read() == b"x"
        assert exchange.first_byte_ns in {at_ns for _, _, at_ns in later.kept}
        await pool.close()


READER = """
import asyncio, sys, uvloop
from headway.wire.http_client import Timeouts, client_of
from headway.wire.http_pool import Server

async def main():
    client = client_of(Server("127.0.0.1", int(sys.argv[1])), "x", timeouts=Timeouts(between_bytes_s=0.3))
    exchange = client.ask("GET", "/")
    while piece := await exchange.read():
        print(piece.decode(), end="", flush=True)

uvloop.run(main())
"""


def test_what_came_while_this_process_stood_still_is_no_silence_of_the_server():
    """With uvloop, timers are looked at before sockets, once the process runs again."""
    listening = socket.create_server(("127.0.0.1", 0))
    command = [sys.executable, "-c", READER, str(listening.getsockname()[1])]
    with listening, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as reader:
        taken, _ = listening.accept()
        with taken:
            taken.recv(65_536)
            taken.sendall(chunked_head() + chunk(b"x"))
            assert reader.stdout is not None
            assert reader.stdout.read(1) == b"x"
            os.kill(reader.pid, signal.SIGSTOP)
            for _ in range(6):
                time.sleep(0.1)
                taken.sendall(chunk(b"x"))
            os.kill(reader.pid, signal.SIGCONT)
            taken.sendall(chunk(b"x") + END)
            rest, trouble = reader.communicate(timeout=10)
    assert (rest, trouble.decode()) == (b"x" * 7, "")
