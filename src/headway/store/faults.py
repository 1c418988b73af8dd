"""What the operating system and SQLite say, turned into errors that name the place and what to do."""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from headway.store.errors import Corrupt, DiskFull, StoreError, StoreFailed, Unwritable

_NO_SPACE = {errno.ENOSPC, errno.EDQUOT}
_NO_PERMISSION = {errno.EACCES, errno.EPERM, errno.EROFS}


@contextlib.contextmanager
def explained(place: Path) -> Iterator[None]:
    """Errors about files under `place` become a `StoreError`."""
    try:
        yield
    except OSError as error:
        raise of_system(error, place) from error


def of_system(error: OSError, place: Path) -> StoreError:
    where = error.filename or place
    if error.errno in _NO_SPACE:
        return disk_full(place)
    if error.errno in _NO_PERMISSION:
        return unwritable(place, f"{error.strerror} ({where})")
    if error.errno in (errno.ENOTDIR, errno.EEXIST):
        return Unwritable(f"The store {place} cannot be a directory: {where} is something else. Choose another place.")
    return StoreFailed(f"The store {place} failed: {error.strerror or error} ({where}).")


def _free_bytes(place: Path) -> int | None:
    try:
        state = os.statvfs(place)
    except OSError:
        return None
    return state.f_bavail * state.f_frsize


def disk_full(place: Path) -> DiskFull:
    free_bytes = _free_bytes(place)
    free = "" if free_bytes is None else f" ({free_bytes:,} bytes are free)"
    return DiskFull(
        f"The disk of the store {place} is full{free}. Nothing of this change was kept, all before it was. Free some "
        "space and try again."
    )


def unwritable(place: Path, why: str) -> Unwritable:
    return Unwritable(
        f"The store {place} cannot be written: {why}. Give this user the right to write in the directory and all in "
        "it, or choose another one."
    )


def corrupt(place: Path, why: str) -> Corrupt:
    return Corrupt(
        f"The store's {place} is damaged: {why}. Move it away and start with an empty one, put back a copy, or save "
        "what is left with the `.recover` command of the sqlite3 program."
    )


def of_sqlite(error: sqlite3.Error, path: Path) -> StoreError:
    """By SQLite's primary result code; `path` is the database's file."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    # Some of its files SQLite writes through memory, and then says "I/O error" where the disk is full.
    if code == sqlite3.SQLITE_FULL or (code == sqlite3.SQLITE_IOERR and _free_bytes(path.parent) == 0):
        return disk_full(path.parent)
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return corrupt(path, str(error))
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH):
        return unwritable(path.parent, str(error))
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return StoreFailed(
            f"{path} is locked by a program that is not Headway ({error}). Close the tool that has it open for writing."
        )
    name = getattr(error, "sqlite_errorname", type(error).__name__)
    return StoreFailed(f"{path} failed: {error} ({name}).")
