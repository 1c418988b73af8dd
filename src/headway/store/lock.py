"""One writer at a time, and whoever is turned away learns who it is.

The lock is the operating system's (`flock`): it goes with the process that held it, however that ended, so there is
nothing stale to break. What is written into the file is for people only. Child processes that are started by `exec`
do not inherit it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import time
from pathlib import Path
from typing import Self

import msgspec
from msgspec import Struct

from headway.store.errors import Locked
from headway.store.faults import explained

FILE_NAME = "writer.lock"


class Holder(Struct, frozen=True):
    """What a writer says of itself."""

    name: str
    pid: int
    host: str
    since_s: float

    def __str__(self) -> str:
        since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(self.since_s))
        return f"{self.name} (process {self.pid} on {self.host}, since {since})"


class WriterLock:
    """Held from construction to `release`. Raises `Locked` at once instead of waiting."""

    def __init__(self, directory: Path, name: str, now_s: float) -> None:
        path = directory / FILE_NAME
        with explained(directory):
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self._take(directory, Holder(name, os.getpid(), socket.gethostname(), now_s))
        except BaseException:
            os.close(self._descriptor)
            raise

    def _take(self, directory: Path, holder: Holder) -> None:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            other = self._read()
            raise Locked(
                f"{directory} is being written by {other}. One process at a time writes in a store: stop that one, "
                "or give this one a directory of its own.",
                holder=other,
            ) from None
        with contextlib.suppress(OSError):  # on a full disk the store must still open: how else could one delete?
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, msgspec.json.encode(holder), 0)

    def _read(self) -> str:
        """The holder writes a moment after it locks, and may find the disk full."""
        with contextlib.suppress(OSError, msgspec.DecodeError, OverflowError, ValueError):
            return str(msgspec.json.decode(os.pread(self._descriptor, 4096, 0), type=Holder))
        return "another process, which has not said its name"

    def release(self) -> None:
        """Closing the last descriptor of an open file unlocks it; a second call does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
