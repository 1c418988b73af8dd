"""A batch on a real Ray cluster of this machine, two workers: the same records, the same resume, whatever dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.cli.running import Server
from tests.offline.fakes import ids, openai_line, read_lines, write_lines

# Ray is an extra, which `make test-slow` installs.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

ITEMS = 60
ON_RAY = ("--on", "ray", "--ray-workers", "2", "--executor", "simulated", "--quiet")


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "headway", "batch", *map(str, arguments)]


def run(*arguments: str | Path) -> str:
    done = subprocess.run(command(*arguments), capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "in.jsonl"
    write_lines(path, [openai_line(number, max_tokens=48, ignore_eos=True) for number in range(ITEMS)])
    return path


def every_id_once(output: Path) -> None:
    assert Counter(ids(output)) == Counter(f"item-{number}" for number in range(ITEMS))


def some_are_done(output: Path, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 120
    while len(read_whole_lines(output)) < 3:
        assert process.poll() is None, "it ended too soon"
        assert time.monotonic() < deadline, "it does not begin"
        time.sleep(0.02)


def read_whole_lines(path: Path) -> list[bytes]:
    return path.read_bytes().split(b"\n")[:-1] if path.exists() else []


def actors_of(root: int) -> list[int]:
    """The actors' processes in the cluster that a process started."""
    listed = subprocess.run(["ps", "-e", "-o", "pid=,args="], capture_output=True, text=True, check=True).stdout
    found = [int(line.split()[0]) for line in listed.splitlines() if "ray::Hosted" in line]
    return [pid for pid in found if root in ancestors(pid)]


def ancestors(pid: int) -> set[int]:
    seen: set[int] = set()
    while pid > 1 and pid not in seen:
        seen.add(pid)
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
        except (OSError, IndexError):
            break
    return seen


def test_both_workers_run_it_and_records_are_the_same(tmp_path: Path, source: Path) -> None:
    output, here = tmp_path / "out.jsonl", tmp_path / "here.jsonl"
    run("run", source, "-o", output, *ON_RAY)
    run("run", source, "-o", here, "--executor", "simulated", "--quiet")
    every_id_once(output)
    on_ray, at_home = ({one["custom_id"]: one for one in read_lines(path)} for path in (output, here))
    assert {one["headway"]["worker"] for one in on_ray.values()} == {"ray-1", "ray-2"}
    for name, one in on_ray.items():
        other = at_home[name]
        assert one["headway"].keys() == other["headway"].keys()
        for same in ("line", "hash", "input_tokens", "output_tokens"):
            assert one["headway"][same] == other["headway"][same]


def test_killed_and_resumed_and_an_actor_killed_on_the_way(tmp_path: Path, source: Path) -> None:
    output = tmp_path / "out.jsonl"
    process = subprocess.Popen(command("run", source, "-o", output, *ON_RAY, "--max-num-seqs", "1"))
    some_are_done(output, process)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = len(read_whole_lines(output))
    assert 0 < before < ITEMS
    process = subprocess.Popen(command("resume", output, "--quiet"))
    deadline = time.monotonic() + 120
    while not (actors := actors_of(process.pid)) or len(read_whole_lines(output)) < before + 3:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.kill(actors[0], signal.SIGKILL)
    assert process.wait(150) == 0
    every_id_once(output)


def test_servers_behind_actors_and_what_cannot_be(tmp_path: Path, source: Path) -> None:
    with Server("--executor", "simulated", "--served-model-name", "m") as server:
        run("run", source, "-o", tmp_path / "out.jsonl", "--on", "ray", "--url", server.url, "--quiet")
    every_id_once(tmp_path / "out.jsonl")
    for flags, words in (
        (("--ray-workers", "999"), "Lower --ray-workers"),
        (("--ray-gpus", "4"), "this Ray cluster has 0"),
        (("--model", "/nowhere/at-all"), "/nowhere/at-all"),
    ):
        done = subprocess.run(
            command("run", source, "-o", tmp_path / "other.jsonl", "--on", "ray", *flags),
            capture_output=True, text=True, timeout=100, check=False,
        )  # fmt: skip
        assert done.returncode in (1, 2)
        assert words in done.stderr
        assert not (tmp_path / "other.jsonl").exists(), "nothing was begun"
