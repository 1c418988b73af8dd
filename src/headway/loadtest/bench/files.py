"""A result's files: JSON, CSV and HTML. Each is whole or absent: it is written beside and then put in its place."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from headway.loadtest.bench.tester import Result
from headway.loadtest.errors import InvalidPlan, ResultFailed
from headway.loadtest.record import Record
from headway.loadtest.report.csv_file import load_records, save_records
from headway.loadtest.report.json_file import load_run, run_bytes
from headway.loadtest.result import Run

STEM = "run"


@dataclass(frozen=True, slots=True)
class Files:
    """Where a result goes; None: nowhere."""

    json: Path | None = None
    csv: Path | None = None
    html: Path | None = None

    @property
    def paths(self) -> list[Path]:
        return [path for path in (self.json, self.csv, self.html) if path is not None]

    def check(self) -> None:
        """Before a load is made for hours: raises InvalidPlan where one of them could not be written."""
        for path in self.paths:
            if path.is_dir():
                raise InvalidPlan(f"{path} is a folder; a file's name is needed.")
            new_folder(path.parent)
            if not os.access(path.parent, os.W_OK):
                raise InvalidPlan(f"{path.parent}: nothing can be written there.")


def in_folder(folder: Path) -> Files:
    """All three. Raises InvalidPlan where there is a run already."""
    files = Files(*(folder / f"{STEM}{ending}" for ending in (".json", ".csv", ".html")))
    if there := [path.name for path in files.paths if path.exists()]:
        raise InvalidPlan(f"{folder} holds a run already ({', '.join(there)}). Give another --output.")
    return files


def new_folder(folder: Path) -> None:
    """Raises InvalidPlan where it cannot be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidPlan(f"{folder}: this folder cannot be made: {error.strerror or error}") from None


def save(result: Result, files: Files, *, rivals: Collection[str] = ()) -> None:
    """Write them. The JSON comes last: where it is, the others are as well."""
    if files.csv is not None:
        replace_file(files.csv, lambda path: save_records(path, result.records, secrets=result.secrets))
    if files.html is not None:
        from headway.loadtest.report.html import run_page

        page = run_page(result.run, result.records, rivals=tuple(rivals), secrets=result.secrets)
        write_bytes(files.html, page.encode())
    if files.json is not None:
        write_bytes(files.json, run_bytes(result.run, secrets=result.secrets))


def save_records_of(failed: ResultFailed, files: Files) -> None:
    """What is left of a run whose figures could not be made: its requests, as CSV."""
    if files.csv is not None:
        replace_file(files.csv, lambda path: save_records(path, failed.records, secrets=failed.secrets))


def write_bytes(path: Path, content: bytes) -> None:
    """All of it or nothing."""
    replace_file(path, lambda beside: beside.write_bytes(content))


def replace_file(path: Path, write: Callable[[Path], object]) -> None:
    """`write` is given a name beside `path`, which then takes the place of `path`."""
    beside = path.with_name(f".{path.name}.new")
    try:
        write(beside)
        beside.replace(path)
    except OSError as error:
        raise InvalidPlan(f"{path} cannot be written: {error.strerror or error}") from None
    finally:
        beside.unlink(missing_ok=True)


def read(path: Path) -> tuple[Run, list[Record]]:
    """A saved run, and its requests where their CSV lies beside it: without the single gaps, which a CSV has not."""
    path = path / f"{STEM}.json" if path.is_dir() else path
    run, records = load_run(path), path.with_suffix(".csv")
    if not records.exists():
        return run, []
    return run, [line.record for line in load_records(records)]
