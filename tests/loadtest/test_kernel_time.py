"""The kernel's stamps on the monotonic clock: never in the future, and not moved by a clock that somebody sets."""

from __future__ import annotations

import socket
import struct

import pytest

from headway.loadtest.client import kernel_time
from headway.loadtest.client.kernel_time import (
    NARROW_NS,
    SO_TIMESTAMPNS,
    Ancillary,
    KernelTime,
    arrivals_are,
    ask_for_stamps,
)

MS = 1_000_000


def stamp(real_ns: int) -> list[tuple[int, int, bytes]]:
    return [(socket.SOL_SOCKET, SO_TIMESTAMPNS, struct.pack("@qq", *divmod(real_ns, 10**9)))]


def arrived_ns(clock: KernelTime, ancillary: Ancillary) -> int:
    """Read at the first look."""
    return clock.arrived_ns(ancillary, clock.compare())


class Clocks:
    """Two clocks that a test sets; `interrupted_ns` pass between reading them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.mono_ns, self.real_ns, self.interrupted_ns = 50 * 10**9, 1_000 * 10**9, 0
        monkeypatch.setattr(kernel_time, "monotonic_ns", lambda: self.mono_ns)
        monkeypatch.setattr(kernel_time, "time_ns", self.read)

    def read(self) -> int:
        self.go(self.interrupted_ns)
        return self.real_ns

    def go(self, ns: int) -> None:
        self.mono_ns += ns
        self.real_ns += ns


def test_no_time_lies_in_the_future_or_runs_with_a_clock_that_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    now = Clocks(monkeypatch)
    clock = KernelTime()
    assert arrived_ns(clock, stamp(now.real_ns - 30 * MS)) == now.mono_ns - 30 * MS
    assert arrived_ns(clock, stamp(now.real_ns + 30 * MS)) == now.mono_ns, "never later than now"
    assert (clock.reads, clock.stamped) == (2, 2)
    assert arrived_ns(clock, []) == now.mono_ns, "not stamped"
    assert arrived_ns(clock, [(socket.SOL_SOCKET, SO_TIMESTAMPNS, b"12345678")]) == now.mono_ns, "nor in 8 bytes"
    arrived = stamp(now.real_ns)
    now.real_ns += 3_600 * 10**9
    assert arrived_ns(clock, arrived) == now.mono_ns, "an hour's step is no hour's delay"
    assert arrived_ns(clock, arrived) == now.mono_ns, "nor for the next connection that is read"
    assert (clock.reads, clock.stamped) == (6, 2)
    now.go(2 * 10**9)
    assert arrived_ns(clock, stamp(now.real_ns - 30 * MS)) == now.mono_ns - 30 * MS


def test_what_arrives_after_the_clocks_were_looked_at_is_not_in_the_future(monkeypatch: pytest.MonkeyPatch) -> None:
    now = Clocks(monkeypatch)
    clock = KernelTime()
    assert clock.compare() == now.mono_ns
    now.go(2 * MS)
    assert clock.arrived_ns(stamp(now.real_ns - MS), now.mono_ns) == now.mono_ns - MS
    now.real_ns += 3_600 * 10**9
    assert clock.arrived_ns(stamp(now.real_ns), now.mono_ns) == now.mono_ns, "nor where a clock was set since"


@pytest.mark.parametrize("interrupted_ns", [NARROW_NS, 900_000, 500 * MS])
def test_an_interruption_between_the_clocks_moves_no_time(monkeypatch: pytest.MonkeyPatch, interrupted_ns: int) -> None:
    now = Clocks(monkeypatch)
    clock = KernelTime()
    sent_ns = now.mono_ns
    arrived = stamp(now.real_ns)
    now.interrupted_ns = interrupted_ns
    assert arrived_ns(clock, arrived) == sent_ns
    now.interrupted_ns = 0
    assert arrived_ns(clock, stamp(now.real_ns)) == now.mono_ns
    assert clock.stamped == 2, "and no step was seen"


def test_a_system_without_stamps_is_none_the_worse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_time, "SO_TIMESTAMPNS", 9_999)
    with socket.socket() as sock:
        ask_for_stamps(sock)


def test_a_report_tells_how_arrivals_were_timed() -> None:
    told = [arrivals_are(1000, stamped) for stamped in (0, 500, 990, 1000)]
    assert told == [
        "stamped when read",
        "50% stamped by the kernel, the rest when read",
        "stamped by the kernel",
        "stamped by the kernel",
    ]
