"""Opening: versions, other programs' files, damage, rights, the lock; and a disk that is full."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import stat
import subprocess
import sys
import threading

import pytest

from headway.child_process import environment
from headway.store import (
    Corrupt,
    JobState,
    Locked,
    NotFound,
    Store,
    StoreFailed,
    Unwritable,
    WrongVersion,
    database,
)
from headway.store.contents import Contents
from headway.store.database import Database
from headway.store.jobs import Jobs
from headway.store.schema import STEPS, Step
from tests.store.places import START_S, open_store

NOW_S = START_S
NEXT = Step("a table of a later version", ("CREATE TABLE later (id INTEGER PRIMARY KEY, what TEXT) STRICT",))


def create(store, id, size_bytes=10):
    store.jobs.create(id, "alice", b"x" * size_bytes, kind="background", endpoint="/v1/completions", now_s=NOW_S)


@contextlib.contextmanager
def as_nobody():
    """Rights mean nothing to root, under which some run their tests."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_new_store_is_of_the_present_version_and_for_its_owner_only(directory):
    place = directory / "deep" / "inside"
    with open_store(place) as store:
        create(store, "job_1")
        for path in (place, *place.iterdir()):
            assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, f"others may see {path.name}"
    plain = sqlite3.connect(place / "store.db")
    assert plain.execute("PRAGMA user_version").fetchone() == (len(STEPS),)
    assert plain.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    plain.close()


def test_an_older_store_is_upgraded_with_all_it_holds(directory):
    with open_store(directory) as store:
        create(store, "job_1")
    with pytest.raises(WrongVersion, match="Open it for writing once"):
        Store.read(directory, steps=(*STEPS, NEXT))
    with Store.open(directory, holder="later", now_s=NOW_S, steps=(*STEPS, NEXT)) as store:
        assert store.jobs.request("job_1") == b"x" * 10
    with Store.read(directory, steps=(*STEPS, NEXT)) as store:
        assert store.jobs.get("job_1", "alice").id == "job_1"


def test_a_newer_store_is_refused_and_left_alone(directory):
    with Store.open(directory, holder="later", now_s=NOW_S, steps=(*STEPS, NEXT)) as store:
        create(store, "job_1")
    before = (directory / "store.db").read_bytes()
    for opening in (lambda: open_store(directory), lambda: Store.read(directory)):
        with pytest.raises(WrongVersion, match=f"version {len(STEPS) + 1}, and this Headway knows .* {len(STEPS)}"):
            opening()
    assert (directory / "store.db").read_bytes() == before
    with Store.open(directory, holder="later", now_s=NOW_S, steps=(*STEPS, NEXT)):
        pass  # the refused ones hold no lock


def test_a_step_that_fails_half_way_changes_nothing(directory):
    with open_store(directory) as store:
        create(store, "job_1")
    broken = Step("fails", ("CREATE TABLE half (id INTEGER) STRICT", "CREATE TABLE jobs (id INTEGER) STRICT"))
    with pytest.raises(StoreFailed, match="jobs already exists"):
        Store.open(directory, holder="later", now_s=NOW_S, steps=(*STEPS, NEXT, broken))
    with open_store(directory) as store:
        assert store.jobs.get("job_1", "alice").state is JobState.QUEUED
    with Store.open(directory, holder="later", now_s=NOW_S, steps=(*STEPS, NEXT)):
        pass


def test_steps_one_by_one_end_where_all_at_once_do(directory):
    def tables(path):
        plain = sqlite3.connect(path / "store.db")
        try:
            return plain.execute("SELECT type, name, sql FROM sqlite_schema ORDER BY name").fetchall()
        finally:
            plain.close()

    steps = (*STEPS, NEXT, Step("a column", ("ALTER TABLE later ADD COLUMN more TEXT",)))
    for number in range(1, len(steps) + 1):
        Store.open(directory / "one", holder="x", now_s=NOW_S, steps=steps[:number]).close()
    Store.open(directory / "all", holder="x", now_s=NOW_S, steps=steps).close()
    assert tables(directory / "one") == tables(directory / "all")


