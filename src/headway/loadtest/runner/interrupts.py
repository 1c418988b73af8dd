"""Ctrl-C and SIGTERM from the first request to the last byte of the report: they end a load, and lose nothing of it.

with keeping(tell) as interrupts:
    result = await measure()
    save(result)
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from time import monotonic
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)
STOPS = 2  # that a load knows: offer no more, wait for nothing
# Who still asks for the end so long after that, or after he was told that the report is being written, means it.
PATIENCE_S = 3.0


class Interrupts:
    """Where a signal goes: to the load while it lasts; once it was measured nowhere; before, to whoever had it. There
    it also goes when what it was to end goes on.
    """

    def __init__(self, tell: Callable[[], None] | None = None) -> None:
        self._tell = tell
        self._earlier: dict[int, Any] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: Callable[[], None] | None = None  # of the load that is under way
        self._stops = 0  # that it was told
        self._stopped_s = 0.0  # the last time
        self._measured = False
        self._absorbed_s: float | None = None  # when the first came that was kept from whoever had it

    @property
    def absorbed(self) -> bool:
        """Whether somebody wanted the end after the load had ended: what else was to be measured is not wanted."""
        return self._absorbed_s is not None

    @contextlib.contextmanager
    def ending(self, stop: Callable[[], None]) -> Iterator[None]:
        """While it is open, signals call `stop` on the running event loop. After it there is something to lose."""
        self._loop, self._stop, self._stops = asyncio.get_running_loop(), stop, 0
        try:
            yield
            self._measured = True
        finally:
            self._stop = None

    def forget(self) -> None:
        """What was measured has been used up."""
        self._measured = False

    def install(self) -> None:
        # Not the loop's own handlers: between two of those there is a moment in which the program dies of a signal.
        for number in SIGNALS:
            if (handler := signal.getsignal(number)) is not None:
                self._earlier[number] = handler
                signal.signal(number, self._on_signal)

    def restore(self) -> None:
        for number, handler in self._earlier.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._stop is not None and self._loop is not None and self._stops < STOPS:
            self._stops, self._stopped_s = self._stops + 1, monotonic()
            self._loop.call_soon_threadsafe(self._stop)
        elif self._stop is not None:
            if monotonic() - self._stopped_s >= PATIENCE_S:
                self._pass_on(number, frame)
        elif not self._measured:
            self._pass_on(number, frame)
        elif self._absorbed_s is None:
            self._absorbed_s = monotonic()
            if self._tell is not None:
                self._tell()
        elif monotonic() - self._absorbed_s >= PATIENCE_S:
            self._pass_on(number, frame)

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        handler = self._earlier[number]
        if callable(handler):
            handler(number, frame)
        elif handler == signal.SIG_DFL:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)


_open: list[Interrupts] = []  # one at most, as a process has one handler of a signal


@contextlib.contextmanager
def keeping(tell: Callable[[], None] | None = None) -> Iterator[Interrupts]:
    """From here to its end no signal costs what was measured. Inside another it is that one.

    `tell` says that the report is being written; it is called in a signal's handler, so it must not print().
    """
    if threading.current_thread() is not threading.main_thread():
        yield Interrupts()  # signals are the main thread's
        return
    if _open:
        yield _open[0]
        return
    interrupts = Interrupts(tell)
    _open.append(interrupts)
    interrupts.install()
    try:
        yield interrupts
    finally:
        interrupts.restore()
        _open.clear()
