"""`Worker`: somebody who answers calls, here or elsewhere. `Call` goes in, an `Answer` comes out as it arrives."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from headway.core.errors import HeadwayError
from headway.core.fleet.worker import WorkerLoad

Headers = tuple[tuple[bytes, bytes], ...]


@dataclass(frozen=True, slots=True)
class Decided:
    """What was decided about a call: the only fields of its body that are changed on the way. None decides nothing."""

    model: str | None = None  # the name that the worker has for it
    max_tokens: int | None = None  # of output: the client's own limit, under whatever name, is lowered to it
    priority: int | None = None  # lower is sooner; where the worker does not take one, the client's is taken out
    cache_salt: str | None = None  # of the tenant: prefixes are shared only under the same; the client's is mixed in
    usage: bool = True  # ask a stream for its usage; the event is taken out again when the client did not ask
    replaced: Mapping[str, bytes | None] = field(
        default_factory=dict
    )  # other fields: their new JSON, None to leave out


@dataclass(slots=True)
class Call:
    """A client's call, to be forwarded. `headers` are those that go along: lower-case names, no key of the client."""

    path: str  # with its query, as the client wrote it: "/v1/chat/completions"
    body: bytes = b""
    method: str = "POST"
    headers: Headers = ()
    streams: bool = False  # the body asks for server-sent events
    choices: int = 1  # outputs that were asked for: `n` times the number of prompts
    decided: Decided = Decided()
    timeout_s: float = 0.0  # for the whole answer; 0 leaves it to the worker's own limits


@dataclass(slots=True)
class Head:
    """`headers` are those fit to hand on: lower-case names, none that belongs to the connection."""

    status: int
    headers: Headers = ()

    def header(self, name: bytes) -> bytes:
        """The first of that name, empty when there is none."""
        for known, value in self.headers:
            if known == name:
                return value
        return b""


@dataclass(slots=True)
class Told:
    """What an answer has said so far of its own size and end."""

    prompt_tokens: int | None = None
    output_tokens: int = 0
    cached_tokens: int = 0
    exact: bool = False  # the worker's own count; else at least one a chunk with words in it, counted here
    finish_reasons: dict[int, str] = field(default_factory=dict)  # by choice
    complete: bool = False  # it said everything: what is missing now is only the end of the connection


class WorkerFailed(HeadwayError):
    """A worker did not answer, or not to the end, or not sense. Nothing the client did. `code` says which:

    `worker_unreachable` no connection: nothing was sent · `worker_timeout` silent for too long · `worker_closed` it
    closed before it had said everything · `worker_garbage` its bytes are not what was asked for · `worker_error` it
    said itself, after a good status, that it failed; `told` is then its own error, as JSON.
    """

    status = 502
    code = "worker_closed"

    def __init__(self, message: str, *, code: str, told: bytes = b"") -> None:
        super().__init__(message, code=code)
        self.told = told
        if code == "worker_timeout":
            self.status = 504


class Answer(Protocol):
    """One answer as it arrives. Whoever has one closes it, on every way out."""

    @property
    def told(self) -> Told: ...

    async def head(self) -> Head:
        """Status and headers. Raises `WorkerFailed`. A 4xx or 5xx is an answer as well: its body is the worker's."""

    def __aiter__(self) -> AsyncIterator[bytes]: ...

    async def __anext__(self) -> bytes:
        """What has arrived since: of a stream of events whole events only, never empty. Raises `WorkerFailed`.

        The end of the iteration is the end of a whole answer. One that was cut off raises.
        """

    async def whole(self) -> bytes:
        """All the rest in one piece, checked to be an answer if the status was good. Raises `WorkerFailed`."""

    def close(self) -> None:
        """Nobody listens any more: the connection is closed, so that the worker stops. Never waits. Idempotent.

        After a complete answer the connection is kept instead.
        """


class Watcher(Protocol):
    """Is told, between two awaits, what was found out about a worker."""

    def loaded(self, worker_id: str, load: WorkerLoad) -> None:
        """New signals; those that are unknown or unchanged may be left out."""

    def checked(self, worker_id: str, *, well: bool, reason: str) -> None:
        """A health check ended. `reason` says why it is not well."""

    def serves(self, worker_id: str, models: frozenset[str]) -> None:
        """It serves other models than were known: at the start, and when it comes back with others."""


class Worker(Protocol):
    @property
    def id(self) -> str: ...

    @property
    def kind(self) -> str:
        """`vllm`, `sglang`, `llamacpp`, `tgi`, `headway` or `openai`; empty while that is not known."""

    @property
    def models(self) -> frozenset[str]:
        """That it says it serves; empty while that is not known."""

    def load(self) -> WorkerLoad:
        """What is known of its load, each signal with the time at which it was true."""

    def stream(self, call: Call) -> Answer:
        """Send a call at once. Raises `InvalidRequest` for a body that cannot be read or forwarded exactly."""

    async def start(self, watcher: Watcher) -> None:
        """Begin to watch it. Never fails for a worker that is not up: that is what is found out."""

    async def close(self) -> None:
        """Stop watching; what is still being answered ends with `WorkerFailed`."""


class Unwatched:
    """A watcher that does nothing."""

    def loaded(self, worker_id: str, load: WorkerLoad) -> None: ...

    def checked(self, worker_id: str, *, well: bool, reason: str) -> None: ...

    def serves(self, worker_id: str, models: frozenset[str]) -> None: ...