def test_another_programs_database_is_not_touched(directory):
    path = directory / "store.db"
    theirs = sqlite3.connect(path)
    theirs.execute("CREATE TABLE bookmarks (url TEXT)")
    theirs.commit()
    theirs.close()
    before = path.read_bytes()
    for opening in (lambda: open_store(directory), lambda: Store.read(directory)):
        with pytest.raises(WrongVersion, match="another program"):
            opening()
    assert path.read_bytes() == before


def test_what_is_no_database_is_not_touched(directory):
    (directory / "store.db").write_bytes(b"this is a text file, and a long one\n" * 200)
    for opening in (lambda: open_store(directory), lambda: Store.read(directory)):
        with pytest.raises(Corrupt, match=r"store.db is damaged: file is not a database\. Move it away"):
            opening()
    assert (directory / "store.db").read_bytes().startswith(b"this is a text file")


def test_a_damaged_database_says_so(directory):
    with open_store(directory) as store:
        for number in range(200):
            create(store, f"job_{number}", 500)
    path = directory / "store.db"
    content = bytearray(path.read_bytes())
    for start in range(4096, len(content), 4096):
        content[start : start + 64] = b"\xff" * 64
    path.write_bytes(content)
    with pytest.raises(Corrupt, match="damaged"), open_store(directory) as store:
        store.check()


def test_a_database_cut_short_says_so(directory):
    with open_store(directory) as store:
        for number in range(200):
            create(store, f"job_{number}", 500)
    os.truncate(directory / "store.db", 20_000)
    with pytest.raises(Corrupt, match="damaged"), open_store(directory) as store:
        store.check()


def test_a_sound_store_passes_its_check(store):
    create(store, "job_1")
    store.check()


def test_there_is_one_writer_and_the_second_learns_who_it_is(directory):
    with Store.open(directory, holder="headway serve on port 8000", now_s=NOW_S) as store:
        with pytest.raises(Locked) as refusal:
            open_store(directory)
        assert f"headway serve on port 8000 (process {os.getpid()} on " in refusal.value.holder
        assert refusal.value.holder in refusal.value.message
        assert "2025-06-15 15:06:40 UTC" in refusal.value.holder
        create(store, "job_1")
    with open_store(directory) as store:
        assert store.jobs.get("job_1", "alice").state is JobState.QUEUED


def test_a_lock_whose_holder_is_not_written_or_nonsense_still_locks(directory):
    with open_store(directory):
        for content in (b"", b"nonsense", b'{"name": 1}', b"\xff" * 100, b'{"since_s": 1e400}'):
            (directory / "writer.lock").write_bytes(content)
            with pytest.raises(Locked, match="has not said its name"):
                open_store(directory)


def test_a_killed_writers_lock_is_free_at_once(directory):
    code = (
        "import sys, pathlib, time\n"
        "from headway.store import Store\n"
        "store = Store.open(pathlib.Path(sys.argv[1]), holder='the killed', now_s=1.0)\n"
        "print('open', flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(directory)], env=environment(), stdout=subprocess.PIPE, text=True
    ) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "open\n"
            with pytest.raises(Locked, match=f"the killed .process {child.pid} "):
                open_store(directory)
        finally:
            child.kill()
    with open_store(directory) as store:
        create(store, "job_1")


def test_readers_see_what_is_committed_and_write_nothing(directory):
    with open_store(directory) as store, Store.read(directory) as reader, Store.read(directory) as another:
        create(store, "job_1")
        assert reader.jobs.get("job_1", "alice").state is JobState.QUEUED
        with store.transaction():
            create(store, "job_2")
            assert len(reader.jobs.list("alice").items) == 1
        assert len(another.jobs.list("alice").items) == 2
        for write in (
            lambda: create(reader, "job_3"),
            lambda: reader.jobs.claim_next("w", NOW_S, lease_s=1),
            lambda: reader.sweep(NOW_S + 1e9, keep_jobs_s=0, keep_batches_s=0),
        ):
            with pytest.raises(Unwritable, match="opened for reading"):
                write()
    with Store.read(directory) as reader:  # and without a writer
        assert len(reader.jobs.list("alice").items) == 2


