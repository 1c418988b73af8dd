"""Records as arrays, in order of schedule, for the figures. Times in seconds after the start; nan is unknown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headway.loadtest.record import Fate, Record
from headway.loadtest.table import RecordTable, tabulate
from headway.metrics import latency
from headway.metrics.latency import Bools, Floats, Timings

FATES = tuple(Fate)
BATCH = 5_000  # requests whose gaps are taken together: a long run has too many of them to hold them twice


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """`measured`: scheduled in the window that the figures of the summary are about."""

    table: RecordTable
    scheduled_s: Floats
    sent_s: Floats
    ended_s: Floats
    ttft_s: Floats
    e2e_s: Floats
    lag_s: Floats
    input_tokens: Floats  # as the server counted, else as asked
    output_tokens: Floats
    asked_input_tokens: Floats
    asked_output_tokens: Floats
    fate: NDArray[np.int8]  # place in FATES
    kind: NDArray[np.object_]
    measured: Bools

    def __len__(self) -> int:
        return len(self.table)

    @property
    def ok(self) -> Bools:
        return self.table.timings.ok


def columns(records: Sequence[Record], window_s: tuple[float, float]) -> Columns:
    table = tabulate(records)
    rows, times = table.records, table.timings

    def asked(name: str) -> Floats:
        return np.fromiter((getattr(record, name) for record in rows), dtype=np.float64, count=len(rows))

    place = {fate: number for number, fate in enumerate(FATES)}
    return Columns(
        table=table,
        scheduled_s=_seconds(times.scheduled_ns),
        sent_s=_seconds(times.sent_ns),
        ended_s=_seconds(times.ended_ns),
        ttft_s=_known(latency.ttft_s(times)),
        e2e_s=_known(latency.e2e_s(times)),
        lag_s=latency.lag_s(times),
        input_tokens=times.input_tokens.astype(np.float64),
        output_tokens=times.output_tokens.astype(np.float64),
        asked_input_tokens=asked("asked_input_tokens"),
        asked_output_tokens=asked("asked_output_tokens"),
        fate=np.fromiter((place[record.fate] for record in rows), dtype=np.int8, count=len(rows)),
        kind=np.array([record.kind for record in rows], dtype=object),
        measured=table.scheduled_within(window_s),
    )


def _seconds(at_ns: NDArray[np.int64]) -> Floats:
    return np.where(at_ns < 0, np.nan, at_ns / 1e9)


def _known(seconds: Floats) -> Floats:
    """What nobody waited for has no place in a plot."""
    return np.where(np.isfinite(seconds), seconds, np.nan)


def batches(of: Timings) -> Iterator[tuple[slice, Timings]]:
    """The requests, some thousand at a time."""
    for start in range(0, len(of), BATCH):
        rows = slice(start, min(start + BATCH, len(of)))
        yield rows, of.between(rows.start, rows.stop)


@dataclass(frozen=True, slots=True)
class RequestGaps:
    """Of the gaps between the tokens of one request."""

    p50_s: float
    p99_s: float
    max_s: float


def gaps_of_each(of: Timings) -> Iterator[RequestGaps | None]:
    """None for a request that had none."""
    figures = np.column_stack([latency.request_gap_s(of, percentile) for percentile in (50, 99, 100)])
    for row in figures.tolist():
        yield None if np.isnan(row[0]) else RequestGaps(*row)
