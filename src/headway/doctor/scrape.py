"""`read_scrape`: one page of `/metrics` -> `Scrape`, and `Recorder`: a row of them -> what happened in between.

Counters that fell have been reset: what they show then is what was counted since. A scrape that failed is a gap.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from headway.doctor.facts import Facts, Part, Settings, joined
from headway.doctor.names import GAUGES, HISTOGRAMS, INFO, PLACES, TOTALS, WANTED, kind_of
from headway.doctor.spread import Floats, Spread

# name{labels} value timestamp
_LINE = re.compile(r"([A-Za-z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?\s*")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
HEADWAY, LENT = "headway_", "vllm:"  # headway tells its own numbers under vLLM's names again: --metrics-names vllm
_PREFIXES = (HEADWAY, LENT, "sglang:", "llamacpp:", "tgi_")
# A time earlier by more than so many usual intervals is a clock that was set back, once it is known what is usual.
SET_BACK, LEAST_STEPS = 3.0, 4
# A histogram's state: upper bound -> samples up to it; None is its sum.
Histogram = dict[float | None, float]


@dataclass(slots=True)
class Shown:
    """What one place (an engine, a worker) shows at one moment. `under`: by which of its names each signal came."""

    under: dict[tuple[str, str], str] = field(default_factory=dict)
    gauges: dict[str, float] = field(default_factory=dict)
    totals: dict[str, float] = field(default_factory=dict)
    histograms: dict[str, Histogram] = field(default_factory=dict)

    def first(self, kind: str, ours: str, name: str) -> bool:
        """Is this the name under which the signal came first?"""
        return self.under.setdefault((kind, ours), name) == name


@dataclass(slots=True)
class Scrape:
    """One answer. `places`: by engine; "" is the service as a whole. `strange`: names of theirs we do not know."""

    kind: str = ""
    places: dict[str, Shown] = field(default_factory=dict)
    info: dict[str, str] = field(default_factory=dict)
    strange: set[str] = field(default_factory=set)

    def at(self, place: str) -> Shown:
        return self.places.setdefault(place, Shown())

    def put(self, name: str, labels: Mapping[str, str], value: float) -> None:
        """One sample. Of several that differ only by labels we do not tell apart, counters add up; what is there under
        several names (of versions, or with and without `_total`) counts under the first.
        """
        if not math.isfinite(value):
            return
        if not self.kind or self.kind == "headway":
            self.kind = kind_of(name) or self.kind
        if name == INFO:
            self.info |= labels
            return
        shown = self.at(_place_of(name, labels))
        if (ours := GAUGES.get(name)) is not None:
            if shown.first("gauge", ours, name):
                before = shown.gauges.get(ours)
                shown.gauges[ours] = (
                    value if before is None else max(before, value) if ours.endswith("_ratio") else before + value
                )
            return
        stem, _, part = name.rpartition("_")
        if part in ("sum", "bucket") and (ours := HISTOGRAMS.get(stem)) is not None:
            bound = _number(labels.get("le")) if part == "bucket" else None
            if shown.first("histogram", ours, stem) and (bound is None or not math.isnan(bound)):
                state = shown.histograms.setdefault(ours, {})
                state[bound] = state.get(bound, 0.0) + value
        elif (ours := TOTALS.get(name.removesuffix("_total")) or TOTALS.get(name)) is not None:
            if shown.first("total", ours, name):
                shown.totals[ours] = shown.totals.get(ours, 0.0) + value
        elif part not in ("created", "count", "bucket", "sum"):
            self.strange.add(name)


def _place_of(name: str, labels: Mapping[str, str]) -> str:
    if name.startswith("headway_") and not name.startswith("headway_worker_"):
        return labels.get("instance", labels.get("pod", ""))
    return " ".join(labels[key] for key in PLACES if labels.get(key))


def read_scrape(text: str) -> Scrape:
    """Prometheus' text. Lines that cannot be read are passed over; `kind` is empty where no known name is."""
    scrape, samples = Scrape(), list(_samples(text))
    headway = any(name.startswith(HEADWAY) for name, _, _ in samples)
    for name, labels, value in samples:
        if not (headway and name.startswith(LENT)):
            scrape.put(name, labels, value)
    return scrape


def _samples(text: str) -> Iterator[tuple[str, dict[str, str], float]]:
    for line in text.split("\n"):
        if not line.startswith(_PREFIXES):
            continue
        found = _LINE.fullmatch(line)
        if found is None:
            continue
        value = _number(found[3])
        if math.isfinite(value):
            yield found[1], dict(_LABEL.findall(found[2] or "")), value


def _number(text: str | None) -> float:
    try:
        return float(text or "")
    except ValueError:
        return math.nan


@dataclass(slots=True)
class _Row:
    """A place over time."""

    gauges: dict[str, list[float]] = field(default_factory=dict)
    totals: dict[str, list[float]] = field(default_factory=dict)
    shown_totals: dict[str, float] = field(default_factory=dict)
    counted: dict[str, float] = field(default_factory=dict)
    histograms: dict[str, Histogram] = field(default_factory=dict)
    grown: dict[str, Histogram] = field(default_factory=dict)
    settings: dict[str, float] = field(default_factory=dict)
    fell: bool = False


