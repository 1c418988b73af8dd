"""The journal is the output itself: what stands there as a whole line is finished, and durable.

`recover` finds out what that is, after whatever end the last run had: a torn last line is cut off, and what else is
wrong (a broken line, an id twice) is rewritten. `Journal` appends: every line at once, in a thread of its own, and
the disk is told to keep what came together, a few times a second. A line survives `kill -9` from the moment it is
written, and a power failure from the next of these moments on.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

import msgspec

from headway.offline.errors import OutputFailed
from headway.offline.files import explained, failure, replacing, sync_folder
from headway.offline.items import key_of_id, key_of_line
from headway.offline.record import Written, written

SYNC_EVERY_S = 0.25
_PIECE_BYTES = 1 << 20


@dataclass(slots=True)
class Recovered:
    """What stands in a journal. `hashes`: of each key, the hash of its item's body."""

    hashes: dict[int, int] = field(default_factory=dict)
    torn_bytes: int = 0
    broken: int = 0  # whole lines that are none of ours
    doubled: int = 0

    @property
    def clean(self) -> bool:
        return not (self.broken or self.doubled)


def key_of(line: Written) -> int:
    return key_of_line(line.headway.line) if line.custom_id is None else key_of_id(line.custom_id)


def recover(
    path: Path, on_line: Callable[[Written], None], *, without: Callable[[Written], bool] | None = None
) -> Recovered:
    """Read a journal and mend it. `on_line` is told each line that stays, in order; those `without` says are dropped.

    Raises `OutputFailed`. Killed at any moment, it can be called again.
    """
    with explained(path):
        found = _scan(path, on_line, without)
        if found.torn_bytes:
            os.truncate(path, path.stat().st_size - found.torn_bytes)
        if not found.clean:
            _rewrite(path, without)
    return found


def read_journal(path: Path) -> Iterator[Written]:
    """Every whole line of a journal that somebody may be writing. Nothing is mended, nor what is wrong told."""
    if path.exists():
        for line in _lines(path):
            with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
                yield written.decode(line)


def _scan(path: Path, on_line: Callable[[Written], None], without: Callable[[Written], bool] | None) -> Recovered:
    found = Recovered()
    if not path.exists():
        return found
    whole_bytes = 0
    for text in _lines(path):
        whole_bytes += len(text)
        line = _decoded(text)
        if line is None or (without is not None and without(line)):
            found.broken += 1
            continue
        key = key_of(line)
        if key in found.hashes:
            found.doubled += 1
            continue
        found.hashes[key] = int(line.headway.hash, 16)
        on_line(line)
    found.torn_bytes = path.stat().st_size - whole_bytes
    return found


def _decoded(text: bytes) -> Written | None:
    try:
        line = written.decode(text)
        int(line.headway.hash, 16)
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError, RecursionError):
        return None
    return line


def _lines(path: Path) -> Iterator[bytes]:
    """Whole lines, with their ends."""
    with path.open("rb", buffering=_PIECE_BYTES) as file:
        for line in file:
            if not line.endswith(b"\n"):
                return
            yield line


def _rewrite(path: Path, without: Callable[[Written], bool] | None) -> None:
    """The good lines alone, each key once. The old file stays until the new one is whole."""
    seen: set[int] = set()
    with replacing(path) as file:
        for text in _lines(path):
            line = _decoded(text)
            if line is None or (without is not None and without(line)) or (key := key_of(line)) in seen:
                continue
            seen.add(key)
            file.write(text)


class Journal:
    """Appends lines to one file. `append` never waits; what goes wrong is told once to `on_failure`, from the thread.

    Raises `OutputFailed` when the file cannot be opened.
    """

    def __init__(
        self, path: Path, on_failure: Callable[[OutputFailed], None], *, sync_every_s: float = SYNC_EVERY_S
    ) -> None:
        self.path = path
        self._on_failure = on_failure
        self._sync_every_s = sync_every_s
        with explained(path):
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            sync_folder(path.parent)
            self._size = os.fstat(self._descriptor).st_size
        self._lines: list[bytes] = []
        self._waiting_bytes = 0
        self._closing = False
        self._failed: OutputFailed | None = None
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name=f"headway-journal-{path.name}", daemon=True)
        self._thread.start()

    def append(self, line: bytes) -> None:
        """A whole line, with its end."""
        with self._changed:
            self._lines.append(line)
            self._waiting_bytes += len(line)
            self._changed.notify()

    @property
    def waiting_bytes(self) -> int:
        """That were appended and are not written."""
        return self._waiting_bytes

    def close(self) -> None:
        """Everything is written and durable when it returns. Raises `OutputFailed` if something was not."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        if self._failed is not None:
            raise self._failed

    # -- the thread's side ---------------------------------------------------------------------------------------------

    def _work(self) -> None:
        try:
            self._write_until_closed()
        except OSError as error:
            self._failed = failure(self.path, error)
            self._on_failure(self._failed)

    def _write_until_closed(self) -> None:
        unsynced_since: float | None = None
        while True:
            with self._changed:
                if not self._lines and not self._closing:
                    due = None if unsynced_since is None else unsynced_since + self._sync_every_s - monotonic()
                    if due is None or due > 0:
                        self._changed.wait(due)
                lines, self._lines = self._lines, []
                closing = self._closing and not lines
            if lines:
                self._write(b"".join(lines))
                unsynced_since = monotonic() if unsynced_since is None else unsynced_since
            if unsynced_since is not None and (closing or monotonic() - unsynced_since >= self._sync_every_s):
                os.fdatasync(self._descriptor)
                unsynced_since = None
            if closing:
                return

    def _write(self, data: bytes) -> None:
        """All of it; where the disk refuses a part, no torn line is left behind."""
        view, done = memoryview(data), 0
        try:
            while done < len(data):
                done += os.write(self._descriptor, view[done:])
        except OSError:
            whole = data.rfind(b"\n", 0, done) + 1
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, self._size + whole)
            raise
        self._size += len(data)
        with self._changed:
            self._waiting_bytes -= len(data)
