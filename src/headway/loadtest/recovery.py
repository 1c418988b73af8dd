"""How long a server needs to recover from a burst: from the burst's end until latency is back where it was before it.

"Where it was" is a band: up to the 95th percentile of the latencies of requests due before the burst (in the calm
after the one before it, or since the start), and at least a quarter over their median, for a calm so even that any
noise would lie outside. Latency after the burst is a running median of `SMOOTH` requests, so that one slow request is
no relapse, and a request that was refused or failed was not answered in any time. Latency is back from the first
moment on that it stays inside for a share of what is watched (`HOLD_SHARE`): a queue that touches the band and leaves
it again has not recovered. A burst after which the run's end leaves less to watch than after the others is not judged.

A burst profile may offer nothing between bursts. Then no request is there to be slow, and the server has recovered
when as few requests are in flight as before the burst.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from headway.loadtest.steady import in_flight
from headway.metrics.latency import S_PER_NS, Floats, Timings, elapsed_s, within

SMOOTH = 5
HOLD_SHARE, HOLD_LEAST, HOLD_MOST = 0.2, 5, 20  # of the requests that are watched after a burst
WHOLE = 0.9  # of the time that the others are watched
MIN_CALM = 10  # requests before a burst, to know the band
AT_LEAST = 1.25  # of the median
POINTS = 2000  # moments at which the requests in flight are counted


@dataclass(frozen=True, slots=True)
class Recovery:
    """After all bursts of a run. A burst that was not recovered from counts as long as it was watched."""

    each_s: tuple[float, ...]
    unrecovered: int

    @property
    def worst_s(self) -> float:
        return max(self.each_s)


def recoveries(t: Timings, bursts_s: Sequence[tuple[float, float]], *, until_s: float) -> Recovery | None:
    """Of each burst (its start and end, in order), how long after its end the server had recovered.

    The time after a burst ends with the next one, or at `until_s`. None when no burst lies before that.
    """
    seen = [burst for burst in bursts_s if burst[1] < until_s]
    if not seen:
        return None
    starts_s = [start_s for start_s, _ in seen[1:]] + [until_s]
    watched_s = [next_s - end_s for (_, end_s), next_s in zip(seen, starts_s, strict=True)]
    if len(seen) > 1 and watched_s[-1] < WHOLE * min(watched_s[:-1]):
        seen, until_s = seen[:-1], seen[-1][0]
    each: list[float] = []
    unrecovered = 0
    calm_s = (0.0, seen[0][0])
    for number, (_, end_s) in enumerate(seen):
        next_s = seen[number + 1][0] if number + 1 < len(seen) else until_s
        spent_s, recovered = _recovery(t, calm_s, (end_s, next_s))
        each.append(spent_s)
        unrecovered += not recovered
        if recovered and next_s - (end_s + spent_s) > calm_s[1] - calm_s[0]:
            calm_s = (end_s + spent_s, next_s)
    return Recovery(tuple(each), unrecovered)


def _recovery(t: Timings, calm_s: tuple[float, float], watched_s: tuple[float, float]) -> tuple[float, bool]:
    latency_s = np.where(t.ok, elapsed_s(t.scheduled_ns, t.ended_ns), np.inf)
    due_s: Floats = np.multiply(t.scheduled_ns, S_PER_NS)
    calm, after = latency_s[within(t.scheduled_ns, calm_s) & t.ok], within(t.scheduled_ns, watched_s)
    if len(calm) < MIN_CALM or after.sum() < SMOOTH:
        return _drained(t, calm_s, watched_s)
    band_s = max(float(np.quantile(calm, 0.95)), AT_LEAST * float(np.median(calm)))
    windows = np.lib.stride_tricks.sliding_window_view(latency_s[after], SMOOTH)
    smooth: Floats = np.median(windows, axis=1)
    # A median stands for the request in its middle.
    at_s = due_s[after][SMOOTH // 2 : SMOOTH // 2 + len(smooth)]
    return _back(at_s, smooth, band_s, watched_s)


def _drained(t: Timings, calm_s: tuple[float, float], watched_s: tuple[float, float]) -> tuple[float, bool]:
    calm_at = np.linspace(*calm_s, POINTS, endpoint=False) / S_PER_NS
    before = float(np.quantile(in_flight(t, calm_at), 0.95)) if calm_s[1] > calm_s[0] else 0.0
    at_s = np.linspace(*watched_s, POINTS)
    return _back(at_s, in_flight(t, at_s / S_PER_NS), before, watched_s)


def _back(at_s: Floats, values: Floats, limit: float, watched_s: tuple[float, float]) -> tuple[float, bool]:
    """From the start of the watch to the first moment from which it holds the limit; is there one?"""
    outside = np.concatenate(([0], np.cumsum(values > limit)))
    hold = min(max(HOLD_LEAST, int(HOLD_SHARE * len(values))), HOLD_MOST, len(values))
    held = np.flatnonzero(outside[hold:] == outside[:-hold])
    if not len(held):
        return watched_s[1] - watched_s[0], False
    return (float(at_s[held[0]] - watched_s[0]) if held[0] else 0.0), True
