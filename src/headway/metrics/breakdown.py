"""Requests that ended, in all and by tenant, lane, worker and model: how they ended, what they cost, how long it took.

What is told of a request is kept until there are `BATCH` of them or somebody reads: then they are added up together,
with numpy, for a fraction of what adding up each would cost.

Labels that come from outside are bounded: the `MOST_NAMED` busiest names of a kind have series of their own, and the
rest are `other` together. Who is busiest is known by recent tokens, which are halved every `HALVE_EVERY` requests; a
name must be twice as busy as one that has a series to take its place. Its own begins there, at what came since: rates
are right, and nothing ever counts down.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import inf
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from headway.metrics.gaps import Gaps
from headway.metrics.histogram import Histogram
from headway.metrics.names import (
    BY_LATENCY_BUCKETS_S,
    DIMENSIONS,
    ITL_BUCKETS_S,
    METRICS,
    OUTCOMES,
    TOKENS_BUCKETS,
    of_dimension,
)
from headway.metrics.text import histograms, series

MOST_NAMED = 32
OTHER = "other"
HALVE_EVERY = 1024
# Names without a series whose business is remembered.
MOST_WATCHED = 256
SWAP_RATIO = 2.0
BATCH = 512

Matrix = npt.NDArray[np.float64]

# What is counted of a name, side by side in one row: columns of outcomes, tokens, and three histograms with their sums.
_WIDTHS = (len(OUTCOMES), 3, len(BY_LATENCY_BUCKETS_S) + 2, len(ITL_BUCKETS_S) + 2, len(BY_LATENCY_BUCKETS_S) + 2)
_OUTCOME, _TOKENS, _TTFT, _ITL, _E2E, _END = accumulate(_WIDTHS, initial=0)
_PLACE = {outcome: place for place, outcome in enumerate(OUTCOMES)}
_LATENCY = np.array(BY_LATENCY_BUCKETS_S)
ENDED_WELL = ("good", "late")


class Ended(NamedTuple):
    """One request, at its end. `promises`: of each that was made ("ttft", "itl"), whether it was kept."""

    outcome: str  # of `OUTCOMES`; "good" stands for "late" as well where a promise was broken
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    ttft_s: float | None = None  # None: there was no first token, or nobody saw it
    duration_s: float = 0.0
    gaps: Gaps | None = None
    promises: Mapping[str, bool] | None = None
    labels: Mapping[str, str] = MappingProxyType({})


@dataclass(slots=True)
class Cell:
    """What was counted of one name, as it is now."""

    outcomes: dict[str, int]
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    ttft_s: Histogram
    itl_s: Histogram
    duration_s: Histogram


def _cell(row: Matrix) -> Cell:
    counts: list[float] = row.tolist()
    input_tokens, cached_tokens, output_tokens = (int(count) for count in counts[_TOKENS:_TTFT])
    told = {name: int(count) for name, count in zip(OUTCOMES, counts[_OUTCOME:_TOKENS], strict=True) if count}
    return Cell(
        told,
        input_tokens,
        cached_tokens,
        output_tokens,
        _histogram(BY_LATENCY_BUCKETS_S, counts[_TTFT:_ITL]),
        _histogram(ITL_BUCKETS_S, counts[_ITL:_E2E]),
        _histogram(BY_LATENCY_BUCKETS_S, counts[_E2E:_END]),
    )


def _histogram(bounds: Sequence[float], counts: Sequence[float]) -> Histogram:
    return Histogram.of(bounds, [int(count) for count in counts[:-1]], counts[-1])


class Breakdown:
    """Rows by name, for at most `most` names; the last row is all others'."""

    def __init__(self, most: int = MOST_NAMED) -> None:
        self._most = most
        self._rows: dict[str, int] = {}
        self._totals = np.zeros((most + 1, _END))
        self._others = False
        self._busy: dict[str, float] = {}  # recent tokens, of those with a row and of some without
        self._noted = 0

    def cells(self) -> Iterator[tuple[str, Cell]]:
        for name, row in self._rows.items():
            yield name, _cell(self._totals[row])
        if self._others:
            yield OTHER, _cell(self._totals[self._most])

    def computed_tokens(self) -> dict[str, int]:
        """By name, `other` among them: input and output of requests that ended, without what was found in a cache."""
        found = (self._totals[:, _TOKENS] - self._totals[:, _TOKENS + 1] + self._totals[:, _TOKENS + 2]).tolist()
        told = {name: int(found[row]) for name, row in self._rows.items()}
        return told | {OTHER: int(found[self._most])} if self._others else told

    def names(self) -> list[str]:
        """Those with a series."""
        return list(self._rows)

    def bounded(self, counts: Mapping[str, int]) -> dict[str, int]:
        """What there is now of each name, by those with a series and `other`; 0 of who has nothing.

        Of names that are new, none of whose requests has ended, the highest stand where there is still room.
        """
        told = dict.fromkeys(self._rows, 0)
        new = sorted((name for name in counts if name not in told and name != OTHER), key=lambda name: -counts[name])
        shown = {*told, *new[: self._most - len(told)]}
        for name, count in counts.items():
            label = name if name in shown else OTHER
            told[label] = told.get(label, 0) + count
        return told

    def add(self, names: Sequence[str | None], told: Matrix) -> None:
        """A row of `told` for each of `names`; None has no name of this kind."""
        places = {name: place for place, name in enumerate(dict.fromkeys(names))}
        if len(places) == 1:  # one lane, one model, no keys: the usual case
            sums = told.sum(axis=0, keepdims=True)
        else:
            whose = np.fromiter(map(places.__getitem__, names), np.int64, len(names))
            sums = (whose == np.arange(len(places))[:, None]).astype(np.float64) @ told
        for name, place in places.items():
            if name is not None:
                self._note(name, sums[place, _TOKENS] + sums[place, _TOKENS + 2] + 1)
        for name, place in places.items():
            if name is not None:
                row = self._row(name)
                self._others |= row == self._most
                self._totals[row] += sums[place]
        self._forget(len(names))

    def _row(self, name: str) -> int:
        row = self._rows.get(name)
        if row is not None or name == OTHER:
            return self._most if row is None else row
        if len(self._rows) < self._most:
            row = self._rows[name] = len(self._rows)
            return row
        idlest = min(self._rows, key=lambda one: self._busy.get(one, 0.0))
        if self._busy.get(name, 0.0) <= SWAP_RATIO * self._busy.get(idlest, 0.0):
            return self._most
        row = self._rows[name] = self._rows.pop(idlest)
        self._totals[row] = 0.0
        return row

    def _note(self, name: str, tokens: float) -> None:
        """Where no more can be remembered, a new name takes the place and the count of the idlest (Space-Saving:
        Metwally, Agrawal, Abbadi 2005): who is busy is found whoever came before.
        """
        busy = self._busy
        if name not in busy and len(busy) >= self._most + MOST_WATCHED:
            busy[name] = busy.pop(min((one for one in busy if one not in self._rows), key=busy.__getitem__))
        busy[name] = busy.get(name, 0.0) + tokens

    def _forget(self, requests: int) -> None:
        self._noted += requests
        if self._noted >= HALVE_EVERY:
            self._noted = 0
            self._busy = {one: much / 2 for one, much in self._busy.items() if much >= 2 or one in self._rows}


