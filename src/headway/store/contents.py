"""The contents of stored files, as files: under `files/` what is complete, under `incoming/` what is being received.

A file appears under `files/` by one rename, after its bytes are on the disk, and before the transaction that names it
commits; it goes after the transaction that deletes it. So a row always has its content, and what a kill leaves behind
is a content without a row, which the next writer sweeps.

Nothing here touches SQLite, so that an upload of 200 MB can be written by a thread of its own.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Self

from headway.store.errors import AlreadyExists, TooLarge
from headway.store.faults import corrupt, explained
from headway.store.values import identifier

MAX_FILE_BYTES = 200 * 1024**2
CHUNK_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class Received:
    """Complete bytes on the disk that no row names yet."""

    path: Path
    bytes: int
    sha256: str
    # A received upload has no other use, and is moved; what a batch wrote itself is linked until its row is there,
    # since it must survive a kill in between.
    keep: bool = False

    def discard(self) -> None:
        """Not wanted after all. A second call, or one after the file was added, does nothing."""
        if not self.keep:
            with explained(self.path.parent):
                self.path.unlink(missing_ok=True)


class Incoming:
    """A file being received. Add it inside the context: leaving that discards what was not added."""

    def __init__(self, path: Path, max_bytes: int) -> None:
        self._path = path
        self._store = path.parent.parent
        self._max_bytes = max_bytes
        self._hash = hashlib.sha256()
        self.bytes = 0
        with explained(self._store):
            try:
                descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            except FileExistsError:
                raise AlreadyExists(f"A file {path.name} is being received already.", param="id") from None
        self._stream = os.fdopen(descriptor, "wb", buffering=0)

    def write(self, chunk: bytes | bytearray | memoryview) -> None:
        """Raises `TooLarge` with the chunk that passes the limit: nobody need send the rest."""
        left = memoryview(chunk).cast("B")
        if self.bytes + len(left) > self._max_bytes:
            raise TooLarge(
                f"The file is larger than {self._max_bytes:,} bytes, the limit for one file. Split it.", param="file"
            )
        self._hash.update(left)
        self.bytes += len(left)
        with explained(self._store):
            while left:
                left = left[self._stream.write(left) :]

    def finish(self) -> Received:
        """On the disk when it returns."""
        with explained(self._store):
            os.fsync(self._stream.fileno())
            self._stream.close()
        return Received(self._path, self.bytes, self._hash.hexdigest())

    def discard(self) -> None:
        self._stream.close()
        with explained(self._store):
            self._path.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.discard()


class Contents:
    """The directories, which must exist only for a writer."""

    def __init__(self, directory: Path, *, max_bytes: int = MAX_FILE_BYTES) -> None:
        self.max_bytes = max_bytes
        self._store = directory
        self._incoming = directory / "incoming"
        self._files = directory / "files"
        self.spool = directory / "spool"  # for what batches write as they go; a writer's own, never swept

    def create(self) -> None:
        with explained(self._store):
            for folder in (self._incoming, self._files, self.spool):
                folder.mkdir(mode=0o700, exist_ok=True)

    def path(self, id: str) -> Path:
        return self._files / id

    def receive(self, id: str, *, max_bytes: int | None = None) -> Incoming:
        """Begin to receive; `max_bytes` instead of the store's limit for one file."""
        return Incoming(self._incoming / identifier(id), self.max_bytes if max_bytes is None else max_bytes)

    def measure(self, path: Path) -> Received:
        """Of a file that a batch has written, in `spool`: make it durable, and hash it."""
        digest, size = hashlib.sha256(), 0
        with explained(self._store), path.open("rb") as stream:
            os.fsync(stream.fileno())
            while chunk := stream.read(CHUNK_BYTES):
                digest.update(chunk)
                size += len(chunk)
        return Received(path, size, digest.hexdigest(), keep=True)

    def place(self, received: Received, id: str) -> None:
        """Give it its final name, durably. What a kill left under this name is replaced."""
        final = self.path(id)
        with explained(self._store):
            if received.keep:
                final.unlink(missing_ok=True)
                _link_or_copy(received.path, final)
            else:
                received.path.rename(final)
            _sync_directory(self._files)

    def open(self, id: str, size_bytes: int) -> BinaryIO:
        """Raises `Corrupt` when the content is not there or not whole: a row has always had it."""
        path = self.path(id)
        try:
            stream = path.open("rb")
        except FileNotFoundError:
            raise corrupt(path, "the content of a stored file is missing") from None
        except OSError:
            with explained(self._store):
                raise
        found_bytes = os.fstat(stream.fileno()).st_size
        if found_bytes != size_bytes:
            stream.close()
            raise corrupt(path, f"a stored file has {found_bytes:,} bytes and should have {size_bytes:,}")
        return stream

    def remove(self, id: str) -> None:
        with explained(self._store):
            self.path(id).unlink(missing_ok=True)

    def sweep(self, is_known: Callable[[str], bool]) -> int:
        """Only when nothing is being received: remove what a killed writer left. Gives the number of files."""
        removed = 0
        with explained(self._store):
            for path in self._incoming.iterdir():
                path.unlink()
                removed += 1
            for path in self._files.iterdir():
                if not is_known(path.name):
                    path.unlink()
                    removed += 1
        return removed


def _link_or_copy(source: Path, target: Path) -> None:
    """Not every filesystem knows hard links."""
    try:
        target.hardlink_to(source)
    except FileNotFoundError:
        raise
    except OSError:
        shutil.copyfile(source, target)
        with target.open("rb") as copied:
            os.fsync(copied.fileno())


def _sync_directory(folder: Path) -> None:
    """A rename is durable only when the directory is."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
