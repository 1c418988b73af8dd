"""`RemoteWorker`: a server elsewhere that speaks OpenAI's API, as a `Worker`."""

from __future__ import annotations

import ssl
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from time import monotonic_ns

from headway.core.errors import ConfigError
from headway.core.fleet.worker import WorkerLoad
from headway.wire.http_address import HttpAddress, http_address
from headway.wire.http_client import HttpClient, Timeouts, client_of, own_headers
from headway.wire.http_pool import Server
from headway.wire.tls import tls_context
from headway.workers.answer import RemoteAnswer
from headway.workers.kinds import OPENAI, kind_named
from headway.workers.patch import generates, patched
from headway.workers.watch import Intervals, Watch
from headway.workers.worker import Call, Headers, Watcher, WorkerFailed

# Of a client's headers those that are not its own affair with the worker: they belong to one connection, or are ours.
NOT_FORWARDED = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"expect",
        b"host",
        b"content-length",
        b"accept-encoding",
        b"authorization",
        b"x-api-key",
        b"api-key",
        b"cookie",
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteConfig:
    """A worker as an operator describes it. Raises `ConfigError` when used, for what cannot be."""

    id: str
    url: str
    kind: str = ""  # empty: found out
    models: frozenset[str] = frozenset()  # empty: those that it lists
    api_key: str = field(default="", repr=False)
    priority: bool = False  # the server schedules by priority: vLLM and SGLang refuse one else
    verify_tls: bool = True
    ca_file: str = ""
    connect_s: float = 5.0
    first_byte_s: float = 300.0  # a long prompt behind a long queue
    between_bytes_s: float = 60.0
    total_s: float = 0.0
    gpu_metrics_url: str = ""  # of an exporter with DCGM's names
    intervals: Intervals = field(default_factory=Intervals)


class RemoteWorker:
    """`failures` counts what went wrong with calls, by code."""

    def __init__(
        self, config: RemoteConfig, *, clock: Callable[[], int] = monotonic_ns, random: Random | None = None
    ) -> None:
        self.config = config
        self.id = config.id
        self.address = http_address(config.url)
        self.failures: Counter[str] = Counter()
        self.calls = 0
        self._timeouts = Timeouts(config.connect_s, config.first_byte_s, config.between_bytes_s, config.total_s)
        self._tls = _tls(config) if self.address.scheme == "https" else None
        self._client = self._client_for(self.address)
        self.watch = Watch(
            config.id,
            self._client,
            self._target,
            kind=kind_named(config.kind) if config.kind else None,
            models=config.models,
            intervals=config.intervals,
            gpu=_gpu_client(config),
            clock=clock,
            random=random or Random(),
        )

    @property
    def kind(self) -> str:
        return self.watch.kind.name if self.watch.kind is not None else ""

    @property
    def models(self) -> frozenset[str]:
        return self.watch.models

    def load(self) -> WorkerLoad:
        return self.watch.load

    @property
    def connections(self) -> int:
        """Open at the moment."""
        return len(self._client.pool.connections)

    def stream(self, call: Call) -> RemoteAnswer:
        known = generates(call)
        kind = self.watch.kind or OPENAI
        body = patched(call, kind, sends_priority=self.config.priority)
        timeouts = self._timeouts
        if call.timeout_s:
            total_s = min(call.timeout_s, timeouts.total_s or call.timeout_s)
            timeouts = Timeouts(timeouts.connect_s, timeouts.first_byte_s, timeouts.between_bytes_s, total_s)
        self.calls += 1
        # A completion may be sent again on another connection: a connection that ended took the first attempt with it,
        # if the server saw that at all, and nobody has read a word of it. Other calls may leave something behind.
        exchange = self._client.ask(
            call.method,
            self.address.target(call.path),
            headers=_forwarded(call.headers, known=known),
            body=body.body,
            timeouts=timeouts,
            repeatable=True if known else None,
        )
        return RemoteAnswer(
            exchange,
            name=self.id,
            known=known,
            streams=call.streams,
            choices=call.choices,
            usage_added=body.usage_added,
            on_failure=self._failed,
        )

    async def start(self, watcher: Watcher) -> None:
        await self.watch.start(watcher)

    async def close(self) -> None:
        await self.watch.close()
        await self._client.close()

    def move(self, url: str) -> None:
        """It is at another address from now on."""
        self.address = http_address(url)
        self._client.move(_server(self.address, self._tls), self.address.authority)

    def _target(self, path: str) -> str:
        return self.address.target(path)

    def _failed(self, failure: WorkerFailed) -> None:
        self.failures[failure.code or ""] += 1

    def _client_for(self, address: HttpAddress) -> HttpClient:
        headers = own_headers(self.config.api_key, f"The API key of worker {self.id!r}")
        return client_of(_server(address, self._tls), address.authority, headers=headers, timeouts=self._timeouts)


def _forwarded(headers: Headers, *, known: bool) -> Headers:
    kept = [pair for pair in headers if pair[0] not in NOT_FORWARDED]
    if known:  # what we send is JSON, whatever the client called it
        kept = [*[pair for pair in kept if pair[0] != b"content-type"], (b"content-type", b"application/json")]
    return tuple(kept)


def _server(address: HttpAddress, tls: ssl.SSLContext | None) -> Server:
    return Server(address.host, address.port, tls)


def _tls(config: RemoteConfig) -> ssl.SSLContext:
    try:
        return tls_context(config.ca_file, verify=config.verify_tls)
    except ValueError as error:
        raise ConfigError(f"Worker {config.id!r}: {error}.", param="ca_file") from None


def _gpu_client(config: RemoteConfig) -> tuple[HttpClient, str] | None:
    """Who tells how much memory its GPUs have left, and at which path."""
    if not config.gpu_metrics_url:
        return None
    address = http_address(config.gpu_metrics_url.removesuffix("/metrics"))
    tls = _tls(config) if address.scheme == "https" else None
    return client_of(_server(address, tls), address.authority), f"{address.root}/metrics"
