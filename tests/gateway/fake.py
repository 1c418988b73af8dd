"""A backend that does what a test tells it: the smallest thing that meets `gateway.Backend`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from headway.core.errors import Draining, HeadwayError
from headway.core.request import Request, Times, Usage
from headway.core.step import TokenLogprob
from headway.executors.simulated_text import CHAT_TEMPLATE, SimulatedTokenizer
from headway.gateway import Backend, GatewayConfig, create_app, listening
from headway.models import ChatTemplate
from headway.wire.sse import EventParser

MS = 1_000_000


@dataclass
class FakeDelta:
    text: str
    tokens: Sequence[int]
    logprobs: Sequence[TokenLogprob] | None = None
    finish_reason: str | None = None
    usage: Usage | None = None
    times: Times | None = None


# What a stream does: yield a delta, raise an error, or wait for an event.
Script = Iterable[FakeDelta | Exception | asyncio.Event]


def says(request: Request, *texts: str, reason: str = "stop") -> list[FakeDelta]:
    """A good output of one token per text, one delta each; the last delta carries what ends it."""
    vocabulary = SimulatedTokenizer()
    deltas = []
    for text in texts:
        token = vocabulary.encode(text)[0]
        logprobs = None
        if request.params.logprobs is not None:
            top = tuple((other, -1.0 - other) for other in range(65, 65 + request.params.logprobs))
            logprobs = [TokenLogprob(token, -0.5, top)]
        deltas.append(FakeDelta(text, [token], logprobs))
    deltas[-1].finish_reason = reason
    deltas[-1].usage = Usage(request.prompt_tokens, len(texts), cached_tokens=1)
    deltas[-1].times = Times(arrival_ns=1, started_ns=1 + 2 * MS, first_token_ns=1 + 5 * MS, ended_ns=1 + 9 * MS)
    return deltas


def two_words(request: Request) -> Script:
    return says(request, " good", " day")


class FakeStream:
    def __init__(self, request: Request, script: Script) -> None:
        self.request = request
        self.closed = 0
        self.over = False
        self._deltas = self._play(script)

    def __aiter__(self) -> AsyncIterator[FakeDelta]:
        return self._deltas

    def close(self) -> None:
        self.closed += 1

    async def _play(self, script: Script) -> AsyncIterator[FakeDelta]:
        for part in script:
            if isinstance(part, Exception):
                raise part
            if isinstance(part, asyncio.Event):
                await part.wait()
            else:
                yield part
        self.over = True


@dataclass
class FakeSnapshot:
    requests: int = 3
    waiting: int = 1
    waiting_tokens: int = 10
    running: int = 2
    preempted: int = 0
    step_tokens: int = 34
    kv_tokens: int = 500
    kv_blocks_used: int = 16
    kv_blocks_total: int = 64
    max_num_seqs: int = 8
    max_num_batched_tokens: int = 128
    prefill_tokens_total: int = 1000
    decode_tokens_total: int = 200
    prefill_seconds_total: float = 1.5
    decode_seconds_total: float = 2.5
    steps_total: int = 90
    preemptions_total: int = 4
    recomputed_tokens_total: int = 40
    ended_total: dict[str, int] = field(default_factory=lambda: {"stop": 5, "cancelled": 1})
    refused_total: dict[str, int] = field(default_factory=lambda: {"queue_full": 7})


@dataclass
class FakeModel:
    name: str = "fake"


class FakeBackend:
    """`script` says what each request's stream does; `refuse` may raise instead of taking it."""

    def __init__(self, script: Callable[[Request], Script] = two_words, *, max_model_len: int = 200) -> None:
        self.script = script
        self.refuse: Callable[[Request], HeadwayError | None] = lambda request: None
        self.model = FakeModel()
        self.tokenizer = SimulatedTokenizer()
        self.chat_template = ChatTemplate(CHAT_TEMPLATE, {})
        self.max_model_len = max_model_len
        self.not_ready_reason = ""
        self.streams: list[FakeStream] = []

    def check_door(self) -> None:
        if not self.ready:
            raise Draining(self.not_ready_reason, retry_after_s=5.0)

    @property
    def ready(self) -> bool:
        return not self.not_ready_reason

    @property
    def requests(self) -> list[Request]:
        return [stream.request for stream in self.streams]

    def submit(self, request: Request) -> FakeStream:
        error = self.refuse(request)
        if error is not None:
            raise error
        stream = FakeStream(request, self.script(request))
        self.streams.append(stream)
        return stream

    def snapshot(self) -> FakeSnapshot:
        return FakeSnapshot()

    @property
    def all_closed(self) -> bool:
        return all(stream.closed for stream in self.streams)


class Client:
    """Speaks HTTP to one app under test."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self.session = session
        self.url = url

    async def post(self, path: str, body: Any, **headers: str) -> tuple[int, Any, dict[str, str]]:
        """Status, JSON body and headers (lower-case) of a POST. `body` is sent as JSON, bytes as they are."""
        data = {"data": body} if isinstance(body, bytes) else {"json": body}
        async with self.session.post(path, headers=headers, **data) as response:
            return response.status, await response.json(), {k.lower(): v for k, v in response.headers.items()}

    async def get(self, path: str) -> tuple[int, Any]:
        async with self.session.get(path) as response:
            return response.status, await response.json()

    async def stream(self, path: str, body: dict[str, Any]) -> list[str]:
        """The data of every event of a stream."""
        async with self.session.post(path, json={**body, "stream": True}) as response:
            assert response.status == 200, await response.text()
            assert response.headers["Content-Type"].startswith("text/event-stream")
            parser = EventParser()
            events = parser.feed(await response.read())
            assert not parser.incomplete
            return [event.data for event in events]


@asynccontextmanager
async def serving(backend: Backend, **config: Any) -> AsyncIterator[Client]:
    """A real server with a real socket over `backend`."""
    async with (
        listening(create_app(backend, GatewayConfig(**config))) as url,
        aiohttp.ClientSession(base_url=url) as session,
    ):
        yield Client(session, url)


async def until(condition: Callable[[], bool], timeout_s: float = 5.0) -> None:
    """Wait for `condition`, a thing that happens on another task."""
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.005)
