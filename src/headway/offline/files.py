"""`Files`: what a batch writes beside its output, and the lock that keeps two runs apart."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from headway.offline.errors import OutputBusy, OutputFailed


@dataclass(frozen=True, slots=True)
class Files:
    """`output` is the journal: what stands in it is finished."""

    output: Path

    def _beside(self, ending: str) -> Path:
        stem = self.output.name.removesuffix(self.output.suffix) if self.output.suffix else self.output.name
        return self.output.with_name(stem + ending)

    @property
    def errors(self) -> Path:
        return self._beside(".errors.jsonl")

    @property
    def manifest(self) -> Path:
        return self._beside(".job.json")

    @property
    def summary(self) -> Path:
        return self._beside(".summary.json")

    @property
    def lock(self) -> Path:
        return self._beside(".job.lock")

    @contextmanager
    def held(self) -> Iterator[None]:
        """Nobody else writes while it is open. The lock goes with the process, however that ends."""
        with explained(self.output):
            self.output.parent.resolve(strict=True)
        lock = FileLock(self.lock)
        with explained(self.lock):
            try:
                lock.acquire(timeout=0)
            except Timeout:  # which is an OSError
                raise OutputBusy(
                    f"Another run is writing {self.output}. Wait for it, end it, or give this one an output of its own."
                ) from None
        try:
            yield
        finally:
            lock.release()

    @property
    def busy(self) -> bool:
        """Is a run writing at the moment?"""
        if not self.lock.exists():
            return False
        lock = FileLock(self.lock)
        try:
            lock.acquire(timeout=0)
        except (Timeout, OSError):
            return True
        lock.release()
        return False


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """An `OSError` inside becomes an `OutputFailed` that says what to do."""
    try:
        yield
    except OSError as error:
        raise failure(path, error) from error


def failure(path: Path, error: OSError) -> OutputFailed:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return OutputFailed(
            f"The disk is full while writing {path}. All that was finished before is kept; make room and run "
            "`headway batch resume`."
        )
    if error.errno == errno.ENOENT:
        return OutputFailed(f"{path} cannot be written: the folder {path.parent} does not exist. Make it first.")
    return OutputFailed(f"{path} cannot be written: {error.strerror or error}.")


def replace_file(path: Path, data: bytes) -> None:
    """All of it or nothing, whatever happens meanwhile. Raises `OutputFailed`."""
    with explained(path):
        new = path.with_name(path.name + ".new")
        with new.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """So that the names in it are as durable as what they name."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some file systems cannot, and need not
            raise
    finally:
        os.close(descriptor)
