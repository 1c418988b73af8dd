"""Where an output goes. A file is replaced whole or not at all; a pipe, a terminal or a device is written to.

Of a symbolic link the target is replaced, never the link. `-` is what is printed to, also where a shell sent that to a
file: replaced, it would lose what is printed before and after. So is `/dev/stdout`, as others have it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets as chance
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from headway.loadtest.errors import InvalidPlan

HEAD_BYTES = 4096  # that tell what a file is
_STDOUT = frozenset({"-", "/dev/stdout"})
_REFUSED = {stat.S_ISDIR: "a folder; a file's name is needed", stat.S_ISBLK: "a disk", stat.S_ISSOCK: "a socket"}

Write = Callable[[BinaryIO], object]


def check_output(path: Path, is_ours: Callable[[bytes], bool], what: str) -> None:
    """Before a load is made for hours: raises InvalidPlan where `path` could not be written, or what is there is no
    result. `is_ours` is given a file's first bytes, and says whether it is `what` is to be written: that is replaced.
    """
    if is_stdout(path):
        return
    mode = _mode(path)
    for of_kind, words in _REFUSED.items():
        if mode is not None and of_kind(mode):
            raise InvalidPlan(f"{path} is {words}.")
    if mode is not None and not stat.S_ISREG(mode):
        if not os.access(path, os.W_OK):
            raise InvalidPlan(f"{path}: nothing can be written there.")
        return
    target = Path(os.path.realpath(path))
    new_folder(target.parent)
    if not os.access(target.parent, os.W_OK):
        raise InvalidPlan(f"{target.parent}: nothing can be written there.")
    if mode is not None:
        head = _head(path)
        if head and not is_ours(head):
            raise InvalidPlan(f"{path} is there, and is no {what} of headway bench: it is not overwritten.")


def check_apart(paths: list[Path]) -> None:
    """Raises InvalidPlan where two outputs would go to one place, and one of them be lost."""
    seen: dict[str, Path] = {}
    for path in paths:
        place = _place(path)
        if place in seen and place != os.devnull:
            other = "" if seen[place] == path else f" ({seen[place]} is the same)"
            raise InvalidPlan(f"Two outputs would go to {path}{other}. Give each a file of its own.")
        seen[place] = path


def is_stdout(path: Path) -> bool:
    """Whether what is written there comes out where a program prints."""
    return str(path) in _STDOUT


def _place(path: Path) -> str:
    return "-" if is_stdout(path) else os.path.realpath(path)


def _mode(path: Path) -> int | None:
    """None: nothing is there yet."""
    try:
        return path.stat().st_mode
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno == errno.ENOTDIR:
            return None  # which the folder's making tells better
        raise _cannot(path, error) from None


def _head(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(HEAD_BYTES)
    except OSError as error:
        raise InvalidPlan(
            f"{path} is there and cannot be read ({error.strerror or error}): it is not overwritten."
        ) from None


def new_folder(folder: Path) -> None:
    """Raises InvalidPlan where it cannot be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidPlan(f"{folder}: this folder cannot be made: {error.strerror or error}") from None


class Claim:
    """Nobody else writes into a folder as long as this lives: two processes would lose one of two results.

    Raises InvalidPlan where another one does.
    """

    __slots__ = ("_descriptor",)

    def __init__(self, folder: Path) -> None:
        self._descriptor = -1
        new_folder(folder)
        with suppress(OSError):  # what is not allowed shows when it is written to; and some file systems have no locks
            self._descriptor = os.open(folder, os.O_RDONLY)
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise InvalidPlan(f"Another run is going to write into {folder}. Give another --output.") from None

    def __del__(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)


def write_output(path: Path, write: Write) -> None:
    """A file: all of it or nothing. Raises InvalidPlan where it cannot be written."""
    try:
        with _opened(path) as out:
            write(out)
    except OSError as error:
        raise _cannot(path, error) from None


def write_bytes(path: Path, content: bytes) -> None:
    write_output(path, lambda out: out.write(content))


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    if is_stdout(path):
        sys.stdout.flush()  # what was printed before comes before
        with os.fdopen(os.dup(1), "wb") as out:
            yield out
        return
    mode = _mode(path)
    if mode is not None and not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        with path.open("wb") as out:
            yield out
        return
    target = Path(os.path.realpath(path))
    # A name of its own: two processes may write to one target, whose name may be as long as names can be.
    beside = target.with_name(f".{chance.token_hex(8)}.new")
    with beside.open("xb") as out:
        try:
            yield out
            out.close()
            beside.replace(target)
        finally:
            beside.unlink(missing_ok=True)


def _cannot(path: Path, error: OSError) -> InvalidPlan:
    return InvalidPlan(f"{path} cannot be written: {error.strerror or error}.")
