"""`Recorder`: a row of scrapes -> the facts of what happened in between.

Counters that fell have been reset: what they show then is what was counted since. A scrape that failed is a gap.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from headway.doctor.facts import HELD_SAMPLES, Facts, Heard, Part, Promise, Settings, joined
from headway.doctor.scrape import Histogram, Place, Scrape, Shown, number_in
from headway.doctor.spread import Floats, Spread
from headway.doctor.strange import missing

# A time earlier by more than so many usual intervals is a clock that was set back, once it is known what is usual.
SET_BACK, LEAST_STEPS, MOST_STEPS = 3.0, 4, 64


@dataclass(slots=True)
class _Row:
    """A place over time."""

    gauges: dict[str, list[float]] = field(default_factory=dict)
    totals: dict[str, list[float]] = field(default_factory=dict)
    shown_totals: dict[str, float] = field(default_factory=dict)
    counted: dict[str, float] = field(default_factory=dict)
    histograms: dict[str, Histogram] = field(default_factory=dict)
    grown: dict[str, Histogram] = field(default_factory=dict)
    counted_s: dict[str, tuple[float, float]] = field(default_factory=dict)  # from when, to when


@dataclass(slots=True)
class _Looks:
    """At one instance, from its first answer on: how many, and at which places of the row of times. `told`: it is told
    whether it answered, and not just what.
    """

    first: int
    count: int = 0
    failed: int = 0
    answered: int = 0
    last: int = 0
    told: bool = False

    def add(self, place: int, *, answered: bool) -> None:
        self.count += 1
        self.failed += not answered
        self.last = place
        self.answered = place if answered else self.answered

    def silent(self, end: int) -> bool:
        return self.answered < self.last or end - self.last > HELD_SAMPLES

    def gone(self, end: int, came: Sequence[int]) -> bool:
        """Is it not looked at any more? Where that is not told: has a new one come for it? `came`: when they did."""
        return end - self.last > HELD_SAMPLES and (self.told or any(one > self.last for one in came))


class Recorder:
    """Feed it scrapes in order of time, None for one that failed; ask it for facts."""

    def __init__(self) -> None:
        self.times_s: list[float] = []
        self.kind = ""
        self.restarts = 0
        self.disordered = 0
        self.set_back = 0
        self._ahead_s = 0.0  # by so much a clock that was set back stands behind the one that we go by
        self._lately_s: deque[float] = deque(maxlen=MOST_STEPS)  # intervals, of which the median is usual
        self._rows: dict[Place, _Row] = {}
        self._info: dict[str, str] = {}
        self._gateways: set[str] = set()
        self._strange: dict[str, bool] = {}
        self._looks: dict[str, _Looks] = {}

    def add(self, scrape: Scrape | None, at_s: float) -> None:
        """None is a look that nobody answered. One that comes a little out of order is left out. A clock that was set
        back goes on from where it was: as if as much time had passed as usually does.
        """
        usual_s = statistics.median(self._lately_s) if len(self.times_s) >= LEAST_STEPS else math.inf
        if self.times_s and at_s + self._ahead_s < self.times_s[-1] - SET_BACK * usual_s:
            self._ahead_s = self.times_s[-1] + usual_s - at_s
            self.set_back += 1
        at_s += self._ahead_s
        if self.times_s and at_s <= self.times_s[-1]:
            self.disordered += 1
            return
        count = len(self.times_s)
        if self.times_s:
            self._lately_s.append(at_s - self.times_s[-1])
        self.times_s.append(at_s)
        self._heard(scrape, count)
        if scrape is not None:
            self.kind = scrape.kind or self.kind
            self._info |= scrape.info
            self._gateways |= scrape.gateways
            self._strange |= scrape.strange
            fell = [self._take(place, shown, count, at_s) for place, shown in scrape.places.items()]
            self.restarts += any(fell)
        for row in self._rows.values():
            for series in (*row.gauges.values(), *row.totals.values()):
                series.extend([math.nan] * (count + 1 - len(series)))

    def _heard(self, scrape: Scrape | None, count: int) -> None:
        answers = {} if scrape is None else {place.instance: True for place in scrape.places} | scrape.up
        for name, answered in (answers or dict.fromkeys(self._looks, False)).items():
            if answered or name in self._looks:
                looks = self._looks.setdefault(name, _Looks(count))
                looks.told |= scrape is None or name in scrape.up
                looks.add(count, answered=answered)

    def _take(self, place: Place, shown: Shown, count: int, at_s: float) -> bool:
        row = self._rows.setdefault(place, _Row())
        for name, value in shown.gauges.items():
            _series(row.gauges, name, count).append(value)
        fell = False
        for name, value in shown.totals.items():
            before = row.shown_totals.get(name)
            fell |= before is not None and value < before
            row.counted[name] = row.counted.get(name, 0.0) + (
                0.0 if before is None else value if value < before else value - before
            )
            row.shown_totals[name] = value
            _series(row.totals, name, count).append(row.counted[name])
        for name, state in shown.histograms.items():
            last = row.histograms.get(name)
            again = last is not None and any(state.get(bound, 0.0) < value for bound, value in last.items())
            if last is not None:
                grown = row.grown.setdefault(name, {})
                for bound, value in state.items():
                    grown[bound] = grown.get(bound, 0.0) + value - (0.0 if again else last.get(bound, 0.0))
            row.histograms[name] = state
            row.counted_s[name] = (row.counted_s.get(name, (at_s, at_s))[0], at_s)
        return fell

    def facts(self, source: str = "") -> Facts:
        """What happened between the first and the last scrape."""
        times_s = np.array(self.times_s, np.float64)
        parts = {place: _part(str(place), row, times_s) for place, row in sorted(self._rows.items())}
        service, workers = _fleet(parts, self._gateways, times_s)
        notes = []
        if behind := sorted({place.instance for place in parts} - self._gateways) if self._gateways else []:
            notes.append(
                f"{', '.join(behind[:3])}{' and others' * (len(behind) > 3)}: taken for engines behind the gateway "
                "that is seen as well, whose counts are not added to its own; what is not needs a narrower selector"
            )
        if self.set_back:
            notes.append(f"the clock was set back {self.set_back} times; it is taken to have gone on")
        if self.disordered:
            notes.append(f"{self.disordered} scrapes came out of order and are left out")
        for name, looks in sorted(self._looks.items()):
            if looks.failed:
                of = f" of {name}" if name else ""
                notes.append(f"{looks.failed} of {looks.count} scrapes{of} failed; the rest is judged")
        if self.restarts:
            notes.append(
                f"counters began again {self.restarts} times: a restart; what was counted before it is not mixed in"
            )
        return Facts(
            source or self.kind or "unknown",
            service,
            tuple(workers) if len(workers) > 1 else (),
            _settings(service, self._info),
            Promise.of(service.most("slo_ttft_s"), service.most("slo_itl_s")),
            missing=missing(self._known(service), self._strange),
            notes=tuple(notes),
            restarts=self.restarts,
            kind=self.kind,
            heard=self._answers(),
        )

    def _answers(self) -> dict[str, Heard]:
        """Of all that are still there."""
        end, came = len(self.times_s) - 1, [looks.first for looks in self._looks.values()]
        return {
            name: Heard(
                looks.count,
                looks.failed,
                self.times_s[end] - self.times_s[looks.answered] if looks.silent(end) else 0.0,
            )
            for name, looks in sorted(self._looks.items())
            if not looks.gone(end, came)
        }

    def _known(self, service: Part) -> set[str]:
        return {*service.gauges, *service.totals, *service.spreads} | {
            name for row in self._rows.values() for name in (*row.histograms, *row.shown_totals)
        }


def _series(known: dict[str, list[float]], name: str, count: int) -> list[float]:
    """A new one was not there at `count` moments."""
    if name not in known:
        known[name] = [math.nan] * count
    return known[name]


def _fleet(parts: Mapping[Place, Part], gateways: set[str], times_s: Floats) -> tuple[Part, list[Part]]:
    """The service, and its engines. Each instance is one beside the others; but behind a gateway they all are its
    workers, which it tells of as well: whatever is told twice counts once.
    """
    if not parts:
        return Part("all", times_s), []
    alone: list[Part] = []
    engines: list[Part] = []
    for instance in sorted({place.instance for place in parts} - gateways):
        mine = [part for place, part in parts.items() if place.instance == instance and place.engine]
        alone.append(_filled(parts.get(Place(instance)), mine, instance))
        engines += mine or alone[-1:]
    if not gateways:
        return joined(alone), engines
    wholes = [part for place, part in parts.items() if place.instance in gateways and not place.engine]
    shared: dict[str, list[Part]] = {}
    for place, part in parts.items():
        if place.instance in gateways and place.engine:
            shared.setdefault(place.engine, []).append(part)
    workers = [_same(name, seen) for name, seen in shared.items()]
    service = _filled(joined(wholes) if wholes else None, workers)
    told = [sum("waiting" in part.gauges for part in several) for several in (workers, engines)]
    return _filled(service, alone), engines if told[1] > told[0] else workers


def _filled(whole: Part | None, engines: list[Part], name: str = "all") -> Part:
    """What is said of the whole; and where that is silent, the sum of its engines."""
    if whole is None:
        return joined(engines, name)
    if not engines:
        return replace(whole, name=name)
    summed = joined(engines, name)
    spans = ({key: part.spread_s(key) for key in part.spreads} for part in (summed, whole))
    return Part(
        name,
        whole.times_s,
        {**summed.gauges, **whole.gauges},
        {**summed.totals, **whole.totals},
        {**summed.spreads, **whole.spreads},
        {key: counted_s for span in spans for key, counted_s in span.items()},
    )


def _same(name: str, seen: list[Part]) -> Part:
    """A worker of several gateways: each of them asks it how it is, and counts what went through itself."""
    both = joined(seen, name)
    return replace(both, gauges={key: np.fmax.reduce([p.gauge(key) for p in seen]) for key in both.gauges})


def _part(name: str, row: _Row, times_s: Floats) -> Part:
    spreads = {
        key: spread
        for key, grown in row.grown.items()
        if (spread := Spread.of_buckets(_bounds(grown), grown.get(None, 0.0))) is not None
    }
    gauges = {key: np.array(series) for key, series in row.gauges.items()}
    if (blocks := gauges.get("kv_blocks")) is not None and (aside := gauges.get("kv_set_aside_blocks")) is not None:
        # What is set aside for those who run is as good as taken.
        gauges["kv_ratio"] = np.minimum(1.0, gauges["kv_ratio"] + aside / np.maximum(blocks, 1.0))
    totals = {key: np.array(series) for key, series in row.totals.items()}
    counted_s = {key: end_s - begin_s for key, (begin_s, end_s) in row.counted_s.items()}
    return Part(name or "all", times_s, gauges, totals, spreads, counted_s)


def _bounds(grown: Histogram) -> dict[float, float]:
    return {bound: value for bound, value in grown.items() if bound is not None}


def _block_tokens(service: Part) -> float:
    """How many tokens a block holds, from how many tokens so many blocks hold: blocks are powers of two, and full but
    for the last of each sequence. NaN where it is not told.
    """
    used = service.gauge("kv_ratio") * service.gauge("kv_blocks") - np.nan_to_num(service.gauge("kv_set_aside_blocks"))
    held = service.gauge("kv_tokens")
    known = np.isfinite(used) & np.isfinite(held) & (used >= 8)
    if not known.any():
        return math.nan
    return float(2.0 ** math.ceil(math.log2(max(1.0, float(np.median(held[known] / used[known]))) - 0.05)))


def _settings(service: Part, info: Mapping[str, str]) -> Settings:
    block = number_in(info.get("block_size"))
    blocks = number_in(info.get("num_gpu_blocks"))
    kv_tokens = service.most("kv_capacity_tokens")
    if kv_tokens is None and not info:
        block, blocks = _block_tokens(service), service.most("kv_blocks") or math.nan
    if math.isfinite(block * blocks) and block * blocks > 0:
        kv_tokens = block * blocks
    words = {"true": True, "false": False}
    return Settings(
        max_num_seqs=service.most("max_num_seqs"),
        max_num_batched_tokens=service.most("max_num_batched_tokens"),
        kv_tokens=kv_tokens,
        block_tokens=block if block > 0 else None,
        prefix_cache=words.get(info.get("enable_prefix_caching", "").lower()),
        slo_ttft_s=service.most("slo_ttft_s"),
        slo_itl_s=service.most("slo_itl_s"),
    )
