"""Is a run in a steady state? Only then does a percentile describe the server and not the length of the run.

Both tests look at blocks of equal time. A trend is real when Mann and Kendall's test says so (Mann 1945; Kendall
1975) with its variance corrected for blocks that are still correlated (Hamed and Rao 1998, J. Hydrology 204:182), and
it matters when Theil and Sen's slope (Sen 1968, JASA 63:1379) makes a difference over the window. A significant trend
that is small is no finding, and neither is a large one that chance explains: both are asked for. A level that changes
at once, and late, is no trend: that is looked for by itself (`shift`). So is a tail that grows over a median that does
not: the same is asked of upper quantiles, where blocks hold samples enough.

A queue that begins to grow late is no trend over the window yet. There, Little's law (Little 1961: requests inside =
rate × mean time inside) tells how many should be in flight at the end.

A server that stops altogether makes no trend either, and in a closed loop nobody comes meanwhile who would be seen to
wait: that is seen in the tokens that do not arrive (`silence`).
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from headway.loadtest.shift import Shift, shift
from headway.metrics import latency
from headway.metrics.latency import S_PER_NS, Bools, Floats, Timings, bounds_ns, within
from headway.metrics.percentiles import quantiles

BLOCKS = 20
MIN_BLOCKS = 8
REQUESTS_PER_BLOCK = 5
BEYOND = 3  # samples of a block above its quantile
POINTS_PER_BLOCK = 16  # where the requests in flight are counted
# Where there is no trend, one is seen in so many runs. A verdict is asked for at every probe of a search and must not
# cry wolf; but a queue that swallows a twentieth of all requests need not be proven beyond doubt.
CERTAIN = 0.001
LIKELY = 0.05
# A silence is as long as at least one of these, in medians of E2E: beyond doubt, or a good part of the window.
SILENT_S = 1.0
SILENT_E2E = 20.0
SILENT_E2E_OF_WINDOW, SILENT_OF_WINDOW = 3.0, 0.25
SILENT_ARRIVALS = 10.0  # of an open loop: longer than what chance leaves between two arrivals


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
class Drift:
    """How a quantile of a latency developed."""

    quantile: float
    trend: Trend
    shift: Shift
    shift_at_s: float  # after the start of the run

    def steps(self, significance: float = CERTAIN) -> bool:
        """The level changed at once. Changed bit by bit, it is a trend."""
        return self.shift.p_value < significance


@dataclass(frozen=True, slots=True)
class Queue:
    """Requests in flight: due, and not ended."""

    trend: Trend
    arrivals: int  # due in the window
    at_end: float  # the mean of the last block
    expected: float  # by Little's law, from the requests of the window's first half; at its highest rate if that varies


@dataclass(frozen=True, slots=True)
class Silence:
    """A stretch of the window in which requests were in flight and not one token came."""

    start_s: float
    end_s: float
    in_flight: int  # the fewest
    never_ended: int  # of those in flight all along


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


def block_count(requests: int, per_block: int = REQUESTS_PER_BLOCK) -> int:
    """Into how many blocks a window with so many requests is cut; 0 when there are too few to judge."""
    count = min(BLOCKS, requests // per_block)
    return count if count >= MIN_BLOCKS else 0


def queue(t: Timings, window_s: tuple[float, float], *, stationary: bool = True) -> Queue | None:
    """How the number of requests in flight developed in the window; None when there are too few requests.

    Where the load is not `stationary`, that number follows it: at the highest rate of any block, and as long as
    requests take in the first half, so many are to be expected.
    """
    start_ns, end_ns = bounds_ns(window_s)
    due = within(t.scheduled_ns, window_s)
    count = block_count(int(due.sum()))
    if not count:
        return None
    points = count * POINTS_PER_BLOCK
    at_ns = start_ns + (np.arange(points) + 0.5) * (end_ns - start_ns) / points
    inside = in_flight(t, at_ns).reshape(count, POINTS_PER_BLOCK).mean(axis=1)
    early = due & (t.scheduled_ns < (start_ns + end_ns) / 2)
    spent_s = (_ends_ns(t)[early] - t.scheduled_ns[early]) * S_PER_NS
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


def drift(t: Timings, latency_s: Floats, window_s: tuple[float, float], quantile: float = 0.5) -> Drift | None:
    """How a quantile of a latency developed over the window, from block to block; None when there are too few requests
    to see it in blocks.

    A block is left out where too few were waited for so long: at the end of a run that was cut, those that are known
    are the quick ones.
    """
    start_ns, end_ns = bounds_ns(window_s)
    there = within(t.scheduled_ns, window_s) & ~np.isnan(latency_s)
    count = block_count(int(there.sum()), max(REQUESTS_PER_BLOCK, round(BEYOND / (1 - quantile))))
    if not count:
        return None
    block = ((t.scheduled_ns[there] - start_ns) / (end_ns - start_ns) * count).astype(np.int64)
    values, waited_s = latency_s[there], latency.waited_s(t)[there]
    blocks = np.array([_quantile(values[block == index], waited_s[block == index], quantile) for index in range(count)])
    found = shift(blocks)
    return Drift(quantile, trend(blocks), found, window_s[0] + found.place * (window_s[1] - window_s[0]) / count)


def rising(t: Timings, window_s: tuple[float, float]) -> bool:
    """Whether those that come late take longer: the median rises, or the queue does still.

    Of the queue it is asked in the second half: it fills at first where requests take long, and nobody waits for it.
    """
    middle_s, end_s = sum(window_s) / 2, window_s[1]
    developed = (queue(t, (middle_s, end_s)), drift(t, latency.e2e_s(t), window_s))
    return any(found.trend.change > 0 and found.trend.real() for found in developed if found is not None)


def _quantile(values: Floats, waited_s: Floats, quantile: float) -> float:
    """NaN where it is not known, and where there is nothing."""
    if not len(values):
        return np.nan
    found = float(quantiles(values, np.array(quantile), None, waited_s))
    return found if np.isfinite(found) else np.nan


def silence(
    t: Timings, window_s: tuple[float, float], *, concurrency: int | None = None, open_loop: bool = False
) -> Silence | None:
    """The longest stretch without tokens, where it is longer than service and arrivals explain.

    An answer in one piece comes when it ends. With a `concurrency`, more than half of the slots must be taken: one
    request that hangs, while others think, is no server that stands still.
    """
    limit_s = _silence_limit_s(t, window_s, open_loop=open_loop)
    if limit_s is None:
        return None
    start_ns, end_ns = bounds_ns(window_s)
    whole_ns = t.ended_ns[t.ok & (t.first_ns < 0)]
    tokens = np.concatenate((t.first_ns[t.first_ns >= 0], latency.chunk_times_ns(t), whole_ns))
    inside = np.sort(tokens[(tokens > start_ns) & (tokens < end_ns)])
    edges = np.concatenate(([start_ns], inside, [end_ns]))
    least = 1 if concurrency is None else concurrency // 2 + 1
    found = [
        stretch
        for place in np.flatnonzero(np.diff(edges) * S_PER_NS > limit_s)
        for stretch in _busy_stretches(t, float(edges[place]), float(edges[place + 1]), least)
        if stretch.end_s - stretch.start_s > limit_s
    ]
    return max(found, key=lambda stretch: stretch.end_s - stretch.start_s, default=None)


def _silence_limit_s(t: Timings, window_s: tuple[float, float], *, open_loop: bool) -> float | None:
    """None: nothing ended well that would tell how long service takes."""
    spent_s, seconds = latency.e2e_s(t)[t.ok], window_s[1] - window_s[0]
    if not len(spent_s) or seconds <= 0:
        return None
    # Where nothing is streamed, a long answer is silent as long as it takes: one that is longer than most must not be
    # taken for a server that stands still.
    e2e_s = float(np.quantile(spent_s, 0.5 if (t.first_ns >= 0).any() else 0.95))
    limit_s = min(SILENT_E2E * e2e_s, max(SILENT_OF_WINDOW * seconds, SILENT_E2E_OF_WINDOW * e2e_s))
    if open_loop:
        due = len(t.due_within(window_s))
        limit_s = max(limit_s, SILENT_ARRIVALS * seconds / max(due, 1))
    return max(SILENT_S, limit_s)


def _busy_stretches(t: Timings, start_ns: float, end_ns: float, least: int) -> list[Silence]:
    """The parts of a stretch in which so many requests at least were in flight."""
    ends_ns = _ends_ns(t)
    moments = np.concatenate((t.scheduled_ns, ends_ns))
    moments = np.unique(np.concatenate(([start_ns, end_ns], moments[(moments > start_ns) & (moments < end_ns)])))
    counts = in_flight(t, ((moments[:-1] + moments[1:]) / 2).astype(np.float64))
    # Where busy begins and where it ends, in turn.
    turns = np.flatnonzero(np.diff(np.concatenate(([False], counts >= least, [False])).astype(np.int8)))
    return [
        Silence(
            float(moments[first]) * S_PER_NS,
            float(moments[last]) * S_PER_NS,
            int(counts[first:last].min()),
            int(_never_ended(t, ends_ns, float(moments[first]), float(moments[last])).sum()),
        )
        for first, last in turns.reshape(-1, 2).tolist()
    ]


def _never_ended(t: Timings, ends_ns: Floats, start_ns: float, end_ns: float) -> Bools:
    """Of the requests in flight all through a stretch: those that nobody waited for to their end."""
    never: Bools = (t.scheduled_ns <= start_ns) & (ends_ns >= end_ns) & (t.given_up | ~np.isfinite(ends_ns))
    return never


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
