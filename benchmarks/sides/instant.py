"""An instant OpenAI server to put a gateway in front of: whole answers and streams, canned, as fast as a core allows.

    python -m benchmarks.sides.instant PORT --tokens 64 --gap 0.02

Streams carry in every chunk when it was sent (CLOCK_MONOTONIC, ns), so that whoever reads them knows what was added.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import time

import uvloop

MODEL = b"bench"
BODY = (
    b'{"id":"chatcmpl-1","object":"chat.completion","created":1,"model":"bench","choices":[{"index":0,'
    b'"message":{"role":"assistant","content":"hello there"},"finish_reason":"stop"}],'
    b'"usage":{"prompt_tokens":10,"completion_tokens":2,"total_tokens":12}}'
)
MODELS = b'{"object":"list","data":[{"id":"bench","object":"model","created":1,"owned_by":"bench"}]}'
CHUNK = (
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"bench","choices":[{"index":0,'
    b'"delta":{"content":"%b"},"finish_reason":null}]}\n\n'
)
LAST = CHUNK.replace(b'{"content":"%b"}', b"{}").replace(b"null", b'"stop"')
USAGE = (
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"bench","choices":[],'
    b'"usage":{"prompt_tokens":10,"completion_tokens":%d,"total_tokens":%d}}\n\n'
)
STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_STREAMS = re.compile(rb'"stream" *: *true')


def whole(body: bytes) -> bytes:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
    return head + body


ANSWER, LIST, HEALTH = whole(BODY), whole(MODELS), whole(b'{"status":"ok"}')


def framed(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


class Connection(asyncio.Protocol):
    def __init__(self, given: argparse.Namespace) -> None:
        self._given = given
        self._received = b""
        self._transport: asyncio.Transport
        self._streams: set[asyncio.Task[None]] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment] # uvloop's is of another family

    def connection_lost(self, _: Exception | None) -> None:
        for stream in self._streams:
            stream.cancel()

    def data_received(self, data: bytes) -> None:
        self._received += data
        while (end := self._received.find(b"\r\n\r\n")) >= 0:
            head = self._received[:end]
            length = _LENGTH.search(head)
            until = end + 4 + (int(length[1]) if length else 0)
            if len(self._received) < until:
                return
            body, self._received = self._received[end + 4 : until], self._received[until:]
            if not head.startswith(b"POST"):
                self._transport.write(LIST if b"/models" in head[:60] else HEALTH)
            elif _STREAMS.search(body):
                stream = asyncio.ensure_future(self._stream())
                self._streams.add(stream)
                stream.add_done_callback(self._streams.discard)
            else:
                self._transport.write(ANSWER)

    async def _stream(self) -> None:
        write, tokens = self._transport.write, self._given.tokens
        write(STREAM)
        for _ in range(tokens):
            write(framed(CHUNK % (b"%-20d" % time.monotonic_ns())))
            await asyncio.sleep(self._given.gap)
        write(framed(LAST) + framed(USAGE % (tokens, tokens + 10)) + framed(b"data: [DONE]\n\n") + b"0\r\n\r\n")


async def serve(given: argparse.Namespace) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(given), "127.0.0.1", given.port, backlog=4096)
    await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("port", type=int)
    parser.add_argument("--tokens", type=int, default=16, help="of a stream, whatever was asked (default 16)")
    parser.add_argument("--gap", type=float, default=0.0, metavar="S", help="between chunks (default 0)")
    uvloop.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
