"""SIGHUP: the configuration file is read again, and what has changed is told in the log."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Self

from headway.core.errors import HeadwayError

log = logging.getLogger("headway")

Reload = Callable[[], Awaitable[Mapping[str, Any]]]


class Reloading:
    """While it is open, each SIGHUP calls `reload`, one after the other. Enter it on the running event loop."""

    def __init__(self, reload: Reload) -> None:
        self._reload = reload
        self._tasks: set[asyncio.Task[None]] = set()

    def __enter__(self) -> Self:
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._asked)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.get_running_loop().remove_signal_handler(signal.SIGHUP)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # one that comes while it ends must not end it otherwise
        for task in self._tasks:
            task.cancel()

    def _asked(self) -> None:
        task = asyncio.get_running_loop().create_task(self._told())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _told(self) -> None:
        try:
            told = await self._reload()
        except HeadwayError as error:
            log.error("nothing was reloaded: %s", error.message)
            return
        except Exception:
            log.exception("a defect in reloading")
            return
        log.info("the configuration was read again; changed: %s", ", ".join(told["changed"]) or "nothing")
        if told["needs_restart"]:
            log.warning("these change with a restart only: %s", ", ".join(told["needs_restart"]))
