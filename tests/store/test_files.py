from __future__ import annotations

import contextlib
import errno
import hashlib
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types import FileObject

from headway.store import (
    AlreadyExists,
    BadValue,
    BatchState,
    Corrupt,
    DiskFull,
    InUse,
    NotFound,
    Received,
    StoreFailed,
    TooLarge,
)
from tests.store.places import START_S, crashed, open_store, temporary

NOW_S = START_S
MIB = 1024**2


def upload(store, id, content=b"content", tenant="alice", **more):
    with store.contents.receive(id) as incoming:
        for start in range(0, len(content), 1000):
            incoming.write(content[start : start + 1000])
        settings = {"filename": f"{id}.jsonl", "purpose": "batch", "now_s": NOW_S, **more}
        return store.files.add(incoming.finish(), id, tenant, **settings)


def contents_of(directory: Path):
    return {
        path.relative_to(directory).as_posix()
        for folder in ("files", "incoming", "spool")
        for path in (directory / folder).iterdir()
    }


@given(st.lists(st.binary(max_size=300), max_size=8))
@settings(max_examples=40, deadline=None)
def test_what_was_written_in_pieces_is_read_as_one(pieces):
    with temporary() as directory, open_store(directory) as store:
        with store.contents.receive("f") as incoming:
            for piece in pieces:
                incoming.write(piece)
            stored = store.files.add(incoming.finish(), "f", "alice", filename="a.jsonl", purpose="batch", now_s=NOW_S)
        content = b"".join(pieces)
        assert (stored.bytes, stored.sha256) == (len(content), hashlib.sha256(content).hexdigest())
        assert b"".join(store.files.read("f", "alice", chunk_bytes=7)) == content
        assert store.files.get("f", "alice") == stored
        assert contents_of(directory) == {"files/f"}
        store.check()


def test_a_file_is_as_openai_shows_it(store):
    shown = upload(store, "file-1", b"12345", expires_at_s=NOW_S + 60.5).as_openai()
    assert shown == {
        "id": "file-1",
        "object": "file",
        "bytes": 5,
        "created_at": int(NOW_S),
        "expires_at": int(NOW_S) + 60,
        "filename": "file-1.jsonl",
        "purpose": "batch",
        "status": "processed",
        "status_details": None,
    }
    assert FileObject.model_validate(shown, strict=True).filename == "file-1.jsonl"


def test_another_tenants_file_is_not_found(store):
    upload(store, "f", tenant="alice")
    for call in (
        lambda: store.files.get("f", "bob"),
        lambda: store.files.open("f", "bob"),
        lambda: store.files.delete("f", "bob", NOW_S),
        lambda: store.files.list("bob", after="f"),
    ):
        with pytest.raises(NotFound):
            call()
    assert store.files.list("bob").items == []


def test_a_file_above_the_limit_is_refused_with_the_chunk_that_passes_it(directory):
    with open_store(directory, max_file_bytes=10) as store:
        with store.contents.receive("f") as incoming:
            incoming.write(b"0123456789")
            with pytest.raises(TooLarge, match="10 bytes"):
                incoming.write(b"x")
        assert contents_of(directory) == set()
        assert upload(store, "f", b"0123456789").bytes == 10


def test_the_limit_is_200_mib_unless_told(store):
    assert store.contents.max_bytes == 200 * MIB


def test_a_tenants_files_together_have_a_limit(directory):
    with open_store(directory, max_tenant_bytes=10) as store:
        upload(store, "a", b"123456")
        with pytest.raises(TooLarge, match=r"10 bytes together; they take 6, and this one has 5"):
            upload(store, "b", b"12345")
        upload(store, "b", b"12345", tenant="bob")
        spooled = store.contents.spool / "b-output"
        spooled.write_bytes(b"12345")  # work that was done is kept all the same
        received = store.contents.measure(spooled)
        store.files.add(received, "out", "alice", filename="o", purpose="batch_output", now_s=NOW_S)
        store.files.delete("a", "alice", NOW_S)
        upload(store, "c", b"12345")
        assert contents_of(directory) == {"files/b", "files/c", "files/out"}


def test_an_upload_that_is_given_up_leaves_nothing(store, directory):
    with contextlib.suppress(ConnectionError), store.contents.receive("f") as incoming:
        incoming.write(b"some")
        raise ConnectionError
    with store.contents.receive("f") as incoming:
        incoming.write(b"some")
        incoming.finish()  # and never added
    assert contents_of(directory) == set()


