"""What the times of requests mean: one definition for each figure, for the load tester and the simulator alike.

| figure | definition |
|---|---|
| TTFT | scheduled send → first visible token, so a late client cannot hide queueing; the same from the actual send |
| ITL | gap between consecutive tokens of one request; a chunk of n tokens is n gaps of gap / n |
| ICL | gap between consecutive chunks, raw |
| TPOT | (last − first) / (n − 1) over the n tokens that a request showed; undefined for n = 1, never 0 |
| E2E | scheduled send → end of the stream; the same from the actual send |
| lag | actual send − scheduled send: the client's own delay |

Of several choices the gaps are those of each choice by itself, and TPOT is all of them over the tokens that ended
them.

A request has a TTFT, ITL and ICL as soon as its tokens came, whatever became of it later: a server that dies in
the middle of its slowest streams must not look faster for it. TPOT and E2E need an end: finished requests have them.
Undefined is NaN. What was *given up* (it timed out, broke, or was still under way when nobody waited any longer) would
have taken longer: its TTFT, if no token had come, its E2E, and the gap that was open after its last token are infinite.
How long was waited bounds them from below (`waited_s`), and `percentiles` makes of both what can be told.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Counts = npt.NDArray[np.uint16]

UNKNOWN = -1
S_PER_NS = 1e-9


def bounds_ns(window_s: tuple[float, float]) -> tuple[float, float]:
    """A window's ends in whole ns: a request that lies on one is inside, or outside, for everybody who asks."""
    start_ns, end_ns = np.rint(np.asarray(window_s) / S_PER_NS).tolist()
    return max(start_ns, 0.0), end_ns


def within(at_ns: Ints | Floats, window_s: tuple[float, float]) -> Bools:
    """Which moments lie in a window: its beginning does, its end does not, and what never happened is in none."""
    start_ns, end_ns = bounds_ns(window_s)
    inside: Bools = (at_ns >= start_ns) & (at_ns < end_ns)
    return inside


@dataclass(frozen=True, slots=True, eq=False)
class Timings:
    """What became of n requests, as columns, in order of schedule. Times are ns on one clock; -1: it never happened.

    The gaps of all requests lie one after the other; `gap_counts` says how many are whose.
    """

    scheduled_ns: Ints
    sent_ns: Ints
    first_ns: Ints  # first visible token
    last_ns: Ints  # last visible token
    ended_ns: Ints  # the stream's end, or the error
    ok: Bools  # finished well
    given_up: Bools  # it ended at `ended_ns` without having come to its end: how long it would have taken is not known
    input_tokens: Ints
    output_tokens: Ints
    first_tokens: Ints  # in the first visible chunk
    gap_counts: Ints
    gaps_ns: Ints  # between visible chunks
    gap_tokens: Counts  # in the chunk that ends the gap
    hidden_tokens: Ints | int = 0  # of the output tokens: reasoning that was never shown
    choices: Ints | int = 1  # that showed something
    cut: Bools | bool = False  # of those given up: by the end of the run, whatever they were like

    def __len__(self) -> int:
        return len(self.scheduled_ns)

    def select(self, rows: Bools) -> Timings:
        """Some of the requests."""
        if rows.all():
            return self
        gaps = np.repeat(rows, self.gap_counts)
        return self._each(lambda column: column[rows], lambda column: column[gaps])

    def due_within(self, window_s: tuple[float, float]) -> Timings:
        """The requests that were due in a window, as `within` says."""
        first, last = np.searchsorted(self.scheduled_ns, bounds_ns(window_s)).tolist()
        return self.between(first, last)

    def between(self, first: int, last: int) -> Timings:
        """Requests `first` up to, not including, `last`. They follow one another, so nothing is copied."""
        ends = np.concatenate(([0], np.cumsum(self.gap_counts)))
        rows, gaps = slice(first, last), slice(int(ends[first]), int(ends[last]))
        return self._each(lambda column: column[rows], lambda column: column[gaps])

    def _each(self, request: Callable[[Any], Any], gap: Callable[[Any], Any]) -> Timings:
        per_gap = {"gaps_ns", "gap_tokens"}
        columns = {field.name: getattr(self, field.name) for field in fields(self)}
        cut = {
            name: (gap if name in per_gap else request)(column)
            for name, column in columns.items()
            if not isinstance(column, int)
        }
        return Timings(**columns | cut)


