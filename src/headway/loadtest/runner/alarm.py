"""`Alarm`: a callback on the event loop at an exact time.

The loops' own timers count in milliseconds, which is the size of what is measured here. Linux has timers that are
files; elsewhere the loop's timers must do.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import struct
import sys
from collections.abc import Callable
from time import monotonic_ns
from typing import Protocol

from headway.loadtest.client.limits import NS_PER_S

_CLOCK_MONOTONIC = 1
_TFD_NONBLOCK, _TFD_CLOEXEC = os.O_NONBLOCK, getattr(os, "O_CLOEXEC", 0)
_TFD_TIMER_ABSTIME = 1


_ITIMERSPEC = struct.Struct("@4l")  # interval and value, in s and ns each


class Readers(Protocol):
    """Whoever looks at files: an event loop, or what it is busy with."""

    def add_reader(self, fd: int, callback: Callable[[], None], /) -> object: ...
    def remove_reader(self, fd: int, /) -> object: ...


class Alarm:
    """One at a time: `set` replaces what was set before. Times are of `time.monotonic_ns`.

    Its file is looked at by the loop, or by `readers`, among the files that are theirs.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, ring: Callable[[], None], readers: Readers | None = None
    ) -> None:
        self._loop = loop
        self._readers: Readers = readers or loop
        self._ring = ring
        self._handle: asyncio.TimerHandle | None = None
        self._value = ctypes.create_string_buffer(_ITIMERSPEC.size)
        self._file = -1
        self._set_file: Callable[[int, int, object, object], int] | None = None
        if sys.platform == "linux":
            with contextlib.suppress(OSError, AttributeError):
                library = ctypes.CDLL(None, use_errno=True)
                self._file = library.timerfd_create(_CLOCK_MONOTONIC, _TFD_NONBLOCK | _TFD_CLOEXEC)
                self._set_file = library.timerfd_settime
        if self._file >= 0:
            self._readers.add_reader(self._file, self._rang)

    def set(self, at_ns: int) -> None:
        if self._set_file is not None and self._file >= 0:
            at_ns = max(at_ns, 1)  # zero would switch it off; a time that is past rings at once
            _ITIMERSPEC.pack_into(self._value, 0, 0, 0, at_ns // NS_PER_S, at_ns % NS_PER_S)
            self._set_file(self._file, _TFD_TIMER_ABSTIME, self._value, None)
            return
        if self._handle is not None:
            self._handle.cancel()
        self._handle = self._loop.call_later(max(0, at_ns - monotonic_ns()) / NS_PER_S, self._ring)

    def close(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
        if self._file >= 0:
            self._readers.remove_reader(self._file)
            os.close(self._file)
            self._file = -1

    def _rang(self) -> None:
        with contextlib.suppress(BlockingIOError):  # it was set anew in the meantime
            os.read(self._file, 8)
            self._ring()
