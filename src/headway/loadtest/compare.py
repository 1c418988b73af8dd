"""Two runs side by side: may they be compared, what differs between them, and which differences are more than noise?

Comparable are runs that did the same work on the same means: the model and its numbers, the device, the load with all
its options, the lengths, the promises; and whose verdict is VALID. What a run does not tell is *unknown*, and unknown
is not equal.

A difference of figures has a 95 % interval. With both runs' records that of a latency comes from the differences of
block-bootstrap draws (`metrics.percentiles`); without, and for rates, from the two printed intervals by the method of
variance estimates recovery (Zou and Donner 2008, Stat. Med. 27:1693). Both know the noise within a run only: what
changes from one run to the next (a neighbour on the machine, a cold cache) is seen by repeating runs.

Where forty figures are compared, two such intervals leave out zero by chance. A difference *exceeds noise* when it does
so at the level that is left for it among all of them, by Holm's method: of runs between which nothing changed, one pair
in twenty has any.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from math import hypot, log, sqrt
from operator import itemgetter
from statistics import NormalDist

import numpy as np
from msgspec.structs import replace

from headway.loadtest.record import Record
from headway.loadtest.result import Distribution, Interval, Load, Run, Struct, Word
from headway.loadtest.table import RecordTable, tabulate
from headway.metrics import latency
from headway.metrics.blocks import Z95
from headway.metrics.latency import Floats
from headway.metrics.percentiles import percentile_draws

SAME, DIFFERENT, UNKNOWN = "same", "different", "unknown"
AS_FITTED = "as fitted"

# Two samples of lengths differ when they are significantly far apart, and by enough to matter for latencies.
LENGTH_ALPHA = 0.01
LENGTH_DISTANCE = 0.1
LENGTH_RATIO = 0.05  # of the mean, where only the distributions are known
# Options that are compared as what came of them: the highest rate, the concurrency, the lengths of the requests.
TOLD_OTHERWISE = frozenset({"request_rate", "end_rate", "burst_rate", "concurrency", "tokenizer"})
COMPARED = ("ttft", "itl", "tpot", "e2e")
RATES = ("request_rate", "output_token_rate", "input_token_rate", "goodput")
ALPHA = 0.05  # that any figure exceeds noise when nothing has changed
SMALLER_IS_BETTER = frozenset(COMPARED)


class Condition(Struct):
    """Something that must be equal for figures to be comparable. `state`: same, different or unknown."""

    name: str
    a: str
    b: str
    state: str


class Difference(Struct):
    """A figure of two runs. `change` is b − a, with its own interval; where one of them has only a lower bound, so has
    the change, or an upper one. `exceeds_noise`: among all the figures compared; None when nobody can tell.
    """

    name: str
    a: Interval
    b: Interval
    change: Interval
    relative: float | None  # change / a
    exceeds_noise: bool | None = None


class Comparison(Struct):
    """What two runs say about each other."""

    comparable: bool  # nothing different, and nothing unknown
    conditions: list[Condition]
    settings: list[Condition]  # what else differs: flags, notes, shares, seeds
    figures: list[Difference]

    @property
    def differs(self) -> bool:
        """Something changed by more than noise; by chance alone in one comparison of twenty."""
        return any(figure.exceeds_noise for figure in self.figures)


def compare(
    a: Run,
    b: Run,
    records_a: Sequence[Record] | None = None,
    records_b: Sequence[Record] | None = None,
    *,
    varied: Collection[str] = (),
) -> Comparison:
    """Compare run `b` with run `a`. `varied` names the conditions whose effect is the question, as "framework"."""
    tables = (tabulate(records_a), tabulate(records_b)) if records_a and records_b else None
    conditions = [*_conditions(a, b), *_lengths(a, b, tables)]
    figures = [*_latencies(a, b, tables), *_rates(a, b)]
    _beyond_noise(figures)
    return Comparison(
        comparable=all(condition.state == SAME for condition in conditions if condition.name not in varied),
        conditions=conditions,
        settings=_settings(a, b),
        figures=figures,
    )


def _conditions(a: Run, b: Run) -> Iterator[Condition]:
    for name in ("model", "device"):
        yield _condition(name, getattr(a.environment, name), getattr(b.environment, name))
    for name in ("precision", "quantisation", "device_count", "framework"):
        condition = _condition(name, *(_of_server(run, name) for run in (a, b)))
        as_fitted = condition.state == DIFFERENT and AS_FITTED in {condition.a, condition.b}
        yield replace(condition, state=SAME) if as_fitted else condition
    yield _condition("endpoint", a.target.endpoint, b.target.endpoint)
    for name in ("profile", "loop"):
        yield _condition(name, getattr(a.load, name), getattr(b.load, name))
    for name in ("rate", "concurrency"):
        # A closed loop has no rate and an open one no concurrency: that is not unknown.
        yield _condition(name, getattr(a.load, name) or "none", getattr(b.load, name) or "none")
    yield from _options(a.load, b.load)
    for name in ("ttft_s", "itl_s", "e2e_s"):
        yield _condition(f"slo {name}", getattr(a.slo, name) or "none", getattr(b.slo, name) or "none")
    words = (a.verdict.name, b.verdict.name)
    # Two runs that are invalid in the same way are no more comparable for it.
    valid = all(word == Word.VALID for word in words)
    yield Condition(name="verdict", a=words[0], b=words[1], state=SAME if valid else DIFFERENT)


def _of_server(run: Run, name: str) -> object:
    """A simulation is of the server that its fit was made from: what it was not told of it is as it was there."""
    value = getattr(run.environment, name)
    return AS_FITTED if value is None and run.simulation else value


def _options(a: Load, b: Load) -> Iterator[Condition]:
    """How the load was asked for. A run of an older headway does not tell."""
    if not (a.options and b.options):
        said = ["told" if load.options else UNKNOWN for load in (a, b)]
        yield Condition(name="options", a=said[0], b=said[1], state=UNKNOWN)
        return
    if a.profile == b.profile:
        for name in sorted((a.options.keys() | b.options.keys()) - TOLD_OTHERWISE):
            yield _condition(name, _option(a, name), _option(b, name))
    if a.profile == b.profile == "ramp":  # it rises as fast as it is short
        yield _condition("duration_s", a.duration_s, b.duration_s)


def _option(load: Load, name: str) -> object:
    """None: the run does not tell. What it was not asked for is known."""
    return "none" if name in load.options and load.options[name] is None else load.options.get(name)


def _condition(name: str, a: object, b: object) -> Condition:
    unknown = a is None or b is None
    state = UNKNOWN if unknown else SAME if a == b else DIFFERENT
    return Condition(name=name, a=_said(a), b=_said(b), state=state)


def _said(value: object) -> str:
    if value is None:
        return UNKNOWN
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _settings(a: Run, b: Run) -> list[Condition]:
    """What differs besides the conditions, and is no obstacle: perhaps it is the very thing that is compared."""
    pairs: tuple[tuple[str, Mapping[str, str], Mapping[str, str]], ...] = (
        ("load", a.load.settings, b.load.settings),
        ("flag", a.environment.flags, b.environment.flags),
        ("note", a.environment.noted, b.environment.noted),
        ("client", a.environment.client, b.environment.client),
    )
    differing = [
        _condition(f"{what} {name}", one.get(name), other.get(name))
        for what, one, other in pairs
        for name in sorted(one.keys() | other.keys())
        if one.get(name) != other.get(name) and not (what == "load" and name in a.load.options)
    ]
    plain = [
        _condition(name, getattr(a.load, name), getattr(b.load, name))
        for name in ("duration_s", "requests", "warmup_s", "cooldown_s", "seed")
        if getattr(a.load, name) != getattr(b.load, name)
    ]
    memory = _condition("memory_bytes", a.environment.memory_bytes, b.environment.memory_bytes)
    return [*plain, *differing, *([memory] if memory.state == DIFFERENT else [])]


def _lengths(a: Run, b: Run, tables: tuple[RecordTable, RecordTable] | None) -> Iterator[Condition]:
    if tables:
        for name in ("asked_input_tokens", "asked_output_tokens"):
            yield _asked(name, *(_column(table, name) for table in tables))
        return
    for name in ("input_tokens", "output_tokens"):
        yield _known_lengths(name, *(run.summary.overall.distributions.get(name) for run in (a, b)))


def _asked(name: str, a: Floats, b: Floats) -> Condition:
    """By the two-sample test of Kolmogorov and Smirnov, with Smirnov's limit for large samples."""
    limit = sqrt(-log(LENGTH_ALPHA / 2) / 2 * (len(a) + len(b)) / (len(a) * len(b)))
    apart = distance(a, b)
    state = DIFFERENT if apart > limit and apart > LENGTH_DISTANCE else SAME
    said = [f"mean {values.mean():.4g}, {values.min():g} to {values.max():g}" for values in (a, b)]
    return Condition(name=name, a=said[0], b=said[1], state=state)


