"""What a figure is: a value that says how sure it is; and a distribution of them. Part of every report's JSON."""

from __future__ import annotations

import msgspec


class Interval(msgspec.Struct, kw_only=True):
    """A figure with its 95 % confidence interval by block bootstrap.

    `value` is None where there were too few samples. A bound alone is None where the samples set no bound on that
    side: when a stall of two seconds is the whole tail, nobody knows how long the next one will be. `low` without a
    `value` is no end of an interval, but what `at_least` says.
    """

    value: float | None
    low: float | None = None
    high: float | None = None

    @property
    def at_least(self) -> float | None:
        """For want of a value: in this sample, of which some were given up, it was so much or more."""
        return self.low if self.value is None else None

    @property
    def known(self) -> float | None:
        """The value, or for want of one what it was at least; None where there is nothing to say."""
        return self.low if self.value is None else self.value


class Distribution(msgspec.Struct, kw_only=True):
    """One quantity over many samples. Seconds for times, tokens for lengths. Keys of `percentiles`: "50" … "99.9"."""

    samples: int
    mean: float | None
    std: float | None
    min: float | None
    max: float | None
    percentiles: dict[str, Interval]
