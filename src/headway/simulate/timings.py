"""`timings`: a run as `metrics` reads what a load tester saw, so that both are judged by the same definitions."""

from __future__ import annotations

import numpy as np

from headway.metrics.latency import UNKNOWN, Timings
from headway.simulate.run import Run


def timings(run: Run) -> Timings:
    """The requests of a run whose settings had `log_tokens`, in order of arrival. Nothing lies between client and
    service, so what is sent is sent when it is due; one token is one chunk.

    Raises ValueError for a run without its tokens' times.
    """
    records = run.records
    if any(record.first_token_ns and record.token_ns is None for record in records):
        raise ValueError("the times of tokens were not kept; simulate with log_tokens=True")
    arrivals = np.array([record.arrival_ns for record in records], np.int64)
    tokens = [np.array(record.token_ns if record.token_ns is not None else (), np.int64) for record in records]
    counts = np.array([max(0, len(times) - 1) for times in tokens], np.int64)
    return Timings(
        scheduled_ns=arrivals,
        sent_ns=arrivals,
        first_ns=np.array([times[0] if len(times) else UNKNOWN for times in tokens], np.int64),
        last_ns=np.array([times[-1] if len(times) else UNKNOWN for times in tokens], np.int64),
        ended_ns=np.array([record.ended_ns for record in records], np.int64),
        ok=np.array([record.finished for record in records], np.bool_),
        given_up=np.array([record.end == "cancelled" for record in records], np.bool_),
        input_tokens=np.array([record.prompt_tokens for record in records], np.int64),
        output_tokens=np.array([record.output_tokens for record in records], np.int64),
        first_tokens=np.array([min(1, len(times)) for times in tokens], np.int64),
        gap_counts=counts,
        gaps_ns=np.concatenate([np.diff(times) for times in tokens]) if tokens else np.empty(0, np.int64),
        gap_tokens=np.ones(int(counts.sum()), np.uint16),
    )
