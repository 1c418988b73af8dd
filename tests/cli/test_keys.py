"""`headway keys`, as a person uses it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from headway.cli import status
from headway.gateway.tenancy import KeyRing


def test_a_key_is_made_shown_once_listed_and_revoked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "keys.jsonl"
    assert status(["keys", "create", "alice", "--api-keys", str(file), "--label", "laptop"]) == 0
    out, err = capsys.readouterr()
    presented = out.strip()
    assert "\n" not in presented  # alone, for scripts
    found = KeyRing(file).find(presented, time.time())
    assert found is not None
    assert found.id in err
    assert status(["keys", "list", "--api-keys", str(file)]) == 0
    listed = capsys.readouterr().out
    assert found.id in listed
    assert "laptop" in listed
    assert "valid" in listed
    assert presented not in listed
    assert status(["keys", "list", "--api-keys", str(file), "--tenant", "bob"]) == 0
    assert found.id not in capsys.readouterr().out
    assert status(["keys", "revoke", found.id, "--api-keys", str(file)]) == 0
    assert status(["keys", "list", "--api-keys", str(file)]) == 0
    assert "revoked" in capsys.readouterr().out
    assert KeyRing(file).find(presented, time.time()) is None


def test_a_key_for_administration_and_one_that_ends(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "keys.jsonl"
    assert status(["keys", "create", "ops", "--api-keys", str(file), "--admin", "--expires-in-days", "2"]) == 0
    found = KeyRing(file).find(capsys.readouterr().out.strip(), time.time())
    assert found is not None
    assert found.admin
    assert found.expires_at_s == pytest.approx(time.time() + 2 * 86_400, abs=60)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["create", "a b"], "not a usable name"),
        (["create", "alice", "--expires-in-days", "0"], "must be above 0"),
        (["create", "alice", "--expires-in-days", "nan"], "must be above 0"),
        (["list"], "cannot be read"),
        (["revoke", "key_1"], "cannot be read"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    assert status(["keys", *arguments, "--api-keys", str(tmp_path / "keys.jsonl")]) == 2
    err = capsys.readouterr().err
    assert says in err
    assert err.count("\n") == 1
