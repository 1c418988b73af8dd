"""Files of the `/v1/files` API: their rows. Their bytes are in `contents`."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from typing import Any, BinaryIO

from msgspec import Struct

from headway.store.contents import CHUNK_BYTES, Contents, Received
from headway.store.database import Database, Row
from headway.store.errors import AlreadyExists, BadValue, Corrupt, InUse, NotFound, StoreError, TooLarge
from headway.store.faults import corrupt
from headway.store.paging import MAX_LIMIT, Listing, Order, Page, Swept, bury, page
from headway.store.values import identifier, seconds, text

STATUSES = ("uploaded", "processed", "error")


class StoredFile(Struct, frozen=True, kw_only=True):
    id: str
    tenant: str
    filename: str
    purpose: str
    bytes: int
    sha256: str
    status: str
    created_at_s: float
    expires_at_s: float | None

    def as_openai(self) -> dict[str, Any]:
        """The object as OpenAI's API shows it."""
        return {
            "id": self.id,
            "object": "file",
            "bytes": self.bytes,
            "created_at": int(self.created_at_s),
            "expires_at": None if self.expires_at_s is None else int(self.expires_at_s),
            "filename": self.filename,
            "purpose": self.purpose,
            "status": self.status,
            "status_details": None,
        }


_COLUMNS = ", ".join(StoredFile.__struct_fields__)


def _file(row: Row) -> StoredFile:
    return StoredFile(**dict(zip(StoredFile.__struct_fields__, row, strict=True)))


