"""What a batch has written so far: two files that only grow, of its answers and of its errors.

A result counts when the store names its place in them. What a kill left behind without that is never read, so nothing
is there twice; the files that clients get are put together from the places at the end, in the order of the input.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from headway.store.faults import explained  # what the disk says, in the store's words

GOOD, BAD = "answers", "errors"


class Spool:
    """Blocking: for a thread. Raises `StoreError`."""

    def __init__(self, folder: Path, batch_id: str) -> None:
        self._folder = folder
        self._batch_id = batch_id

    def append(self, which: str, lines: Sequence[bytes]) -> list[str]:
        """On the disk when it returns. Gives the place of each line."""
        if not lines:
            return []
        places = []
        with explained(self._folder), self.path(which).open("ab", buffering=0) as stream:
            at = stream.seek(0, os.SEEK_END)
            for line in lines:
                places.append(f"{at}:{len(line)}")
                at += len(line)
            data = memoryview(b"".join(lines))
            while data:
                data = data[stream.write(data) :]
            os.fsync(stream.fileno())
        return places

    def copy(self, which: str, places: Sequence[str | bytes], target: Path, *, first: bool) -> None:
        """Append to `target`, emptied at `first`, the lines at `places`; bytes are lines themselves."""
        with explained(self._folder), target.open("wb" if first else "ab") as out:
            source = self.path(which).open("rb") if any(isinstance(place, str) for place in places) else None
            try:
                for place in places:
                    if isinstance(place, bytes):
                        out.write(place)
                        continue
                    assert source is not None, "there are places in it"
                    at, length = map(int, place.split(":"))
                    source.seek(at)
                    out.write(source.read(length))
            finally:
                if source is not None:
                    source.close()

    def path(self, which: str) -> Path:
        return self._folder / f"{self._batch_id}.{which}"

    def target(self, which: str) -> Path:
        return self._folder / f"{self._batch_id}.{which}.whole"

    def remove(self) -> None:
        """After its files are stored."""
        with explained(self._folder):
            for which in (GOOD, BAD):
                self.path(which).unlink(missing_ok=True)
                self.target(which).unlink(missing_ok=True)


def sweep(folder: Path, unfinished: Sequence[str]) -> None:
    """Remove what belongs to batches that have ended, or never were."""
    with explained(folder):
        for path in folder.iterdir():
            if path.name.partition(".")[0] not in unfinished:
                path.unlink(missing_ok=True)
