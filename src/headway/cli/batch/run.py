"""What the commands of `headway batch` do: progress on stderr, the summary on stdout."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import Callable, Collection, Coroutine, Iterator
from pathlib import Path
from typing import Any

import msgspec

from headway.cli.batch.flags import Asked, asked
from headway.cli.batch.progress import shown
from headway.cli.batch.show import print_ended, print_status
from headway.cli.batch.workers import workers_of
from headway.offline.batch import Batch, Ended
from headway.offline.files import Files, replace_file
from headway.offline.manifest import load
from headway.offline.status import status_of

DONE, STOPPED, SOME_FAILED, INTERRUPTED = 0, 1, 3, 130


def begin(input: Path, output: Path, settings: dict[str, Any]) -> int:
    """The exit status. Raises `HeadwayError`."""
    wanted = asked(settings)
    return _work(output, wanted, lambda batch: batch.begin(input))


def go_on(
    output: Path, settings: dict[str, Any], *, allow_changed_input: bool = False, retry: Collection[str] = ()
) -> int:
    """The exit status. Raises `HeadwayError`."""
    wanted = asked(settings, load(Files(output)).settings)
    return _work(output, wanted, lambda batch: batch.resume(allow_changed_input=allow_changed_input, retry=retry))


def show_status(output: Path, settings: dict[str, Any], *, json: bool) -> int:
    """The exit status. Raises `BatchError`."""
    found = status_of(output, asked(settings).prices)
    if json:
        told = {"state": found.word, "reason": found.manifest.reason, **msgspec.to_builtins(found.summary)}
        print(msgspec.json.format(msgspec.json.encode(told)).decode())
    else:
        print_status(output, found)
    _write_html(settings.get("html"), found.summary, found.tally, found.manifest)
    return 0


def _work(output: Path, wanted: Asked, work: Callable[[Batch], Coroutine[Any, Any, Ended]]) -> int:
    files = Files(output)
    with shown(quiet=wanted.report.quiet) as on_progress:
        batch = Batch(files, wanted.wanted, lambda: workers_of(wanted), on_progress=on_progress)
        try:
            ended = asyncio.run(_interruptible(work(batch)))
        except (asyncio.CancelledError, KeyboardInterrupt):
            ended = None
    if ended is None:
        _say_interrupted(files)
        return INTERRUPTED
    print_ended(files, ended)
    _write_html(wanted.report.html, ended.summary, ended.tally, ended.manifest)
    if ended.reason:
        print(f"headway: {ended.reason} {_how_to_go_on(files)}", file=sys.stderr)
        return STOPPED
    return SOME_FAILED if ended.summary.failed else DONE


def _say_interrupted(files: Files) -> None:
    print(f"headway: interrupted. {_how_to_go_on(files)}", file=sys.stderr)


def _how_to_go_on(files: Files) -> str:
    """Where no line was written there is nothing to go on with."""
    return f"Go on with: headway batch resume {files.output}" if files.manifest.exists() else "Nothing was begun."


async def _interruptible(work: Coroutine[Any, Any, Ended]) -> Ended:
    """SIGTERM ends it as Ctrl-C does: what is finished is kept."""
    task = asyncio.ensure_future(work)
    with _handled(signal.SIGTERM, task.cancel), _handled(signal.SIGINT, task.cancel):
        return await task


@contextlib.contextmanager
def _handled(number: signal.Signals, then: Callable[[], object]) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(number, then)
    try:
        yield
    finally:
        loop.remove_signal_handler(number)


def _write_html(html: str | None, summary: Any, tally: Any, manifest: Any) -> None:
    if html is None:
        return
    from headway.cli.batch.page import report

    replace_file(Path(html), report(summary, tally, manifest).encode())
    print(f"wrote {html}")
