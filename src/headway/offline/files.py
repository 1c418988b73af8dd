"""`Files`: what a batch writes beside its output, and the lock that keeps two runs apart."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from glob import escape
from pathlib import Path
from secrets import token_hex
from typing import BinaryIO

from filelock import FileLock, Timeout

from headway.offline.errors import OutputBusy, OutputFailed

_NEW = ".new"


@dataclass(frozen=True, slots=True)
class Files:
    """`output` is the journal: what stands in it is finished."""

    output: Path

    def _beside(self, ending: str) -> Path:
        return self.output.with_name(self.output.name.removesuffix(".jsonl") + ending)

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
            for path in (self.output, self.errors, self.manifest, self.summary):
                _sweep(path)
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


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """What is written to it takes the place of `path` when the block ends: all of it or nothing, whatever happens
    meanwhile. A link stays a link, and who may read the file does not change. Raises `OutputFailed`.
    """
    with explained(path):
        target = path.resolve()
        new = target.with_name(f"{target.name}.{token_hex(4)}{_NEW}")
        try:
            with new.open("xb") as file:
                if target.exists():
                    os.fchmod(file.fileno(), stat.S_IMODE(target.stat().st_mode))
                yield file
                file.flush()
                os.fsync(file.fileno())
            new.replace(target)
        except BaseException:
            with suppress(OSError):
                new.unlink(missing_ok=True)  # on a full disk it holds room that is needed
            raise
        sync_folder(target.parent)


def replace_file(path: Path, data: bytes) -> None:
    """As `replacing`, in one piece."""
    with replacing(path) as file:
        file.write(data)


def _sweep(path: Path) -> None:
    """What a kill left of `replacing`. Whoever calls it is the only one who writes there."""
    target = path.resolve()
    for stale in target.parent.glob(f"{escape(target.name)}.{'[0-9a-f]' * 8}{_NEW}"):
        with suppress(OSError):
            stale.unlink()


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
