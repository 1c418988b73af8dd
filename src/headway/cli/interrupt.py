"""Ctrl-C and SIGTERM while there is nothing to finish yet: a model is being fetched, converted or loaded."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def ends_at_once(doing: str, *, before: Callable[[], object] = lambda: None) -> Iterator[None]:
    """While it is open, a signal ends this process and its children there and then, after `before` was called.

    A download or a start runs in a thread that cannot be cancelled, so nobody waits for it. Nothing is lost: what is
    half written is swept by the next one who fetches.
    """

    def leave(number: int, _frame: FrameType | None) -> None:
        before()
        _end_children()
        os.write(2, f"\nheadway: stopped while {doing}\n".encode())  # print() may be what was interrupted
        os._exit(128 + number)

    with heard(SIGNALS, leave):
        yield


@contextlib.contextmanager
def heard(numbers: Iterable[int], handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """While it is open, these signals are the handler's."""
    earlier = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, before in earlier.items():
            signal.signal(number, before)


def _end_children() -> None:
    """pip, the converter, and the executor's process, which ignores these signals.

    Without /proc they end by themselves: pip and the converter when they are done, the executor when it has loaded.
    """
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parent = status.read_text("utf-8", "replace").rpartition(")")[2].split()[1]
            if int(parent) == os.getpid():
                os.kill(int(status.parent.name), signal.SIGKILL)
