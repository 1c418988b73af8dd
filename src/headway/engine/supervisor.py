"""`SupervisedExecutor`: an executor in a child process, with a watchdog.

A segfault, an out-of-memory kill or a hung inference costs the steps in flight, never the server: every such loss is
an `ExecutorLost`, after which `restart` brings a clean one. A child that keeps dying stays down and says why.
"""

from __future__ import annotations

import contextlib
import pickle
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from headway.core.errors import EngineFailed, ModelError
from headway.core.step import Outcome, Step
from headway.engine import child
from headway.executors.executor import Executor, ExecutorInfo

# Called in the child; must be picklable (a module-level callable, or functools.partial of one).
ExecutorFactory = Callable[[], Executor]

# This many losses within CRASH_WINDOW_S and the child is not started again: the next one would die as well.
CRASH_LIMIT = 3
CRASH_WINDOW_S = 60.0


class ExecutorLost(EngineFailed):
    """The child died or was killed by the watchdog. Everything it held is gone."""

    code = "executor_lost"


class SupervisedExecutor:
    """The `Executor` protocol over a child process. Every call blocks; the driver gives it a thread of its own."""

    def __init__(
        self, factory: ExecutorFactory, *, step_timeout_s: float = 120.0, start_timeout_s: float = 600.0
    ) -> None:
        self._factory = factory
        self._step_timeout_s = step_timeout_s
        self._start_timeout_s = start_timeout_s
        self._losses: list[float] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._info: ExecutorInfo | None = None

    @property
    def info(self) -> ExecutorInfo:
        assert self._info is not None, "start() first"
        return self._info

    @property
    def pid(self) -> int | None:
        """The child's process id, for those who watch its memory."""
        return self._process.pid if self._process is not None else None

    def start(self) -> ExecutorInfo:
        """Start the child and wait until its executor is built. Raises `ModelError` when it cannot be."""
        parent_socket, child_socket = socket.socketpair()
        with child_socket:
            descriptor = child_socket.fileno()
            self._process = subprocess.Popen(
                [sys.executable, "-c", f"from {child.__name__} import main; main()", str(descriptor)],
                pass_fds=[descriptor],
                stdin=subprocess.DEVNULL,
            )
        self._connection = Connection(parent_socket.detach())
        try:
            self._send(self._factory)
            self._info = self._receive(self._start_timeout_s, "start")
        except ExecutorLost as lost:
            self._kill()
            raise ModelError(f"The executor could not be started: {lost.message}") from lost
        return self._info

    def run(self, step: Step) -> Outcome:
        """Compute a step in the child. Raises `ExecutorLost` when the child does not answer it."""
        try:
            self._send(step)
            outcome: Outcome = self._receive(self._step_timeout_s, f"compute step {step.id}")
        except ExecutorLost:
            self._kill()
            raise
        return outcome

    def restart(self) -> ExecutorInfo:
        """Bring a clean child up after a loss. Raises `ModelError`, for good, after `CRASH_LIMIT` losses in a row."""
        self._kill()
        now = time.monotonic()
        self._losses = [at for at in self._losses if now - at < CRASH_WINDOW_S] + [now]
        if len(self._losses) >= CRASH_LIMIT:
            raise ModelError(
                f"The executor was lost {len(self._losses)} times within {CRASH_WINDOW_S:.0f} s and stays down. "
                "Look for the cause in the log above, then restart the server."
            )
        return self.start()

    def interrupt(self) -> None:
        """Break off the step another thread is waiting for: its `run` raises `ExecutorLost`."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    def close(self) -> None:
        """End the child: it leaves when its connection closes, and is killed if it does not."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._process is not None:
            try:
                self._process.wait(timeout=5.0)
            except subprocess.TimeoutExpired:
                self._kill()
            self._process = None

    def _send(self, message: object) -> None:
        if self._connection is None:
            raise ExecutorLost("The executor process is not running.")
        try:
            self._connection.send_bytes(pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL))
        except OSError as error:
            raise ExecutorLost(self._cause_of_death()) from error

    def _receive(self, timeout_s: float, task: str) -> Any:
        assert self._connection is not None
        try:
            answered = self._connection.poll(timeout_s)
        except OSError as error:
            raise ExecutorLost(self._cause_of_death()) from error
        if not answered:
            raise ExecutorLost(f"The executor did not {task} within {timeout_s:g} s and was stopped.")
        try:
            answer = self._connection.recv()
        except (EOFError, OSError) as error:
            raise ExecutorLost(self._cause_of_death()) from error
        except Exception as error:  # unpickling garbage can raise anything
            raise ExecutorLost(f"The executor's answer cannot be read: {error}") from error
        if isinstance(answer, child.Failure):
            raise ExecutorLost(f"{answer.kind}: {answer.message}")
        return answer

    def _cause_of_death(self) -> str:
        assert self._process is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=5.0)
        status = self._process.returncode
        if status is None:
            return "The executor process closed its connection."
        if status < 0:
            hint = " (the system ran out of memory?)" if status == -signal.SIGKILL else ""
            return f"The executor process was killed by {signal.Signals(-status).name}{hint}."
        return f"The executor process ended with status {status}."

    def _kill(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
