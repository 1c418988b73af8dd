"""Goodput: requests that meet every promise, per second of the window; and which share of all they are.

The share counts every request that was due, refused and failed ones as well: a server that turns half of its users away
does not become good by serving the other half. Left out are only those that were cancelled when the run was ended while
all that they were promised could still be kept (`undecided`).

A promise about ITL holds for a request when the p99 of the gaps between its own tokens is within the limit. One token
has no gap, and nothing to break; who shows no token at all has kept no promise about tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt

import numpy as np

from headway.metrics import latency
from headway.metrics.blocks import Z95, blocks
from headway.metrics.figures import Interval
from headway.metrics.latency import Bools, Timings

GAP_PERCENTILE = 99


def promises_met(
    t: Timings, *, ttft_s: float | None = None, itl_s: float | None = None, e2e_s: float | None = None
) -> Mapping[str, Bools]:
    """For each promise that was made ("ttft", "itl", "e2e"): which requests kept it. None promises nothing."""
    met: dict[str, Bools] = {}
    # NaN, a time that never came, is within no limit.
    if ttft_s is not None:
        met["ttft"] = t.ok & (latency.ttft_s(t) <= ttft_s)
    if itl_s is not None:
        met["itl"] = t.ok & (t.first_ns >= 0) & ~_gaps_beyond(t, itl_s)
    if e2e_s is not None:
        met["e2e"] = t.ok & (latency.e2e_s(t) <= e2e_s)
    return met


def undecided(
    t: Timings, *, ttft_s: float | None = None, itl_s: float | None = None, e2e_s: float | None = None
) -> Mapping[str, Bools]:
    """For each promise that was made: which of the requests that were given up had not broken it yet."""
    still: dict[str, Bools] = {}
    waited_s = latency.waited_s(t)  # NaN, of what was not given up, is within no limit
    if ttft_s is not None:
        still["ttft"] = t.given_up & (np.where(t.first_ns < 0, waited_s, latency.ttft_s(t)) <= ttft_s)
    if itl_s is not None:
        still["itl"] = t.given_up & ~_slow_so_far(t, itl_s)
    if e2e_s is not None:
        still["e2e"] = waited_s <= e2e_s
    return still


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
