"""A good server that costs nothing: the scripted one with what `bench` asks of a server besides streams.

`python -m tests.loadtest.speaking PORT GAP_MS` runs it as a process, for what starts and stops servers.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator

from tests.loadtest import servers
from tests.loadtest.servers import DONE, END, MODEL, Server, Turn, piece, serving, usage, whole


@contextlib.asynccontextmanager
async def speaking(gap_s: float = 0.0) -> AsyncIterator[Server]:
    """One token a word; tokens of an answer come `gap_s` apart."""

    async def script(turn: Turn) -> None:
        body = turn.asked.json
        if turn.asked.path.endswith("/tokenize"):
            turn.write(whole(json.dumps({"count": len(body["prompt"].split())}).encode()))
            return
        text = "\n".join(str(message["content"]) for message in body.get("messages", ())) or body["prompt"]
        put = len(text.split()) + 2
        if not body["stream"]:
            told = {"prompt_tokens": put, "completion_tokens": 1}
            answer = {"choices": [{"message": {"content": "w"}, "text": "w", "finish_reason": "length"}], "usage": told}
            turn.write(whole(json.dumps(answer).encode()))
            return
        turn.write(servers.head())
        for place in range(body["max_tokens"]):
            if gap_s:
                await asyncio.sleep(gap_s)
            turn.write(piece(servers.said(f"w{place} ")))
        turn.write(piece(servers.said(finish="length")), piece(usage(body["max_tokens"], put)), piece(DONE), END)

    async with serving(script, models=[MODEL]) as server:
        yield server


async def _forever(port: int, gap_s: float) -> None:
    async with speaking(gap_s) as server:
        assert server.listening is not None
        to = server.port
        relay = await asyncio.start_server(lambda reader, writer: _relay(reader, writer, to), "127.0.0.1", port)
        await relay.serve_forever()


async def _relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int) -> None:
    other_reader, other_writer = await asyncio.open_connection("127.0.0.1", port)
    await asyncio.gather(_copy(reader, other_writer), _copy(other_reader, writer))


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
        writer.close()


if __name__ == "__main__":
    asyncio.run(_forever(int(sys.argv[1]), float(sys.argv[2]) / 1e3))