@dataclass(frozen=True, slots=True, eq=False)
class TokenGaps:
    """Gaps between tokens, in order of the requests: `seconds` each, for `tokens` equal ones, of request `owner`."""

    seconds: Floats
    tokens: Counts
    owner: npt.NDArray[np.int32]


class Samples(NamedTuple):
    """Times in order of time, as `percentiles.distribution` takes them."""

    seconds: Floats  # infinite: it was given up
    weights: npt.NDArray[np.integer] | None = None  # of how many samples that is the value; None: one each
    at_least: Floats | None = None  # how long those that are infinite had lasted


def elapsed_s(start_ns: Ints, end_ns: Ints) -> Floats:
    """Seconds from one moment to another, NaN where either never came."""
    seconds: Floats = np.multiply(end_ns - start_ns, S_PER_NS)
    seconds[(start_ns < 0) | (end_ns < 0)] = np.nan
    return seconds


def streamed(t: Timings) -> bool:
    """Tokens were seen as they came, or nothing ended well and nobody knows: answers in one piece have no TTFT."""
    return bool((t.first_ns >= 0).any()) or not t.ok.any()


def ttft_s(t: Timings) -> Floats:
    return _first(t, t.scheduled_ns)


def ttft_from_send_s(t: Timings) -> Floats:
    return _first(t, t.sent_ns)


def e2e_s(t: Timings) -> Floats:
    return _end(t, t.scheduled_ns)


def e2e_from_send_s(t: Timings) -> Floats:
    return _end(t, t.sent_ns)


def waited_s(t: Timings) -> Floats:
    """How long a request that was given up had been waited for: at least so long it would have taken."""
    return np.where(t.given_up, elapsed_s(t.scheduled_ns, t.ended_ns), np.nan)


def waited_from_send_s(t: Timings) -> Floats:
    return np.where(t.given_up, elapsed_s(t.sent_ns, t.ended_ns), np.nan)


def _first(t: Timings, start_ns: Ints) -> Floats:
    seconds = elapsed_s(start_ns, t.first_ns)
    if streamed(t):
        seconds[t.given_up & (start_ns >= 0) & (t.first_ns < 0)] = np.inf
    return seconds


def _end(t: Timings, start_ns: Ints) -> Floats:
    seconds: Floats = np.where(t.ok, elapsed_s(start_ns, t.ended_ns), np.nan)
    seconds[t.given_up & (start_ns >= 0)] = np.inf
    return seconds


def lag_s(t: Timings) -> Floats:
    return elapsed_s(t.scheduled_ns, t.sent_ns)


def tpot_s(t: Timings) -> Floats:
    later = t.output_tokens - t.hidden_tokens - t.choices  # all but the first of each choice
    seconds = elapsed_s(t.first_ns, t.last_ns)
    several = np.broadcast_to(np.greater(t.choices, 1), len(t))
    if several.any():  # which choice a gap is of is not known, nor needed; without gaps (a saved run) nothing is
        upto = np.concatenate(([0], np.cumsum(t.gaps_ns)))
        ends = np.cumsum(t.gap_counts)
        streamed_s = np.where(t.gap_counts > 0, (upto[ends] - upto[ends - t.gap_counts]) * S_PER_NS, np.nan)
        seconds = np.where(several, streamed_s, seconds)
    return np.where(t.ok & (later > 0), seconds / np.maximum(later, 1), np.nan)


def chunk_gaps_s(t: Timings) -> Floats:
    """ICL, in order of time."""
    order = np.argsort(chunk_times_ns(t), kind="stable")
    seconds: Floats = np.multiply(t.gaps_ns[order], S_PER_NS)
    return seconds


