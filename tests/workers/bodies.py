"""Workers of every sort, made the same way for the contract: what a test says, each of them does."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from headway.core.fleet.worker import WorkerLoad
from headway.workers.remote import RemoteConfig, RemoteWorker
from headway.workers.watch import Intervals
from headway.workers.worker import Call, Decided, Worker
from tests.wire.scripted import Turn, chunk, chunked_head, scripted, until, whole
from tests.workers.speaking import DONE, completion, models, said, usage, vllm_page

CHAT = "/v1/chat/completions"
OFTEN = Intervals(load_s=0.03, health_s=0.05, models_s=0.2, load_timeout_s=1.0, health_timeout_s=1.0)


def chat(*, tokens: int = 3, stream: bool = True, decided: Decided = Decided(), **more: Any) -> Call:
    """`tokens` below 0: for ever."""
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": "Hello"}],
        "max_tokens": abs(tokens),
        "stream": stream,
        "ignore_eos": True,
        **more,
    }
    return Call(CHAT, json.dumps(body).encode(), streams=stream, decided=decided)


@dataclass
class Watched:
    """A watcher that remembers."""

    loads: list[WorkerLoad] = field(default_factory=list)
    checks: list[tuple[bool, str]] = field(default_factory=list)
    models: list[frozenset[str]] = field(default_factory=list)

    def loaded(self, worker_id: str, load: WorkerLoad) -> None:
        self.loads.append(load)

    def checked(self, worker_id: str, *, well: bool, reason: str) -> None:
        self.checks.append((well, reason))

    def serves(self, worker_id: str, models: frozenset[str]) -> None:
        self.models.append(models)


@dataclass
class Body:
    """A worker under test. `busy` counts the answers that it is still working on."""

    worker: Worker
    watched: Watched
    busy: Any

    async def idle(self) -> None:
        await until(lambda: self.busy() == 0, 10)


def remote(url: str, **more: Any) -> RemoteWorker:
    return RemoteWorker(RemoteConfig(id="w", url=url, intervals=OFTEN, **more))


@contextlib.asynccontextmanager
async def scripted_body() -> AsyncIterator[Body]:
    """A server that plays vLLM."""
    working = 0

    async def script(turn: Turn) -> None:
        nonlocal working
        pages = {"/v1/models": models("m", owner="vllm"), "/metrics": vllm_page(running=working)}
        if turn.method == "GET":
            found = pages.get(turn.path, b"{}" if turn.path == "/health" else b"")
            await turn.write(whole(found, status=200 if found else 404, type="text/plain"))
            return
        asked = json.loads(turn.body)
        if asked["model"] != "m":
            await turn.write(whole(b'{"error":{"message":"no such model","code":404}}', status=404))
        elif not asked["stream"]:
            await turn.write(whole(completion()))
        else:
            working += 1
            try:
                await _speak(turn, asked["max_tokens"], "stream_options" in asked)
            finally:
                working -= 1

    async with scripted(script) as server:
        worker, watched = remote(server.url), Watched()
        await worker.start(watched)
        yield Body(worker, watched, lambda: working)
        await worker.close()
        await until(lambda: server.open == 0)


async def _speak(turn: Turn, tokens: int, tells_usage: bool) -> None:
    await turn.write(chunked_head())
    gone = asyncio.create_task(turn.gone(60))
    try:
        for number in range(tokens):
            if gone.done():
                return
            await turn.write(chunk(said(f"w{number} ")))
            await asyncio.sleep(0.002)
        events = [said(finish="length"), *([usage(tokens)] if tells_usage else []), DONE]
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        await turn.write(chunk(b"".join(events)), b"0\r\n\r\n")
    finally:
        gone.cancel()


@contextlib.asynccontextmanager
async def headway_body(url: str) -> AsyncIterator[Body]:
    """A real `headway serve` with a simulated model."""
    worker, watched = remote(url), Watched()
    await worker.start(watched)

    def busy() -> float:
        running, waiting = worker.load().running, worker.load().waiting
        assert running is not None
        assert waiting is not None
        return running.value + waiting.value

    yield Body(worker, watched, busy)
    await worker.close()
    await until(lambda: not worker.connections)
