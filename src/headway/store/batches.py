"""Batches of the `/v1/batches` API: the object with its states, times and counts. Its lines are in `items`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from headway.store.database import Database, Row
from headway.store.errors import AlreadyExists, IllegalMove, NotFound
from headway.store.lifecycle import BATCH_MOVES, BatchState, check_move
from headway.store.paging import Listing, Order, Page, Swept, bury, page
from headway.store.values import identifier, pairs, seconds, text, window_s

MAX_ERRORS = 1000  # kept of a batch whose input is wrong; more say nothing new
MAX_SWEPT_ITEMS = 5000  # in one call: others wait for it

# These must not be reached while an item has no end: nothing that was finished may be missing from the output.
_NONE_MISSING = {BatchState.FINALIZING, BatchState.COMPLETED, BatchState.EXPIRED, BatchState.CANCELLED}


class BatchError(Struct, frozen=True, kw_only=True):
    """Why a batch failed as a whole; `line` of its input, where one is to blame."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


class Batch(Struct, frozen=True, kw_only=True):
    id: str
    tenant: str
    endpoint: str
    input_file_id: str
    completion_window: str
    state: BatchState
    model: str | None
    output_file_id: str | None
    error_file_id: str | None
    errors: list[BatchError]
    metadata: dict[str, str]
    created_at_s: float
    expires_at_s: float
    in_progress_at_s: float | None
    finalizing_at_s: float | None
    cancelling_at_s: float | None
    completed_at_s: float | None
    failed_at_s: float | None
    expired_at_s: float | None
    cancelled_at_s: float | None
    total: int  # items; of them `completed` and `failed` have ended, expired and cancelled ones counted as failed
    completed: int
    failed: int
    input_tokens: int
    cached_tokens: int
    output_tokens: int

    @property
    def missing(self) -> int:
        return self.total - self.completed - self.failed

    def as_openai(self) -> dict[str, Any]:
        """The object as OpenAI's API shows it."""
        times = {
            name.removesuffix("_s"): None if (at_s := getattr(self, name)) is None else int(at_s)
            for name in self.__struct_fields__
            if name.endswith("_at_s")
        }
        errors = [msgspec.to_builtins(error) for error in self.errors]
        return {
            "id": self.id,
            "object": "batch",
            "endpoint": self.endpoint,
            "model": self.model,
            "errors": {"object": "list", "data": errors} if errors else None,
            "input_file_id": self.input_file_id,
            "completion_window": self.completion_window,
            "status": self.state.value,
            "output_file_id": self.output_file_id,
            "error_file_id": self.error_file_id,
            **times,
            "request_counts": {"total": self.total, "completed": self.completed, "failed": self.failed},
            "usage": {
                "input_tokens": self.input_tokens,
                "input_tokens_details": {"cached_tokens": self.cached_tokens},
                "output_tokens": self.output_tokens,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": self.input_tokens + self.output_tokens,
            },
            "metadata": self.metadata or None,
        }


_COLUMNS = ", ".join(Batch.__struct_fields__)


def _batch(row: Row) -> Batch:
    values = dict(zip(Batch.__struct_fields__, row, strict=True))
    values["state"] = BatchState(values["state"])
    values["errors"] = msgspec.json.decode(values["errors"], type=list[BatchError])
    values["metadata"] = msgspec.json.decode(values["metadata"])
    return Batch(**values)


