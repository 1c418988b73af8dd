"""The cache folder: where it is, who may write in it now, and whether there is room.

Everything that appears in the cache appears by one rename of something complete, under a file lock, so a reader
never sees half a model and two servers starting together do the work once. What a killed process left behind is
swept by the next one that takes the same lock.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from filelock import FileLock

from headway.core.errors import ModelError


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a slow stage is. `total_bytes` is None where nobody knows it."""

    stage: Literal["fetch", "check", "convert", "tokenizer", "load", "measure"]
    subject: str  # what is being fetched or converted, for a person to read
    done_bytes: int = 0
    total_bytes: int | None = None


Report = Callable[[Progress], None]


def cache_folder(given: Path | None = None) -> Path:
    """`given`, else `$HEADWAY_CACHE`, else `headway` under `$XDG_CACHE_HOME` or `~/.cache`. Not created here."""
    if given is not None:
        return given.expanduser().absolute()
    if chosen := os.environ.get("HEADWAY_CACHE"):
        return Path(chosen).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "headway"


@contextlib.contextmanager
def building(place: Path) -> Iterator[Path]:
    """Hold the lock on `place` and give an empty temporary folder beside it, on the same filesystem.

    The caller checks again whether `place` exists, builds in the folder, and renames. The folder goes away on every
    exit, and so do those of processes killed while they held this lock.

    Raises:
        ModelError: the cache cannot be written (full, read-only, no permission).
    """
    with explained(place.parent):
        place.parent.mkdir(parents=True, exist_ok=True)
        prefix = f".{place.name}.building-"
        with FileLock(place.parent / f".{place.name}.lock"):
            for left_behind in place.parent.glob(f"{prefix}*"):
                shutil.rmtree(left_behind, ignore_errors=True)
            folder = Path(tempfile.mkdtemp(prefix=prefix, dir=place.parent))
            try:
                yield folder
            finally:
                shutil.rmtree(folder, ignore_errors=True)


def require_space(folder: Path, needed_bytes: int, purpose: str) -> None:
    """Refuse before the work starts rather than when the disk is full.

    Raises:
        ModelError: the filesystem of `folder` has less than `needed_bytes` free.
    """
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < needed_bytes:
        raise no_space(folder, purpose, needed_bytes)


def no_space(folder: Path, purpose: str, needed_bytes: int | None = None) -> ModelError:
    """The one message for a full disk."""
    existing = next((f for f in (folder, *folder.parents) if f.exists()), Path("/"))
    free_bytes = shutil.disk_usage(existing).free
    needs = f"{purpose} needs {needed_bytes:,} bytes" if needed_bytes else f"{purpose} ran out of space"
    return ModelError(
        f"not enough disk space: {needs}, and {free_bytes:,} are free in {folder}. "
        "Free some, or point HEADWAY_CACHE at a folder on a larger disk.",
        code="no_space",
    )


@contextlib.contextmanager
def explained(folder: Path, purpose: str = "writing the model cache") -> Iterator[None]:
    """Turn the operating system's errors about `folder` into a `ModelError` that says what to do."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise no_space(folder, purpose) from error
        where = error.filename or folder
        raise ModelError(
            f"{purpose} failed: {error.strerror or error} ({where}). "
            "Set HEADWAY_CACHE to a folder this user can write.",
            code="cache_unwritable",
        ) from error


def tree_bytes(folder: Path) -> int:
    """Size of what lies under `folder`, which another process is filling and emptying."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += (Path(parent) / name).lstat().st_size
    return total
