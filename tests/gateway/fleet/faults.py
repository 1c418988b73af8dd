"""Everything that a worker can do wrong, each a behaviour of `Upstream`."""

from __future__ import annotations

import asyncio

from tests.gateway.fleet.upstream import STREAM, WORDS, Asked, Upstream, answer, chunk, framed, good, head, reply

FOREVER_S = 3600.0


async def silent(upstream: Upstream, asked: Asked, writer: asyncio.StreamWriter) -> None:
    """Takes the request and never says a word."""
    await asyncio.sleep(FOREVER_S)


async def closes_at_once(upstream: Upstream, asked: Asked, writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


async def half_head(upstream: Upstream, asked: Asked, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-ty")
    await writer.drain()
    writer.close()


async def garbage(upstream: Upstream, asked: Asked, writer: asyncio.StreamWriter) -> None:
    writer.write(b"\x16\x03\x01 this is no HTTP\r\n\r\n")
    await writer.drain()
    writer.close()


async def wrong_type(upstream: Upstream, asked: Asked, writer: asyncio.StreamWriter) -> None:
    reply(writer, 200, b"<html>welcome</html>", "text/html")


async def empty_body(upstream: Upstream, asked: Asked, writer: asyncio.StreamWriter) -> None:
    reply(writer, 200, b"", "text/event-stream" if asked.streams else "application/json")


async def no_json(upstream: Upstream, asked: Asked, writer: asyncio.StreamWriter) -> None:
    if asked.streams:
        writer.write(STREAM + framed(b"data: {nonsense\n\n") + b"0\r\n\r\n")
    else:
        reply(writer, 200, b'{"choices": [')


async def half_body(upstream: Upstream, asked: Asked, writer: asyncio.StreamWriter) -> None:
    whole = answer(WORDS)
    writer.write(head(200, "application/json", length=len(whole)) + whole[: len(whole) // 2])
    await writer.drain()
    writer.close()


async def overloaded(upstream: Upstream, asked: Asked, writer: asyncio.StreamWriter) -> None:
    reply(writer, 503, b'{"error":{"message":"busy"}}', **{"retry-after": "7"})


async def refuses_our_key(upstream: Upstream, asked: Asked, writer: asyncio.StreamWriter) -> None:
    reply(writer, 401, b'{"error":{"message":"bad key"}}')


# Before the first byte of an answer: another worker is asked.
EARLY = (silent, closes_at_once, half_head, garbage, wrong_type, empty_body, no_json, overloaded, refuses_our_key)


async def _begin(writer: asyncio.StreamWriter) -> None:
    writer.write(STREAM + framed(chunk(" good")))
    await writer.drain()
    await asyncio.sleep(0.01)  # so that it is seen on its own


async def killed_between_events(upstream: Upstream, asked: Asked, writer: asyncio.StreamWriter) -> None:
    await _begin(writer)
    writer.transport.abort()


async def killed_in_an_event(upstream: Upstream, asked: Asked, writer: asyncio.StreamWriter) -> None:
    await _begin(writer)
    half = chunk(" day")[:25]
    writer.write(framed(half))
    await writer.drain()
    await asyncio.sleep(0.01)
    writer.transport.abort()


async def ends_too_early(upstream: Upstream, asked: Asked, writer: asyncio.StreamWriter) -> None:
    """A truncated stream in a whole HTTP body: it looks like success."""
    await _begin(writer)
    writer.write(b"0\r\n\r\n")


async def silent_in_the_stream(upstream: Upstream, asked: Asked, writer: asyncio.StreamWriter) -> None:
    await _begin(writer)
    await asyncio.sleep(FOREVER_S)


async def says_it_failed(upstream: Upstream, asked: Asked, writer: asyncio.StreamWriter) -> None:
    await _begin(writer)
    writer.write(framed(b'data: {"error":{"message":"out of memory","type":"server_error"}}\n\n') + b"0\r\n\r\n")


async def garbage_in_the_stream(upstream: Upstream, asked: Asked, writer: asyncio.StreamWriter) -> None:
    await _begin(writer)
    writer.write(b"zzz not a chunk size\r\n")
    await writer.drain()


async def nonsense_event(upstream: Upstream, asked: Asked, writer: asyncio.StreamWriter) -> None:
    await _begin(writer)
    writer.write(framed(b"data: {nonsense\n\n") + b"0\r\n\r\n")


# After the first byte: the client is told in its stream.
LATE = (
    killed_between_events,
    killed_in_an_event,
    ends_too_early,
    silent_in_the_stream,
    says_it_failed,
    garbage_in_the_stream,
    nonsense_event,
)

ALL = (good, half_body, *EARLY, *LATE)
