"""A run and its requests are two files: read together only when they are of one run."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from headway.loadtest.bench.files import Files, in_folder, read, save
from headway.loadtest.bench.tester import Result
from headway.loadtest.errors import InvalidPlan
from headway.loadtest.report.json_file import ReportError
from tests.loadtest import queues, runs


def saved(folder: Path, run_id: str, requests: int = 40) -> Path:
    """The JSON; its CSV lies beside it."""
    due = np.arange(requests) / 10
    records = queues.records(queues.Served(due, due, due + 0.05))
    made = msgspec.structs.replace(runs.run(records, runs.load(4.0)), run_id=run_id)
    folder.mkdir()
    save(Result(made, records), Files(json=folder / "run.json", csv=folder / "run.csv"))
    return folder / "run.json"


def test_a_run_is_read_with_its_requests(tmp_path: Path) -> None:
    for name in ("0123456789abcdef", ""):
        run, records = read(saved(tmp_path / f"r{name}", name))
        assert run.run_id == name
        assert len(records) == 40


@pytest.mark.parametrize(
    ("mine", "theirs"), [("aaaa", "bbbb"), ("aaaa", ""), ("", "bbbb")], ids=["two ids", "an older CSV", "an older JSON"]
)
def test_the_requests_of_another_run_are_refused(tmp_path: Path, mine: str, theirs: str) -> None:
    path, other = saved(tmp_path / "mine", mine), saved(tmp_path / "theirs", theirs)
    other.with_suffix(".csv").replace(path.with_suffix(".csv"))
    with pytest.raises(ReportError, match=r"run\.csv: it is of run .*, and run\.json of run .*do not belong together"):
        read(path)
    path.with_suffix(".csv").unlink()
    assert read(path)[1] == []


def test_two_files_without_an_id_must_tell_of_as_many_requests(tmp_path: Path) -> None:
    path, other = saved(tmp_path / "mine", ""), saved(tmp_path / "theirs", "", requests=30)
    other.with_suffix(".csv").replace(path.with_suffix(".csv"))
    with pytest.raises(ReportError, match=r"it has 30 requests in the measured window, and run\.json has 40"):
        read(path)


def test_a_folder_has_one_writer_at_a_time(tmp_path: Path) -> None:
    """Two runs that both found it empty would lose one of two results at their end."""
    mine = in_folder(tmp_path / "run")
    with pytest.raises(InvalidPlan, match=r"Another run is going to write into .*run\. Give another --output"):
        in_folder(tmp_path / "run")
    assert mine.claim is not None
    del mine
    assert in_folder(tmp_path / "run").paths


def test_lines_of_two_runs_in_one_file_are_refused(tmp_path: Path) -> None:
    path, other = saved(tmp_path / "mine", "aaaa"), saved(tmp_path / "theirs", "bbbb")
    lines = other.with_suffix(".csv").read_text().splitlines(keepends=True)
    with path.with_suffix(".csv").open("a") as out:
        out.writelines(lines[1:])
    with pytest.raises(ReportError, match="of run aaaa, bbbb"):
        read(path)
