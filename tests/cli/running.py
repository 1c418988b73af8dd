"""A real `headway serve` in a process of its own, for tests of what a person or a service manager sees."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from types import TracebackType
from typing import Self

START_TIMEOUT_S = 90.0


class Server:
    """Starts on entry and waits until it listens; on exit it is stopped at once. `log` is all it printed."""

    def __init__(self, *arguments: str) -> None:
        self.arguments = arguments
        self.log: list[str] = []
        self.url = ""

    def __enter__(self) -> Self:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "headway", "serve", *self.arguments, "--port", "0"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._listens = threading.Event()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        assert self._listens.wait(START_TIMEOUT_S), "".join(self.log)
        assert self.url, "".join(self.log)
        return self

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.log.append(line)
            if line.startswith("Listening"):
                self.url = line.split()[1]
            if line.startswith("Try"):  # the last line of the banner
                self._listens.set()
        self._listens.set()  # it ended

    def signal(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def wait(self, timeout_s: float = 20.0) -> int:
        return self.process.wait(timeout_s)

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _at: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.signal()
            self.signal()
            try:
                self.wait()
            except subprocess.TimeoutExpired:
                self.process.kill()
                raise
        self._reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()
