"""A client that asks again as soon as it is answered, where wrk is not installed; and one that reads many streams.

    python -m benchmarks.sides.hammer requests URL --connections 16 --seconds 8
    python -m benchmarks.sides.hammer streams URL --streams 64 --rounds 3

Raw sockets: a client library would be most of what is measured. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import time
from typing import Any
from urllib.parse import urlsplit

import uvloop

MESSAGES = [{"role": "user", "content": "hello there, how are you today?"}]
_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_STAMP = re.compile(rb'"content":"(\d+) *"')


def request_bytes(url: str, key: str, *, stream: bool, tokens: int) -> tuple[str, int, bytes]:
    parts = urlsplit(url)
    body = json.dumps({"model": "bench", "messages": MESSAGES, "max_tokens": tokens, "stream": stream}).encode()
    lines = [
        "POST /v1/chat/completions HTTP/1.1",
        f"Host: {parts.netloc}",
        "Content-Type: application/json",
        *([f"Authorization: Bearer {key}"] if key else []),
        f"Content-Length: {len(body)}",
    ]
    assert parts.hostname is not None
    return parts.hostname, parts.port or 80, ("\r\n".join(lines) + "\r\n\r\n").encode() + body


class Asking(asyncio.Protocol):
    """One connection that asks until the time is over."""

    def __init__(self, request: bytes, until: float, took_s: list[float], failed: list[bytes]) -> None:
        self._request, self._until, self._took_s, self._failed = request, until, took_s, failed
        self._received = b""
        self._transport: asyncio.Transport
        self._sent_s = 0.0
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment] # uvloop's is of another family
        self._ask()

    def _ask(self) -> None:
        self._sent_s = time.perf_counter()
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._received = self._received + data if self._received else data
        end = self._received.find(b"\r\n\r\n")
        if end < 0:
            return
        head = self._received[:end]
        length = _LENGTH.search(head)
        if length is not None:
            if len(self._received) < end + 4 + int(length[1]):
                return
        elif not self._received.endswith(b"0\r\n\r\n"):
            return
        now_s = time.perf_counter()
        if head[9:12] == b"200":
            self._took_s.append(now_s - self._sent_s)
        else:
            self._failed.append(self._received[:300])
        self._received = b""
        if now_s < self._until:
            self._ask()
        else:
            self._transport.close()

    def connection_lost(self, _: Exception | None) -> None:
        if not self.over.done():
            self.over.set_result(None)


async def requests(given: argparse.Namespace) -> dict[str, Any]:
    host, port, request = request_bytes(given.url, given.key, stream=False, tokens=16)
    loop, took_s, failed = asyncio.get_running_loop(), list[float](), list[bytes]()
    began = time.perf_counter()
    until = began + given.seconds
    made = [
        (await loop.create_connection(lambda: Asking(request, until, took_s, failed), host, port))[1]
        for _ in range(given.connections)
    ]
    await asyncio.gather(*(one.over for one in made))
    seconds = time.perf_counter() - began
    took_s.sort()
    return {
        "requests": len(took_s),
        "failed": len(failed),
        "failure": failed[0].decode("latin-1") if failed else "",
        "requests_per_s": len(took_s) / seconds,
        "p50_ms": 1000 * at(took_s, 0.5),
        "p99_ms": 1000 * at(took_s, 0.99),
    }


class Reading(asyncio.Protocol):
    """One stream: how late each chunk is, in seconds."""

    def __init__(self, request: bytes, late_s: list[float]) -> None:
        self._request, self._late_s = request, late_s
        self._tail = b""
        self._transport: asyncio.Transport
        self.status = b""
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment] # uvloop's is of another family
        transport.write(self._request)  # type: ignore[attr-defined] # of every transport with a socket

    def data_received(self, data: bytes) -> None:
        now_ns = time.monotonic_ns()
        self.status = self.status or data[9:12]
        for stamp in _STAMP.finditer(data):
            self._late_s.append((now_ns - int(stamp[1])) / 1e9)
        if (self._tail + data).endswith(b"0\r\n\r\n"):
            self._transport.close()
        self._tail = data[-5:]

    def connection_lost(self, _: Exception | None) -> None:
        if not self.over.done():
            self.over.set_result(None)


async def streams(given: argparse.Namespace) -> dict[str, Any]:
    host, port, request = request_bytes(given.url, given.key, stream=True, tokens=64)
    loop, late_s, good = asyncio.get_running_loop(), list[float](), 0
    for _ in range(given.rounds):
        made = []
        for _ in range(given.streams):
            made.append((await loop.create_connection(lambda: Reading(request, late_s), host, port))[1])
            await asyncio.sleep(given.spread / given.streams)  # not all of them in the same millisecond
        await asyncio.gather(*(one.over for one in made))
        good += sum(one.status == b"200" for one in made)
    late_s.sort()
    return {
        "streams": good,
        "failed": given.rounds * given.streams - good,
        "chunks": len(late_s),
        "late_p50_ms": 1000 * at(late_s, 0.5),
        "late_p99_ms": 1000 * at(late_s, 0.99),
    }


def at(ordered: list[float], ratio: float) -> float:
    return ordered[min(len(ordered) - 1, int(ratio * len(ordered)))] if ordered else float("nan")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("requests", "streams"))
    parser.add_argument("url")
    parser.add_argument("--key", default="")
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--spread", type=float, default=0.02, help="seconds over which streams are started")
    given = parser.parse_args()
    print(json.dumps(uvloop.run(requests(given) if given.what == "requests" else streams(given))))


if __name__ == "__main__":
    main()
