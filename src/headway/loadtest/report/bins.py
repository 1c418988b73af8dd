"""Many values into few: time bins, a histogram fine enough for percentiles, and a fair sample for scatter plots."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from headway.loadtest.report.columns import Columns, batches
from headway.metrics.latency import Floats, Samples, chunk_times_ns, token_gaps

MOST_BINS = 150
NICE = (1, 2, 5)

# Gaps between tokens are counted in classes that grow by 0.5 %, from 1 µs to over two hours: a percentile read from
# them is true to 0.25 %, and a hundred million gaps take no more memory than ten.
FLOOR_S = 1e-6
GROWTH = math.log(1.005)
CLASSES = 4_600


@dataclass(frozen=True, slots=True)
class TimeBins:
    width_s: float
    count: int

    @property
    def middles_s(self) -> Floats:
        return (np.arange(self.count, dtype=np.float64) + 0.5) * self.width_s

    def place(self, times_s: Floats) -> NDArray[np.int64]:
        """What comes after the end, or before the start, belongs to the last bin, or the first."""
        return np.clip(times_s / self.width_s + 1e-9, 0, self.count - 1).astype(np.int64)

    def counts(self, times_s: Floats) -> Floats:
        times_s = times_s[np.isfinite(times_s)]
        return np.bincount(self.place(times_s), minlength=self.count).astype(np.float64)

    def quantiles(self, times_s: Floats, values: Floats, ratio: float) -> Floats:
        """Of the values whose time lies in each bin; nan for an empty bin."""
        known = np.isfinite(times_s) & np.isfinite(values)
        place, values = self.place(times_s[known]), values[known]
        order = np.argsort(place, kind="stable")
        place, values = place[order], values[order]
        edges = np.searchsorted(place, np.arange(self.count + 1))
        pairs = pairwise(edges)
        return np.array([np.quantile(values[start:end], ratio) if end > start else np.nan for start, end in pairs])


def time_bins(elapsed_s: float, most: int = MOST_BINS) -> TimeBins:
    """Of a width that people count in: 0.1, 0.2, 0.5, 1, 2, 5, … s."""
    least = max(elapsed_s, 1e-3) / most
    power = math.floor(math.log10(least))
    widths = (factor * 10.0**exponent for exponent in (power, power + 1) for factor in NICE)
    width = next(width for width in widths if width >= least * (1 - 1e-9))
    return TimeBins(width, max(1, math.ceil(elapsed_s / width - 1e-9)))


@dataclass(frozen=True, slots=True, eq=False)
class TokenTimes:
    """When output tokens came, and with what gaps between them, of all requests together."""

    bins: TimeBins
    tokens: Floats  # by time bin
    by_time: Floats  # gaps: (time bin, class)
    measured: Floats  # gaps by class, of the requests in the window
    known: bool  # False: the records come from a file that does not keep single gaps

    def samples(self, open_s: Floats) -> Samples:
        """The measured gaps, and how long those had been open in which a stream was given up."""
        there = np.flatnonzero(self.measured)
        return Samples(
            np.concatenate((class_middle_s(there), np.full(len(open_s), np.inf))),
            np.concatenate((self.measured[there], np.ones(len(open_s)))).astype(np.int64),
            np.concatenate((np.full(len(there), np.nan), open_s)),
        )

    def quantiles(self, ratio: float) -> Floats:
        """Of the gaps that ended in each time bin; nan where none did."""
        return np.array([class_quantiles(row, np.array([ratio]))[0] for row in self.by_time])


def token_times(seen: Columns, bins: TimeBins) -> TokenTimes:
    """A chunk of n tokens is n gaps of gap/n, which ended when the chunk came; so did all of its tokens."""
    tokens, by_time, inside = np.zeros(bins.count), np.zeros(bins.count * CLASSES), np.zeros(CLASSES)
    for chosen, of in batches(seen.table.timings):
        began = of.first_ns >= 0
        first_s, first_tokens = of.first_ns[began] / 1e9, of.first_tokens[began].astype(np.float64)
        tokens += np.bincount(bins.place(first_s), first_tokens, minlength=bins.count)
        gaps = token_gaps(of)
        came = bins.place(chunk_times_ns(of)[of.gap_tokens > 0] / 1e9)
        place = classes(gaps.seconds)
        tokens += np.bincount(came, gaps.tokens, minlength=bins.count)
        by_time += np.bincount(came * CLASSES + place, gaps.tokens, minlength=by_time.size)
        kept = seen.measured[chosen][gaps.owner]
        inside += np.bincount(place[kept], gaps.tokens[kept], minlength=CLASSES)
    known = bool(inside.any() or by_time.any()) or not any(record.chunks > 1 for record in seen.table.records)
    return TokenTimes(bins, tokens, by_time.reshape(bins.count, CLASSES), inside, known)


def classes(gaps_s: Floats) -> NDArray[np.int64]:
    with np.errstate(divide="ignore"):
        return np.clip(np.log(gaps_s / FLOOR_S) / GROWTH, 0, CLASSES - 1).astype(np.int64)


def class_middle_s(place: NDArray[np.int64]) -> Floats:
    middle: Floats = FLOOR_S * np.exp((place + 0.5) * GROWTH)
    return middle


def class_quantiles(counts: Floats, ratios: Floats) -> Floats:
    """Of values counted by class; nan when there are none."""
    reached = np.cumsum(counts)
    if not reached[-1]:
        return np.full(len(ratios), np.nan)
    return class_middle_s(np.searchsorted(reached, ratios * (reached[-1] - 1), side="right"))


def extremes(times_s: Floats, values: Floats, bins: TimeBins) -> NDArray[np.int64]:
    """Places of the lowest and the highest of each bin, in order of time; of gaps (nan) one a bin."""
    place = bins.place(times_s)
    edges = np.searchsorted(place, np.arange(bins.count + 1))
    kept: set[int] = set()
    for start, end in pairwise(edges):
        inside = values[start:end]
        if np.isfinite(inside).any():
            kept |= {int(start + np.nanargmin(inside)), int(start + np.nanargmax(inside))}
        elif end > start:
            kept.add(int(start))
    return np.array(sorted(kept), dtype=np.int64)


def last_of_each(times_s: Floats, bins: TimeBins) -> NDArray[np.int64]:
    """Places of the last reading in each bin."""
    return np.flatnonzero(np.diff(bins.place(times_s), append=bins.count) > 0)


SAMPLE_RULE = "every extreme is kept, and of the others every n-th in order of schedule"


def fair_sample(x: Floats, y: Floats, limit: int) -> NDArray[np.int64]:
    """Places of at most `limit` points, in order: the highest and lowest in each of many classes of x, and of the
    others every n-th in the given order, so that density stays in proportion and no extreme is lost.
    """
    if len(x) <= limit:
        return np.arange(len(x))
    classes = max(1, limit // 8)
    by_x = np.argsort(x, kind="stable")
    kept = set()
    for part in np.array_split(by_x, classes):
        kept |= {int(part[np.argmax(y[part])]), int(part[np.argmin(y[part])])}
    others = np.setdiff1d(np.arange(len(x)), np.fromiter(kept, dtype=np.int64))
    spread = np.linspace(0, len(others) - 1, limit - len(kept)).astype(np.int64)
    return np.sort(np.concatenate([np.fromiter(kept, dtype=np.int64), others[spread]]))