def test_a_store_that_is_not_there_is_not_made_by_reading(directory):
    with pytest.raises(NotFound, match=r"no store in .*: store\.db is missing"):
        Store.read(directory / "nowhere")
    assert not (directory / "nowhere").exists()


def test_a_directory_that_cannot_be_written_is_told(directory):
    directory.chmod(0o755)
    with as_nobody():
        if os.geteuid() == directory.stat().st_uid:
            directory.chmod(0o555)
        with pytest.raises(Unwritable, match=r"cannot be written: Permission denied .*writer\.lock") as refusal:
            open_store(directory)
        assert "Give this user the right" in refusal.value.message
        with pytest.raises(Unwritable, match="Permission denied"):
            open_store(directory / "inside")


def test_a_directory_that_became_read_only_is_told_to_readers_too(directory):
    open_store(directory).close()
    for path in (directory, *directory.iterdir()):
        path.chmod(0o755 if path.is_dir() else 0o444)
    with as_nobody():
        if os.geteuid() == directory.stat().st_uid:
            directory.chmod(0o555)
        with pytest.raises(Unwritable, match="cannot be written"):
            open_store(directory)
        try:
            Store.read(directory).close()
        except Unwritable as refusal:
            assert "Give this user the right" in refusal.message
    directory.chmod(0o755)


def test_a_file_where_the_directory_should_be_is_told(directory):
    (directory / "file").write_text("")
    for place in (directory / "file", directory / "file" / "below"):
        with pytest.raises(Unwritable, match="something else"):
            open_store(place)


def test_a_place_with_odd_characters_works(directory):
    place = directory / "a b?c#d%20ü&mode=ro"
    with open_store(place) as store:
        create(store, "job_1")
    with Store.read(place) as store:
        assert store.jobs.get("job_1", "alice").id == "job_1"


def test_another_thread_is_refused_rather_than_let_in(store):
    caught: list[BaseException] = []

    def use():
        try:
            store.jobs.list("alice")
        except sqlite3.ProgrammingError as error:
            caught.append(error)

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert "thread" in str(caught[0])


def test_another_program_that_writes_is_waited_for_and_then_named(directory, monkeypatch):
    monkeypatch.setattr(database, "BUSY_TIMEOUT_S", 0.05)
    with open_store(directory) as store:
        other = sqlite3.connect(directory / "store.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreFailed, match="locked by a program that is not Headway"):
            create(store, "job_1")
        other.execute("ROLLBACK")
        other.close()
        create(store, "job_1")


def test_a_commit_waits_for_the_disk(store):
    """No test can cut the power; without this setting a client could hold the id of a job that is gone after a cut."""
    assert store._database.value("PRAGMA synchronous") == 2


def test_a_transaction_is_all_or_nothing(store):
    with contextlib.suppress(ZeroDivisionError), store.transaction():
        create(store, "job_1")
        raise ZeroDivisionError
    assert store.jobs.list("alice").items == []
    with store.transaction():
        create(store, "job_1")
        with contextlib.suppress(ZeroDivisionError), store.transaction():
            create(store, "job_2")
            raise ZeroDivisionError
        create(store, "job_3")
    assert [job.id for job in store.jobs.list("alice", order="asc").items] == ["job_1", "job_3"]


def test_closing_twice_is_no_error(directory):
    store = open_store(directory)
    store.close()
    store.close()
    with pytest.raises(sqlite3.ProgrammingError):
        store.jobs.list("alice")


def test_the_parts_work_alone(directory):
    """As a command line may use them: jobs without files, contents without rows."""
    rows = Database(directory)
    assert Jobs(rows).claim_next("w", NOW_S, lease_s=1) is None
    rows.close()
    contents = Contents(directory)
    contents.create()
    with contents.receive("f") as incoming:
        incoming.write(b"x")
        assert incoming.finish().bytes == 1
