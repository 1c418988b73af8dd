"""A backend that does what a test tells it: the smallest thing that meets `gateway.Backend`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from headway.cli.address import bound_socket, url_of
from headway.core.errors import Draining, HeadwayError
from headway.core.request import Request, Slo, Times, Usage
from headway.core.scheduler.step import TokenLogprob
from headway.engine.config import EngineConfig, engine_config
from headway.engine.stream import Delta
from headway.executors.simulated_text import CHAT_TEMPLATE, SimulatedTokenizer
from headway.gateway import Backend, GatewayConfig, create_app, listening
from headway.metrics.snapshot import RecentStep, Snapshot
from headway.models import ChatTemplate
from headway.wire.sse import EventParser

MS = 1_000_000


# What a stream does: yield a delta, raise an error, or wait for an event.
Script = Iterable[Delta | Exception | asyncio.Event]


def says(request: Request, *texts: str, reason: str = "stop") -> list[Delta]:
    """A good output of one token per text, one delta each; the last delta carries what ends it."""
    vocabulary = SimulatedTokenizer()
    deltas = []
    for text in texts:
        token = vocabulary.encode(text)[0]
        logprobs = None
        if request.params.logprobs is not None:
            top = tuple((other, -1.0 - other) for other in range(65, 65 + request.params.logprobs))
            logprobs = [TokenLogprob(token, -0.5, top)]
        deltas.append(Delta(text, [token], logprobs))
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

    def __aiter__(self) -> AsyncIterator[Delta]:
        return self._deltas

    def close(self) -> None:
        self.closed += 1

    async def _play(self, script: Script) -> AsyncIterator[Delta]:
        for part in script:
            if isinstance(part, Exception):
                raise part
            if isinstance(part, asyncio.Event):
                await part.wait()
            else:
                yield part
        self.over = True


SNAPSHOT = Snapshot(
    requests=3,
    waiting=1,
    waiting_tokens=10,
    running=2,
    preempted=0,
    step_tokens=34,
    kv_tokens=500,
    kv_blocks_used=16,
    kv_blocks_total=64,
    max_num_seqs=8,
    max_num_batched_tokens=128,
    prefill_tokens_total=1000,
    decode_tokens_total=200,
    prefill_seconds_total=1.5,
    decode_seconds_total=2.5,
    steps_total=90,
    preemptions_total=4,
    recomputed_tokens_total=40,
    kv_blocks_cached=20,
    kv_blocks_set_aside=3,
    kv_reserved_bytes=1 << 20,
    memory_bytes=5 << 20,
    waiting_by_lane={"short": 1, "long-prompt": 0},
    running_by_lane={"short": 2, "long-prompt": 0},
    pad_tokens_total=11,
    evictions_total=12,
    relegations_total=13,
    prefix_lookup_tokens_total=800,
    prefix_hit_tokens_total=320,
    step_predicted_seconds_total=3.5,
    step_real_seconds_total=4.0,
    step_error_seconds_total=0.75,
    ended_total={"stop": 5, "cancelled": 1},
    refused_total={"queue_full": 7},
)


@dataclass
class FakeModel:
    name: str = "fake"
    sampling_defaults: dict[str, float] = field(default_factory=dict)


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
        self.dead = False
        self.streams: list[FakeStream] = []
        self.recent_steps: Sequence[RecentStep] = ()
        self.slo = Slo()
        self.config = EngineConfig()

    @property
    def default_slo(self) -> Slo:
        return self.slo

    def reconfigure(self, **changes: Any) -> EngineConfig:
        self.config = engine_config(**changes)
        return self.config

    def lane_of(self, request: Request) -> str:
        return "short"

    def check_door(self) -> None:
        if self.not_ready_reason:
            raise Draining(self.not_ready_reason, retry_after_s=5.0)

    @property
    def requests(self) -> list[Request]:
        return [stream.request for stream in self.streams]

    def submit_all(self, requests: Sequence[Request]) -> list[FakeStream]:
        for request in requests:
            error = self.refuse(request)
            if error is not None:
                raise error
        streams = [FakeStream(request, self.script(request)) for request in requests]
        self.streams += streams
        return streams

    def snapshot(self) -> Snapshot:
        return SNAPSHOT

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
    with bound_socket("127.0.0.1", 0) as sock:
        async with (
            listening(create_app(backend, GatewayConfig(**config)), sock),
            aiohttp.ClientSession(base_url=url_of(sock)) as session,
        ):
            yield Client(session, url_of(sock))


async def until(condition: Callable[[], bool], timeout_s: float = 5.0) -> None:
    """Wait for `condition`, a thing that happens on another task."""
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.005)
