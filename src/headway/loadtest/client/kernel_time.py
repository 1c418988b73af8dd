"""`KernelTime`: when the kernel received what is read now, on the clock of `time.monotonic_ns`.

A client that is busy, or was not run for a while, would otherwise measure its own delay as the server's. Linux stamps
what arrives on a socket that asks for it (SO_TIMESTAMPNS, socket(7)), on the real-time clock. One read has one stamp:
of the last that it holds. Where two chunks of one stream are read at once, the first is told as late as the second.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Sequence
from time import monotonic_ns, time_ns

from headway.loadtest.client.limits import NS_PER_S

SO_TIMESTAMPNS = 35  # of Linux on x86 and ARM; the module `socket` lacks it
_TIMESPEC = struct.Struct("@qq")
SPACE_BYTES = socket.CMSG_SPACE(_TIMESPEC.size) if hasattr(socket, "CMSG_SPACE") else 0
# The two clocks are read one after the other. Where that took longer, this process was interrupted between them.
NARROW_NS = 50_000
STEP_NS = 1_000_000  # more than a clock is slewed from one read to the next: somebody has set it
DISTRUST_NS = NS_PER_S  # what arrived before that is read by then

Ancillary = Sequence[tuple[int, int, bytes]]


def ask_for_stamps(sock: socket.socket) -> None:
    """Nothing happens on a system that has none."""
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)


def arrivals_are(reads: int, stamped: int) -> str:
    """How a run's arrivals were timed, for its report."""
    if not stamped:
        return "stamped when read"
    by_kernel = "stamped by the kernel"
    return by_kernel if stamped >= 0.99 * reads else f"{stamped / reads:.0%} {by_kernel}, the rest when read"


class KernelTime:
    """Stamps around a step of the real-time clock are not believed. `stamped` of `reads` were told by the kernel."""

    __slots__ = ("_offset_ns", "_trusted_from_ns", "reads", "stamped")

    def __init__(self) -> None:
        self._offset_ns = time_ns() - monotonic_ns()  # real time less monotonic time
        self._trusted_from_ns = 0
        self.reads = self.stamped = 0

    def compare(self) -> int:
        """Look at both clocks, as is done before a few reads; the monotonic one's time, in ns."""
        before_ns, real_ns, now_ns = monotonic_ns(), time_ns(), monotonic_ns()
        if now_ns - before_ns < NARROW_NS:
            offset_ns = real_ns - (before_ns + now_ns) // 2
            if abs(offset_ns - self._offset_ns) > STEP_NS:
                self._trusted_from_ns = now_ns + DISTRUST_NS
            self._offset_ns = offset_ns
        return now_ns

    def arrived_ns(self, ancillary: Ancillary, taken_ns: int) -> int:
        """When the last of what was read by `taken_ns` arrived: never later."""
        self.reads += 1
        if taken_ns < self._trusted_from_ns:
            return taken_ns
        for level, kind, data in ancillary:
            if kind == SO_TIMESTAMPNS and level == socket.SOL_SOCKET and len(data) == _TIMESPEC.size:
                seconds, ns = _TIMESPEC.unpack(data)
                self.stamped += 1
                told_ns: int = seconds * NS_PER_S + ns - self._offset_ns
                return min(taken_ns, told_ns)
        return taken_ns
