"""Clients of a real server that leave at every stage, by the dozen: nothing is left behind."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import aiohttp
import pytest

from tests.cli.running import Server

# Everything that a request may hold.
HELD = ("requests", "waiting", "waiting_tokens", "running", "preempted", "kv_tokens", "kv_blocks_used", "step_tokens")


async def load(url: str) -> dict[str, Any]:
    async with aiohttp.ClientSession() as session, session.get(f"{url}/load") as response:
        now: dict[str, Any] = await response.json()
        return now


async def nothing_is_held(url: str, within_s: float = 5.0) -> dict[str, Any]:
    """The load when everything is free."""
    deadline = asyncio.get_running_loop().time() + within_s
    while True:
        now = await load(url)
        held = {name: now[name] for name in HELD if now[name]}
        if not held:
            return now
        assert asyncio.get_running_loop().time() < deadline, held
        await asyncio.sleep(0.02)


async def start(url: str, path: str, body: dict[str, Any]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    data = json.dumps(body).encode()
    writer.write(b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (path.encode(), len(data), data))
    return reader, writer


LONG: dict[str, Any] = {"prompt": "once", "max_tokens": 2000, "ignore_eos": True}


@pytest.mark.parametrize(
    ("stage", "fields"),
    [
        ("decode", {**LONG, "stream": True}),
        ("decode", {**LONG, "stream": True, "n": 5}),
        ("decode, whole answer", {**LONG, "n": 2}),
        ("prefill", {**LONG, "prompt": "word " * 5000, "stream": True}),
        ("queue", {**LONG, "n": 128}),  # more than the 64 that run
    ],
)
async def test_leaving(server: Server, stage: str, fields: dict[str, Any]) -> None:
    reader, writer = await start(server.url, "/v1/completions", fields)
    while not (await load(server.url))["running"]:
        await asyncio.sleep(0.01)
    if stage == "decode":
        await reader.readuntil(b"data: ")
    if stage == "queue":
        assert (await load(server.url))["waiting"]
    before = await load(server.url)
    writer.close()
    after = await nothing_is_held(server.url)
    # One step is in flight when the client leaves; another may have ended between our asking and its leaving. To the
    # step, tests/gateway/test_disconnect.py says it.
    assert after["steps_total"] - before["steps_total"] <= 2


async def test_leaving_at_any_moment(server: Server) -> None:
    chance = random.Random(7)

    async def one() -> None:
        body = {
            "prompt": "word " * chance.choice([1, 50, 1500]),
            "max_tokens": chance.choice([1, 20, 500]),
            "n": chance.choice([1, 1, 3]),
            "stream": chance.random() < 0.7,
            "ignore_eos": True,
        }
        await asyncio.sleep(chance.random() * 2)
        _, writer = await start(server.url, "/v1/completions", body)
        await asyncio.sleep(chance.random() ** 3)
        if chance.random() < 0.5:
            writer.transport.abort()
        writer.close()

    before = await load(server.url)
    await asyncio.gather(*(one() for _ in range(60)))
    await nothing_is_held(server.url)
    after = await load(server.url)
    assert after["ended_total"].get("failed", 0) == before["ended_total"].get("failed", 0)
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{server.url}/v1/completions", json={"prompt": "still", "max_tokens": 2}) as response,
    ):
        assert response.status == 200
