"""Where results go: files whole or not at all, devices and pipes written to, links followed, nothing else replaced."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from headway.loadtest.bench.files import Files
from headway.loadtest.bench.outputs import is_stdout, write_bytes, write_output
from headway.loadtest.errors import InvalidPlan
from headway.loadtest.report.csv_file import HEADER


def test_a_file_is_whole_or_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    write_bytes(path, b"one")

    def half(out: object) -> None:
        out.write(b"half")  # type: ignore[attr-defined]
        raise OSError(28, "No space left on device")

    with pytest.raises(InvalidPlan, match=r"run.json cannot be written: No space left"):
        write_output(path, half)
    assert path.read_bytes() == b"one"
    assert list(tmp_path.iterdir()) == [path]


def test_two_writers_of_one_file_do_not_meet(tmp_path: Path) -> None:
    """The second writes and ends while the first is at it: each file is whole, and the last to end is there."""
    path = tmp_path / "run.json"

    def slowly(out: object) -> None:
        out.write(b"first, ")  # type: ignore[attr-defined]
        write_bytes(path, b"second")
        assert path.read_bytes() == b"second"
        out.write(b"and whole")  # type: ignore[attr-defined]

    write_output(path, slowly)
    assert path.read_bytes() == b"first, and whole"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("length", [250, 255])
def test_a_name_as_long_as_names_can_be(tmp_path: Path, length: int) -> None:
    path = tmp_path / ("n" * (length - 5) + ".json")
    Files(json=path).check()
    write_bytes(path, b"here")
    assert path.read_bytes() == b"here"
    with pytest.raises(InvalidPlan, match="name too long"):
        Files(json=tmp_path / ("n" * 256)).check()


def test_a_new_file_may_be_read_by_whom_the_umask_lets(tmp_path: Path) -> None:
    (tmp_path / "usual").write_bytes(b"")
    write_bytes(tmp_path / "ours", b"")
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "usual").stat().st_mode


def test_of_a_link_the_target_is_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    target, link, hanging = folder / "real.json", tmp_path / "link.json", tmp_path / "hanging.json"
    target.write_text("")
    link.symlink_to("elsewhere/real.json")
    hanging.symlink_to(folder / "new.json")
    for path in (link, hanging):
        Files(json=path).check()
        write_bytes(path, b"here")
        assert path.is_symlink()
    assert target.read_bytes() == (folder / "new.json").read_bytes() == b"here"


def test_links_in_a_ring_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(InvalidPlan, match="cannot be written"):
        Files(json=tmp_path / "a").check()


def test_a_device_is_written_to_and_stays_one(tmp_path: Path) -> None:
    link = tmp_path / "full"
    link.symlink_to("/dev/full")
    Files(json=link).check()
    with pytest.raises(InvalidPlan, match="No space left"):
        write_bytes(link, b"x")
    write_bytes(Path(os.devnull), b"x")
    assert stat.S_ISCHR(Path(os.devnull).stat().st_mode)
    assert stat.S_ISCHR(link.stat().st_mode)


def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    heard: list[bytes] = []
    listener = threading.Thread(target=lambda: heard.append(pipe.read_bytes()))
    listener.start()
    Files(csv=pipe).check()
    write_bytes(pipe, b"lines")
    listener.join(10)
    assert heard == [b"lines"]
    assert pipe.is_fifo()


@pytest.mark.parametrize("path", ["-", "/dev/stdout"])
def test_what_is_printed_and_what_is_written_to_stdout_come_in_order(tmp_path: Path, path: str) -> None:
    """Also into a file: that is not replaced under the shell that opened it."""
    code = (
        "import sys; from pathlib import Path; from headway.loadtest.bench.outputs import write_bytes, is_stdout\n"
        "print('before'); write_bytes(Path(sys.argv[1]), b'written\\n'); print('after', is_stdout(Path(sys.argv[1])))"
    )
    kept = tmp_path / "kept"
    with kept.open("wb") as out:
        subprocess.run([sys.executable, "-c", code, path], stdout=out, check=True, timeout=60)
    assert kept.read_text() == "before\nwritten\nafter True\n"
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == kept.read_text()


def test_an_ordinary_path_is_no_stream(tmp_path: Path) -> None:
    assert not is_stdout(tmp_path / "-")
    assert not is_stdout(Path(os.devnull))


@pytest.mark.parametrize("other", ["run.json", "./run.json", "link"])
def test_two_outputs_on_one_path_are_refused(tmp_path: Path, other: str) -> None:
    (tmp_path / "link").symlink_to("run.json")
    with pytest.raises(InvalidPlan, match="Two outputs"):
        Files(json=tmp_path / "run.json", html=Path(f"{tmp_path}/{other}")).check()
    with pytest.raises(InvalidPlan, match="Two outputs"):
        Files(json=Path("-"), csv=Path("/dev/stdout")).check()
    Files(json=Path(os.devnull), csv=Path(os.devnull)).check()


OURS = {
    "json": b'{\n"schema_version": 1,\n"x": 1}',
    "csv": ",".join(HEADER).encode() + b"\n0",
    "html": b'<!doctype html><meta name="generator" content="headway bench">',
}


@pytest.mark.parametrize("kind", OURS)
def test_only_a_result_of_its_kind_is_overwritten(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "out"
    output: dict[str, Any] = {kind: path}
    for name, content in {**OURS, "empty": b"", "other": b"my notes", "config": b'{"a": 1}'}.items():
        path.write_bytes(content)
        if name in {kind, "empty"}:
            Files(**output).check()
        else:
            with pytest.raises(InvalidPlan, match="is not overwritten"):
                Files(**output).check()
        assert path.read_bytes() == content


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(InvalidPlan, match="is a folder"):
        Files(json=tmp_path).check()
    (tmp_path / "file").touch()
    with pytest.raises(InvalidPlan, match="cannot be made"):
        Files(json=tmp_path / "file" / "run.json").check()
