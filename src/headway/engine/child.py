"""What the executor's own process runs: `main` with the descriptor of its end of a socket and the level to log at.

It builds an executor from the pickled factory it receives, says what the executor is, then answers each `Step` with an
`Outcome` until the other end closes. An exception in a step is reported and ends the process: the executor's
state is not to be trusted afterwards.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import sys
from dataclasses import dataclass
from multiprocessing.connection import Connection

from headway.core.errors import ConfigError, HeadwayError
from headway.core.scheduler.step import Step
from headway.executors.executor import Executor


@dataclass(frozen=True, slots=True)
class Failure:
    """Why the child could not start or finish a step. `message` is fit to show; `kind` is the exception's name."""

    kind: str
    message: str
    param: str | None = None

    def config_error(self) -> ConfigError | None:
        """The `ConfigError` it was, if it was one: the user's to mend, not the server's."""
        return ConfigError(self.message, param=self.param) if self.kind == ConfigError.__name__ else None


def serve(connection: Connection) -> int:
    """Answer steps until the connection closes. Returns the process's exit status."""
    executor: Executor | None = None
    try:
        executor = connection.recv()()
        connection.send(executor.info)
        while True:
            step: Step = connection.recv()
            connection.send(executor.run(step))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return 0  # the parent is gone or has closed us
    except BaseException as error:
        message = error.message if isinstance(error, HeadwayError) else str(error) or type(error).__name__
        with contextlib.suppress(OSError):
            connection.send(Failure(type(error).__name__, message, getattr(error, "param", None)))
        return 1
    finally:
        if executor is not None:
            executor.close()


def main() -> None:
    # Ctrl-C reaches the whole process group, and service managers signal every process: the parent decides when we go.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("headway").setLevel(int(sys.argv[2]))
    sys.exit(serve(Connection(int(sys.argv[1]))))
