"""API keys: what is kept of them, whose they are, and what a file may hold."""

from __future__ import annotations

import json
import stat
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.errors import ConfigError, NotFound
from headway.gateway.tenancy.keys import KeyFile, KeyRing

NOW_S = 1_800_000_000.0


@pytest.fixture
def file(tmp_path: Path) -> KeyFile:
    return KeyFile(tmp_path / "keys.jsonl")


def test_a_key_is_its_tenants_until_it_is_revoked(file: KeyFile, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    alice, presented = file.create("alice", NOW_S, label="laptop")
    _, other = file.create("bob", NOW_S)
    ring = KeyRing(file.path)
    found = ring.find(presented, NOW_S)
    assert found == alice
    bobs = ring.find(other, NOW_S)
    assert bobs is not None
    assert bobs.tenant == "bob"
    revoked = file.revoke(alice.id, NOW_S + 1)
    assert revoked.state(NOW_S + 1) == "revoked"
    assert ring.find(presented, NOW_S) == alice  # until the file is read again
    assert ring.refresh()
    assert "1 of 2 are valid" in caplog.text
    assert ring.find(presented, NOW_S) is None
    assert ring.find(other, NOW_S) is not None
    assert not ring.refresh()
    assert [key.id for key in file.read()] == [alice.id, bobs.id]  # who was let in stays on record


def test_what_is_kept_is_not_the_key_and_only_its_owner_reads_it(file: KeyFile) -> None:
    _, presented = file.create("alice", NOW_S)
    text = file.path.read_text()
    assert presented not in text
    assert presented[3:-4] not in text
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600


def test_a_key_ends_by_itself(file: KeyFile) -> None:
    key, presented = file.create("alice", NOW_S, expires_at_s=NOW_S + 60)
    ring = KeyRing(file.path)
    assert ring.find(presented, NOW_S + 59) == key
    assert ring.find(presented, NOW_S + 60) is None
    assert key.state(NOW_S + 60) == "expired"


@given(st.text(max_size=80))
def test_anything_else_is_nobodys(tmp_path_factory: pytest.TempPathFactory, presented: str) -> None:
    file = KeyFile(tmp_path_factory.getbasetemp() / "shared-keys.jsonl")
    if not file.path.exists():
        file.create("alice", NOW_S)
    assert KeyRing(file.path).find(presented, NOW_S) is None


def test_a_lone_surrogate_and_a_book_are_nobodys(file: KeyFile) -> None:
    file.create("alice", NOW_S)
    ring = KeyRing(file.path)
    assert ring.find("hw-\udcff", NOW_S) is None
    assert ring.find("x" * 10_000_000, NOW_S) is None


def test_no_key_is_lost_when_many_are_made_at_once(file: KeyFile) -> None:
    threads = [threading.Thread(target=file.create, args=(f"t{n}", NOW_S)) for n in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {key.tenant for key in file.read()} == {f"t{n}" for n in range(12)}


@pytest.mark.parametrize("tenant", ["", " ", "a b", "-a", "a" * 65, "ä", "a\n", "a/b"])
def test_a_tenant_has_a_usable_name(file: KeyFile, tenant: str) -> None:
    with pytest.raises(ConfigError) as refused:
        file.create(tenant, NOW_S)
    assert refused.value.param == "tenant"
    assert not file.path.exists()


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("nonsense", "not a JSON object"),
        ('{"id":"k","tenant":"a"}', "sha256"),
        ('{"id":"k","tenant":"a","sha256":7}', "sha256"),
        ('{"id":"k","tenant":"a","sha256":"xyz"}', "sha256"),
        ('{"id":"k","tenant":"a b","sha256":"' + "0" * 64 + '"}', "tenant"),
        ('{"id":"k","tenant":"a","sha256":"' + "0" * 64 + '","limit":3}', "limit"),
    ],
)
def test_a_wrong_line_is_named(file: KeyFile, line: str, says: str) -> None:
    file.create("alice", NOW_S)
    with file.path.open("a") as appended:
        appended.write("\n" + line + "\n")
    with pytest.raises(ConfigError) as refused:
        KeyRing(file.path)
    assert f"{file.path}:3" in refused.value.message
    assert says in refused.value.message


def test_a_key_stands_there_once(file: KeyFile) -> None:
    file.create("alice", NOW_S)
    line = file.path.read_text()
    file.path.write_text(line + line)
    with pytest.raises(ConfigError, match="above already"):
        file.read()
    other = {**json.loads(line), "id": "key_other"}
    file.path.write_text(line + json.dumps(other) + "\n")
    with pytest.raises(ConfigError, match="same key as in line 1"):
        file.read()


def test_a_file_that_breaks_while_serving_changes_nothing(file: KeyFile, caplog: pytest.LogCaptureFixture) -> None:
    _, presented = file.create("alice", NOW_S)
    ring = KeyRing(file.path)
    file.path.write_text("broken\n")
    assert not ring.refresh()
    assert ring.find(presented, NOW_S) is not None
    assert f"{file.path}:1" in caplog.text
    file.path.unlink()
    assert not ring.refresh()
    assert ring.find(presented, NOW_S) is not None
    with pytest.raises(ConfigError):
        ring.reload()
    assert ring.find(presented, NOW_S) is not None


def test_what_cannot_be_revoked_or_read_is_said(file: KeyFile) -> None:
    with pytest.raises(ConfigError, match="headway keys create"):
        KeyRing(file.path)
    file.create("alice", NOW_S)
    with pytest.raises(NotFound):
        file.revoke("key_none", NOW_S)


def test_a_file_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError):
        KeyFile(tmp_path / "file" / "keys").create("alice", NOW_S)
