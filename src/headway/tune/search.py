"""The search on virtual time: which settings serve a load best, or hold the highest one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from headway.core.errors import ConfigError
from headway.loadtest.errors import InvalidPlan
from headway.tune.predict import NO_DOUBT, Doubt, Foreseen, Prediction, World
from headway.tune.settings import Settings
from headway.tune.workload import Workload

SEQS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
TOKENS = (32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
BETWEEN = 0.75  # of a doubling: 48 between 32 and 64, counted from above
NEAR = 0.01  # good shares so near to the best, as a share of it, are no reason to choose
LANE_SHARES = (0.25, 0.5, 0.75, 1.0)
# Of the search for the highest load: by so much each probe of a rate differs from the one before, and at the end.
RISE, SURE = 1.3, 1.03
MOST_RATE = 1e5


@dataclass(frozen=True, slots=True)
class Grid:
    """What is tried of both limits, in ascending order."""

    seqs: tuple[int, ...] = SEQS
    tokens: tuple[int, ...] = TOKENS

    def points(self, same: Callable[[Settings, Settings], bool], *lanes: int | None) -> Iterator[Settings]:
        """Where two serve alike nothing is near the limit, and larger ones are left out."""
        before: list[Settings] = []
        for tokens in self.tokens:
            row: list[Settings] = []
            for seqs in self.seqs:
                if seqs > tokens or (len(row) > 1 and same(row[-2], row[-1])):
                    break
                row.append(Settings(seqs, tokens, *lanes))
                yield row[-1]
            if before and all(same(*pair) for pair in zip(before, row, strict=False)) and len(row) <= len(before):
                return
            before = row


WHOLE = Grid()
# Told what is being done, how many are done, and of how many at most.
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Point:
    """Settings, and what a simulation of them came to."""

    settings: Settings
    predicted: Prediction


@dataclass(slots=True)
class Search:
    """Each settings is simulated once, and judged anew when there is another doubt."""

    world: World
    workload: Workload
    progress: Progress = lambda _doing, _done, _of: None
    lane_tokens: tuple[int, int] | None = None  # from where prompts, and outputs, have a lane of their own; None: none
    doubt: Doubt = NO_DOUBT
    grid: Grid = WHOLE
    _known: dict[Settings, Foreseen] = field(default_factory=dict)
    _at_first: Doubt = field(init=False)

    def __post_init__(self) -> None:
        self._at_first = self.doubt

    def predict(self, settings: Settings) -> Prediction:
        """Raises `ConfigError` for settings that the server would not take."""
        if settings not in self._known:
            self._known[settings] = self.world.foresee(settings, self.workload)
        return self._known[settings].judged(self.doubt)

    def predicted_at_first(self, settings: Settings) -> Prediction:
        """Before any live test taught anything: what stands beside a measurement is to be a prediction."""
        self.predict(settings)
        return self._known[settings].judged(self._at_first)

    @property
    def points(self) -> list[Point]:
        """All that were simulated, judged with the doubt that there is now."""
        return [Point(settings, found.judged(self.doubt)) for settings, found in self._known.items()]

    def run(self, current: Settings | None) -> list[Point]:
        """All points, the best first."""
        lanes = (current.long_prompt_slots, current.long_output_slots) if current is not None else (None, None)
        if current is not None:
            self.predict(current)
        done = 0
        for settings in self.grid.points(self._same, *lanes):
            done += 1
            self.progress("searching", done, len(self.grid.seqs) * len(self.grid.tokens))
            self._try(settings)
        for settings in _between(self.ranked[0].settings):
            self.progress("searching nearby", done, done)
            self._try(settings)
        for settings in self._lanes(self.ranked[0].settings):
            self.progress("searching lanes", done, done)
            self._try(settings)
        return self.ranked

    @property
    def ranked(self) -> list[Point]:
        """The best first: by the share of good requests, which at one load orders as goodput does; where that is as
        good as equal, by how far promises are from breaking.
        """
        return ranked(self.points)

    def _try(self, settings: Settings) -> None:
        try:
            self.predict(settings)
        except ConfigError:
            return  # the server would not take it

    def _same(self, one: Settings, other: Settings) -> bool:
        """Whether two settings serve this load alike: then a larger limit still will be no different."""
        first, second = self._known.get(one), self._known.get(other)
        return first is not None and second is not None and first.judged(self.doubt) == second.judged(self.doubt)

    def _lanes(self, best: Settings) -> Iterator[Settings]:
        """Caps of lanes that this load has requests for, from a quarter of all slots to all of them."""
        if self.lane_tokens is None or best.max_num_seqs < 2:
            return
        prompts, outputs = np.array(self.workload.lengths, np.int64).T
        for name, lengths, least in zip(
            ("long_prompt_slots", "long_output_slots"), (prompts, outputs), self.lane_tokens, strict=True
        ):
            share = float((lengths >= least).mean())
            if 0 < share < 1:  # with all of them long there is nobody to keep slots for
                for part in LANE_SHARES:
                    slots = max(1, round(best.max_num_seqs * part))
                    yield replace(best, **{name: slots})


def _between(best: Settings) -> Iterator[Settings]:
    """Half-way to the next grid points."""
    seqs, tokens = best.max_num_seqs, best.max_num_batched_tokens
    for s in _around(seqs):
        for t in _around(tokens):
            if (s, t) != (seqs, tokens) and 1 <= s <= t:
                yield replace(best, max_num_seqs=s, max_num_batched_tokens=t)


def _around(limit: int) -> tuple[int, ...]:
    return tuple(dict.fromkeys((round(limit * BETWEEN), limit, round(limit * 2 * BETWEEN))))


def ranked(points: Sequence[Point]) -> list[Point]:
    """See `Search.ranked`. Of equal ones the smaller limits come first: they hold less memory in reserve."""
    if not points:
        return []
    top = max(point.predicted.good_ratio for point in points)

    def key(point: Point) -> tuple[float, ...]:
        near = point.predicted.good_ratio >= top * (1 - NEAR)
        order = (0.0, point.predicted.load_on_promises) if near else (1.0, -point.predicted.good_ratio)
        return (*order, point.settings.max_num_batched_tokens, point.settings.max_num_seqs)

    return sorted(points, key=key)


@dataclass(slots=True)
class Climb:
    """The highest rate at which any settings give `good` of the requests every promise.

    Each settings is tried a little above the best so far, and climbs from there: most fail at once.
    """

    world: World
    load_at: Callable[[float], Workload]
    good: float
    progress: Progress
    doubt: Doubt = NO_DOUBT
    grid: Grid = WHOLE
    _loads: dict[float, Workload] = field(default_factory=dict)

    def run(self, current: Settings | None, start: float) -> float | None:
        """None where no settings hold at any rate down to a thousandth of `start`."""
        candidates = sorted(self.grid.points(lambda _one, _other: False), key=_far)
        if current is not None:
            candidates.insert(0, current)
        best = 0.0
        for number, settings in enumerate(candidates, 1):
            self.progress("searching the highest load", number, len(candidates))
            rate = best * SURE or start
            if not self._holds(settings, rate):
                rate = 0.0 if best else self._down(settings, rate)
            if rate:
                best = max(best, self._up(settings, rate))
        return float(f"{best:.3g}") if best else None

    def _holds(self, settings: Settings, rate: float) -> bool:
        rate = float(f"{rate:.3g}")
        try:
            if rate not in self._loads:
                self._loads[rate] = self.load_at(rate)
            return self.world.foresee(settings, self._loads[rate]).judged(self.doubt).good_ratio >= self.good
        except (ConfigError, InvalidPlan):  # it would not take them; or nobody comes, at so low a rate
            return False

    def _down(self, settings: Settings, rate: float) -> float:
        """A lower rate that holds; 0 where even a thousandth does not."""
        least = rate / 1000
        while rate > least:
            rate /= RISE**2
            if self._holds(settings, rate):
                return rate
        return 0.0

    def _up(self, settings: Settings, rate: float) -> float:
        """From a rate that holds to one of which `SURE` times as much does not."""
        low = rate
        while low < MOST_RATE and self._holds(settings, low * RISE):
            low *= RISE
        high = low * RISE
        while high / low > SURE:
            middle = math.sqrt(low * high)
            low, high = (middle, high) if self._holds(settings, middle) else (low, middle)
        return low


def _far(settings: Settings) -> float:
    """From where the best usually is, so that the first that is tried is a good one."""
    return abs(math.log2(settings.max_num_seqs / 32)) + abs(math.log2(settings.max_num_batched_tokens / 512))
