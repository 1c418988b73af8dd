"""Lists by creation, in pages, the way OpenAI's clients walk them (`after` names the last one seen); and deleting."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from headway.store.database import Database, Row
from headway.store.errors import BadValue, NotFound
from headway.store.values import whole

T = TypeVar("T")
Order = Literal["asc", "desc"]

MAX_LIMIT = 10_000
# For how long a deleted object can still be named as the place to go on from.
KEEP_DELETED_S = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    items: list[T]
    has_more: bool


@dataclass(frozen=True, slots=True)
class Swept:
    """What one call of a `sweep` deleted, and whether it stopped at its limit: call it again soon."""

    deleted: int
    more: bool


@dataclass(frozen=True, slots=True)
class Listing:
    """Where in which table: `kind` is its name, `columns` what is selected of it."""

    kind: str
    columns: str
    tenant: str
    after: str | None = None
    limit: int = 20
    order: Order = "desc"
    where: Sequence[tuple[str, Any]] = ()  # further columns and the value each must have


def page(database: Database, listing: Listing, build: Callable[[Row], T]) -> Page[T]:
    """One row more than asked for is read, to know whether there are more.

    Raises:
        BadValue: a limit or an order that is none.
        NotFound: `after` is no object of this tenant, and was not deleted within the last day.
    """
    whole(listing.limit, "limit", least=1, greatest=MAX_LIMIT)
    if listing.order not in {"asc", "desc"}:
        raise BadValue(f"order must be 'asc' or 'desc', not {listing.order!r}.", param="order")
    conditions: list[str] = ["tenant = ?"]
    parameters: list[Any] = [listing.tenant]
    for column, value in listing.where:
        conditions.append(f"{column} = ?")
        parameters.append(value)
    if listing.after is not None:
        conditions.append("seq > ?" if listing.order == "asc" else "seq < ?")
        parameters.append(_place(database, listing, listing.after))
    rows = database.rows(
        f"SELECT {listing.columns} FROM {listing.kind} WHERE {' AND '.join(conditions)} "
        f"ORDER BY seq {listing.order} LIMIT ?",
        (*parameters, listing.limit + 1),
    )
    return Page([build(row) for row in rows[: listing.limit]], has_more=len(rows) > listing.limit)


def _place(database: Database, listing: Listing, after: str) -> int:
    found = database.value(
        f"SELECT seq FROM {listing.kind} WHERE id = ? AND tenant = ? "
        "UNION ALL SELECT seq FROM deleted WHERE kind = ? AND id = ? AND tenant = ?",
        (after, listing.tenant, listing.kind, after, listing.tenant),
    )
    if found is None:
        raise NotFound(f"after names {after!r}, and there is no such object here. List from the start.", param="after")
    return int(found)


def bury(database: Database, kind: str, seq: int, now_s: float) -> None:
    """Delete a row and remember where it was; within the caller's transaction."""
    database.write(
        f"INSERT INTO deleted SELECT '{kind}', id, tenant, seq, ? FROM {kind} WHERE seq = ? ON CONFLICT DO UPDATE SET "
        "tenant = excluded.tenant, seq = excluded.seq, deleted_at_s = excluded.deleted_at_s",
        (now_s, seq),
    )
    database.write(f"DELETE FROM {kind} WHERE seq = ?", (seq,))


def forget_deleted(database: Database, now_s: float) -> None:
    database.write("DELETE FROM deleted WHERE deleted_at_s <= ?", (now_s - KEEP_DELETED_S,))
