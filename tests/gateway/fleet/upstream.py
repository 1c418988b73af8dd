"""A server that does what a test tells it, also what no server should, over raw sockets: every fault is a real one."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

MODEL = "tiny"
METRICS = "\n".join(
    f'{name}{{model_name="{MODEL}"}} {value}'
    for name, value in (
        ("vllm:num_requests_running", 0),
        ("vllm:num_requests_waiting", 0),
        ("vllm:kv_cache_usage_perc", 0.1),
    )
)


class Asked:
    """One request as it arrived."""

    def __init__(self, line: str, headers: Mapping[str, str], raw: bytes) -> None:
        self.method, self.path, _ = line.split(" ", 2)
        self.headers = headers
        self.raw = raw

    @property
    def body(self) -> Any:
        return json.loads(self.raw)

    @property
    def streams(self) -> bool:
        return bool(self.raw) and bool(self.body.get("stream"))


Behaviour = Callable[["Upstream", Asked, asyncio.StreamWriter], Awaitable[None]]


def chunk(text: str | None = None, *, finish: str | None = None, **more: Any) -> bytes:
    delta = {} if text is None else {"content": text}
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    body = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": MODEL, "choices": [choice], **more}
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def usage_chunk(prompt_tokens: int, output_tokens: int) -> bytes:
    usage = {"prompt_tokens": prompt_tokens, "completion_tokens": output_tokens, "total_tokens": 0}
    return b"data: " + json.dumps({"id": "c", "object": "x", "choices": [], "usage": usage}).encode() + b"\n\n"


def answer(texts: list[str], prompt_tokens: int = 10) -> bytes:
    message = {"role": "assistant", "content": "".join(texts)}
    usage = {"prompt_tokens": prompt_tokens, "completion_tokens": len(texts), "total_tokens": 0}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    body = {"id": "c", "object": "chat.completion", "created": 1, "model": MODEL, "choices": [choice], "usage": usage}
    return json.dumps(body).encode()


def head(status: int, kind: str, *, length: int | None = None, **headers: str) -> bytes:
    size = "transfer-encoding: chunked" if length is None else f"content-length: {length}"
    lines = [f"HTTP/1.1 {status} X", f"content-type: {kind}", size, *(f"{k}: {v}" for k, v in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode()


def framed(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


STREAM = head(200, "text/event-stream")
WORDS = [" good", " day", " to", " you"]


async def good(upstream: Upstream, asked: Asked, writer: asyncio.StreamWriter) -> None:
    """An answer as it should be, with `upstream.gap_s` between its words."""
    if not asked.streams:
        await asyncio.sleep(upstream.gap_s * len(WORDS))
        reply(writer, 200, answer(WORDS))
        return
    writer.write(STREAM)
    for word in WORDS:
        writer.write(framed(chunk(word)))
        await asyncio.sleep(upstream.gap_s)
    writer.write(framed(chunk(finish="stop")))
    if (asked.body.get("stream_options") or {}).get("include_usage"):
        writer.write(framed(usage_chunk(10, len(WORDS))))
    writer.write(framed(b"data: [DONE]\n\n") + b"0\r\n\r\n")


def reply(writer: asyncio.StreamWriter, status: int, body: bytes, kind: str = "application/json", **more: str) -> None:
    writer.write(head(status, kind, length=len(body), **more) + body)


class Upstream:
    """`behave` answers every POST; the rest is what a healthy server says."""

    def __init__(self, behave: Behaviour = good) -> None:
        self.behave = behave
        self.gap_s = 0.0
        self.well = True
        self.asked: list[Asked] = []
        self.inside = 0  # requests that are being answered
        self.left = 0  # of them, those whose client closed before the end
        self.url = ""
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def start(self, port: int = 0) -> None:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", port)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def kill(self) -> None:
        """As a process dies: nothing listens, and every connection is reset."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in tuple(self._writers):
            writer.transport.abort()
        await asyncio.sleep(0)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while (asked := await _read(reader)) is not None:
                if not await self._answered(asked, reader, writer):
                    break
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._writers.discard(writer)
            writer.transport.abort()

    async def _answered(self, asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """False when the client left in the middle."""
        if asked.method == "GET":
            self._tell(asked, writer)
            return True
        self.asked.append(asked)
        self.inside += 1
        answering = asyncio.ensure_future(self.behave(self, asked, writer))
        gone = asyncio.ensure_future(reader.read(1))  # clients here do not pipeline: a byte, or the end, is a leaving
        try:
            await asyncio.wait({answering, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not answering.done():
                self.left += 1
                return False
            await answering
            return not writer.transport.is_closing()
        finally:
            self.inside -= 1
            answering.cancel()
            gone.cancel()
            await asyncio.gather(answering, gone, return_exceptions=True)

    def _tell(self, asked: Asked, writer: asyncio.StreamWriter) -> None:
        if not self.well:
            reply(writer, 503, b"{}")
        elif asked.path.startswith("/v1/models"):
            card = {"id": MODEL, "object": "model", "created": 1, "owned_by": "vllm"}
            reply(writer, 200, json.dumps({"object": "list", "data": [card]}).encode())
        elif asked.path.startswith("/metrics"):
            reply(writer, 200, METRICS.encode(), "text/plain")
        else:
            reply(writer, 200, b"{}")


async def _read(reader: asyncio.StreamReader) -> Asked | None:
    try:
        raw = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    line, *lines = raw.decode("latin-1").strip().split("\r\n")
    headers = {name.strip().lower(): value.strip() for name, _, value in (one.partition(":") for one in lines)}
    length = re.fullmatch(r"\d+", headers.get("content-length", "0"))
    body = await reader.readexactly(int(length[0])) if length else b""
    return Asked(line, headers, body)


@asynccontextmanager
async def upstreams(count: int = 1, behave: Behaviour = good) -> AsyncIterator[list[Upstream]]:
    made = [Upstream(behave) for _ in range(count)]
    for one in made:
        await one.start()
    try:
        yield made
    finally:
        for one in made:
            await one.kill()
