"""An instant OpenAI server: canned streams, as fast as one core allows. What a client reports is its own delay.

    python -m benchmarks.upstream PORT --tokens 16 --gap 0 --stall 3:2 --stamp

With `--stamp` every chunk carries its send time (CLOCK_MONOTONIC, in ns) as its text, so that a client's gaps can be
compared with the true ones. `--stall AT:FOR` freezes all streams once, AT seconds after the first request.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import time

MODELS = b'{"object":"list","data":[{"id":"bench","object":"model","created":1,"owned_by":"bench"}]}'
HEALTH = b'{"status":"ok"}'
CHUNK = b'{"id":"c","object":"%b","created":1,"model":"bench","choices":[{"index":0,%b,"finish_reason":%b}]}'
USAGE = (
    b'{"id":"c","object":"%b","created":1,"model":"bench","choices":[],'
    b'"usage":{"prompt_tokens":10,"completion_tokens":%d,"total_tokens":%d}}'
)
STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def event(data: bytes) -> bytes:
    """One server-sent event as one chunk of a chunked body."""
    framed = b"data: " + data + b"\n\n"
    return b"%x\r\n%b\r\n" % (len(framed), framed)


class Voice:
    """What one of the two APIs says."""

    def __init__(self, kind: bytes, words: bytes, nothing: bytes) -> None:
        self.kind = kind
        self._words = words
        self._before, self._after = event(self.chunk(b"\0" * 20)).split(b"\0" * 20)
        self.plain = event(self.chunk(b" tok"))
        self.last = event(CHUNK % (kind, nothing, b'"length"'))

    def chunk(self, text: bytes) -> bytes:
        return CHUNK % (self.kind, self._words % text, b"null")

    def stamped(self) -> bytes:
        return self._before + b"%-20d" % time.monotonic_ns() + self._after

    def end(self, tokens: int) -> bytes:
        return self.last + event(USAGE % (self.kind, tokens, tokens + 10)) + event(b"[DONE]") + b"0\r\n\r\n"


CHAT = Voice(b"chat.completion.chunk", b'"delta":{"content":"%b"}', b'"delta":{}')
COMPLETION = Voice(b"text_completion", b'"text":"%b"', b'"text":""')


class Upstream:
    """The settings of all connections, and when the stall is."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.tokens: int = given.tokens
        self.gap_s: float = given.gap
        self.stamp: bool = given.stamp
        at_s, _, for_s = given.stall.partition(":")
        self._stall_at_s, self._stall_for_s = float(at_s or 0), float(for_s or 0)
        self._began_s: float | None = None

    def stalled_s(self) -> float:
        """How long to hold still from now on."""
        if not self._stall_for_s:
            return 0.0
        now_s = time.monotonic()
        self._began_s = now_s if self._began_s is None else self._began_s
        since_s = now_s - self._began_s - self._stall_at_s
        return self._stall_for_s - since_s if 0 <= since_s < self._stall_for_s else 0.0


class Connection(asyncio.Protocol):
    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._received = b""
        self._transport: asyncio.Transport
        self._streams: set[asyncio.Task[None]] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "write")
        self._transport = transport  # type: ignore[assignment] # uvloop's is of another family

    def data_received(self, data: bytes) -> None:
        self._received += data
        while (end := self._received.find(b"\r\n\r\n")) >= 0:
            head = self._received[:end]
            length = re.search(rb"content-length: *(\d+)", head, re.IGNORECASE)
            whole = end + 4 + (int(length[1]) if length else 0)
            if len(self._received) < whole:
                return
            self._received = self._received[whole:]
            if head.startswith(b"POST"):
                stream = asyncio.ensure_future(self._stream(COMPLETION if b"/chat/" not in head[:60] else CHAT))
                self._streams.add(stream)
                stream.add_done_callback(self._streams.discard)
            else:
                body = MODELS if b"/models" in head[:60] else HEALTH
                kind = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
                self._transport.write(kind % (len(body), body))

    async def _stream(self, voice: Voice) -> None:
        upstream = self._upstream
        self._transport.write(STREAM_HEAD)
        for _ in range(upstream.tokens):
            if (hold_s := upstream.stalled_s()) > 0:
                await asyncio.sleep(hold_s)
            self._transport.write(voice.stamped() if upstream.stamp else voice.plain)
            await asyncio.sleep(upstream.gap_s)
        self._transport.write(voice.end(upstream.tokens))


async def serve(given: argparse.Namespace) -> None:
    upstream = Upstream(given)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(upstream), "127.0.0.1", given.port, backlog=4096)
    await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("port", type=int)
    parser.add_argument("--tokens", type=int, default=16, help="of every answer, whatever was asked (default 16)")
    parser.add_argument("--gap", type=float, default=0.0, metavar="S", help="between chunks (default 0)")
    parser.add_argument("--stamp", action="store_true", help="chunks carry their send time")
    parser.add_argument("--stall", default="", metavar="AT:FOR", help="freeze once, in seconds")
    given = parser.parse_args()
    if given.stamp:
        asyncio.run(serve(given))  # it writes at once; uvloop collects writes, and stamps would be early
    else:
        import uvloop

        uvloop.run(serve(given))


if __name__ == "__main__":
    main()
