"""A server on a real socket whose every byte a test decides, and which sees what it was asked and who left."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import uvloop

from headway.wire.http_client import HttpClient, Timeouts, client_of
from headway.wire.http_pool import Server as Address

QUICK = Timeouts(connect_s=2.0, first_byte_s=5.0, between_bytes_s=5.0)


@dataclass
class Turn:
    """One request, and the connection to answer it on. `place`: of this request on its connection, from 0."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    place: int
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def write(self, *pieces: bytes) -> None:
        """Each piece in a packet of its own, as far as the system allows."""
        for piece in pieces:
            self.writer.write(piece)
            await self.writer.drain()
            await asyncio.sleep(0)

    async def gone(self, timeout_s: float = 5.0) -> bool:
        """Waits for the client to leave. False when it does not."""
        try:
            async with asyncio.timeout(timeout_s):
                return not await self.reader.read(1)
        except ConnectionError:
            return True
        except TimeoutError:
            return False

    def close(self) -> None:
        self.writer.close()

    def reset(self) -> None:
        self.writer.transport.abort()


Script = Callable[[Turn], Awaitable[None]]


@dataclass
class Scripted:
    port: int
    asked: list[Turn] = field(default_factory=list)
    connections: int = 0
    open: int = 0
    writers: set[asyncio.StreamWriter] = field(default_factory=set)
    failures: list[BaseException] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(self, timeouts: Timeouts = QUICK, tls: ssl.SSLContext | None = None) -> HttpClient:
        return client_of(Address("127.0.0.1", self.port, tls), f"127.0.0.1:{self.port}", timeouts=timeouts)


@contextlib.asynccontextmanager
async def scripted(script: Script, *, tls: ssl.SSLContext | None = None, port: int = 0) -> AsyncIterator[Scripted]:
    """`script` answers every request. What it raises, but for lost connections, is raised here at the end."""

    async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server.connections += 1
        server.open += 1
        server.writers.add(writer)
        place = 0
        try:
            while not writer.is_closing():
                turn = await _receive(reader, writer, place)
                server.asked.append(turn)
                place += 1
                await script(turn)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        except Exception as error:
            server.failures.append(error)
        finally:
            server.open -= 1
            server.writers.discard(writer)
            writer.close()

    listening = await asyncio.start_server(connection, "127.0.0.1", port, ssl=tls)
    server = Scripted(listening.sockets[0].getsockname()[1])
    try:
        yield server
    finally:
        listening.close()
        for writer in tuple(server.writers):
            writer.transport.abort()
        await asyncio.sleep(0)
    if server.failures:
        raise server.failures[0]


async def _receive(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, place: int) -> Turn:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head[:-4].split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    method, path, _ = first.split(" ")
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Turn(method, path, headers, body, place, reader, writer)


def on_every_loop(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """A test of sockets runs on both loops that people use: they differ in what they tell, and when."""

    @functools.wraps(test)
    def run(*, loop_factory: Callable[[], asyncio.AbstractEventLoop], **given: object) -> None:
        async def body() -> None:
            await test(**given)

        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(body())

    names = [*inspect.signature(test).parameters, "loop_factory"]
    parameters = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in names]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined] # what pytest reads
    loops = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
    return pytest.mark.parametrize("loop_factory", loops.values(), ids=loops)(run)


async def ask(client: HttpClient, method: str = "GET", target: str = "/", **more: Any) -> tuple[int, bytes]:
    exchange = client.ask(method, target, **more)
    try:
        head = await exchange.head()
        return head.status, await exchange.read_all(1 << 24)
    finally:
        exchange.close()


async def until(condition: Callable[[], bool], timeout_s: float = 5.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.005)


# -- what servers say --------------------------------------------------------------------------------------------------

END = b"0\r\n\r\n"  # of a chunked body


def whole(body: bytes, *, status: int = 200, type: str = "application/json", **headers: str) -> bytes:
    more = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {status} X\r\ncontent-type: {type}\r\n{more}content-length: {len(body)}\r\n\r\n".encode() + body


def chunked_head(*, status: int = 200, type: str = "text/event-stream") -> bytes:
    named = f"content-type: {type}\r\n" if type else ""
    return f"HTTP/1.1 {status} X\r\n{named}transfer-encoding: chunked\r\n\r\n".encode()


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def answering(*pieces: bytes, close: bool = False) -> Script:
    """The same bytes to everybody."""

    async def script(turn: Turn) -> None:
        await turn.write(*pieces)
        if close:
            turn.close()

    return script
