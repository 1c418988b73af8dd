"""`Summary`: what a batch was, in figures: for the terminal, the JSON file and the report alike."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from headway.metrics.figures import Distribution
from headway.metrics.percentiles import distribution
from headway.offline.tally import COUNTS, PARTS, Tally

PERCENTILES = (50.0, 90.0, 95.0, 99.0)
MOST_STRAGGLERS = 10
PER_MILLION = 1e-6
S_PER_HOUR = 3600.0


class Prices(Struct, frozen=True, kw_only=True):
    """Of a million tokens, and of an hour of whatever runs them; in whatever currency. `cached` None is as `input`."""

    input: float = 0.0
    output: float = 0.0
    cached: float | None = None
    hour: float = 0.0

    @property
    def given(self) -> bool:
        return bool(self.input or self.output or self.cached or self.hour)


class Straggler(Struct, kw_only=True):
    """One of the items that took longest."""

    line: int
    wall_s: float
    input_tokens: int | None
    output_tokens: int | None


class Summary(Struct, kw_only=True):
    """`wall_s` is of all runs of the batch together, without the time between them. None is not known.

    Throughput is over that time. `padding_efficiency_ratio` is of static batching: what was computed and no padding.
    """

    items: int | None
    done: int
    failed: int
    errors: dict[str, int]
    cut: int
    retried: int
    wall_s: float
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    tokens_per_s: float | None
    output_tokens_per_s: float | None
    items_per_s: float | None
    padding_efficiency_ratio: float | None
    cost: float | None
    distributions: dict[str, Distribution]
    stragglers: list[Straggler]

    @property
    def missing(self) -> int | None:
        return None if self.items is None else max(0, self.items - self.done - self.failed)


def summarise(
    tally: Tally,
    *,
    items: int | None,
    wall_s: float,
    prices: Prices | None = None,
    padding_efficiency_ratio: float | None = None,
) -> Summary:
    # One after the other: of a million items each takes some 60 MB on the way.
    distributions = {name: distribution(tally.values(name), percentiles=PERCENTILES) for name in (*PARTS, *COUNTS)}
    totals = {name: tally.totals[name] for name in COUNTS}
    tokens = totals["input_tokens"] + totals["output_tokens"]

    def rate(amount: float) -> float | None:
        return amount / wall_s if wall_s > 0 else None

    return Summary(
        items=items,
        done=tally.done,
        failed=tally.failed,
        errors=dict(sorted(tally.errors.items())),
        cut=tally.cut,
        retried=tally.retried,
        wall_s=wall_s,
        **totals,
        tokens_per_s=rate(tokens),
        output_tokens_per_s=rate(totals["output_tokens"]),
        items_per_s=rate(tally.done),
        padding_efficiency_ratio=padding_efficiency_ratio,
        cost=cost(totals, wall_s, prices) if prices is not None and prices.given else None,
        distributions=distributions,
        stragglers=_stragglers(tally),
    )


def cost(totals: dict[str, int], wall_s: float, prices: Prices) -> float:
    cached = totals["cached_tokens"]
    computed = totals["input_tokens"] - cached
    of_cached = prices.input if prices.cached is None else prices.cached
    tokens = computed * prices.input + cached * of_cached + totals["output_tokens"] * prices.output
    return tokens * PER_MILLION + wall_s / S_PER_HOUR * prices.hour


def _stragglers(tally: Tally) -> list[Straggler]:
    walls = np.nan_to_num(tally.values("wall_s"), copy=False, nan=-1.0)
    longest = np.argsort(-walls, kind="stable")[:MOST_STRAGGLERS].tolist()
    return [
        Straggler(
            line=tally.line(at),
            wall_s=float(walls[at]),
            input_tokens=tally.count("input_tokens", at),
            output_tokens=tally.count("output_tokens", at),
        )
        for at in longest
        if walls[at] >= 0
    ]
