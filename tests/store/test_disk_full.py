"""A disk that is full: all that was there stays, nothing of the change does, and with room again work goes on."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from headway.child_process import environment
from headway.store import DiskFull, ItemResult, ItemState, JobState, NewItem, Store, StoreFailed
from tests.store.places import START_S, open_store, temporary

NOW_S = START_S


def create(store, id, size_bytes=10):
    store.jobs.create(id, "alice", b"x" * size_bytes, kind="background", endpoint="/v1/completions", now_s=NOW_S)


class Small:
    """A disk of little room: SQLite's own limit on pages stands for it, and says the same as a full one."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def fill(self, store: Store) -> None:
        pages = store._database.value("PRAGMA page_count")
        store._database.value(f"PRAGMA max_page_count = {pages + 4}")

    def empty(self, store: Store) -> None:
        store._database.value("PRAGMA max_page_count = 1000000")


def test_a_full_disk_keeps_all_that_was_there_and_recovers(directory):
    disk = Small(directory)
    with open_store(directory) as store:
        create(store, "job_1", 5000)
        held = store.jobs.claim_next("w", NOW_S, lease_s=60)
        assert held is not None
        store.batches.create("b", "alice", input_file_id="f", endpoint="/v1/completions", now_s=NOW_S)
        disk.fill(store)
        for write in (
            lambda: create(store, "job_2", 100_000),
            lambda: store.jobs.complete(held, b"y" * 100_000, NOW_S),
            lambda: store.items.add("b", (NewItem(line, f"{line:0500}", b"h") for line in range(1, 1000))),
        ):
            with pytest.raises(DiskFull, match=r"is full \([\d,]+ bytes are free\)\. Nothing of this change was kept"):
                write()
        assert [job.id for job in store.jobs.list("alice").items] == ["job_1"]
        assert store.jobs.get("job_1", "alice").state is JobState.RUNNING
        assert store.batches.find("b").total == 0
        disk.empty(store)
        store.jobs.complete(held, b"y" * 100_000, NOW_S)
        store.items.add("b", [NewItem(1, "one", b"h")])
        store.items.record("b", [ItemResult(line=1, state=ItemState.COMPLETED)], NOW_S)
        store.check()


def test_a_full_disk_inside_a_larger_change_takes_back_the_whole(directory):
    disk = Small(directory)
    with open_store(directory) as store:
        disk.fill(store)
        with contextlib.suppress(DiskFull, StoreFailed), store.transaction():
            create(store, "job_1")
            with contextlib.suppress(DiskFull):
                create(store, "job_2", 100_000)
            create(store, "job_3")
        disk.empty(store)
        kept = {job.id for job in store.jobs.list("alice").items}
        assert kept in (set(), {"job_1", "job_3"})
        create(store, "job_4")
        store.check()


# A disk that is really full: a file system of 1 MiB in memory, mounted in a name space of the test's own where the
# machine lets a plain user do that. Elsewhere the tests above stand for it.
_REALLY_FULL = """
import pathlib, sys
from headway.store import DiskFull, Store, StoreError
place = pathlib.Path(sys.argv[1]) / "store"
store = Store.open(place, holder="x", now_s=1.0)
def create(number):
    store.jobs.create(f"job_{number}", "t", b"x" * 20_000, kind="k", endpoint="e", now_s=1.0)
kept = 0
try:
    for number in range(1000):
        create(number)
        kept += 1
except DiskFull as error:
    print(error.message)
assert 5 < kept < 100, kept
try:
    with store.contents.receive("f") as incoming:
        for _ in range(1000):
            incoming.write(b"x" * 10_000)
    raise SystemExit("a file of 10 MB went onto a disk of 1 MiB")
except DiskFull as error:
    print(error.message)
assert list((place / "incoming").iterdir()) == []
store.close()
with Store.read(place) as reader:
    assert len(reader.jobs.list("t", limit=1000).items) == kept
    reader.check()
with Store.open(place, holder="x", now_s=2.0) as store:  # what is full can be opened, and looked at
    assert len(store.jobs.list("t", limit=1000).items) == kept
print("kept", kept)
"""


def _can_mount() -> bool:
    if shutil.which("unshare") is None:
        return False
    with temporary() as place:
        tried = subprocess.run(
            ["unshare", "--user", "--map-root-user", "--mount", "mount", "-t", "tmpfs", "none", str(place)],
            check=False,
            capture_output=True,
        )
    return tried.returncode == 0


def really_full(directory):
    script = 'mount -t tmpfs -o size=1m none "$1" && exec "$2" -c "$3" "$1"'
    ran = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script, "sh", directory, sys.executable,
         _REALLY_FULL],
        env=environment(), check=False, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("is full (0 bytes are free)") == 2, ran.stdout
    assert "kept" in ran.stdout


if _can_mount():

    def test_a_disk_that_is_really_full(directory):
        really_full(directory)
