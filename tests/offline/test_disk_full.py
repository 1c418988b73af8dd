"""A disk that fills up midway: the batch stops cleanly, loses nothing that was finished, and can be gone on with.

A limit on a process's files stands for it everywhere; where a plain user may mount one, a file system of 300 KiB is
really full.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from headway.child_process import environment

# Arguments: the folder of the output, and what makes room again.
_SCRIPT = """
import asyncio, json, pathlib, resource, signal, subprocess, sys
from collections import Counter
from headway.offline.batch import Batch, Wanted
from headway.offline.files import Files
from tests.offline.fakes import FakeWorker, batch, begin, ids, openai_line, write_lines

folder, source = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]) / "in.jsonl"
output = folder / "out.jsonl"
write_lines(source, [openai_line(number) for number in range(3000)])
if sys.argv[3] == "limit":
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
ended = asyncio.run(begin(source, output, FakeWorker(delay_s=0.001)))
done = ids(output)
assert output.read_bytes().endswith(b"\\n"), "no torn line"
assert 50 < len(done) < 3000, len(done)
print(ended.reason)
if sys.argv[3] == "limit":
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
else:
    subprocess.run(["mount", "-o", "remount,size=20m", str(folder)], check=True)
worker = FakeWorker()
ended = asyncio.run(batch(output, worker).resume())
assert not ended.reason, ended.reason
assert not set(worker.tries) & set(done), "what was finished is not done again"
assert Counter(ids(output)) == Counter(f"item-{number}" for number in range(3000))
"""


def run(folder, *command):
    root = Path(__file__).parents[2]
    own = {"PYTHONPATH": f"{environment()['PYTHONPATH']}:{root}"}
    with tempfile.TemporaryDirectory() as other:
        done = subprocess.run(
            [*command, str(folder), other, "mount" if command[0] == "unshare" else "limit"],
            env={**environment(), **own},
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_limit_on_files_stops_it_cleanly(tmp_path):
    assert "out.jsonl cannot be written: File too large" in run(tmp_path, sys.executable, "-c", _SCRIPT)


_MOUNT = 'mount -t tmpfs -o size=300k none "$2" && exec "$0" -c "$1" "$2" "$3" "$4"'


def _can_mount() -> bool:
    if shutil.which("unshare") is None:
        return False
    with tempfile.TemporaryDirectory() as place:
        tried = subprocess.run(
            ["unshare", "--user", "--map-root-user", "--mount", "mount", "-t", "tmpfs", "none", place],
            check=False,
            capture_output=True,
        )
    return tried.returncode == 0


if _can_mount():

    def test_a_disk_that_is_really_full(tmp_path):
        told = run(
            tmp_path, "unshare", "--user", "--map-root-user", "--mount", "sh", "-c", _MOUNT, sys.executable, _SCRIPT
        )
        assert "The disk is full while writing" in told
        assert "make room and run `headway batch resume`" in told
