"""Is a run in a steady state? Only then does a percentile describe the server and not the length of the run.

Both tests look at blocks of equal time. A trend is real when Mann and Kendall's test says so (Mann 1945; Kendall
1975) with its variance corrected for blocks that are still correlated (Hamed and Rao 1998, J. Hydrology 204:182), and
it matters when Theil and Sen's slope (Sen 1968, JASA 63:1379) makes a difference over the window. A significant trend
that is small is no finding, and neither is a large one that chance explains: both are asked for.

A queue that begins to grow late is no trend over the window yet. There, Little's law (Little 1961: requests inside =
rate × mean time inside) tells how many should be in flight at the end.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from headway.metrics.latency import NS, Floats, Timings

BLOCKS = 20
MIN_BLOCKS = 8
REQUESTS_PER_BLOCK = 5
POINTS_PER_BLOCK = 16  # where the requests in flight are counted
# Where there is no trend, one is seen in so many runs. A verdict is asked for at every probe of a search and must not
# cry wolf; but a queue that swallows a twentieth of all requests need not be proven beyond doubt.
CERTAIN = 0.001
LIKELY = 0.05


@dataclass(frozen=True, slots=True)
class Trend:
    """A series of blocks, from the beginning of the window to its end."""

    level: float  # their median
    change: float  # from the first to the last by the slope
    p_value: float  # of seeing such a trend, in this direction or the other, where there is none

    def real(self, significance: float = CERTAIN) -> bool:
        return self.p_value < significance

    @property
    def relative(self) -> float:
        return self.change / self.level if self.level else 0.0


@dataclass(frozen=True, slots=True)
class Queue:
    """Requests in flight: due, and not ended."""

    trend: Trend
    arrivals: int  # due in the window
    at_end: float  # the mean of the last block
    expected: float  # by Little's law, from the requests of the window's first half; at its highest rate if that varies


def trend(blocks: Floats) -> Trend:
    """The trend of a series of block values; blocks without a value are NaN and left out."""
    places = np.flatnonzero(~np.isnan(blocks))
    values, n = blocks[places], len(places)
    if n < MIN_BLOCKS:
        return Trend(float(np.median(values)) if n else 0.0, 0.0, 1.0)
    later, earlier = np.tril_indices(n, -1)
    rises = values[later] - values[earlier]
    slope = float(np.median(rises / (places[later] - places[earlier])))
    score = float(np.sign(rises).sum())
    variance = _score_variance(values) * _correlation_factor(values - slope * places)
    # One step towards zero: the score is a whole number, the normal distribution is not.
    z = (abs(score) - 1) / variance**0.5 if variance > 0 and score else 0.0
    p_value = 2 * NormalDist().cdf(-max(z, 0.0))
    return Trend(float(np.median(values)), slope * (len(blocks) - 1), p_value)


def block_count(requests: int) -> int:
    """Into how many blocks a window with so many requests is cut; 0 when there are too few to judge."""
    count = min(BLOCKS, requests // REQUESTS_PER_BLOCK)
    return count if count >= MIN_BLOCKS else 0


def queue(t: Timings, window_s: tuple[float, float], *, stationary: bool = True) -> Queue | None:
    """How the number of requests in flight developed in the window; None when there are too few requests.

    Where the load is not `stationary`, that number follows it: at the highest rate of any block, and as long as
    requests take in the first half, so many are to be expected.
    """
    start_ns, end_ns = window_s[0] / NS, window_s[1] / NS
    due = (t.scheduled_ns >= start_ns) & (t.scheduled_ns < end_ns)
    count = block_count(int(due.sum()))
    if not count:
        return None
    points = count * POINTS_PER_BLOCK
    at_ns = start_ns + (np.arange(points) + 0.5) * (end_ns - start_ns) / points
    inside = in_flight(t, at_ns).reshape(count, POINTS_PER_BLOCK).mean(axis=1)
    early = due & (t.scheduled_ns < (start_ns + end_ns) / 2)
    spent_s = (_ends_ns(t)[early] - t.scheduled_ns[early]) * NS
    rate = early.sum() / ((window_s[1] - window_s[0]) / 2)
    if not stationary:
        in_block = np.histogram(t.scheduled_ns[due], count, (start_ns, end_ns))[0]
        rate = in_block.max() * count / (window_s[1] - window_s[0])
    spent = float(spent_s.mean()) if len(spent_s) else 0.0
    return Queue(trend(inside), int(due.sum()), float(inside[-1]), float(rate) * spent)


def in_flight(t: Timings, at_ns: Floats) -> Floats:
    """How many requests were due and had not ended, at each of these moments."""
    came = np.searchsorted(np.sort(t.scheduled_ns), at_ns, side="right")
    left = np.searchsorted(np.sort(_ends_ns(t)), at_ns, side="right")
    return (came - left).astype(np.float64)


def drift(t: Timings, latency_s: Floats, window_s: tuple[float, float]) -> Trend | None:
    """How a latency developed over the window, by the median of each block; None when there are too few requests."""
    start_ns, end_ns = window_s[0] / NS, window_s[1] / NS
    there = (t.scheduled_ns >= start_ns) & (t.scheduled_ns < end_ns) & np.isfinite(latency_s)
    count = block_count(int(there.sum()))
    if not count:
        return None
    block = ((t.scheduled_ns[there] - start_ns) / (end_ns - start_ns) * count).astype(np.int64)
    values = latency_s[there]
    medians = [np.median(values[block == index]) if (block == index).any() else np.nan for index in range(count)]
    return trend(np.array(medians))


def _ends_ns(t: Timings) -> Floats:
    """What never ended was in flight to the last."""
    return np.where(t.ended_ns < 0, np.inf, t.ended_ns)


def _score_variance(values: Floats) -> float:
    """Of Mann and Kendall's score without a trend, with ties."""
    n = len(values)
    _, ties = np.unique(values, return_counts=True)
    tied = (ties * (ties - 1) * (2 * ties + 5)).sum()
    return float(n * (n - 1) * (2 * n + 5) - tied) / 18


def _correlation_factor(residuals: Floats) -> float:
    """By how much correlated blocks make the score vary more: Hamed and Rao's n / n*, by ranks of the residuals."""
    n = len(residuals)
    # Residuals of a straight line differ by rounding only: those are ties.
    grain = max(float(np.ptp(residuals)), float(np.abs(residuals).max()) * 1e-6) * 1e-6
    coarse = np.round(residuals / grain) if grain else residuals
    _, place, ties = np.unique(coarse, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(ties) - (ties - 1) / 2)[place]
    ranks -= ranks.mean()
    power = float(ranks @ ranks)
    factor = 1.0
    for lag in range(1, n - 2):
        correlation = float(ranks[lag:] @ ranks[:-lag]) / power if power else 0.0
        if correlation <= 0:  # what follows is noise (Geyer 1992, Statist. Sci. 7:473: the initial positive sequence)
            break
        factor += 2 / (n * (n - 1) * (n - 2)) * (n - lag) * (n - lag - 1) * (n - lag - 2) * correlation
    return factor