def distance(a: Floats, b: Floats) -> float:
    """Kolmogorov and Smirnov's: the largest difference between the shares of the samples up to any value."""
    a, b = np.sort(a), np.sort(b)
    at = np.concatenate((a, b))
    shares = [np.searchsorted(values, at, side="right") / len(values) for values in (a, b)]
    return float(np.abs(shares[0] - shares[1]).max())


def _known_lengths(name: str, a: Distribution | None, b: Distribution | None) -> Condition:
    if a is None or b is None or a.mean is None or b.mean is None:
        return Condition(name=name, a=UNKNOWN, b=UNKNOWN, state=UNKNOWN)
    same = abs(a.mean - b.mean) <= LENGTH_RATIO * max(a.mean, b.mean)
    return Condition(name=name, a=f"mean {a.mean:.4g}", b=f"mean {b.mean:.4g}", state=SAME if same else DIFFERENT)


def _latencies(a: Run, b: Run, tables: tuple[RecordTable, RecordTable] | None) -> Iterator[Difference]:
    runs = (a, b)
    samples = [_samples(*pair) for pair in zip(tables, runs, strict=True)] if tables else None
    for name in COMPARED:
        one, other = (run.summary.overall.distributions.get(name) for run in runs)
        if one is None or other is None:
            continue
        for key in one.percentiles:
            if key not in other.percentiles:
                continue
            x, y = one.percentiles[key], other.percentiles[key]
            change = _drawn(samples, name, float(key), (a.load.seed, b.load.seed)) if samples else None
            yield _difference(f"{name} p{key}", x, y, change)


