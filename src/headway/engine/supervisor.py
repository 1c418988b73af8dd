"""`SupervisedExecutor`: an executor in a child process, with a watchdog.

A segfault, an out-of-memory kill or a hung inference costs the steps in flight, never the server: every such loss is
an `ExecutorLost`, after which `restart` brings a clean one. A child that keeps dying stays down and says why.
"""

from __future__ import annotations

import contextlib
import logging
import pickle
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

from headway import child_process
from headway.core.errors import ConfigError, EngineFailed, ModelError
from headway.core.scheduler.step import Outcome, Step
from headway.engine import child
from headway.executors.executor import Executor, ExecutorInfo

log = logging.getLogger(__name__)

# Called in the child; must be picklable (a module-level callable, or functools.partial of one).
ExecutorFactory = Callable[[], Executor]

# So many losses without a successful step between them, or within CRASH_WINDOW_S, and the child is not started again:
# the next one would be lost as well.
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
        self._losses: list[float] = []  # when; cleared of old ones, and by a successful step of all but the last
        self._losses_in_a_row = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._info: ExecutorInfo | None = None
        self._watchdog = _Watchdog(self._kill_child)
        self._interrupted = False  # nobody wants another child

    @property
    def info(self) -> ExecutorInfo:
        assert self._info is not None, "start() first"
        return self._info

    @property
    def pid(self) -> int | None:
        """The child's process id, for those who watch its memory."""
        process = self._process
        return process.pid if process is not None else None

    def start(self) -> ExecutorInfo:
        """Start the child and wait until its executor is built. Raises what is wrong with the model or the settings."""
        parent_socket, child_socket = socket.socketpair()
        with child_socket:
            descriptor = child_socket.fileno()
            log_level = logging.getLogger("headway").getEffectiveLevel()
            self._process = subprocess.Popen(
                child_process.command(child.__name__, str(descriptor), str(log_level)),
                env=child_process.environment(),
                pass_fds=[descriptor],
                stdin=subprocess.DEVNULL,
            )
        self._connection = Connection(parent_socket.detach())
        try:
            self._info = self._exchange(self._factory, self._start_timeout_s, "start")
        except ExecutorLost as lost:
            self._kill()
            if isinstance(lost.__cause__, ConfigError):
                raise lost.__cause__ from None
            raise ModelError(f"The executor could not be started: {lost.message}") from lost
        return self._info

    def run(self, step: Step) -> Outcome:
        """Compute a step in the child. Raises `ExecutorLost` when the child does not answer it."""
        try:
            outcome: Outcome = self._exchange(step, self._step_timeout_s, f"compute step {step.id}")
        except ExecutorLost:
            self._kill()
            raise
        self._losses_in_a_row = 0
        return outcome

    def restart(self) -> ExecutorInfo:
        """Bring a clean child up after a loss. Raises `ModelError`, for good, when it is lost again and again."""
        self._kill()
        while True:
            self._count_loss()
            if self._interrupted:
                raise ModelError("The engine is being stopped.")
            try:
                return self.start()
            except ModelError as error:
                log.error("%s", error.message)  # lost again before it was up: one more loss, not the last word

    def _count_loss(self) -> None:
        now = time.monotonic()
        self._losses = [at for at in self._losses if now - at < CRASH_WINDOW_S] + [now]
        self._losses_in_a_row += 1
        if max(len(self._losses), self._losses_in_a_row) >= CRASH_LIMIT:
            raise ModelError(
                f"The executor stays down: losses in a row {self._losses_in_a_row}, within {CRASH_WINDOW_S:.0f} s "
                f"{len(self._losses)}. Look for the cause in the log above, then restart the server."
            )

    @property
    def alive(self) -> bool:
        """Is the child there? For those who have no step to find out with."""
        process = self._process
        return process is not None and process.poll() is None

    def interrupt(self) -> None:
        """Break off, for good, the step or the start that another thread is waiting for: it raises `ExecutorLost`."""
        self._interrupted = True
        self._kill_child()

    def _kill_child(self) -> None:
        process = self._process
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()

    def close(self) -> None:
        """End the child: it leaves when its connection closes, and is killed if it does not."""
        self._watchdog.close()
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._process is not None:
            try:
                self._process.wait(timeout=5.0)
            except subprocess.TimeoutExpired:
                self._kill()
            self._process = None

    def _exchange(self, message: object, timeout_s: float, task: str) -> Any:
        """Send and await the answer, writing and reading both under the watchdog. Raises `ExecutorLost`."""
        connection = self._connection
        if connection is None:
            raise ExecutorLost("The executor process is not running.")
        with self._watchdog.guarding(timeout_s):
            try:
                connection.send_bytes(pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL))
                answer = connection.recv()
            except (EOFError, OSError) as error:
                raise ExecutorLost(self._cause_of_death(timeout_s, task)) from error
            except Exception as error:  # unpickling garbage can raise anything
                raise ExecutorLost(f"The executor's answer cannot be read: {error}") from error
        if isinstance(answer, child.Failure):
            raise ExecutorLost(f"{answer.kind}: {answer.message}") from answer.config_error()
        return answer

    def _cause_of_death(self, timeout_s: float, task: str) -> str:
        if self._watchdog.bit:
            return f"The executor did not {task} within {timeout_s:g} s and was stopped."
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


class _Watchdog:
    """Calls `bite` when what it guards takes too long. One thread for all of them: a step must not cost one."""

    def __init__(self, bite: Callable[[], None]) -> None:
        self.bit = False  # in the last exchange guarded
        self._bite = bite
        self._deadline: float | None = None
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False

    @contextlib.contextmanager
    def guarding(self, timeout_s: float) -> Iterator[None]:
        self.bit = False
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, name="headway-watchdog", daemon=True)
            self._thread.start()
        with self._changed:
            self._deadline = time.monotonic() + timeout_s
            self._changed.notify()
        try:
            yield
        finally:
            self._deadline = None

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _watch(self) -> None:
        with self._changed:
            while not self._closed:
                deadline = self._deadline
                self._changed.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
                deadline = self._deadline
                if deadline is not None and time.monotonic() >= deadline:
                    self._deadline = None
                    self.bit = True
                    self._bite()
