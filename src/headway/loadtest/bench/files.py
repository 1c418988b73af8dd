"""A result's files: JSON, CSV and HTML."""

from __future__ import annotations

import io
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from headway.loadtest.bench.outputs import Claim, Write, check_apart, check_output, is_stdout, write_output
from headway.loadtest.bench.tester import Result
from headway.loadtest.errors import InvalidPlan, ResultFailed
from headway.loadtest.record import Record
from headway.loadtest.report import csv_file, json_file
from headway.loadtest.report.csv_file import Line, load_records, write_records
from headway.loadtest.report.json_file import ReportError, load_run, run_bytes
from headway.loadtest.result import Run
from headway.loadtest.table import tabulate

STEM = "run"
# As `report.page` has it; named here so that a command without a page needs none of what draws one.
_PAGE_SIGN = b'<meta name="generator" content="headway bench">'


@dataclass(frozen=True, slots=True)
class Files:
    """Where a result goes; None: nowhere."""

    json: Path | None = None
    csv: Path | None = None
    html: Path | None = None
    claim: Claim | None = None  # to the folder that they are in

    @property
    def paths(self) -> list[Path]:
        return [path for path in (self.json, self.csv, self.html) if path is not None]

    @property
    def on_stdout(self) -> bool:
        """Whether one comes out where reports are printed."""
        return any(map(is_stdout, self.paths))

    def check(self) -> None:
        """Before a load is made for hours: raises InvalidPlan where one of them could not be written, two are the same,
        or something else than a result would be overwritten.
        """
        check_apart(self.paths)
        of_each: tuple[tuple[Path | None, Callable[[bytes], bool], str], ...] = (
            (self.json, json_file.is_run, "JSON"),
            (self.csv, csv_file.is_records, "CSV"),
            (self.html, _is_page, "page"),
        )
        for path, is_ours, what in of_each:
            if path is not None:
                check_output(path, is_ours, what)


def _is_page(head: bytes) -> bool:
    return _PAGE_SIGN in head


def in_folder(folder: Path) -> Files:
    """All three. Raises InvalidPlan where there is a run already, or another one is going to write its own."""
    json, csv, html = (folder / f"{STEM}{ending}" for ending in (".json", ".csv", ".html"))
    files = Files(json, csv, html, Claim(folder))
    if there := [path.name for path in files.paths if path.exists()]:
        raise InvalidPlan(f"{folder} holds a run already ({', '.join(there)}). Give another --output.")
    return files


def save(result: Result, files: Files, *, rivals: Collection[str] = ()) -> None:
    """Write them; one that cannot be written costs no other. The JSON comes last: where it is, the others were tried.

    Raises InvalidPlan for the first that could not be written.
    """
    to_write: list[tuple[Path, Write]] = []
    if files.csv is not None:
        to_write.append((files.csv, lambda out: _write_csv(out, result.records, result.run.run_id)))
    if files.html is not None:
        to_write.append((files.html, lambda out: out.write(_page(result, rivals))))
    if files.json is not None:
        to_write.append((files.json, lambda out: out.write(run_bytes(result.run))))
    failures = []
    for path, write in to_write:
        try:
            write_output(path, write)
        except InvalidPlan as error:
            failures.append(error)
    if failures:
        raise failures[0]


def save_records_of(failed: ResultFailed, files: Files) -> None:
    """What is left of a run whose figures could not be made: its requests, as CSV."""
    if files.csv is not None:
        write_output(files.csv, lambda out: _write_csv(out, failed.records))


def _page(result: Result, rivals: Collection[str]) -> bytes:
    from headway.loadtest.report.html import run_page

    return run_page(result.run, result.records, rivals=tuple(rivals)).encode()


def _write_csv(out: BinaryIO, records: Sequence[Record], run_id: str = "") -> None:
    text = io.TextIOWrapper(out, encoding="utf-8", errors="backslashreplace", newline="", write_through=True)
    try:
        write_records(text, records, run_id)
        text.flush()
    finally:
        text.detach()


def read(path: Path) -> tuple[Run, list[Record]]:
    """A saved run, and its requests where their CSV lies beside it: without the single gaps, which a CSV has not.

    Raises `ReportError` for what cannot be read, and for a CSV of another run.
    """
    if path.is_dir():
        _check_one_run(path)
        path /= f"{STEM}.json"
    run, beside = load_run(path), path.with_suffix(".csv")
    if not beside.exists():
        return run, []
    lines = load_records(beside)
    _check_same_run(run, lines, path, beside)
    return run, [line.record for line in lines]


def _check_same_run(run: Run, lines: Sequence[Line], path: Path, beside: Path) -> None:
    """By the id; files of an older headway have none, and then their requests must at least be as many."""
    ids = {line.run_id for line in lines} or {run.run_id}
    here = int(tabulate(line.record for line in lines).scheduled_within(run.summary.window_s).sum())
    why = ""
    if ids != {run.run_id}:
        there = ", ".join(sorted(one or "without an id" for one in ids)[:3])
        why = f"it is of run {there}, and {path.name} of run {run.run_id or 'without an id'}"
    elif here != run.summary.overall.requests:
        why = f"it has {here:,} requests in the measured window, and {path.name} has {run.summary.overall.requests:,}"
    if why:
        raise ReportError(
            f"{beside}: {why}: they do not belong together. Put the CSV of that run there, or take this one away: a "
            "report can be made without it."
        )


def _check_one_run(folder: Path) -> None:
    """Raises `ReportError` for the folder of a search or a sweep: which of its runs is meant?"""
    if (folder / f"{STEM}.json").exists():
        return
    for kind, runs in (("stable", "probe-*.run.json"), ("sweep", "[0-9][0-9][0-9]-*.json")):
        if (folder / f"{kind}.manifest.json").exists():
            what = "a search for the stable region" if kind == "stable" else "a sweep"
            names = sorted(path.name for path in folder.glob(runs))
            one = f"name one of its runs, such as {folder / names[-1]}" if names else "it has no run yet"
            raise ReportError(
                f"{folder} holds {what}, not one run: {one}, or see all of it with `headway bench report {folder}`."
            )
