"""The journal: whatever byte it was cut at, what was whole before is there, once, and nothing else."""

from __future__ import annotations

import errno
import resource
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.child_process import environment
from headway.offline.errors import OutputFailed
from headway.offline.files import replacing
from headway.offline.journal import Journal, read_journal, recover
from headway.offline.record import ErrorBody, Record, answer_line, error_line


def line(number, text="ok"):
    record = Record(line=number, hash=f"{number:016x}", tries=1, input_tokens=3)
    return answer_line(f"id-{number}", record, b'{"text":"%b"}' % text.encode(), "r")


def recovered(data, **more):
    """What a journal with these bytes comes to: its numbers in order, and its bytes afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "journal.jsonl"
        path.write_bytes(data)
        seen = []
        found = recover(path, lambda written: seen.append(written.headway.line), **more)
        after = path.read_bytes()
        again = []
        assert recover(path, lambda written: again.append(written.headway.line)).clean
        assert again == seen, "recovering twice changes nothing"
        assert path.read_bytes() == after
        return found, seen, after


def never(error):
    raise error


WHOLE = [line(number, "x" * (number * 7 % 40)) for number in range(12)]


@settings(deadline=None)
@given(st.integers(0, len(b"".join(WHOLE))))
def test_cut_at_any_byte_keeps_exactly_the_whole_lines(cut):
    data = b"".join(WHOLE)[:cut]
    found, seen, after = recovered(data)
    whole = data.count(b"\n")
    assert seen == list(range(whole))
    assert after == b"".join(WHOLE[:whole])
    assert found.torn_bytes == cut - len(after)
    assert found.clean
    assert len(found.hashes) == whole


junk = st.one_of(
    st.binary(max_size=40).map(lambda data: data.replace(b"\n", b" ") + b"\n"),
    st.just(b"\0" * 64 + b"\n"),
    st.just(b'{"custom_id":"id-1"}\n'),
    st.just(b'{"headway":{"line":1,"hash":"zz"}}\n'),
)


@settings(deadline=None)
@given(st.lists(st.one_of(st.integers(0, 5), junk), max_size=20), st.integers(0, 60))
def test_broken_and_doubled_lines_are_taken_out(parts, cut):
    lines = [line(part, "x" * place) if isinstance(part, int) else part for place, part in enumerate(parts)]
    data = b"".join(lines)
    data = data[: max(0, len(data) - cut)]
    _, seen, after = recovered(data)
    kept = data.split(b"\n")[:-1]
    numbers = [
        part for part, text in zip(parts, lines, strict=True) if isinstance(part, int) and text.rstrip(b"\n") in kept
    ]
    assert seen == list(dict.fromkeys(numbers)), "the first of each, in order"
    assert after.count(b"\n") == len(seen)


def test_lines_can_be_left_out():
    _, seen, after = recovered(b"".join(WHOLE), without=lambda written: written.headway.line % 2 == 0)
    assert seen == [1, 3, 5, 7, 9, 11]
    assert after == b"".join(WHOLE[1::2])


def test_mending_keeps_a_link_a_link_and_secrets_secret(tmp_path):
    real, path = tmp_path / "disk" / "real.jsonl", tmp_path / "out.jsonl"
    real.parent.mkdir()
    real.write_bytes(b"".join(WHOLE) + b"junk\n")
    real.chmod(0o640)
    path.symlink_to(real)
    recover(path, lambda _: None)
    assert path.is_symlink()
    assert real.read_bytes() == b"".join(WHOLE)
    assert real.stat().st_mode & 0o777 == 0o640
    assert list(real.parent.iterdir()) == [real]


def test_a_file_that_cannot_be_replaced_is_left_and_nothing_beside_it(tmp_path):
    path = tmp_path / "out.job.json"
    path.write_text("before")

    def write_half():
        with replacing(path) as file:
            file.write(b"half")
            raise OSError(errno.ENOSPC, "no room")

    with pytest.raises(OutputFailed, match="The disk is full"):
        write_half()
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_lines_without_an_id_are_told_apart_by_their_place(tmp_path):
    path = tmp_path / "errors.jsonl"
    told = ErrorBody(code="invalid_json", message="no")
    path.write_bytes(b"".join(error_line(None, Record(line=n, hash="0" * 16), told) for n in (3, 4, 3)))
    seen = []
    found = recover(path, lambda written: seen.append(written.headway.line))
    assert seen == [3, 4]
    assert found.doubled == 1


def test_a_servers_json_over_many_lines_becomes_one():
    record = Record(line=1, hash="0" * 16)
    assert answer_line("a", record, b'{\n "a": 1,\r\n "b": [\n2]\n}', "r").count(b"\n") == 1


def test_what_is_appended_is_there_after_close_in_order(tmp_path):
    path = tmp_path / "out.jsonl"
    path.write_bytes(WHOLE[0])
    journal = Journal(path, never)
    for one in WHOLE[1:]:
        journal.append(one)
    journal.close()
    assert path.read_bytes() == b"".join(WHOLE)
    assert [written.headway.line for written in read_journal(path)] == list(range(12))


def test_a_journal_that_cannot_be_opened_says_so(tmp_path):
    with pytest.raises(OutputFailed, match=r"the folder .* does not exist. Make it first"):
        Journal(tmp_path / "nowhere" / "out.jsonl", never)
    with pytest.raises(OutputFailed, match="cannot be written"):
        Journal(tmp_path, never)


# A process of its own may write so many bytes to a file, and no more: the disk is full for it.
_LIMITED = """
import sys, pathlib
from headway.offline.journal import Journal
from tests.offline.test_journal import line
path = pathlib.Path(sys.argv[1])
told = []
journal = Journal(path, told.append)
for number in range(200):
    journal.append(line(number))
try:
    journal.close()
except Exception as error:
    print(type(error).__name__, len(told))
"""


def test_a_full_disk_leaves_whole_lines_and_is_told_once(tmp_path):
    path = tmp_path / "out.jsonl"
    root = str(Path(__file__).parents[2])

    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))

    ran = subprocess.run(
        [sys.executable, "-c", _LIMITED, str(path)],
        env={**environment(), "PYTHONPATH": f"{environment()['PYTHONPATH']}:{root}"},
        preexec_fn=limit,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.stdout.split() == ["OutputFailed", "1"], ran.stderr
    data = path.read_bytes()
    assert data.endswith(b"\n")
    assert 20 < data.count(b"\n") < 200
    assert data == b"".join(line(number) for number in range(data.count(b"\n")))