class Batches:
    """Every method is one transaction, durable when it returns."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def create(
        self,
        id: str,
        tenant: str,
        *,
        input_file_id: str,
        endpoint: str,
        now_s: float,
        completion_window: str = "24h",
        metadata: Mapping[str, str] | None = None,
        model: str | None = None,
    ) -> Batch:
        """Whether the input file exists is the caller's to check (`Files.get`): it knows whose it is.

        Raises `AlreadyExists` and `BadValue`.
        """
        expires_at_s = seconds(now_s, "now_s") + window_s(completion_window)
        row = (
            identifier(id), text(tenant, "tenant"), text(endpoint, "endpoint"),
            identifier(input_file_id, "input_file_id"), completion_window, BatchState.VALIDATING.value,
            None if model is None else text(model, "model"),
            msgspec.json.encode(pairs(metadata, "metadata")).decode(), float(now_s), expires_at_s,
        )  # fmt: skip
        with self._database.transaction():
            if self._database.row("SELECT 1 FROM batches WHERE id = ?", (id,)):
                raise AlreadyExists(f"There is a batch {id} already.", param="id")
            self._database.write(
                "INSERT INTO batches (id, tenant, endpoint, input_file_id, completion_window, state, model, metadata, "
                "created_at_s, expires_at_s, errors, total, completed, failed, input_tokens, cached_tokens, "
                "output_tokens) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, '[]', 0, 0, 0, 0, 0, 0)",
                row,
            )
            return self.find(id)

    def move(
        self,
        id: str,
        to: BatchState,
        now_s: float,
        *,
        output_file_id: str | None = None,
        error_file_id: str | None = None,
        errors: Sequence[BatchError] = (),
        model: str | None = None,
    ) -> Batch:
        """To another state, with what becomes known by it; what is None stays as it was.

        Raises `IllegalMove` when the table forbids it, and when items of it have no end yet (`Items.close` ends them).
        """
        with self._database.transaction():
            batch = self.find(id)
            check_move(BATCH_MOVES, batch.state, to, f"The batch {id}")
            if to in _NONE_MISSING and batch.missing:
                raise IllegalMove(
                    f"The batch {id} cannot become {to.value}: {batch.missing} of its {batch.total} items have no end."
                )
            self._database.write(
                f"UPDATE batches SET state = ?, {to.value}_at_s = ?, ended_at_s = ?, "
                "output_file_id = coalesce(?, output_file_id), error_file_id = coalesce(?, error_file_id), "
                "model = coalesce(?, model), errors = coalesce(?, errors) WHERE id = ?",
                (
                    to.value, seconds(now_s, "now_s"), now_s if to.final else None, output_file_id, error_file_id,
                    model,                    msgspec.json.encode(errors[:MAX_ERRORS]).decode() if errors else None, id,
                ),
            )  # fmt: skip
            return self.find(id)

    def cancel(self, id: str, tenant: str, now_s: float) -> Batch:
        """Ask for its end; whoever runs it ends its items and moves it on. Asking twice is no error.

        Raises `IllegalMove` when it has ended, or is being finalized.
        """
        with self._database.transaction():
            batch = self.get(id, tenant)
            if batch.state in {BatchState.CANCELLING, BatchState.CANCELLED}:
                return batch
            return self.move(id, BatchState.CANCELLING, now_s)

    def get(self, id: str, tenant: str) -> Batch:
        """Raises `NotFound`, for another tenant's as well."""
        batch = self._select(id)
        if batch is None or batch.tenant != tenant:
            raise NotFound(f"There is no batch {id!r}.", param="batch_id")
        return batch

    def find(self, id: str) -> Batch:
        """Whoever's it is: for those who run it, not for those who ask."""
        batch = self._select(id)
        if batch is None:
            raise NotFound(f"There is no batch {id!r}.", param="batch_id")
        return batch

    def list(self, tenant: str, *, after: str | None = None, limit: int = 20, order: Order = "desc") -> Page[Batch]:
        return page(self._database, Listing("batches", _COLUMNS, tenant, after, limit, order), _batch)

    def unfinished(self) -> Sequence[Batch]:
        """Of all tenants, oldest first: what a restarted process goes on with."""
        return [
            _batch(row)
            for row in self._database.rows(f"SELECT {_COLUMNS} FROM batches WHERE ended_at_s IS NULL ORDER BY seq")
        ]

    def overdue(self, now_s: float) -> Sequence[Batch]:
        """Those past their window, to be closed and moved to expired, by whoever runs them."""
        late = (BatchState.VALIDATING, BatchState.IN_PROGRESS)
        return [batch for batch in self.unfinished() if batch.state in late and batch.expires_at_s <= now_s]

    def sweep(self, now_s: float, *, keep_s: float, limit: int = 10, max_items: int = MAX_SWEPT_ITEMS) -> Swept:
        """Delete batches that ended at least `keep_s` ago: they are gone at once, of their items `max_items` a call."""
        with self._database.transaction():
            old = self._database.rows(
                "SELECT seq FROM batches WHERE ended_at_s <= ? ORDER BY ended_at_s LIMIT ?",
                (seconds(now_s, "now_s") - keep_s, limit),
            )
            for (seq,) in old:
                self._database.write("INSERT INTO items_left VALUES (?)", (seq,))
                bury(self._database, "batches", seq, now_s)
            while max_items > 0 and (left := self._database.value("SELECT min(batch) FROM items_left")) is not None:
                deleted = self._database.write(
                    "DELETE FROM items WHERE batch = ? AND line IN (SELECT line FROM items WHERE batch = ? LIMIT ?)",
                    (left, left, max_items),
                )
                if deleted < max_items:
                    self._database.write("DELETE FROM items_left WHERE batch = ?", (left,))
                max_items -= max(deleted, 1)
            more = len(old) == limit or self._database.row("SELECT 1 FROM items_left") is not None
        return Swept(len(old), more)

    def _select(self, id: str) -> Batch | None:
        row = self._database.row(f"SELECT {_COLUMNS} FROM batches WHERE id = ?", (id,))
        return None if row is None else _batch(row)
