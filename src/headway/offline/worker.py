"""What runs items: a protocol over the engine in this process and servers elsewhere; `Answered` or `Failed` returns."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from typing import Protocol

from headway.core.batch.climb import Climb
from headway.core.batch.dispatch import Fault
from headway.offline.items import Item, Sketch

# What frameworks and systems say when memory is used up.
_OUT_OF_MEMORY = re.compile(
    r"out of memory|out-of-memory|\bOOM\b|MemoryError|bad_alloc|cannot allocate|can't allocate|OutOfMemory|"
    r"insufficient memory|not enough memory",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """`body` is the response's JSON. Tokens and seconds that nobody told are None."""

    body: bytes
    request_id: str = ""
    input_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    queue_s: float | None = None
    prefill_s: float | None = None
    decode_s: float | None = None
    cut: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """`status` and `body`: what a server answered, where it did."""

    fault: Fault
    code: str
    message: str
    retry_after_s: float = 0.0
    status: int = 0
    body: bytes = b""
    final: bool = False  # trying again would end the same way


class Worker(Protocol):
    @property
    def id(self) -> str: ...

    @property
    def batch(self) -> int:
        """Items that begin together; 0 where each begins for itself."""

    @property
    def models(self) -> tuple[str, ...]:
        """The names that lines may ask for, once it is started; empty for any."""

    def climb(self) -> Climb:
        """How many it takes at once."""

    def prepare(self, item: Item) -> Sketch:
        """Look at an item before it waits, on any thread. Raises `InvalidRequest` and the like for a bad one."""

    @property
    def shared(self) -> bool:
        """Others use it as well, and were promised something: `strain` is to be asked, and told to the dispatcher."""

    async def strain(self) -> float:
        """How near those promises are to being broken: measured over promised, 0 where nobody is there."""

    async def start(self) -> None:
        """Raises `HeadwayError` when it cannot be used at all."""

    async def run(self, item: Item, cut: asyncio.Event) -> Answered | Failed:
        """`cut`: end it now, with what there is. Cancelling ends it with nothing."""

    async def close(self) -> None: ...


def is_out_of_memory(words: str) -> bool:
    return _OUT_OF_MEMORY.search(words) is not None
