"""Goodput: requests that meet every promise, per second of the window; and which share of all they are.

The share counts every request that was due, refused and failed ones as well: a server that turns half of its users away
does not become good by serving the other half. Where the run was cut while requests were under way, it counts those
that were due long enough before (`judged`): to leave out only who was cancelled would leave the quick ones.

A promise about ITL holds for a request when the p99 of the gaps between its own tokens is within the limit. One token
has no gap, and nothing to break; who shows no token at all has kept no promise about tokens. A stream that was cut is
taken by the tokens it had shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt

import numpy as np

from headway.metrics import latency
from headway.metrics.blocks import Z95, blocks
from headway.metrics.figures import Interval
from headway.metrics.latency import S_PER_NS, Bools, Timings

GAP_PERCENTILE = 99


def promises_met(
    t: Timings, *, ttft_s: float | None = None, itl_s: float | None = None, e2e_s: float | None = None
) -> Mapping[str, Bools]:
    """For each promise that was made ("ttft", "itl", "e2e"): which requests kept it. None promises nothing."""
    met: dict[str, Bools] = {}
    # NaN, a time that never came, is within no limit.
    if ttft_s is not None:
        met["ttft"] = (t.ok | t.cut) & (latency.ttft_s(t) <= ttft_s)
    if itl_s is not None:
        kept = (t.ok & ~_gaps_beyond(t, itl_s)) | (t.cut & ~_slow_so_far(t, itl_s))
        met["itl"] = (t.first_ns >= 0) & kept
    if e2e_s is not None:
        met["e2e"] = t.ok & (latency.e2e_s(t) <= e2e_s)
    return met


def judged(t: Timings, *, ttft_s: float | None = None, itl_s: float | None = None, e2e_s: float | None = None) -> Bools:
    """Which requests had the time in which all is decided: due longer before the run was cut than the longest limit.

    By time alone, whatever became of them: of those that were due later only the quick ones are known. A promise about
    nothing but ITL is decided by tokens, not by time: there, who was cut before the first is not judged.
    """
    cut: Bools = t.cut & (t.ended_ns >= 0)
    limits_s = [limit_s for limit_s in (ttft_s, e2e_s) if limit_s is not None]
    if not limits_s:
        return ~cut | (t.first_ns >= 0) if itl_s is not None else np.ones(len(t), np.bool_)
    cut_ns = t.ended_ns[cut].min(initial=np.iinfo(np.int64).max)
    in_time: Bools = t.scheduled_ns < cut_ns - max(limits_s) / S_PER_NS
    return in_time


def _slow_so_far(t: Timings, limit_s: float) -> Bools:
    """Of which requests more gaps than may be are over the limit, that after the last token included."""
    gaps, open_s = latency.token_gaps(t), latency.open_gaps_s(t)
    many = np.bincount(gaps.owner, gaps.tokens, len(t)) + (open_s >= 0)
    slow = np.bincount(gaps.owner, gaps.tokens * (gaps.seconds > limit_s), len(t)) + (open_s > limit_s)
    beyond: Bools = slow > (1 - GAP_PERCENTILE / 100) * many
    return beyond


def _gaps_beyond(t: Timings, limit_s: float) -> Bools:
    """Of which requests the p99 gap is over the limit. Only those with a longer gap at all need a closer look."""
    gaps = latency.token_gaps(t)
    beyond = np.zeros(len(t), np.bool_)
    beyond[gaps.owner[gaps.seconds > limit_s]] = True
    beyond[beyond] = latency.request_gap_s(t.select(beyond), GAP_PERCENTILE) > limit_s
    return beyond


def share(good: Bools) -> Interval:
    """The share of `good` requests, in order of schedule, with its 95 % interval.

    Wilson's interval (1927, JASA 22:209), for as many independent requests as the correlated ones are worth: n over
    the inflation that `blocks` finds. Unlike a bootstrap it does not collapse to a point when all were good.
    """
    n = len(good)
    if not n:
        return Interval(value=None)
    low, high = wilson(float(good.mean()), n / blocks(good).inflation)
    return Interval(value=float(good.mean()), low=low, high=high)


def wilson(ratio: float, n: float) -> tuple[float, float]:
    """Wilson's 95 % score interval of a share that was `ratio` in `n` trials."""
    z2 = Z95**2
    middle = (ratio + z2 / (2 * n)) / (1 + z2 / n)
    half = Z95 / (1 + z2 / n) * sqrt(ratio * (1 - ratio) / n + z2 / (4 * n * n))
    # Rounding must not push an end past the ratio itself, nor past 0 and 1.
    return max(0.0, min(middle - half, ratio)), min(1.0, max(middle + half, ratio))
