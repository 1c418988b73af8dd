"""A batch from its files to its files: begin one, or go on with one that ended anyhow. One process at a time."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from headway.core.errors import ConfigError, HeadwayError
from headway.offline.errors import InputUnreadable, OutputFailed
from headway.offline.files import Files, replace_file
from headway.offline.inputs import Format, read
from headway.offline.intake import Fitting, Intake, survey
from headway.offline.items import Item, Sketch
from headway.offline.job import Job, JobLimits
from headway.offline.journal import Journal, Recovered, key_of, recover
from headway.offline.manifest import Manifest, check_input, fingerprint, load, save
from headway.offline.progress import Progress
from headway.offline.record import Written
from headway.offline.summary import Prices, Summary, summarise
from headway.offline.tally import Tally
from headway.offline.worker import Worker


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """How a batch is run. `settings` are remembered, for `resume`."""

    format: Format = field(default_factory=Format)
    fitting: Fitting = field(default_factory=Fitting)
    limits: JobLimits = field(default_factory=JobLimits)
    strict: bool = False
    prices: Prices = field(default_factory=Prices)
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Ended:
    """`reason`: why it stopped before its end; empty when it did not. `surplus`: results of items no longer there."""

    summary: Summary
    tally: Tally
    manifest: Manifest
    reason: str = ""
    surplus: int = 0
    first_start_s: float | None = None  # from the start of this run to that of its first item


# Makes the workers, once the input is known to be there.
WorkersOf = Callable[[], Sequence[Worker]]


class Batch:
    """One run over one batch."""

    def __init__(
        self,
        files: Files,
        wanted: Wanted,
        workers_of: WorkersOf,
        *,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> None:
        self._files = files
        self._wanted = wanted
        self._workers_of = workers_of
        self._on_progress = on_progress
        self._tally = Tally()

    async def begin(self, input: Path) -> Ended:
        """A new one. Raises `HeadwayError`; where nothing was done by then, nothing is left behind."""
        path = os.path.abspath(input)  # noqa: ASYNC240, PTH100 - a name, not the disk
        with self._files.held():
            self._check_fresh()
            manifest = Manifest(
                input=path,
                fingerprint=fingerprint(input),
                settings=self._wanted.settings,
                started_at=time.time(),
            )
            if not manifest.fingerprint.bytes:
                raise InputUnreadable(f"The input {input} is empty.")
            if self._wanted.strict:
                await asyncio.to_thread(self._check_strictly, input)
            try:
                return await self._run(manifest, {})
            finally:
                self._sweep_nothing()

    async def resume(self, *, allow_changed_input: bool = False, retry: Collection[str] = ()) -> Ended:
        """Go on with what is missing; also with items that failed for a reason in `retry`. Raises `HeadwayError`."""
        with self._files.held():
            manifest = load(self._files)
            changed: set[int] = set()
            if allow_changed_input:
                manifest.fingerprint = fingerprint(Path(manifest.input))
                changed = await asyncio.to_thread(self._changed_items, manifest)
            else:
                check_input(manifest)
            done = await asyncio.to_thread(self._recover, changed, frozenset(retry))
            manifest.settings = self._wanted.settings
            if manifest.items is not None and len(done) >= manifest.items and not allow_changed_input:
                return Ended(self._end(manifest, "", None), self._tally, manifest)  # nothing is missing
            manifest.runs += 1
            return await self._run(manifest, done)

    # -- what was before -----------------------------------------------------------------------------------------------

    def _check_fresh(self) -> None:
        files = self._files
        if files.manifest.exists():
            raise ConfigError(
                f"There is a batch in {files.output} already. `headway batch resume {files.output}` goes on with it; "
                f"for a new one give another output, or delete {files.manifest} and what it wrote."
            )
        for path in (files.output, files.errors):
            if path.exists() and (not path.is_file() or path.stat().st_size):
                raise ConfigError(f"{path} exists and is not this batch's. Give another output, or delete it.")

    def _sweep_nothing(self) -> None:
        """A batch that wrote no line has not been begun."""
        files = self._files
        if not any(path.exists() and path.stat().st_size for path in (files.output, files.errors)):
            for path in (files.output, files.errors, files.manifest, files.summary):
                with suppress(OSError):
                    path.unlink(missing_ok=True)

    def _check_strictly(self, input: Path) -> None:
        found = survey(read(input, self._wanted.format), {}, self._wanted.fitting)
        if found.first_bad is not None:
            more = f" {found.bad - 1:,} more lines are wrong." if found.bad > 1 else ""
            raise InputUnreadable(f"{found.first_bad.message}{more} Nothing was begun (--strict).")

    def _changed_items(self, manifest: Manifest) -> set[int]:
        hashes = {}
        for path in (self._files.output, self._files.errors):
            hashes.update(recover(path, lambda _: None).hashes)
        return survey(read(Path(manifest.input), self._wanted.format), hashes, self._wanted.fitting).changed

    def _recover(self, changed: Collection[int], retry: Collection[str]) -> dict[int, int]:
        """What is finished, by key. Both journals are mended; an item that has an answer has no error."""

        def keep(line: Written) -> None:
            self._tally.add(line.headway)

        output = recover(self._files.output, keep, without=lambda line: key_of(line) in changed)

        def dropped(line: Written) -> bool:
            key = key_of(line)
            return key in changed or key in output.hashes or line.headway.error_class in retry

        errors: Recovered = recover(self._files.errors, keep, without=dropped)
        output.hashes.update(errors.hashes)
        return output.hashes

    # -- the run -------------------------------------------------------------------------------------------------------

    async def _run(self, manifest: Manifest, done: dict[int, int]) -> Ended:
        began = time.monotonic()
        workers = self._workers_of()
        try:
            await asyncio.gather(*(worker.start() for worker in workers))
            manifest.state, manifest.reason = "running", ""
            save(self._files, manifest)
            return await self._work(manifest, done, workers, began)
        finally:
            await asyncio.gather(*(worker.close() for worker in workers), return_exceptions=True)

    async def _work(
        self,
        manifest: Manifest,
        done: dict[int, int],
        workers: Sequence[Worker],
        began: float,
    ) -> Ended:
        lines = read(Path(manifest.input), self._wanted.format)
        served = frozenset(name for worker in workers for name in worker.models)
        intake = Intake(lines, done, replace(self._wanted.fitting, served=served), _prepare(workers))
        loop = asyncio.get_running_loop()
        job: Job | None = None

        def on_failure(error: OutputFailed) -> None:
            if job is not None:
                with suppress(RuntimeError):  # the loop has been closed
                    loop.call_soon_threadsafe(job.stop, error)

        output, errors = (Journal(path, on_failure) for path in (self._files.output, self._files.errors))
        job = Job(
            intake,
            workers,
            output=output,
            errors=errors,
            tally=self._tally,
            limits=self._wanted.limits,
            on_progress=self._on_progress,
            total_bytes=manifest.fingerprint.bytes,
        )
        reason = "interrupted"
        worked_from = time.monotonic()
        try:
            await job.run()
            reason = ""
        except ConfigError:
            raise
        except HeadwayError as error:
            reason = error.message
        finally:
            for journal in (output, errors):
                try:
                    journal.close()
                except OutputFailed as error:
                    reason = error.message
            manifest.ran_s += time.monotonic() - worked_from
            if intake.ended:
                manifest.items = intake.lines + intake.surplus
            padding = getattr(workers[0], "padding_efficiency_ratio", None) if workers else None
            summary = self._end(manifest, reason, padding)
        started = job.first_start_ns
        return Ended(summary, self._tally, manifest, reason, intake.surplus, started / 1e9 - began if started else None)

    def _end(self, manifest: Manifest, reason: str, padding: float | None) -> Summary:
        manifest.state, manifest.reason = ("stopped", reason) if reason else ("done", "")
        summary = summarise(
            self._tally,
            items=manifest.items,
            wall_s=manifest.ran_s,
            prices=self._wanted.prices,
            padding_efficiency_ratio=padding,
        )
        with suppress(OutputFailed):  # of a full disk there was told already; what counts is in the journals
            save(self._files, manifest)
            replace_file(self._files.summary, msgspec.json.format(msgspec.json.encode(summary)) + b"\n")
        return summary


def _prepare(workers: Sequence[Worker]) -> Callable[[Item], Sketch]:
    """Any of them may run an item: whatever the last made of it. Workers of different kinds are never mixed."""

    def prepare(item: Item) -> Sketch:
        return workers[0].prepare(item)

    return prepare
