"""One line of a batch as work for the runner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from msgspec import structs

from headway.gateway.background.batch.lines import Line, answer_line
from headway.gateway.background.batch.spool import BAD, GOOD
from headway.gateway.background.work import Answered, Kept
from headway.store import ItemResult, ItemState

MAX_TRIES = 3


@dataclass(frozen=True, slots=True)
class Ended:
    """How a line ended, not on the disk yet. `text` goes into the file `which`, and its place into the result."""

    result: ItemResult
    which: str
    text: bytes

    def at(self, place: str) -> ItemResult:
        return structs.replace(self.result, response_ref=place)


class Owner(Protocol):
    """The batch that a line belongs to."""

    def ended(self, work: ItemWork, ended: Ended) -> None: ...
    def returned(self, work: ItemWork, after_s: float) -> None: ...
    async def suspect(self, number: int) -> None:
        """Write down that it was tried, before it is tried again."""


class ItemWork:
    def __init__(self, batch: Owner, owner: str, kept: Kept, line: Line, tries: int) -> None:
        self.kept = kept
        self.owner = owner
        self.line = line
        self.tries = tries + 1
        self._batch = batch

    @property
    def last_try(self) -> bool:
        return self.tries >= MAX_TRIES

    async def completed(self, answered: Answered) -> None:
        usage = answered.usage
        self._ended(
            ItemResult(
                line=self.line.number,
                state=ItemState.COMPLETED,
                tries=self.tries,
                input_tokens=usage.prompt_tokens,
                cached_tokens=usage.cached_tokens,
                output_tokens=usage.output_tokens,
                queue_s=answered.queue_s,
                wall_s=answered.wall_s,
            ),
            GOOD,
            answered.status,
            answered.body,
        )

    async def failed(self, status: int, body: bytes, code: str) -> None:
        self.fail_now(status, body, code)

    def fail_now(self, status: int, body: bytes, code: str) -> None:
        """What is wrong with it needs nobody to find out."""
        result = ItemResult(
            line=self.line.number,
            state=ItemState.FAILED,
            tries=self.tries,
            error_class=code,
            error=body[:1000].decode(errors="replace"),
        )
        self._ended(result, BAD, status, body)

    async def put_back(self, after_s: float, *, counts: bool) -> None:
        if counts:
            await self._batch.suspect(self.line.number)
            self.tries += 1
        self._batch.returned(self, after_s)

    def _ended(self, result: ItemResult, which: str, status: int, body: bytes) -> None:
        text = answer_line(self.kept.id, self.line.custom_id, status, body)
        self._batch.ended(self, Ended(result, which, text))