class Recorder:
    """Feed it scrapes in order of time, None for one that failed; ask it for facts."""

    def __init__(self) -> None:
        self.times_s: list[float] = []
        self.kind = ""
        self.restarts = 0
        self.gaps = 0
        self.set_back = 0
        self._ahead_s = 0.0  # by so much a clock that was set back stands behind the one that we go by
        self._rows: dict[str, _Row] = {}
        self._info: dict[str, str] = {}
        self._strange: set[str] = set()

    def add(self, scrape: Scrape | None, at_s: float) -> None:
        """One that comes a little out of order is left out. A clock that was set back goes on from where it was: as if
        as much time had passed as usually does.
        """
        usual_s = float(np.median(np.diff(self.times_s))) if len(self.times_s) >= LEAST_STEPS else math.inf
        if self.times_s and at_s + self._ahead_s < self.times_s[-1] - SET_BACK * usual_s:
            self._ahead_s = self.times_s[-1] + usual_s - at_s
            self.set_back += 1
        at_s += self._ahead_s
        if self.times_s and at_s <= self.times_s[-1]:
            self.gaps += 1
            return
        count = len(self.times_s)
        self.times_s.append(at_s)
        if scrape is None:
            self.gaps += 1
        else:
            self.kind = scrape.kind or self.kind
            self._info |= scrape.info
            self._strange |= scrape.strange
            fell = [self._take(place, shown, count) for place, shown in scrape.places.items()]
            self.restarts += any(fell)
        for row in self._rows.values():
            for series in (*row.gauges.values(), *row.totals.values()):
                series.extend([math.nan] * (count + 1 - len(series)))

    def _take(self, place: str, shown: Shown, count: int) -> bool:
        row = self._rows.setdefault(place, _Row())
        for name, value in shown.gauges.items():
            row.gauges.setdefault(name, [math.nan] * count).append(value)
        fell = False
        for name, value in shown.totals.items():
            before = row.shown_totals.get(name)
            fell |= before is not None and value < before
            row.counted[name] = row.counted.get(name, 0.0) + (
                0.0 if before is None else value if value < before else value - before
            )
            row.shown_totals[name] = value
            row.totals.setdefault(name, [math.nan] * count).append(row.counted[name])
        for name, state in shown.histograms.items():
            last = row.histograms.get(name)
            again = last is not None and any(state.get(bound, 0.0) < value for bound, value in last.items())
            if last is not None:
                grown = row.grown.setdefault(name, {})
                for bound, value in state.items():
                    grown[bound] = grown.get(bound, 0.0) + value - (0.0 if again else last.get(bound, 0.0))
            row.histograms[name] = state
        return fell

    def facts(self, source: str = "") -> Facts:
        """What happened between the first and the last scrape."""
        times_s = np.array(self.times_s, np.float64)
        parts = {place: _part(place, row, times_s) for place, row in self._rows.items()}
        whole = parts.pop("", None)
        workers = tuple(part for _, part in sorted(parts.items()))
        service = _service(whole, workers, times_s)
        notes = []
        if self.set_back:
            notes.append(f"the clock was set back {self.set_back} times; it is taken to have gone on")
        if self.gaps:
            notes.append(f"{self.gaps} of {len(times_s)} scrapes failed or came out of order; the rest is judged")
        if self.restarts:
            notes.append(
                f"counters began again {self.restarts} times: a restart; what was counted before it is not mixed in"
            )
        return Facts(
            source or self.kind or "unknown",
            service,
            workers if len(workers) > 1 else (),
            _settings(service, self._info),
            missing=self._missing(service),
            notes=tuple(notes),
            restarts=self.restarts,
        )

    def _missing(self, service: Part) -> tuple[str, ...]:
        known = {*service.gauges, *service.totals, *service.spreads} | {
            name for row in self._rows.values() for name in (*row.histograms, *row.shown_totals)
        }
        missing = [f"{name}: {blind}" for name, blind in WANTED.items() if name not in known]
        if missing and self._strange and not {"running", "waiting"} <= known:
            shown = ", ".join(sorted(self._strange)[:6])
            missing.append(f"it exports names that are not known here, such as {shown}: an unknown version")
        return tuple(missing)


def _service(whole: Part | None, workers: tuple[Part, ...], times_s: Floats) -> Part:
    """The service as a whole: what it says itself, and where it is silent, the sum of its engines."""
    if not workers:
        return whole or Part("all", times_s)
    summed = joined(workers)
    if whole is None:
        return summed
    return Part(
        "all",
        times_s,
        {**summed.gauges, **whole.gauges},
        {**summed.totals, **whole.totals},
        {**summed.spreads, **whole.spreads},
    )


def _part(place: str, row: _Row, times_s: Floats) -> Part:
    spreads = {
        name: spread
        for name, grown in row.grown.items()
        if (spread := Spread.of_buckets(_bounds(grown), grown.get(None, 0.0))) is not None
    }
    gauges = {name: np.array(series) for name, series in row.gauges.items()}
    if (blocks := gauges.get("kv_blocks")) is not None and (aside := gauges.get("kv_set_aside_blocks")) is not None:
        # What is set aside for those who run is as good as taken.
        gauges["kv_ratio"] = np.minimum(1.0, gauges["kv_ratio"] + aside / np.maximum(blocks, 1.0))
    return Part(place or "all", times_s, gauges, {n: np.array(series) for n, series in row.totals.items()}, spreads)


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
    block = _number(info.get("block_size"))
    blocks = _number(info.get("num_gpu_blocks"))
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
    )