def chunk_times_ns(t: Timings) -> Ints:
    """When each chunk after the first came: the end of each gap.

    Streams of several choices lie within one another. Their gaps then add up to a multiple of the request's time, and
    are placed in it evenly.
    """
    ends = np.cumsum(t.gap_counts)
    times: Ints = np.cumsum(t.gaps_ns)
    upto = np.append(times, 0)  # the last one is what lies before the first
    before = upto[ends - t.gap_counts - 1]
    total = upto[ends - 1] - before
    span = t.last_ns - t.first_ns
    if ((total == span) | (t.gap_counts == 0)).all():
        times += np.repeat(t.first_ns - before, t.gap_counts)
        return times
    scale = np.divide(span, total, out=np.ones(len(t)), where=total > 0)
    since = (times - np.repeat(before, t.gap_counts)) * np.repeat(scale, t.gap_counts)
    times = np.repeat(t.first_ns, t.gap_counts)
    times += np.round(since).astype(np.int64)
    return times


def token_gaps(t: Timings) -> TokenGaps:
    """ITL. A chunk that no token is counted for lends its gap to the next that has some."""
    owner = np.repeat(np.arange(len(t), dtype=np.int32), t.gap_counts)
    seconds: Floats = np.multiply(t.gaps_ns, S_PER_NS)
    told = t.gap_tokens > 0
    if not told.all():
        heir: Ints = np.cumsum(told) - told  # of each chunk: which of those with tokens takes its gap
        heirs_owner = np.append(owner[told], -1)
        kept = heirs_owner[heir] == owner  # the last chunks of a request may have no heir
        seconds = np.bincount(heir[kept], weights=seconds[kept], minlength=int(told.sum())).astype(np.float64)
        owner = owner[told]
    tokens = t.gap_tokens[told]
    seconds /= tokens
    return TokenGaps(seconds, tokens, owner)


def chunk_gaps_in_time(t: Timings) -> Samples:
    """ICL, those included in which a stream was given up."""
    return _in_time(t, np.multiply(t.gaps_ns, S_PER_NS), None, chunk_times_ns(t))


def token_gaps_in_time(t: Timings) -> Samples:
    """ITL, those included in which a stream was given up: at least one more token was to come."""
    if (t.gap_tokens == 1).all():
        return chunk_gaps_in_time(t)
    gaps = token_gaps(t)
    return _in_time(t, gaps.seconds, gaps.tokens, chunk_times_ns(t)[t.gap_tokens > 0])


def open_gaps_s(t: Timings) -> Floats:
    """How long no token had come when a stream was given up; NaN for what was not, and for what had shown none."""
    return np.where(t.given_up, elapsed_s(t.last_ns, t.ended_ns), np.nan)


def _in_time(t: Timings, seconds: Floats, weights: Counts | None, ended_ns: Ints) -> Samples:
    at_least, open_s = None, open_gaps_s(t)
    kept = (t.gap_counts > 0) | (t.first_ns == t.last_ns)  # else the gaps before it are not known: a saved run
    if len(hung := np.flatnonzero(kept & (open_s > 0))):
        at_least = np.concatenate((np.full(len(seconds), np.nan), open_s[hung]))
        seconds = np.concatenate((seconds, np.full(len(hung), np.inf)))
        ended_ns = np.concatenate((ended_ns, t.ended_ns[hung]))
        weights = None if weights is None else np.concatenate((weights, np.ones(len(hung), weights.dtype)))
    order = np.argsort(ended_ns, kind="stable")
    return Samples(
        seconds[order],
        None if weights is None else weights[order],
        None if at_least is None else at_least[order],
    )


def request_gap_s(t: Timings, percentile: float = 99) -> Floats:
    """Of each request, this percentile of the gaps between its own tokens. NaN for one that has none."""
    gaps = token_gaps(t)
    order = np.lexsort((gaps.seconds, gaps.owner))
    seconds, upto = gaps.seconds[order], np.cumsum(gaps.tokens[order], dtype=np.int64)
    count = np.bincount(gaps.owner, weights=gaps.tokens, minlength=len(t)).astype(np.int64)
    before = np.cumsum(count) - count
    some = count > 0
    place = percentile / 100 * (count[some] - 1)
    below = np.floor(place).astype(np.int64)
    low = seconds[np.searchsorted(upto, before[some] + below, side="right")]
    above = np.minimum(below + 1, count[some] - 1)
    high = seconds[np.searchsorted(upto, before[some] + above, side="right")]
    result = np.full(len(t), np.nan)
    result[some] = low + (high - low) * (place - below)
    return result
