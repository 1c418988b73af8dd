"""`Store`: a directory that holds jobs, files and batches, opened by one writer and any number of readers.

```
store.db      the rows (with store.db-wal and store.db-shm while it is open)
writer.lock   held by the one process that writes
files/        contents of stored files, by id
incoming/     contents being received
spool/        what batches write as they go
```

Blocking and of one thread: an event loop uses `AsyncStore`. Nothing here reads a clock or makes up an id.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Self

from headway.store.batches import Batches
from headway.store.contents import MAX_FILE_BYTES, Contents
from headway.store.database import Database
from headway.store.faults import explained
from headway.store.files import Files
from headway.store.items import Items
from headway.store.jobs import Jobs
from headway.store.lock import WriterLock
from headway.store.paging import Swept, forget_deleted
from headway.store.schema import STEPS, Step


class Store:
    """Make one with `open` or `read`; close it, or use it as a context."""

    def __init__(self, database: Database, contents: Contents, lock: WriterLock | None, max_tenant_bytes: int) -> None:
        self._database = database
        self._lock = lock
        self.contents = contents
        self.jobs = Jobs(database)
        self.files = Files(database, contents, max_tenant_bytes=max_tenant_bytes)
        self.batches = Batches(database)
        self.items = Items(database)
        self.taken_back = 0  # jobs that a writer before this one was killed over

    @classmethod
    def open(
        cls,
        directory: Path,
        *,
        holder: str,
        now_s: float,
        max_file_bytes: int = MAX_FILE_BYTES,
        max_tenant_bytes: int = 0,
        steps: Sequence[Step] = STEPS,
    ) -> Store:
        """For writing, created where it is missing. `holder` is what others are told who is writing.

        Nobody else is writing now, so every lease is of a process that is gone: its jobs are taken back at once, and
        contents it left without a row are removed.

        Raises `Locked`, and what `Database` raises.
        """
        directory = directory.absolute()
        with explained(directory):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = WriterLock(directory, holder, now_s)
        try:
            database = Database(directory, steps=steps)
        except BaseException:
            lock.release()
            raise
        store = cls(database, Contents(directory, max_bytes=max_file_bytes), lock, max_tenant_bytes)
        try:
            store.contents.create()
            store.taken_back = store.jobs.take_back(now_s, every=True)
            store.files.sweep_contents()
        except BaseException:
            store.close()
            raise
        return store

    @classmethod
    def read(cls, directory: Path, *, steps: Sequence[Step] = STEPS) -> Store:
        """Beside a writer or without one. Whatever would write raises `Unwritable`.

        Raises what `Database` raises.
        """
        directory = directory.absolute()
        return cls(Database(directory, read_only=True, steps=steps), Contents(directory), None, 0)

    def transaction(self) -> AbstractContextManager[None]:
        """Several calls as one change, all or nothing, with one wait for the disk.

        Not for `Files.add` and `Files.delete`: what they do on the disk cannot be taken back.
        """
        return self._database.transaction()

    def sweep(self, now_s: float, *, keep_jobs_s: float, keep_batches_s: float) -> Swept:
        """Delete what is old or has expired, a bounded part of it: call it every minute, and while there is `more`."""
        parts = (
            self.jobs.sweep(now_s, keep_s=keep_jobs_s),
            self.files.sweep(now_s),
            self.batches.sweep(now_s, keep_s=keep_batches_s),
        )
        forget_deleted(self._database, now_s)
        return Swept(sum(part.deleted for part in parts), any(part.more for part in parts))

    def used_bytes(self) -> int:
        """What everything in it takes: rows, the bodies of jobs, and the contents of files."""
        return self._database.used_bytes() + self.files.all_bytes()

    def check(self) -> None:
        """Read everything there is. Raises `Corrupt` for the first thing that is not as it was written. Slow."""
        self._database.check()
        self.files.check()

    def close(self) -> None:
        """A second call does nothing."""
        try:
            self._database.close()
        finally:
            if self._lock is not None:
                self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
