"""One connection to the store's SQLite file: how it is opened, its transactions, and its errors.

**Durability.** Write-ahead log with `synchronous=FULL`: a commit returns when its pages are in the log and the log is
on the disk. A kill at any moment loses nothing that was committed, and neither does a loss of power. `NORMAL` would be
as good against a kill, but a power cut could take back the last commits, and by then a client holds the `202` of one
of them. The price is one `fsync` a transaction: what comes in numbers (items of a batch) goes many to a transaction.

A connection belongs to the thread that opened it; SQLite's own check enforces that.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from headway.store.errors import Corrupt, NotFound, StoreFailed, Unwritable, WrongVersion
from headway.store.faults import corrupt, explained, of_sqlite, unwritable
from headway.store.schema import APPLICATION_ID, STEPS, Step, upgrade

FILE_NAME = "store.db"
BUSY_TIMEOUT_S = 5.0  # a reader's last look at the log as it closes; nobody else of ours ever blocks
MAX_LOG_BYTES = 64 * 1024**2  # the log file is cut back to this after a burst
LEAST_SQLITE = (3, 37)  # STRICT tables

Row = tuple[Any, ...]
Parameters = Sequence[Any]
_WHOLE = ("BEGIN IMMEDIATE", "COMMIT", ("ROLLBACK",))
_PART = ("SAVEPOINT part", "RELEASE part", ("ROLLBACK TO part", "RELEASE part"))  # the innermost of the name is meant
# SQLite's own words for a defect of ours (wrong thread, closed, wrong number of parameters): not a fault of the disk.
_DEFECTS = (sqlite3.ProgrammingError, sqlite3.InterfaceError, sqlite3.IntegrityError, sqlite3.NotSupportedError)


class Database:
    """Open for writing (creating and upgrading it) or, with `read_only`, beside the writer.

    Raises:
        WrongVersion: the file is of a newer Headway, of an older one while reading, or another program's.
        Corrupt: the file is no database, or is damaged.
        Unwritable, DiskFull: the directory says no.
        NotFound: there is no store to read.
    """

    def __init__(self, directory: Path, *, read_only: bool = False, steps: Sequence[Step] = STEPS) -> None:
        if sqlite3.sqlite_version_info < LEAST_SQLITE:
            raise StoreFailed(f"SQLite is {sqlite3.sqlite_version}; the store needs 3.37 or newer. Update Python.")
        self.path = directory / FILE_NAME
        self.read_only = read_only
        self._depth = 0
        if read_only and not self.path.exists():
            raise NotFound(f"There is no store in {directory}: {FILE_NAME} is missing.")
        if not read_only:
            with explained(directory):  # prompts lie in it: nobody else may read it
                os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        with self._explained():
            self._connection = sqlite3.connect(
                f"file:{quote(str(self.path))}?mode={'ro' if read_only else 'rw'}",
                uri=True,
                timeout=BUSY_TIMEOUT_S,
                isolation_level=None,  # transactions are begun and ended below, and nowhere else
            )
        try:
            self._set_up(steps)
        except BaseException:
            self._connection.close()
            raise

    def _set_up(self, steps: Sequence[Step]) -> None:
        version = self._check_version(steps)
        with self._explained():
            self._connection.execute("PRAGMA foreign_keys = ON")
            self._connection.execute("PRAGMA cell_size_check = ON")
            self._connection.execute("PRAGMA trusted_schema = OFF")
            if self.read_only:
                self._connection.execute("PRAGMA query_only = ON")
                return
            mode = self._connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
            if mode != "wal":
                raise unwritable(self.path.parent, f"SQLite's write-ahead log does not work there (mode {mode!r})")
            self._connection.execute("PRAGMA synchronous = FULL")
            self._connection.execute(f"PRAGMA journal_size_limit = {MAX_LOG_BYTES}")
        if version < len(steps):
            with self.transaction():
                upgrade(self.write, steps, version)

    def _check_version(self, steps: Sequence[Step]) -> int:
        program, version = self.value("PRAGMA application_id"), self.value("PRAGMA user_version")
        ours, tables = program == APPLICATION_ID, self.value("SELECT count(*) FROM sqlite_schema")
        if not ours and (tables or version or program):
            raise WrongVersion(
                f"{self.path} is a database of another program. Headway does not touch it: choose another directory."
            )
        if version > len(steps):
            raise WrongVersion(
                f"{self.path} is of version {version}, and this Headway knows versions up to {len(steps)}: a newer one "
                "wrote it. Use that one, or another directory."
            )
        if self.read_only and version < len(steps):
            raise WrongVersion(
                f"{self.path} is of version {version}, and this Headway reads version {len(steps)}. Open it for "
                "writing once (start the server): that upgrades it."
            )
        return int(version)

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except _DEFECTS:
            raise
        except sqlite3.Error as error:
            if self.read_only and getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_READONLY:
                raise Unwritable(f"The store {self.path.parent} was opened for reading; this call writes.") from error
            raise of_sqlite(error, self.path) from error

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """All or nothing. Inside another one it is a part of that: kept when the whole is, and an error that leaves it
        takes it back alone.

        `IMMEDIATE`, so that the right to write is had before anything is read.
        """
        begin, keep, undo = _WHOLE if self._depth == 0 else _PART
        self._check_whole()
        with self._explained():
            self._connection.execute(begin)
        self._depth += 1
        try:
            yield
            with self._explained():
                self._connection.execute(keep)
        except BaseException:
            if self._connection.in_transaction:  # a full disk takes back the whole by itself
                for statement in undo:
                    self._connection.execute(statement)
            raise
        finally:
            self._depth -= 1

    def _check_whole(self) -> None:
        """A full disk may take back a transaction while its caller goes on: the rest must not be kept alone."""
        if self._depth and not self._connection.in_transaction:
            raise StoreFailed(f"{self.path}: an error has taken back this transaction; nothing more can be part of it.")

    def write(self, sql: str, parameters: Parameters = ()) -> int:
        """Number of rows changed. Outside a transaction it is one of its own."""
        self._check_whole()
        with self._explained():
            return self._connection.execute(sql, parameters).rowcount

    def write_many(self, sql: str, rows: Sequence[Row]) -> int:
        self._check_whole()
        with self._explained():
            return self._connection.executemany(sql, rows).rowcount

    def rows(self, sql: str, parameters: Parameters = ()) -> list[Row]:
        with self._explained():
            return self._connection.execute(sql, parameters).fetchall()

    def row(self, sql: str, parameters: Parameters = ()) -> Row | None:
        with self._explained():
            found: Row | None = self._connection.execute(sql, parameters).fetchone()
            return found

    def value(self, sql: str, parameters: Parameters = ()) -> Any:
        """First column of the first row; None where there is none."""
        found = self.row(sql, parameters)
        return None if found is None else found[0]

    def used_bytes(self) -> int:
        """Pages in use: what was deleted is used again, though the file does not shrink."""
        pages = self.value("PRAGMA page_count") - self.value("PRAGMA freelist_count")
        return int(pages * self.value("PRAGMA page_size"))

    def check(self) -> None:
        """Read every page and every index. Raises `Corrupt` with SQLite's first complaint. Slow on a large store."""
        complaint = self.value("PRAGMA integrity_check(1)")
        if complaint != "ok":
            raise corrupt(self.path, complaint)
        broken = self.row("PRAGMA foreign_key_check")
        if broken is not None:
            raise Corrupt(f"{self.path}: row {broken[1]} of {broken[0]} belongs to nothing in {broken[2]}.")

    def close(self) -> None:
        """The last connection folds the log back into the file. A second call does nothing."""
        with self._explained():
            self._connection.close()
