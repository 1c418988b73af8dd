"""What passes between the edge that keeps a call, the store it lies in, and the body that computes it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from headway.core.errors import InvalidRequest
from headway.core.front.front import NOTHING
from headway.core.request import Usage
from headway.wire.json_fields import JsonFields

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
ENDPOINTS = (CHAT, COMPLETIONS)

# Why a call was kept.
BACKGROUND, DIVERTED = "background", "diverted"

NO_STORE = (
    "This server was started without --store DIRECTORY, so it has no place to keep work for later. Ask without "
    "`background`."
)


@dataclass(frozen=True, slots=True)
class Wanted:
    """A call that is to be kept, as its client sent it."""

    tenant: str
    path: str
    body: bytes
    model: str
    why: str
    degraded: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Kept:
    """A call that is to be computed now. `id` is its request id."""

    id: str
    tenant: str
    path: str
    body: bytes


@dataclass(frozen=True, slots=True)
class Answered:
    """The whole answer to a kept call, good or not, and what it cost. Seconds are None where nobody knows them."""

    status: int
    body: bytes
    usage: Usage = field(default_factory=lambda: NOTHING)
    queue_s: float | None = None
    wall_s: float | None = None


class Runs(Protocol):
    """Who computes: a fleet's front and workers, or an engine's."""

    def has_spare(self) -> bool:
        """Is this a time for work that nobody waits for? The core's word."""

    async def run(self, kept: Kept) -> Answered:
        """Through the front like any call, last in line. Raises `Refused` for not now; cancelled, it leaves."""


def whole_body(body: bytes, *, streams_refused: bool) -> bytes:
    """The body to keep: without `background`, and for an answer in one piece.

    Raises `InvalidRequest` for a stream where that is refused, and for what is no JSON object.
    """
    fields = JsonFields(body)
    if streams_refused and fields.raw("stream") == b"true":
        raise InvalidRequest(
            "Nobody would read the stream of a request that is answered later. Leave `stream` out.",
            param="stream",
            code="invalid_value",
        )
    for name in ("background", "stream", "stream_options"):
        fields.set(name, None)
    return fields.encoded()