_Samples = dict[str, latency.Samples]


def _samples(table: RecordTable, run: Run) -> _Samples:
    due = table.timings.due_within(run.summary.window_s)
    return {
        "ttft": latency.Samples(latency.ttft_s(due), None, latency.waited_s(due)),
        "itl": latency.token_gaps_in_time(due),
        "tpot": latency.Samples(latency.tpot_s(due)),
        "e2e": latency.Samples(latency.e2e_s(due), None, latency.waited_s(due)),
    }


def _drawn(samples: list[_Samples], name: str, q: float, seeds: tuple[int, int]) -> tuple[float, float] | None:
    """The interval of b − a, from draws of both."""
    draws = []
    for number, (sample, seed) in enumerate(zip(samples, seeds, strict=True)):
        values, weights, at_least = sample[name]
        # Independent draws also where both runs had the same seed.
        drawn = percentile_draws(values, q, weights, at_least, seed=2 * seed + number)
        if drawn is None:
            return None
        draws.append(drawn)
    with np.errstate(invalid="ignore"):
        change = draws[1] - draws[0]
    unknown = np.isnan(change)  # both beyond the samples: it may be anything
    low = np.quantile(np.where(unknown, -np.inf, change), 0.025, method="nearest")
    high = np.quantile(np.where(unknown, np.inf, change), 0.975, method="nearest")
    return float(low), float(high)


def _difference(name: str, a: Interval, b: Interval, bounds: tuple[float, float] | None = None) -> Difference:
    if a.value is None or b.value is None:
        return Difference(name=name, a=a, b=b, change=_bounded(a, b), relative=None)
    change = b.value - a.value
    low, high = bounds or _recovered(a, b)
    interval = Interval(value=change, low=low if np.isfinite(low) else None, high=high if np.isfinite(high) else None)
    return Difference(name=name, a=a, b=b, change=interval, relative=change / a.value if a.value else None)


def _bounded(a: Interval, b: Interval) -> Interval:
    """What is known of b − a where one of them lies among requests that were given up: it is at least its bound, and
    the other within its interval.
    """
    low = b.at_least - a.high if b.at_least is not None and a.high is not None else None
    high = b.high - a.at_least if a.at_least is not None and b.high is not None else None
    return Interval(value=None, low=low, high=high)


def _recovered(a: Interval, b: Interval) -> tuple[float, float]:
    """The interval of b − a from the intervals of both; infinite on a side that one of them does not bound."""
    assert a.value is not None
    assert b.value is not None
    down_a, up_a = _arms(a)
    down_b, up_b = _arms(b)
    change = b.value - a.value
    return change - hypot(down_b, up_a), change + hypot(up_b, down_a)


def _arms(figure: Interval) -> tuple[float, float]:
    assert figure.value is not None
    down = figure.value - figure.low if figure.low is not None else np.inf
    up = figure.high - figure.value if figure.high is not None else np.inf
    return down, up


def _rates(a: Run, b: Run) -> Iterator[Difference]:
    """By the intervals the runs tell: how tokens arrived is not in a saved run's records."""
    one, other = a.summary.overall, b.summary.overall
    for name in RATES:
        x, y = getattr(one, name), getattr(other, name)
        if x is not None and y is not None:
            yield _difference(name, one.rates.get(name, Interval(value=x)), other.rates.get(name, Interval(value=y)))
    if one.good_ratio is not None and other.good_ratio is not None:
        yield _difference("good_ratio", one.good_ratio, other.good_ratio)


def _beyond_noise(figures: Sequence[Difference]) -> None:
    """Which differences remain when it is asked of all of them at once (Holm 1979, Scand. J. Statist. 6:65).

    If nothing has changed, one of them remains in one comparison of twenty at most, however figures hang together.
    """
    told = sorted(((p, figure) for figure in figures if (p := _p_value(figure.change)) is not None), key=itemgetter(0))
    remains = True
    for place, (p_value, figure) in enumerate(told):
        remains = remains and p_value <= ALPHA / (len(told) - place)
        figure.exceeds_noise = remains


def _p_value(change: Interval) -> float | None:
    """Of a change as large where there is none: by how often its arm towards zero fits into it. None: nobody knows."""
    if change.value is None or (change.low is None and change.high is None):
        return None
    end = change.low if change.value > 0 else change.high
    if end is None or change.value == 0:
        return 1.0
    arm = abs(change.value - end)
    return 2 * NormalDist().cdf(-Z95 * abs(change.value) / arm) if arm > 0 else 0.0


def _column(table: RecordTable, name: str) -> Floats:
    return np.fromiter((getattr(record, name) for record in table.records), np.float64, len(table))
