"""`Tally` counts in each client process, `Meter` makes one `Progress` of all of them, a few times a second."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from headway.loadtest.client.limits import NS_PER_S
from headway.loadtest.record import Fate, Record
from headway.loadtest.runner.degraded import Counts
from headway.loadtest.table import tabulate
from headway.metrics.goodput import promises_met

RECENT_S = 5.0
FEW = 100


class Tick(msgspec.Struct, array_like=True):
    """One process's counts since the start, and the first-token times that were new since its last tick."""

    sent: int = 0
    in_flight: int = 0
    ok: int = 0
    limited: int = 0
    failed: int = 0
    output_tokens: int = 0  # of requests that ended, and what is visible of those that did not
    offering: bool = True
    ttft_s: list[float] = []
    late: int = 0  # of those that are ok: broke a promise
    last_error: str = ""


class Tally:
    """Fed with every record that ended. One that breaks a promise is late, as the figures judge it."""

    def __init__(
        self, *, slo_ttft_s: float | None = None, slo_itl_s: float | None = None, slo_e2e_s: float | None = None
    ) -> None:
        self._limits_s = (slo_ttft_s or float("inf"), slo_e2e_s or float("inf"))
        self._itl_s = slo_itl_s
        self.late = 0
        self.sent = self.ok = self.limited = self.failed = self.output_tokens = 0
        self.failed_in_a_row = 0  # since the last success; refusals that say when to come again are neither
        self.last_error = ""
        self.last_success_ns = 0
        self.longest_ns = 0  # that a success took
        self._ttft_s: list[float] = []

    def count(self, record: Record) -> None:
        self.output_tokens += max(record.output_tokens, 0)
        if record.first_ns >= 0:
            self._ttft_s.append((record.first_ns - record.scheduled_ns) / NS_PER_S)
        if record.fate is Fate.OK:
            self.ok += 1
            self.failed_in_a_row = 0
            self.last_success_ns = record.ended_ns
            self.longest_ns = max(self.longest_ns, record.ended_ns - record.sent_ns)
            self.late += self._is_late(record)
        elif record.fate is Fate.LIMITED:
            self.limited += 1
        elif record.fate.failed:
            self.failed += 1
            self.failed_in_a_row += 1
            self.last_error = record.error

    def _is_late(self, record: Record) -> bool:
        ttft_s, e2e_s = ((at_ns - record.scheduled_ns) / NS_PER_S for at_ns in (record.first_ns, record.ended_ns))
        late = (record.first_ns >= 0 and ttft_s > self._limits_s[0]) or e2e_s > self._limits_s[1]
        return late or self._is_slow(record)

    def _is_slow(self, record: Record) -> bool:
        """Between its tokens."""
        limit_s = self._itl_s
        if limit_s is None or sum(record.gaps_ns) <= limit_s * NS_PER_S:
            return False
        if max(record.gaps_ns) <= limit_s * NS_PER_S and 0 not in record.gap_tokens:
            return False  # the usual case, without its price
        return not promises_met(tabulate([record]).timings, itl_s=limit_s)["itl"][0]

    def tick(self, in_flight: int, tokens_in_flight: int, *, offering: bool) -> Tick:
        new, self._ttft_s = self._ttft_s, []
        return Tick(
            sent=self.sent,
            in_flight=in_flight,
            ok=self.ok,
            limited=self.limited,
            failed=self.failed,
            output_tokens=self.output_tokens + tokens_in_flight,
            offering=offering,
            ttft_s=new,
            late=self.late,
            last_error=self.last_error,
        )


@dataclass(frozen=True, slots=True)
class Times:
    """Of some times, what their number tells: no p99 of fewer than `FEW`, which would be the longest or near it."""

    p50_s: float
    p99_s: float | None
    max_s: float

    @classmethod
    def of(cls, times_s: Sequence[float]) -> Times | None:
        """None of none."""
        if not times_s:
            return None
        p50, p99 = np.percentile(times_s, (50, 99)).tolist()
        return cls(p50, p99 if len(times_s) >= FEW else None, max(times_s))


@dataclass(frozen=True, slots=True)
class Progress:
    """A run as it goes. Counts are since its start; what is recent is of the last seconds."""

    elapsed_s: float  # negative before the start
    offering: bool  # False: nothing is sent any more, what is under way is waited for
    sent: int
    in_flight: int
    done: int  # ended in whatever way
    limited: int
    errors: int
    recent_rate: float  # requests that ended well, per s
    recent_output_rate: float  # tokens per s
    recent_ttft: Times | None  # None: no first token came
    last_error: str = ""
    ok: int = 0  # ended well
    output_tokens: int = 0
    new_ttft_s: tuple[float, ...] = ()  # since the progress before


class Meter:
    """Keeps the last tick of each process."""

    def __init__(self, processes: int) -> None:
        self._ticks = [Tick() for _ in range(processes)]
        self._past: deque[tuple[float, int, int]] = deque()  # elapsed, ended well, output tokens
        self._ttft_s: deque[tuple[float, float]] = deque()
        self._told_s = float("-inf")  # when the last progress was made

    def note(self, process: int, tick: Tick, elapsed_s: float) -> None:
        self._ticks[process] = tick
        self._ttft_s.extend((elapsed_s, ttft_s) for ttft_s in tick.ttft_s)
        while self._ttft_s and self._ttft_s[0][0] < elapsed_s - RECENT_S:
            self._ttft_s.popleft()

    def counts(self, elapsed_s: float) -> Counts:
        return Counts(
            at_s=elapsed_s,
            sent=sum(tick.sent for tick in self._ticks),
            in_flight=sum(tick.in_flight for tick in self._ticks),
            ok=sum(tick.ok for tick in self._ticks),
            failed=sum(tick.failed + tick.limited for tick in self._ticks),
            late=sum(tick.late for tick in self._ticks),
        )

    def progress(self, elapsed_s: float) -> Progress:
        ok = sum(tick.ok for tick in self._ticks)
        tokens = sum(tick.output_tokens for tick in self._ticks)
        limited = sum(tick.limited for tick in self._ticks)
        errors = sum(tick.failed for tick in self._ticks)
        self._past.append((elapsed_s, ok, tokens))
        while len(self._past) > 1 and self._past[0][0] < elapsed_s - RECENT_S:
            self._past.popleft()
        since_s, ok_before, tokens_before = self._past[0]
        span_s = elapsed_s - since_s
        told_s, self._told_s = self._told_s, elapsed_s
        return Progress(
            elapsed_s=elapsed_s,
            offering=any(tick.offering for tick in self._ticks),
            sent=sum(tick.sent for tick in self._ticks),
            in_flight=sum(tick.in_flight for tick in self._ticks),
            done=ok + limited + errors,
            limited=limited,
            errors=errors,
            recent_rate=(ok - ok_before) / span_s if span_s > 0 else 0.0,
            recent_output_rate=(tokens - tokens_before) / span_s if span_s > 0 else 0.0,
            recent_ttft=Times.of([ttft_s for at_s, ttft_s in self._ttft_s if at_s >= elapsed_s - RECENT_S]),
            last_error=next((tick.last_error for tick in self._ticks if tick.last_error), ""),
            ok=ok,
            output_tokens=tokens,
            new_ttft_s=tuple(ttft_s for at_s, ttft_s in self._ttft_s if at_s > told_s),
        )
