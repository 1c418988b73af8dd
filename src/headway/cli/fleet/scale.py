"""`--scale-hook`: an operator's command, run when another number of workers would be right than there are."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shlex
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

from headway.core.front.front import Front

log = logging.getLogger("headway")

# A command that failed, or has not led to anything, is run again after so long.
AGAIN_S = 60.0
STDERR = 2


@dataclass(frozen=True, slots=True)
class Hook:
    """`command` is split as a shell would, but is run without one."""

    command: str
    timeout_s: float


class ScaleHook:
    """Looks about once a second (`look`). One command runs at a time, beside the loop; it is told what holds then."""

    def __init__(
        self, front: Front, hook: Callable[[], Hook | None], *, clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._front = front
        self._hook = hook
        self._clock_s = clock_s
        self._running: asyncio.Task[None] | None = None
        self._told = 0  # the last number that was asked for
        self._told_s = 0.0
        self.runs = 0

    def look(self) -> None:
        """Begin to run the command where there is something to tell. Never waits."""
        hook, replicas = self._hook(), self._front.overload.replicas
        if hook is None or not replicas.desired or (self._running is not None and not self._running.done()):
            return
        wanted = replicas.desired != (self._told or replicas.up)
        again = replicas.desired != replicas.up and self._told and self._clock_s() - self._told_s >= AGAIN_S
        if not wanted and not again:
            return
        self._told, self._told_s = replicas.desired, self._clock_s()
        self._running = asyncio.get_running_loop().create_task(self._run(hook, replicas.desired, replicas.up))

    async def _run(self, hook: Hook, desired: int, current: int) -> None:
        self.runs += 1
        told = {"HEADWAY_REPLICAS_DESIRED": str(desired), "HEADWAY_REPLICAS_CURRENT": str(current)}
        told["HEADWAY_LADDER_LEVEL"] = str(self._front.ladder.height)
        log.warning("%d workers take requests, and %d would be right: running the scale hook", current, desired)
        try:
            process = await asyncio.create_subprocess_exec(
                *shlex.split(hook.command),
                env={**os.environ, **told},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=STDERR,  # what it says stands in our own log
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            log.error("the scale hook cannot be run: %s", error)
            return
        try:
            async with asyncio.timeout(hook.timeout_s):
                status = await process.wait()
        except TimeoutError:
            log.error("the scale hook did not end within %g s and was ended", hook.timeout_s)
        else:
            if status:
                log.error("the scale hook ended with %d", status)
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # its own group, with whatever it has started
                await process.wait()

    async def ended(self) -> None:
        """When what runs has ended."""
        if self._running is not None:
            await asyncio.gather(self._running, return_exceptions=True)

    async def close(self) -> None:
        """What runs is ended."""
        if self._running is not None:
            self._running.cancel()
            await self.ended()