class Record(Protocol):
    """A request that has ended, as it is counted; read once, later."""

    @property
    def outcome(self) -> str:
        """Of `OUTCOMES`; "good" stands for "late" as well where a promise was broken."""

    @property
    def input_tokens(self) -> int: ...
    @property
    def cached_tokens(self) -> int: ...
    @property
    def output_tokens(self) -> int: ...
    @property
    def ttft_s(self) -> float | None: ...
    @property
    def duration_s(self) -> float: ...
    @property
    def gaps(self) -> Gaps | None: ...
    @property
    def promises(self) -> Mapping[str, bool] | None:
        """Of each that was made ("ttft", "itl"), whether it was kept."""

    @property
    def labels(self) -> Mapping[str, str]:
        """Its names by dimension, those that it has."""


class Calls:
    """All requests that ended, and the same by each of `dimensions`."""

    def __init__(self, dimensions: Sequence[str] = DIMENSIONS) -> None:
        self._outcomes: dict[str, int] = dict.fromkeys(OUTCOMES, 0)
        self._promises: dict[tuple[str, str], int] = {}
        self._input_tokens = Histogram(TOKENS_BUCKETS)
        self._output_tokens = Histogram(TOKENS_BUCKETS)
        self._cached_tokens = self._begun_tokens = 0
        self._by = {dimension: Breakdown() for dimension in dimensions}
        self._new: list[Record] = []

    # -- as it happens ---------------------------------------------------------------------------------------------

    def ended(self, one: Record) -> None:
        """Count a request that was let in, once."""
        self._new.append(one)
        if len(self._new) >= BATCH:
            self._add_up()

    def refused(self, outcome: str, labels: Mapping[str, str]) -> None:
        """Count one that was not let in. A model's name may be anybody's invention: it is not for `labels`."""
        self.ended(Ended(outcome, labels=labels))

    # -- as it is read ---------------------------------------------------------------------------------------------

    @property
    def outcomes(self) -> Mapping[str, int]:
        self._add_up()
        return self._outcomes

    @property
    def promises(self) -> Mapping[tuple[str, str], int]:
        """By which promise it was, and whether it was kept: yes or no. Of requests that were answered."""
        self._add_up()
        return self._promises

    @property
    def input_tokens(self) -> Histogram:
        """Of requests that were answered."""
        self._add_up()
        return self._input_tokens

    @property
    def output_tokens(self) -> Histogram:
        self._add_up()
        return self._output_tokens

    @property
    def cached_tokens(self) -> int:
        self._add_up()
        return self._cached_tokens

    @property
    def begun_tokens(self) -> int:
        """Prompt tokens, cached or computed, of requests whose answer began."""
        self._add_up()
        return self._begun_tokens

    @property
    def by(self) -> Mapping[str, Breakdown]:
        """By dimension."""
        self._add_up()
        return self._by

    def settle(self) -> None:
        """Add up what was told: nothing that was handed over is read again."""
        self._add_up()

    def _add_up(self) -> None:
        if not self._new:
            return
        new, self._new = self._new, []
        outcomes = [self._outcome(one) for one in new]
        for outcome, count in Counter(outcomes).items():
            self._outcomes[outcome] += count
        told = _told(new, outcomes)
        answered = np.array([outcome in ENDED_WELL for outcome in outcomes])
        self._input_tokens.note_all(told[answered, _TOKENS])
        self._output_tokens.note_all(told[answered, _TOKENS + 2])
        self._cached_tokens += int(told[:, _TOKENS + 1].sum())
        self._begun_tokens += int(told[answered | (told[:, _TOKENS + 2] > 0), _TOKENS].sum())
        labels = [one.labels for one in new]
        for dimension, breakdown in self._by.items():
            breakdown.add([names.get(dimension) for names in labels], told)

    def _outcome(self, one: Record) -> str:
        outcome = one.outcome
        if outcome != "good" or not (promises := one.promises):
            return outcome
        for promise, kept in promises.items():
            key = promise, "yes" if kept else "no"
            self._promises[key] = self._promises.get(key, 0) + 1
        return "late" if False in promises.values() else outcome

    def text(self, *, tenants: bool = True) -> str:
        """All of it, as Prometheus reads it; without `tenants` nothing by tenant."""
        told = ((name, one) for name, one in self.by.items() if tenants or name != "tenant")
        return "".join(
            (
                series(METRICS["headway_requests_total"], {(how,): count for how, count in self.outcomes.items()}),
                series(METRICS["headway_promises_total"], self.promises),
                series(METRICS["headway_cached_tokens_total"], {(): self.cached_tokens}),
                histograms(METRICS["headway_request_input_tokens"], {(): self.input_tokens}),
                histograms(METRICS["headway_request_output_tokens"], {(): self.output_tokens}),
                *(_of(dimension, breakdown) for dimension, breakdown in told),
            )
        )


