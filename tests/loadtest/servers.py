"""Scripted servers on real sockets: each test says byte by byte what a server answers, and sees what it was asked."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from headway.loadtest.client.address import Tls, parse_url
from headway.loadtest.client.limits import Limits
from headway.loadtest.client.request import RequestTemplate
from headway.loadtest.record import Record
from headway.loadtest.runner.plan import ClosedLoad, OpenLoad, Plan
from headway.loadtest.runner.run import run
from headway.workload.item import Item

MODEL = "m"
END = b"0\r\n\r\n"  # of a chunked body
DONE = b"data: [DONE]\n\n"


@dataclass
class Asked:
    """A request as it arrived. Header names are in lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    at_s: float

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Turn:
    """One request and the connection to answer it on."""

    asked: Asked
    writer: asyncio.StreamWriter
    number: int  # of this request, over all connections, from 0
    place: int  # of this request on its connection, from 0

    def write(self, *pieces: bytes) -> None:
        self.writer.writelines(pieces)

    def close(self) -> None:
        self.writer.close()

    def reset(self) -> None:
        self.writer.transport.abort()


Script = Callable[[Turn], Awaitable[None]]


@dataclass
class Server:
    url: str
    port: int
    asked: list[Asked] = field(default_factory=list)  # but for /v1/models
    connections: int = 0
    writers: set[asyncio.StreamWriter] = field(default_factory=set)
    listening: asyncio.Server | None = None

    async def die(self) -> None:
        """Stop listening and drop every connection."""
        assert self.listening is not None
        self.listening.close()
        for writer in tuple(self.writers):
            writer.transport.abort()
        await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def serving(
    script: Script, *, models: list[str] | None = None, tls: ssl.SSLContext | None = None, pages: bool = False
) -> AsyncIterator[Server]:
    """`script` answers what is posted; `/v1/models` lists `models`. With `pages` it answers what is fetched as well."""
    listed = json.dumps({"object": "list", "data": [{"id": name} for name in models or [MODEL]]}).encode()

    async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server.connections += 1
        server.writers.add(writer)
        place = 0
        try:
            while not writer.is_closing():
                asked = await receive(reader)
                if asked.path.endswith("/models") and not pages:
                    writer.write(whole(listed))
                    continue
                server.asked.append(asked)
                turn = Turn(asked, writer, len(server.asked) - 1, place)
                place += 1
                if asked.method == "GET" and not pages:
                    writer.write(whole(b"{}", status=404))
                else:
                    await script(turn)
                    await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            server.writers.discard(writer)
            writer.close()

    listening = await asyncio.start_server(connection, "127.0.0.1", 0, ssl=tls)
    port = listening.sockets[0].getsockname()[1]
    server = Server(f"{'https' if tls else 'http'}://127.0.0.1:{port}", port, listening=listening)
    try:
        yield server
    finally:
        listening.close()
        for writer in tuple(server.writers):
            writer.transport.abort()
        await asyncio.sleep(0)


async def receive(reader: asyncio.StreamReader) -> Asked:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head[:-4].split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    method, path, _ = first.split(" ")
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Asked(method, path, headers, body, asyncio.get_running_loop().time())


# -- what servers say --------------------------------------------------------------------------------------------------


def head(status: int = 200, **headers: str) -> bytes:
    """The head of a chunked answer; of a stream of events if it is a 200."""
    fields = {"transfer-encoding": "chunked"}
    if status == 200:
        fields["content-type"] = "text/event-stream"
    fields |= {name.replace("_", "-"): value for name, value in headers.items()}
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items() if value)
    return f"HTTP/1.1 {status} X\r\n{lines}\r\n".encode()


def whole(body: bytes, *, status: int = 200, type: str = "application/json", **headers: str) -> bytes:
    more = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {status} X\r\ncontent-type: {type}\r\n{more}content-length: {len(body)}\r\n\r\n".encode() + body


def error(message: str, **fields: Any) -> bytes:
    return json.dumps({"error": {"message": message, **fields}}).encode()


def piece(data: bytes) -> bytes:
    """A chunk of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(value: Any) -> bytes:
    return b"data: %b\n\n" % json.dumps(value).encode()


def said(
    content: str | None = None, *, index: int = 0, finish: str | None = None, count: int | None = None, **delta: Any
) -> bytes:
    """An event of a chat stream. `count` is the running usage that it carries."""
    told: dict[str, Any] = dict(delta)
    if content is not None:
        told["content"] = content
    value: dict[str, Any] = {"id": "c", "choices": [{"index": index, "delta": told, "finish_reason": finish}]}
    if count is not None:
        value["usage"] = {"prompt_tokens": 7, "completion_tokens": count}
    return event(value)


def usage(output: int, prompt: int = 7, cached: int | None = None) -> bytes:
    told: dict[str, Any] = {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}
    if cached is not None:
        told["prompt_tokens_details"] = {"cached_tokens": cached}
    return event({"id": "c", "choices": [], "usage": told})


def stream(*events: bytes) -> bytes:
    """A whole answer, each event a chunk of its own."""
    return head() + b"".join(map(piece, events)) + END


def words(number: int) -> list[bytes]:
    """The events of a well-behaved stream of so many tokens."""
    spoken = [said(f"w{place} ") for place in range(number)]
    return [said(role="assistant", content=""), *spoken, said(finish="length"), usage(number), DONE]


async def talks(turn: Turn) -> None:
    """A good server: as many tokens as were asked for."""
    turn.write(stream(*words(turn.asked.json["max_tokens"])))


def answering(*pieces: bytes, close: bool = False) -> Script:
    """The same bytes to everybody."""

    async def script(turn: Turn) -> None:
        turn.write(*pieces)
        if close:
            await turn.writer.drain()
            turn.close()

    return script


# -- loads -------------------------------------------------------------------------------------------------------------


def prompt_of(item: Item, index: int) -> str:
    return f"number {index}"


QUICK = Limits(timeout_s=5.0, linger_s=0.1, drain_s=5.0, give_up_s=5.0)


def plan_for(
    url: str,
    load: OpenLoad | ClosedLoad | None = None,
    *,
    requests: int = 1,
    concurrency: int = 1,
    output_tokens: int = 3,
    limits: Limits = QUICK,
    processes: int = 0,
    tls: Tls = Tls(),
    count_tokens: Callable[[str], int] | None = None,
    **template: Any,
) -> Plan:
    """By default some equal requests one after the other, made in this process."""
    address, _ = parse_url(url)
    return Plan(
        template=RequestTemplate(address, MODEL, **template),
        load=load or ClosedLoad([Item(5, output_tokens)] * requests, concurrency),
        prompts=prompt_of,
        limits=limits,
        tls=tls,
        count_tokens=count_tokens,
        processes=processes,
        scrape_interval_s=None,
    )


async def records_of(script: Script, **plan: Any) -> list[Record]:
    async with serving(script) as server:
        return (await run(plan_for(server.url, **plan))).records


async def record_of(script: Script, **plan: Any) -> Record:
    (record,) = await records_of(script, **plan)
    return record
