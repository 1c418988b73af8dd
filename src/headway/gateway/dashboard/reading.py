"""What is read once a second: gauges and counters as they stand, and what two readings say of the time between them."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headway.metrics.breakdown import ENDED_WELL
from headway.metrics.histogram import Histogram

NS_PER_S = 1_000_000_000
PERCENTILES = (50, 90, 99)
LATENCIES = ("ttft", "itl", "e2e")
# Ends that are no success; what else a request ends with is a finish reason.
BAD_ENDS = frozenset({"cancelled", "failed", "expired"})
# Whose fault it is that these were not served as promised is the client's own.
NOT_OURS = frozenset({"invalid", "cancelled"})


@dataclass(frozen=True, slots=True)
class Counts:
    """A histogram, as it stands or over some time. `counts` has one more than `bounds`: what is beyond them all."""

    bounds: tuple[float, ...]
    counts: Sequence[int]
    sum: float

    @classmethod
    def of(cls, bounds: tuple[float, ...], counts: Iterable[float], total: float) -> Counts:
        return cls(bounds, array("Q", map(int, counts)), total)

    def since(self, before: Counts) -> Counts:
        """What came after `before`."""
        counts = [now - then for now, then in zip(self.counts, before.counts, strict=True)]
        return Counts(self.bounds, counts, self.sum - before.sum)

    @property
    def samples(self) -> int:
        return sum(self.counts)

    @property
    def mean(self) -> float | None:
        samples = self.samples
        return self.sum / samples if samples else None

    def percentile(self, q: float) -> float | None:
        """Interpolated within its bucket, as Prometheus' `histogram_quantile` does; the last bound for what is beyond.

        None where there is nothing.
        """
        rank = q / 100 * self.samples
        if not rank:
            return None
        upto, lower = 0, 0.0
        for bound, count in zip(self.bounds, self.counts, strict=False):
            if count and upto + count >= rank:
                return lower + (bound - lower) * (rank - upto) / count
            upto, lower = upto + count, bound
        return self.bounds[-1]

    def told(self) -> dict[str, float | None]:
        percentiles = {f"p{q}": self.percentile(q) for q in PERCENTILES}
        return {"count": self.samples, "mean": self.mean, **percentiles}


@dataclass(frozen=True, slots=True)
class Reading:
    """`gauges` may be None where nobody says; names of `totals` and `times` may appear later, and count from 0 then.

    A name may be of a group: `lane.short`, `kv.WORKER`, `ended.stop`, `refused.queue_full`, `outcome.late`,
    `part.queue`.
    """

    at_s: float  # of the wall clock
    now_ns: int
    gauges: Mapping[str, float | None]
    totals: Mapping[str, float]  # since the start
    times: Mapping[str, Counts] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Between:
    """The time from one reading to a later one."""

    first: Reading
    last: Reading

    @property
    def seconds(self) -> float:
        return (self.last.now_ns - self.first.now_ns) / NS_PER_S

    def grown(self, name: str) -> float:
        return self.last.totals.get(name, 0.0) - self.first.totals.get(name, 0.0)

    def group(self, prefix: str) -> dict[str, int]:
        """Counters of a group that have moved, without their prefix."""
        names = [name for name in self.last.totals if name.startswith(prefix)]
        return {name.removeprefix(prefix): int(by) for name in names if (by := self.grown(name))}

    def times(self, name: str) -> Counts | None:
        last, first = self.last.times.get(name), self.first.times.get(name)
        return last if last is None or first is None else last.since(first)

    def rate(self, name: str) -> float | None:
        """Per second; None where there is no such counter."""
        return self.grown(name) / self.seconds if name in self.last.totals and self.seconds > 0 else None

    def point(self) -> dict[str, float | None]:
        """What the plots show at the time of the last reading."""
        told: dict[str, float | None] = {"t": round(self.last.at_s, 2)}
        told.update({name: _short(value) for name, value in self.last.gauges.items()})
        for name in ("prefill_tokens", "decode_tokens", "input_tokens", "output_tokens"):
            if name in self.last.totals:
                told[f"rate.{name}"] = _short(self.rate(name))
        for name in self.last.times:
            counts = self.times(name)
            if counts is None:
                continue
            if name in LATENCIES:
                told.update({f"{name}.p{q}": _short(counts.percentile(q)) for q in PERCENTILES})
            else:
                told[name] = _short(counts.mean)
        return told

    def figures(self) -> dict[str, Any]:
        """Counts, means and percentiles of all of it."""
        ended = self.group("ended.")
        ok = sum(count for how, count in ended.items() if how not in BAD_ENDS)
        due = {how: count for how, count in self.group("outcome.").items() if how not in NOT_OURS}
        good = due.get("good", 0)
        seconds = self.seconds
        latencies = {name: counts.told() for name in LATENCIES if (counts := self.times(name)) is not None}
        parts = {name: counts.mean for name in self.last.times if (counts := self.times(name)) and "." in name}
        return {
            "seconds": seconds,
            "ok": ok,
            "unserved": {how: count for how, count in due.items() if how not in ENDED_WELL},
            "ended": ended,
            "refused": self.group("refused."),
            "ok_per_s": ok / seconds if seconds > 0 else None,
            "attainment": good / sum(due.values()) if due else None,
            "good_per_s": good / seconds if seconds > 0 else None,
            "output_tokens": int(self.grown("output_tokens")),
            "output_tokens_per_s": self.rate("output_tokens"),
            "prefill_tokens": int(self.grown("prefill_tokens")) if "prefill_tokens" in self.last.totals else None,
            "preemptions": int(self.grown("preemptions")) if "preemptions" in self.last.totals else None,
            **latencies,
            "parts": parts,
        }


def _short(value: float | None) -> float | None:
    """Four digits, which is more than a plot shows, and whole numbers whole."""
    if value is None:
        return None
    if value == int(value):
        return int(value)
    return float(f"{value:.4g}")


def counts_of(histogram: Histogram) -> Counts:
    return Counts.of(histogram.bounds, histogram.counts, histogram.sum)
