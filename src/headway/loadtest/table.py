"""`RecordTable`: all records of a run as columns, in order of schedule, whichever process they came from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter

import numpy as np

from headway.loadtest.record import Fate, Record
from headway.loadtest.result import Load
from headway.metrics.latency import S_PER_NS, Bools, Counts, Ints, Timings, within


@dataclass(frozen=True, slots=True, eq=False)
class RecordTable:
    """The records and their times. Row i of `timings` is `records[i]`."""

    records: Sequence[Record]
    timings: Timings

    def __len__(self) -> int:
        return len(self.records)

    def scheduled_within(self, window_s: tuple[float, float]) -> Bools:
        """Which requests are due in the window: those the figures are about, whenever they end."""
        return within(self.timings.scheduled_ns, window_s)


def tabulate(records: Iterable[Record]) -> RecordTable:
    """Columns of `records`; their order does not matter."""
    rows = sorted(records, key=attrgetter("scheduled_ns", "index"))
    gap_counts = _column(rows, lambda record: len(record.gaps_ns))
    gap_tokens: Counts = np.frombuffer(b"".join(record.gap_tokens for record in rows), np.uint16)
    return RecordTable(
        rows,
        Timings(
            scheduled_ns=_column(rows, attrgetter("scheduled_ns")),
            sent_ns=_column(rows, attrgetter("sent_ns")),
            first_ns=_column(rows, attrgetter("first_ns")),
            last_ns=_column(rows, attrgetter("last_ns")),
            ended_ns=_column(rows, attrgetter("ended_ns")),
            ok=np.fromiter((record.fate is Fate.OK for record in rows), np.bool_, len(rows)),
            given_up=np.fromiter((record.fate.given_up for record in rows), np.bool_, len(rows)),
            input_tokens=_column(rows, _input_tokens),
            output_tokens=_column(rows, _output_tokens),
            first_tokens=_column(rows, attrgetter("first_tokens")),
            gap_counts=gap_counts,
            gaps_ns=np.frombuffer(b"".join(record.gaps_ns for record in rows), np.int64),
            gap_tokens=gap_tokens,
            hidden_tokens=_column(rows, attrgetter("hidden_tokens")),
            choices=_column(rows, attrgetter("choices")),
            cut=np.fromiter((record.fate is Fate.CANCELLED for record in rows), np.bool_, len(rows)),
        ),
    )


def measured_window(load: Load, table: RecordTable, *, elapsed_s: float | None = None) -> tuple[float, float]:
    """What is left of the load between warm-up and cool-down, in s after the start.

    The load lasts as long as was asked, or until all requests that were asked for had been offered, or until the run
    was over (`elapsed_s`). Warm-up and cool-down that leave nothing are the caller's error, who knows the flags.
    """
    ends_s = [end_s for end_s in (load.duration_s, elapsed_s) if end_s is not None]
    if load.duration_s is None or (load.requests is not None and len(table) >= load.requests):
        ends_s.append(offered_until_s(load, table))
    start_s = load.warmup_s
    if 0 < load.warmup_requests < len(table):
        start_s = max(start_s, float(table.timings.scheduled_ns[load.warmup_requests]) * S_PER_NS)
    return start_s, max(min(ends_s) - load.cooldown_s, start_s)


def offered_until_s(load: Load, table: RecordTable) -> float:
    """An open loop lasts until one more request would have been due, a closed one until its last request was sent:
    from then on its slots fall empty, and it is no longer the load it was.
    """
    if not len(table):
        return 0.0
    times = table.timings
    last_end_s = float(max(times.ended_ns.max(), times.scheduled_ns.max())) * S_PER_NS
    first_s, last_s = float(times.scheduled_ns[0]) * S_PER_NS, float(times.scheduled_ns[-1]) * S_PER_NS
    if first_s == last_s or (load.concurrency is not None and len(table) <= load.concurrency):  # all at once
        return last_end_s
    if load.loop == "closed":
        return float(max(times.sent_ns.max(), times.scheduled_ns.max()) + 1) * S_PER_NS  # itself included
    return last_s + (last_s - first_s) / (len(table) - 1)


def _column(rows: Sequence[Record], read: Callable[[Record], int]) -> Ints:
    return np.fromiter(map(read, rows), np.int64, len(rows))


def _input_tokens(record: Record) -> int:
    """As the server counted them; as they were asked for where it does not say."""
    return record.asked_input_tokens if record.input_tokens < 0 else record.input_tokens


def _output_tokens(record: Record) -> int:
    return record.first_tokens + sum(record.gap_tokens) if record.output_tokens < 0 else record.output_tokens