def test_one_id_is_received_once_at_a_time_and_stored_once(store, directory):
    with store.contents.receive("f"), pytest.raises(AlreadyExists):
        store.contents.receive("f")
    upload(store, "f", b"first")
    with pytest.raises(AlreadyExists):
        upload(store, "f", b"second", tenant="bob")
    assert b"".join(store.files.read("f", "alice")) == b"first"
    assert contents_of(directory) == {"files/f"}


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"filename": ""}, "filename"),
        ({"filename": "a\0b"}, "filename"),
        ({"filename": "x" * 513}, "filename"),
        ({"purpose": "p" * 65}, "purpose"),
        ({"status": "done"}, "status"),
        ({"expires_at_s": float("nan")}, "expires_at_s"),
        ({"now_s": -1}, "now_s"),
        ({"tenant": ""}, "tenant"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused_by_name_and_leaves_nothing(store, directory, wrong, field):
    with pytest.raises(BadValue) as refusal:
        upload(store, "f", **wrong)
    assert refusal.value.param == field
    assert contents_of(directory) == set()


@pytest.mark.parametrize("id", ["", ".", "..", "../f", "a/b", "a.b", "x" * 129, "ä", "f\n"])
def test_an_id_that_could_name_another_file_is_refused(store, id):
    with pytest.raises(BadValue, match="id must be"):
        store.contents.receive(id)
    with pytest.raises(NotFound):
        store.files.open(id, "alice")


def test_lists_are_by_purpose_and_newest_first(store):
    for number in range(4):
        upload(store, f"f{number}", purpose="batch" if number % 2 else "user_data")
    assert [file.id for file in store.files.list("alice").items] == ["f3", "f2", "f1", "f0"]
    assert [file.id for file in store.files.list("alice", order="asc", purpose="batch").items] == ["f1", "f3"]
    page = store.files.list("alice", limit=1, purpose="batch")
    assert ([file.id for file in page.items], page.has_more) == (["f3"], True)
    page = store.files.list("alice", limit=1, purpose="batch", after="f3")
    assert ([file.id for file in page.items], page.has_more) == (["f1"], False)


def test_a_client_may_delete_while_it_pages(store, directory):
    for number in range(5):
        upload(store, f"f{number}")
    seen, after, more = [], None, True
    while more:
        page = store.files.list("alice", after=after, limit=2)
        for file in page.items:
            seen.append(file.id)
            store.files.delete(file.id, "alice", NOW_S)
        after, more = page.items[-1].id, page.has_more
    assert seen == ["f4", "f3", "f2", "f1", "f0"]
    assert contents_of(directory) == set()


def test_a_deleted_file_is_read_to_its_end_by_who_has_it_open(store):
    upload(store, "f", b"x" * 5000)
    chunks = store.files.read("f", "alice", chunk_bytes=1000)
    first = next(chunks)
    store.files.delete("f", "alice", NOW_S)
    assert first + b"".join(chunks) == b"x" * 5000
    with pytest.raises(NotFound):
        store.files.read("f", "alice")


def test_an_expired_file_is_swept_unless_a_batch_reads_it(store, directory):
    upload(store, "read", expires_at_s=NOW_S + 10)
    upload(store, "alone", expires_at_s=NOW_S + 10)
    upload(store, "later", expires_at_s=NOW_S + 11)
    upload(store, "never")
    store.batches.create("b", "alice", input_file_id="read", endpoint="/v1/completions", now_s=NOW_S)
    assert store.files.sweep(NOW_S + 9.9).deleted == 0
    assert store.files.sweep(NOW_S + 10).deleted == 1
    assert contents_of(directory) == {"files/read", "files/later", "files/never"}
    with pytest.raises(InUse, match="input of the batch b"):
        store.files.delete("read", "alice", NOW_S)
    store.batches.move("b", BatchState.FAILED, NOW_S)
    assert store.files.sweep(NOW_S + 10).deleted == 1
    assert contents_of(directory) == {"files/later", "files/never"}


def test_content_that_was_changed_behind_our_back_is_told(store, directory):
    upload(store, "f", b"x" * 5000)
    path = directory / "files" / "f"
    path.write_bytes(b"y" * 5000)
    with pytest.raises(Corrupt, match="SHA-256"):
        store.check()
    path.write_bytes(b"x" * 4999)
    with pytest.raises(Corrupt, match=r"4,999 bytes and should have 5,000"):
        store.files.open("f", "alice")
    path.unlink()
    with pytest.raises(Corrupt, match="missing"):
        store.files.open("f", "alice")


def test_a_batchs_output_is_taken_over_and_a_repeated_call_changes_nothing(store, directory):
    spooled = store.contents.spool / "b-output"
    spooled.write_bytes(b"line\n" * 1000)
    details = {"filename": "output.jsonl", "purpose": "batch_output", "now_s": NOW_S}
    received = store.contents.measure(spooled)
    stored = store.files.add(received, "out", "alice", **details)
    assert contents_of(directory) == {"files/out"}
    assert b"".join(store.files.read("out", "alice")) == b"line\n" * 1000
    # A kill before the spooled file was removed: everything is done again.
    spooled.write_bytes(b"line\n" * 1000)
    assert store.files.add(store.contents.measure(spooled), "out", "alice", **details) == stored
    assert contents_of(directory) == {"files/out"}
    spooled.write_bytes(b"another\n")
    with pytest.raises(AlreadyExists):
        store.files.add(store.contents.measure(spooled), "out", "alice", **details)
    assert contents_of(directory) == {"files/out", "spool/b-output"}


def test_a_batchs_output_survives_a_failure_to_store_it(store, directory):
    spooled = store.contents.spool / "b-output"
    spooled.write_bytes(b"finished work\n")
    with pytest.raises(BadValue):
        store.files.add(
            store.contents.measure(spooled), "out", "alice", filename="", purpose="batch_output", now_s=NOW_S
        )
    assert contents_of(directory) == {"spool/b-output"}


def test_where_there_are_no_hard_links_the_output_is_copied(store, directory, monkeypatch):
    def refuse(self, target):
        raise OSError(errno.EPERM, "no hard links here")

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    spooled = store.contents.spool / "b-output"
    spooled.write_bytes(b"finished work\n")
    received = store.contents.measure(spooled)
    store.files.add(received, "out", "alice", filename="o", purpose="batch_output", now_s=NOW_S)
    assert b"".join(store.files.read("out", "alice")) == b"finished work\n"
    assert contents_of(directory) == {"files/out"}


def test_what_a_kill_left_is_swept_at_the_next_opening_and_nothing_else(directory):
    with open_store(directory) as store:
        upload(store, "kept")
        (store.contents.spool / "b-output").write_bytes(b"half a batch")
        with store.contents.receive("half") as incoming:
            incoming.write(b"half an upload")
            (directory / "files" / "renamed").write_bytes(b"no row was written")
            left = crashed(directory)
    try:
        with open_store(left) as store:
            assert contents_of(left) == {"files/kept", "spool/b-output"}
            store.check()
            upload(store, "half")
    finally:
        for folder, _, names in os.walk(left, topdown=False):
            for name in names:
                (Path(folder) / name).unlink()
            Path(folder).rmdir()


@pytest.mark.parametrize(
    ("number", "refusal"),
    [(errno.ENOSPC, DiskFull), (errno.EDQUOT, DiskFull), (errno.EIO, StoreFailed)],
    ids=["full", "quota", "broken"],
)
def test_a_disk_that_fails_under_an_upload_says_so_and_nothing_is_stored(
    store, directory, monkeypatch, number, refusal
):
    def fail(descriptor):
        raise OSError(number, os.strerror(number))

    upload(store, "before")
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fail)
        with pytest.raises(refusal, match="is full" if refusal is DiskFull else os.strerror(number)):
            upload(store, "f")
    assert contents_of(directory) == {"files/before"}
    upload(store, "f")


def test_a_failure_between_the_rename_and_the_commit_stores_nothing(store, directory, monkeypatch):
    real = store.contents.place

    def place(received: Received, id: str) -> None:
        real(received, id)
        raise OSError(errno.EIO, "pulled out")

    with monkeypatch.context() as patched:
        patched.setattr(store.contents, "place", place)
        with pytest.raises(OSError, match="pulled out"):
            upload(store, "f")
    assert contents_of(directory) == set()
    assert store.files.list("alice").items == []
    upload(store, "f")