def _told(new: Sequence[Record], outcomes: Sequence[str]) -> Matrix:
    """A row of what is counted for each request."""
    told = np.zeros((len(new), _END))
    told[np.arange(len(new)), [_OUTCOME + _PLACE[outcome] for outcome in outcomes]] = 1
    told[:, _TOKENS:_TTFT] = [(one.input_tokens, one.cached_tokens, one.output_tokens) for one in new]
    _spread(told, _TTFT, [inf if (ttft_s := one.ttft_s) is None else ttft_s for one in new])
    answered = zip(new, outcomes, strict=True)
    _spread(told, _E2E, [one.duration_s if outcome in ENDED_WELL else inf for one, outcome in answered])
    streamed = [(row, gaps) for row, one in enumerate(new) if (gaps := one.gaps) is not None]
    if streamed:
        rows = [row for row, _ in streamed]
        told[rows, _ITL : _E2E - 1] = [gaps.counts for _, gaps in streamed]
        told[rows, _E2E - 1] = [gaps.sum for _, gaps in streamed]
    return told


def _spread(told: Matrix, start: int, seconds: Sequence[float]) -> None:
    """One for the bucket of each, and its sum; nothing for what is infinite."""
    values = np.array(seconds)
    (known,) = np.nonzero(np.isfinite(values))
    told[known, start + np.searchsorted(_LATENCY, values[known])] = 1
    told[known, start + len(_LATENCY) + 1] = values[known]


def _of(dimension: str, breakdown: Breakdown) -> str:
    cells, metrics = list(breakdown.cells()), of_dimension(dimension)

    def told(what: str, field: str) -> str:
        values: dict[tuple[str], Any] = {(name,): getattr(cell, field) for name, cell in cells}
        return histograms(metrics[what], values) if what.endswith("_seconds") else series(metrics[what], values)

    outcomes = {(name, how): count for name, cell in cells for how, count in cell.outcomes.items()}
    return "".join(
        (
            series(metrics["requests_total"], outcomes),
            told("input_tokens_total", "input_tokens"),
            told("cached_tokens_total", "cached_tokens"),
            told("output_tokens_total", "output_tokens"),
            told("time_to_first_token_seconds", "ttft_s"),
            told("inter_token_latency_seconds", "itl_s"),
            told("request_duration_seconds", "duration_s"),
        )
    )
