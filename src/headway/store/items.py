"""The lines of batches, one small record each: what was asked (by hash), how it ended, and what it cost.

A million of them is an ordinary batch, so nothing here holds a batch in memory: lines come in and go out in pieces,
each piece one transaction. A reader that goes through all of them opens a new read for each piece; one read for the
whole would keep SQLite from folding its log back while items are being finished, and the log would grow without bound.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice
from typing import NoReturn

from msgspec import Struct

from headway.store.database import Database, Row
from headway.store.errors import BadValue, DuplicateItem, IllegalMove, InputChanged, NotFound
from headway.store.lifecycle import BatchState, ItemState
from headway.store.values import seconds, text, whole

PER_TRANSACTION = 5000
MAX_ERROR = 1000  # characters kept of a reason


class NewItem(Struct, frozen=True):
    line: int  # of the input, from 1
    custom_id: str
    body_hash: bytes  # of the body as it is sent, by the caller's choice of hash; equal means equal


class ItemResult(Struct, frozen=True, kw_only=True):
    """How an item ended. None is not known, and not zero."""

    line: int
    state: ItemState
    tries: int = 1
    error_class: str | None = None
    error: str | None = None
    input_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    queue_s: float | None = None
    prefill_s: float | None = None
    decode_s: float | None = None
    wall_s: float | None = None
    response_ref: str | None = None  # where its answer is, in the words of whoever wrote it


class Item(Struct, frozen=True, kw_only=True):
    line: int
    custom_id: str
    body_hash: bytes
    state: ItemState
    tries: int
    error_class: str | None
    error: str | None
    input_tokens: int | None
    cached_tokens: int | None
    output_tokens: int | None
    queue_s: float | None
    prefill_s: float | None
    decode_s: float | None
    wall_s: float | None
    response_ref: str | None
    finished_at_s: float | None


class Recorded(Struct, frozen=True):
    """`written` of the results given; `ignored` are lines that had an end already: the first one counts."""

    written: int
    ignored: list[int]


_COLUMNS = ", ".join(Item.__struct_fields__)
_PENDING = ItemState.PENDING.value
_INSERT = (
    "INSERT INTO items (batch, line, custom_id, body_hash, state, tries) VALUES (?, ?, ?, ?, 'pending', 0) "
    "ON CONFLICT DO NOTHING"
)
_RECORD = (
    "UPDATE items SET state = ?, tries = max(tries, ?), error_class = ?, error = ?, input_tokens = ?, "
    "cached_tokens = ?, output_tokens = ?, queue_s = ?, prefill_s = ?, decode_s = ?, wall_s = ?, response_ref = ?, "
    "finished_at_s = ? WHERE batch = ? AND line = ? AND state = 'pending'"
)


def _item(row: Row) -> Item:
    values = dict(zip(Item.__struct_fields__, row, strict=True))
    values["state"] = ItemState(values["state"])
    return Item(**values)


class Items:
    """By batch id. Whose batch it is has been asked before: nothing here knows tenants."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, batch_id: str, items: Iterable[NewItem], *, per_transaction: int = PER_TRANSACTION) -> int:
        """Add lines; gives how many were new. The same lines given again are nothing new: so a killed call is repeated.

        Raises:
            DuplicateItem: another line has this `custom_id`.
            InputChanged: this line had another `custom_id` or body before.
            IllegalMove: the batch takes no items any more.
        """
        whole(per_transaction, "per_transaction", least=1)
        stream = iter(items)
        added = 0
        while piece := list(islice(stream, per_transaction)):
            added += self._add_piece(batch_id, piece)
        return added

    def _add_piece(self, batch_id: str, piece: Sequence[NewItem]) -> int:
        with self._database.transaction():
            batch = self._open_batch(batch_id, {BatchState.VALIDATING, BatchState.IN_PROGRESS}, "takes no more items")
            rows = [
                (batch, whole(i.line, "line", least=1), text(i.custom_id, f"custom_id (line {i.line})"), i.body_hash)
                for i in piece
            ]
            added = self._database.write_many(_INSERT, rows)
            if added < len(rows):
                self._explain_conflicts(batch, piece)
            self._database.write("UPDATE batches SET total = total + ? WHERE seq = ?", (added, batch))
        return added

    def _explain_conflicts(self, batch: int, piece: Sequence[NewItem]) -> None:
        for item in piece:
            found = self._database.row(
                "SELECT custom_id, body_hash FROM items WHERE batch = ? AND line = ?", (batch, item.line)
            )
            if found is None:
                _duplicate(item, self._line_of(batch, item.custom_id))
            if found != (item.custom_id, item.body_hash):
                what = "body" if found[0] == item.custom_id else f"custom_id (it was {found[0]!r})"
                raise InputChanged(
                    f"Line {item.line}, custom_id {item.custom_id!r}, has another {what} than when the batch began. "
                    "Start a new batch for a changed input.",
                    param=f"line {item.line}",
                )

    def record(self, batch_id: str, results: Sequence[ItemResult], now_s: float) -> Recorded:
        """How items ended, all of them in one transaction; hand over many at once. The batch's counts go with it.

        A line that has an end keeps it, so a repeated call changes nothing.

        Raises `NotFound` for a line the batch does not have, and `IllegalMove` when the batch has failed.
        """
        seconds(now_s, "now_s")
        for result in results:
            _check(result)
        written: list[ItemResult] = []
        ignored: list[int] = []
        with self._database.transaction():
            batch = self._open_batch(batch_id, set(BatchState) - {BatchState.FAILED}, "takes no more results")
            for result in results:
                if self._database.write(_RECORD, (*_values(result), now_s, batch, result.line)):
                    written.append(result)
                    continue
                if self._database.row("SELECT 1 FROM items WHERE batch = ? AND line = ?", (batch, result.line)) is None:
                    raise NotFound(f"The batch {batch_id} has no line {result.line}.", param="line")
                ignored.append(result.line)
            self._count(batch, written)
        return Recorded(len(written), ignored)

    def begin(self, batch_id: str, lines: Sequence[int]) -> None:
        """Count a try before it is made: of items under suspicion, so that a kill leaves a trace of them."""
        with self._database.transaction():
            batch = self._seq(batch_id)
            self._database.write_many(
                "UPDATE items SET tries = tries + 1 WHERE batch = ? AND line = ? AND state = 'pending'",
                [(batch, line) for line in lines],
            )

    def close(self, batch_id: str, state: ItemState, now_s: float, *, limit: int = PER_TRANSACTION) -> int:
        """End up to `limit` missing items, as expired or cancelled; gives the number. Repeat until it is 0."""
        if state not in {ItemState.EXPIRED, ItemState.CANCELLED}:
            raise BadValue(f"Missing items are closed as expired or cancelled, not {state.value}.", param="state")
        with self._database.transaction():
            batch = self._open_batch(
                batch_id, {BatchState.VALIDATING, BatchState.IN_PROGRESS, BatchState.CANCELLING}, "has no missing items"
            )
            closed = self._database.write(
                "UPDATE items SET state = ?, error_class = ?, finished_at_s = ? WHERE batch = ? AND line IN "
                "(SELECT line FROM items WHERE batch = ? AND state = 'pending' ORDER BY line LIMIT ?)",
                (state.value, state.value, seconds(now_s, "now_s"), batch, batch, limit),
            )
            self._database.write("UPDATE batches SET failed = failed + ? WHERE seq = ?", (closed, batch))
        return closed

    def reopen(self, batch_id: str, *, error_classes: Collection[str] | None = None) -> int:
        """Failed items are missing again, to be tried alone; gives the number. Only while the batch is in progress."""
        chosen = "" if error_classes is None else f" AND error_class IN ({', '.join('?' * len(error_classes))})"
        with self._database.transaction():
            batch = self._open_batch(batch_id, {BatchState.IN_PROGRESS}, "tries nothing again")
            tokens = self._database.row(
                "SELECT coalesce(sum(input_tokens), 0), coalesce(sum(cached_tokens), 0), "
                f"coalesce(sum(output_tokens), 0) FROM items WHERE batch = ? AND state = 'failed'{chosen}",
                (batch, *(error_classes or ())),
            )
            reopened = self._database.write(
                "UPDATE items SET state = 'pending', finished_at_s = NULL, input_tokens = NULL, cached_tokens = NULL, "
                f"output_tokens = NULL, response_ref = NULL WHERE batch = ? AND state = 'failed'{chosen}",
                (batch, *(error_classes or ())),
            )
            self._database.write(
                "UPDATE batches SET failed = failed - ?, input_tokens = input_tokens - ?, "
                "cached_tokens = cached_tokens - ?, output_tokens = output_tokens - ? WHERE seq = ?",
                (reopened, *(tokens or (0, 0, 0)), batch),
            )
        return reopened

    def page(
        self, batch_id: str, *, after_line: int = 0, limit: int = PER_TRANSACTION, state: ItemState | None = None
    ) -> list[Item]:
        """Items by line, after `after_line`. With `ItemState.PENDING`: what is missing, without reading the rest."""
        condition = "" if state is None else f" AND state = '{state.value}'"
        return [
            _item(row)
            for row in self._database.rows(
                f"SELECT {_COLUMNS} FROM items WHERE batch = ? AND line > ?{condition} ORDER BY line LIMIT ?",
                (self._seq(batch_id), after_line, limit),
            )
        ]

    def each(self, batch_id: str, *, state: ItemState | None = None, page_items: int = 1000) -> Iterator[Item]:
        """All of them by line, a page in memory at a time. Items may be finished while it goes on."""
        last = 0
        while found := self.page(batch_id, after_line=last, limit=page_items, state=state):
            yield from found
            last = found[-1].line

    def missing(self, batch_id: str) -> Iterator[Item]:
        """What a resumed batch has to do still."""
        return self.each(batch_id, state=ItemState.PENDING)

    def counts(self, batch_id: str) -> dict[ItemState, int]:
        """Counted from the items themselves; states without any are left out."""
        rows = self._database.rows(
            "SELECT state, count(*) FROM items WHERE batch = ? GROUP BY state", (self._seq(batch_id),)
        )
        return {ItemState(state): number for state, number in rows}

    def failures(self, batch_id: str) -> dict[str, int]:
        """Items that ended without success, by error class; '' where none was given."""
        return dict(
            self._database.rows(
                "SELECT coalesce(error_class, ''), count(*) FROM items WHERE batch = ? AND state NOT IN "
                "('pending', 'completed') GROUP BY 1",
                (self._seq(batch_id),),
            )
        )

    def _count(self, batch: int, written: Sequence[ItemResult]) -> None:
        completed = sum(result.state is ItemState.COMPLETED for result in written)
        self._database.write(
            "UPDATE batches SET completed = completed + ?, failed = failed + ?, input_tokens = input_tokens + ?, "
            "cached_tokens = cached_tokens + ?, output_tokens = output_tokens + ? WHERE seq = ?",
            (
                completed,
                len(written) - completed,
                sum(result.input_tokens or 0 for result in written),
                sum(result.cached_tokens or 0 for result in written),
                sum(result.output_tokens or 0 for result in written),
                batch,
            ),
        )

    def _open_batch(self, batch_id: str, states: set[BatchState], otherwise: str) -> int:
        row = self._database.row("SELECT seq, state FROM batches WHERE id = ?", (batch_id,))
        if row is None:
            raise NotFound(f"There is no batch {batch_id!r}.", param="batch_id")
        if BatchState(row[1]) not in states:
            raise IllegalMove(f"The batch {batch_id} is {row[1]}: it {otherwise}.")
        return int(row[0])

    def _seq(self, batch_id: str) -> int:
        return self._open_batch(batch_id, set(BatchState), "")

    def _line_of(self, batch: int, custom_id: str) -> int:
        return int(self._database.value("SELECT line FROM items WHERE batch = ? AND custom_id = ?", (batch, custom_id)))


def _duplicate(item: NewItem, first_line: int) -> NoReturn:
    raise DuplicateItem(
        f"Line {item.line} has the custom_id {item.custom_id!r} of line {first_line}. Each must be unique in a batch.",
        param=f"line {item.line}",
    )


def _check(result: ItemResult) -> None:
    if not result.state.final:
        raise BadValue(f"Line {result.line}: an item that is {result.state.value} has not ended.", param="state")
    whole(result.tries, "tries", greatest=2**31)
    for field in ("input_tokens", "cached_tokens", "output_tokens"):
        if (count := getattr(result, field)) is not None:
            whole(count, field)
    for field in ("queue_s", "prefill_s", "decode_s", "wall_s"):
        if (span_s := getattr(result, field)) is not None:
            seconds(span_s, field)


def _values(result: ItemResult) -> tuple[str | int | float | None, ...]:
    error = None if result.error is None else result.error[:MAX_ERROR].encode(errors="replace").decode()
    return (
        result.state.value, result.tries, result.error_class, error, result.input_tokens, result.cached_tokens,
        result.output_tokens, result.queue_s, result.prefill_s, result.decode_s, result.wall_s, result.response_ref,
    )  # fmt: skip
