"""`--local MODEL`: a server of our own for the time of a tuning, with a step log to fit from."""

from __future__ import annotations

import contextlib
import shlex
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from headway import child_process
from headway.core.errors import HeadwayError
from headway.loadtest.errors import InvalidPlan
from headway.workers import lifeline

START_S, STOP_S = 900.0, 30.0
_TAKEN = ("--port", "--host", "--step-log", "--worker", "--local-workers")


@dataclass(frozen=True, slots=True)
class LocalServer:
    """Where it is, and what it writes. `command`: without what is only for the tuning."""

    url: str
    step_log: Path
    command: str


class NotStarted(HeadwayError):
    """The server to be tuned did not come up."""


@contextlib.contextmanager
def local_server(model: str, flags: str, start: dict[str, int]) -> Iterator[LocalServer]:
    """A process that ends with this one, however that ends. Raises `NotStarted` with the last it said."""
    further = words_of(flags)
    limits = [text for name, value in start.items() for text in (f"--{name.replace('_', '-')}", str(value))]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "steps.jsonl"
        mine = ["--host", "127.0.0.1", "--port", "0", "--step-log", str(log), "--log-level", "warning"]
        process = subprocess.Popen(
            child_process.command(lifeline.__name__, "headway.__main__", "serve", model, *further, *limits, *mine),
            env=child_process.environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,  # Ctrl-C is for the tuning, which ends it afterwards
        )
        said = _Said(process)
        try:
            yield LocalServer(said.url(), log, shlex.join(["headway", "serve", model, *further]))
        finally:
            _end(process)
            said.join()


def words_of(flags: str) -> list[str]:
    """Of `--serve-flags`. Raises `InvalidPlan`."""
    try:
        words = shlex.split(flags)
    except ValueError as error:
        raise InvalidPlan(f"--serve-flags cannot be read: {error}.") from None
    for word in words:
        if (name := word.partition("=")[0]) in _TAKEN:
            raise InvalidPlan(f"--serve-flags has {name}, which tune sets itself.")
    return words


class _Said:
    """All that it prints is read, or it would stand still when a pipe is full."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._lines: list[str] = []
        self._url = ""
        self._known = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def url(self) -> str:
        """Blocks until it listens. Raises `NotStarted`."""
        if not self._known.wait(START_S):
            raise NotStarted(f"The server was not up after {START_S:g} s.")
        if not self._url:
            words = next((line for line in reversed(self._lines) if line.strip()), "it said nothing").strip()
            raise NotStarted(f"The server did not start: {words.removeprefix('headway: ')}")
        return self._url

    def join(self) -> None:
        self._reader.join(STOP_S)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines = [*self._lines[-50:], line]
            if line.startswith("Listening"):
                self._url = line.split()[1]
                self._known.set()
        self._known.set()


def _end(process: subprocess.Popen[str]) -> None:
    if process.stdin is not None:
        process.stdin.close()
    process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
