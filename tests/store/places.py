"""Where tests keep stores: directories of their own, in memory where the machine has such a place."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headway.store import Store

_IN_MEMORY = Path("/dev/shm")
START_S = 1_750_000_000.0


def new_directory() -> Path:
    """A law that tries thousands of calls need not wait for thousands of disk flushes."""
    usable = _IN_MEMORY.is_dir() and os.access(_IN_MEMORY, os.W_OK)
    return Path(tempfile.mkdtemp(prefix="headway-store-", dir=_IN_MEMORY if usable else None))


@contextmanager
def temporary() -> Iterator[Path]:
    directory = new_directory()
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def open_store(directory: Path, now_s: float = START_S, **settings: Any) -> Store:
    return Store.open(directory, holder="a test", now_s=now_s, **settings)


def crashed(directory: Path) -> Path:
    """What a process that died at this moment would have left, in a new directory: the files as they are now."""
    after = new_directory()
    shutil.copytree(directory, after, dirs_exist_ok=True)
    return after