class Files:
    def __init__(self, database: Database, contents: Contents, *, max_tenant_bytes: int = 0) -> None:
        self._database = database
        self._contents = contents
        self._max_tenant_bytes = max_tenant_bytes  # of all files of one tenant together; 0 is no limit

    def add(
        self,
        received: Received,
        id: str,
        tenant: str,
        *,
        filename: str,
        purpose: str,
        now_s: float,
        expires_at_s: float | None = None,
        status: str = "processed",
    ) -> StoredFile:
        """Make a stored file of received bytes, all or nothing; either way what was received is used up.

        For the output of a batch (`Contents.measure`) it may be repeated after a kill: the same bytes under the same
        id are the same file, and the file it was measured from goes only when the row is there.

        Raises:
            AlreadyExists: the id is taken by another file.
            TooLarge: the tenant's files would pass its limit.
            BadValue: a field that cannot be.
        """
        try:
            row = (
                identifier(id), text(tenant, "tenant"), text(filename, "filename"),
                text(purpose, "purpose", longest=64), received.bytes, received.sha256, _status(status),
                seconds(now_s, "now_s"),
                None if expires_at_s is None else seconds(expires_at_s, "expires_at_s"),
            )  # fmt: skip
            stored = self._insert(received, row)
        except BaseException:
            received.discard()
            raise
        if received.keep:
            received.path.unlink(missing_ok=True)
        return stored

    def _insert(self, received: Received, row: Row) -> StoredFile:
        new = _file(row)
        found = self._select(new.id)
        if found is not None:
            if received.keep and (found.tenant, found.sha256) == (new.tenant, new.sha256):
                return found
            raise AlreadyExists(f"There is a file {new.id} already.", param="id")
        try:
            with self._database.transaction():
                if not received.keep:  # a batch's output is work that was done: it is never thrown away
                    self._check_room(new)
                self._database.write(f"INSERT INTO files ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
                self._contents.place(received, new.id)
        except BaseException:
            with contextlib.suppress(StoreError):  # a content without a row is swept at the next opening
                if self._select(new.id) is None:
                    self._contents.remove(new.id)
            raise
        return new

    def _check_room(self, new: StoredFile) -> None:
        if not self._max_tenant_bytes:
            return
        used_bytes = self.used_bytes(new.tenant)
        if used_bytes + new.bytes > self._max_tenant_bytes:
            raise TooLarge(
                f"The files of this tenant may take {self._max_tenant_bytes:,} bytes together; they take "
                f"{used_bytes:,}, and this one has {new.bytes:,}. Delete some first.",
                param="file",
            )

    def get(self, id: str, tenant: str) -> StoredFile:
        """Raises `NotFound`, for another tenant's as well."""
        stored = self._select(id)
        if stored is None or stored.tenant != tenant:
            raise NotFound(f"There is no file {id!r}.", param="file_id")
        return stored

    def open(self, id: str, tenant: str) -> BinaryIO:
        """The content, for reading in binary. It can be read to its end even when the file is deleted meanwhile.

        Raises `NotFound`, and `Corrupt` when the content is not what was stored.
        """
        stored = self.get(id, tenant)
        try:
            return self._contents.open(stored.id, stored.bytes)
        except Corrupt:
            self.get(id, tenant)  # the writer may have deleted it this very moment
            raise

    def read(self, id: str, tenant: str, *, chunk_bytes: int = CHUNK_BYTES) -> Iterator[bytes]:
        """The content in chunks. Raises as `open`, before the first of them."""
        return _chunks(self.open(id, tenant), chunk_bytes)

    def list(
        self,
        tenant: str,
        *,
        after: str | None = None,
        limit: int = MAX_LIMIT,
        order: Order = "desc",
        purpose: str | None = None,
    ) -> Page[StoredFile]:
        where = () if purpose is None else (("purpose", purpose),)
        return page(self._database, Listing("files", _COLUMNS, tenant, after, limit, order, where), _file)

    def used_bytes(self, tenant: str) -> int:
        return int(self._database.value("SELECT coalesce(sum(bytes), 0) FROM files WHERE tenant = ?", (tenant,)))

    def all_bytes(self) -> int:
        """Of all tenants."""
        return int(self._database.value("SELECT coalesce(sum(bytes), 0) FROM files"))

    def delete(self, id: str, tenant: str, now_s: float) -> None:
        """Raises `InUse` while a batch that has not ended reads it: it could not go on after a restart."""
        with self._database.transaction():
            self.get(id, tenant)
            reader = self._database.value(
                "SELECT id FROM batches WHERE input_file_id = ? AND ended_at_s IS NULL", (id,)
            )
            if reader is not None:
                raise InUse(f"The file {id} is the input of the batch {reader}, which has not ended: cancel it first.")
            bury(self._database, "files", self._seq(id), seconds(now_s, "now_s"))
        self._contents.remove(id)

    def sweep(self, now_s: float, *, limit: int = 100) -> Swept:
        """Delete what has expired and no unfinished batch reads, `limit` at most."""
        with self._database.transaction():
            expired = self._database.rows(
                "SELECT seq, id FROM files WHERE expires_at_s <= ? AND NOT EXISTS (SELECT 1 FROM batches "
                "WHERE input_file_id = files.id AND ended_at_s IS NULL) LIMIT ?",
                (seconds(now_s, "now_s"), limit),
            )
            for seq, _ in expired:
                bury(self._database, "files", seq, now_s)
        for _, name in expired:
            self._contents.remove(name)
        return Swept(len(expired), more=len(expired) == limit)

    def sweep_contents(self) -> int:
        """For a writer that has just opened the store: remove contents without a row."""
        return self._contents.sweep(lambda name: self._select(name) is not None)

    def check(self) -> None:
        """Read every content. Raises `Corrupt` for the first that is not what was stored."""
        last = 0
        while rows := self._database.rows(
            f"SELECT seq, {_COLUMNS} FROM files WHERE seq > ? ORDER BY seq LIMIT 100", (last,)
        ):
            for stored in (_file(row[1:]) for row in rows):
                digest = hashlib.sha256()
                for chunk in _chunks(self._contents.open(stored.id, stored.bytes), CHUNK_BYTES):
                    digest.update(chunk)
                if digest.hexdigest() != stored.sha256:
                    raise corrupt(self._contents.path(stored.id), "the content of a stored file has another SHA-256")
            last = rows[-1][0]

    def _select(self, id: str) -> StoredFile | None:
        row = self._database.row(f"SELECT {_COLUMNS} FROM files WHERE id = ?", (id,))
        return None if row is None else _file(row)

    def _seq(self, id: str) -> int:
        return int(self._database.value("SELECT seq FROM files WHERE id = ?", (id,)))


def _chunks(stream: BinaryIO, chunk_bytes: int) -> Iterator[bytes]:
    with stream:
        while chunk := stream.read(chunk_bytes):
            yield chunk


def _status(value: str) -> str:
    if value not in STATUSES:
        raise BadValue(f"status must be one of {', '.join(STATUSES)}, not {value!r}.", param="status")
    return value
