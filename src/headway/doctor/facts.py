"""`Facts`: what is known of a server over a window. Every signal may be unknown, and unknown is never zero.

Rules read nothing else: no clock, no file, no socket. Names of signals are ours whatever the server's
(`metrics/server_names.py`).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from headway.core.pace import StepTime
from headway.doctor.spread import Floats, Spread

Bools = npt.NDArray[np.bool_]
T = TypeVar("T")

# What people accept where nobody has promised anything. A second is about what feels like an answer to a question
# (Nielsen 1993); they read four words a second, so that gaps above a quarter of a second are slower than they read.
USUAL_TTFT_S, USUAL_ITL_S = 1.0, 0.25
# Where nothing is promised: clouds' gateways cut off a call after 29 or 30 s.
USUAL_E2E_S = 30.0
# An engine that is not seen at a moment is taken to be as it was, for so many samples: targets are scraped at moments
# of their own, and now and then one falls out. Prometheus itself looks back five minutes, five of its usual intervals.
HELD_SAMPLES = 5
# Of the looks at a server: where more fail, as much of what is asked of it may, and what was seen is no health.
MOST_FAILED = 0.2
# A single gap that is no longer felt as reading on but as a stop: twice the usual one.
USUAL_STALL = 2.0


@dataclass(frozen=True, slots=True)
class Promise:
    """What users are promised, in seconds. `said` is False where it is only what people usually accept."""

    ttft_s: float = USUAL_TTFT_S
    itl_s: float = USUAL_ITL_S
    e2e_s: float = USUAL_E2E_S
    said: bool = False

    @classmethod
    def of(
        cls, ttft_s: float | None, itl_s: float | None, e2e_s: float | None = None, usual: Promise | None = None
    ) -> Promise:
        """Of those parts that there are; the rest is as `usual`, else what people accept."""
        usual = usual or cls()
        return cls(ttft_s or usual.ttft_s, itl_s or usual.itl_s, e2e_s or usual.e2e_s, usual.said or bool(itl_s))

    @property
    def stall_s(self) -> float:
        """What 1 in 100 gaps may take. A promised ITL is a promise about the p99; the usual one is of most gaps."""
        return self.itl_s if self.said else USUAL_STALL * self.itl_s


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """One engine, or a whole service: series over `times_s`, NaN where a sample is missing; distributions over all.

    `totals` count from the window's start, whatever restarts lie in between. `counted_s`: for how long a distribution
    was counted, where that is not `window_s`.
    """

    name: str
    times_s: Floats
    gauges: Mapping[str, Floats] = field(default_factory=dict)
    totals: Mapping[str, Floats] = field(default_factory=dict)
    spreads: Mapping[str, Spread] = field(default_factory=dict)
    counted_s: Mapping[str, float] = field(default_factory=dict)

    def mean(self, name: str) -> float | None:
        """A gauge on average over the samples that have it."""
        series = self._known(name)
        return float(series.mean()) if series is not None else None

    def most(self, name: str) -> float | None:
        series = self._known(name)
        return float(series.max()) if series is not None else None

    def increase(self, name: str) -> float | None:
        """How much a total has grown in the window."""
        series = self.totals.get(name)
        if series is None:
            return None
        known = series[np.isfinite(series)]
        return float(known[-1] - known[0]) if len(known) >= 2 else None

    def rate(self, name: str) -> float | None:
        """The same, a second of the time in which it is known."""
        grown, seconds = self.increase(name), self.seconds(name)
        return grown / seconds if grown is not None and seconds > 0 else None

    def seconds(self, total: str) -> float:
        """For how long a total is known: from its first sample to its last."""
        series = self.totals.get(total)
        return _span_s(self.times_s, np.isfinite(series)) if series is not None else 0.0

    def ratio(self, over: str, under: str) -> float | None:
        """Of two totals' increases. None where either is unknown or there is nothing to divide by."""
        one, other = self.increase(over), self.increase(under)
        return one / other if one is not None and other else None

    def gauge(self, name: str) -> Floats:
        """A gauge's series; NaN throughout where it is unknown."""
        series = self.gauges.get(name)
        return series if series is not None else np.full(len(self.times_s), math.nan)

    def steps_of(self, name: str) -> Floats:
        """What a total grew by from each sample to the next: one fewer than samples. NaN where it is unknown."""
        series = self.totals.get(name)
        return np.diff(series) if series is not None else np.full(max(0, len(self.times_s) - 1), math.nan)

    def spread(self, name: str) -> Spread | None:
        return self.spreads.get(name)

    def spread_s(self, name: str) -> float:
        """For how long a distribution was counted."""
        return self.counted_s.get(name, self.window_s)

    @property
    def window_s(self) -> float:
        """For how long anything is known: what failed before and after it was no look at it."""
        series = [*self.gauges.values(), *self.totals.values()]
        known = np.logical_or.reduce([np.isfinite(one) for one in series]) if series else np.isfinite(self.times_s)
        return _span_s(self.times_s, known)

    def _known(self, name: str) -> Floats | None:
        series = self.gauges.get(name)
        if series is None:
            return None
        known = series[np.isfinite(series)]
        return known if len(known) else None


@dataclass(frozen=True, slots=True)
class Settings:
    """Limits of the engine, as far as it tells them; None is unknown."""

    max_num_seqs: float | None = None
    max_num_batched_tokens: float | None = None
    kv_tokens: float | None = None
    block_tokens: float | None = None
    max_model_len: float | None = None
    prefix_cache: bool | None = None
    kv_full: str | None = None
    policy: str | None = None
    slo_ttft_s: float | None = None  # what its scheduler itself keeps, whatever is promised to users
    slo_itl_s: float | None = None
    told: Mapping[str, Any] = field(default_factory=dict)  # headway's whole configuration, where it tells it

    def now(self, name: str) -> Any:
        """What a setting of headway's stands at, by its name there; None where that is not told."""
        known = {"slo_ttft": self.slo_ttft_s, "slo_itl": self.slo_itl_s}
        value = known.get(name, getattr(self, name, None))
        return value if value is not None else self.told.get(name)


@dataclass(frozen=True, slots=True, eq=False)
class Client:
    """What was seen from outside. `network_s`: a round trip that no server's work is in."""

    network_s: float | None = None
    network_probes: int = 0
    ttft_s: Spread | None = None
    itl_s: Spread | None = None
    e2e_s: Spread | None = None
    server_ttft_s: Spread | None = None  # of the same requests, as the server told each of them
    lag_s: float | None = None  # p99 of how late this client sent


@dataclass(frozen=True, slots=True)
class Asked:
    """One request, for simulations."""

    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Heard:
    """Whether somebody answered who was looked at `looks` times. `silent_s`: for how long not any more at the end."""

    looks: int
    failed: int = 0
    silent_s: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Facts:
    """A window. `service` is all of it; `workers` are its engines, where more than one is told apart."""

    source: str
    service: Part
    workers: tuple[Part, ...] = ()
    settings: Settings = field(default_factory=Settings)
    promise: Promise = field(default_factory=Promise)
    client: Client = field(default_factory=Client)
    step_time: StepTime | None = None  # fitted, of a step log or a file
    prefill_step_ns: float = 0.0  # the same fit's: more, of a step with any prompt; the core's model has no such term
    demand: tuple[Asked, ...] = ()
    missing: tuple[str, ...] = ()  # what could not be told, and why: for people
    notes: tuple[str, ...] = ()
    restarts: int = 0
    kind: str = ""  # whose server, by the names of `metrics/server_names.py`; `source` is words for people
    worker_urls: tuple[str, ...] = ()  # of a gateway, where it tells them
    heard: Mapping[str, Heard] = field(default_factory=dict)  # by instance; the only one there is has no name

    @property
    def speaks(self) -> str:
        """Whose flags it has: headway's as well where it tells its configuration, under whatever names its metrics."""
        return "headway" if self.settings.told else self.kind

    @property
    def is_gateway(self) -> bool:
        """It sends requests on, and does not see what steps its workers take."""
        return "window_seqs" in self.service.gauges

    @property
    def ttft(self) -> Spread | None:
        """As the server tells it, else as a client saw it."""
        return self.service.spread("ttft_s") or self.client.ttft_s

    @property
    def itl(self) -> Spread | None:
        """The same."""
        return self.service.spread("itl_s") or self.client.itl_s

    @property
    def requests(self) -> float | None:
        """How many first tokens there were; where that is not told, how many ended."""
        for name in ("ttft_s", "e2e_s"):
            if (found := self.service.spread(name)) is not None:
                return found.count
        if self.client.ttft_s is not None:
            return self.client.ttft_s.count
        return self.service.increase("ended")

    @property
    def idle(self) -> bool:
        """Nothing was asked of it, as far as it tells."""
        busy = [self.service.most(name) for name in ("running", "waiting")]
        grown = [self.service.increase(name) for name in ("generation_tokens", "prompt_tokens", "ended")]
        told = [value for value in (*busy, *grown) if value is not None]
        return bool(told) and not any(told) and not self.requests

    @property
    def running(self) -> Floats:
        """Sequences at each sample; while some of its engines are away, as if they ran as many as those that are there:
        fewer engines are no fewer sequences at each.
        """
        running = self.service.gauge("running")
        rows = [part.gauges["running"] for part in self.workers if "running" in part.gauges]
        there = np.isfinite(_held(rows)).sum(axis=0) if rows else np.zeros(len(running))
        return np.where(there > 0, running * there.max(initial=0) / np.maximum(there, 1), running)

    @property
    def unseen(self) -> str:
        """Why what was seen is not enough to call it well, in words; empty where it is."""
        if silent := [name for name, one in self.heard.items() if one.silent_s > 0]:
            for_s = max(self.heard[name].silent_s for name in silent)
            some = len(silent) < len(self.heard)
            who = f"{_names(silent)} {'have' if len(silent) > 1 else 'has'}" if some else "it has"
            return f"{who} not answered for the last {for_s:.0f} s"
        for name, one in self.heard.items():
            if one.failed > MOST_FAILED * one.looks:
                return f"{one.failed} of {one.looks} looks at {name or 'it'} failed: too little was seen"
        return ""

    def with_notes(self, *notes: str) -> Facts:
        return replace(self, notes=(*self.notes, *notes))


def joined(parts: Iterable[Part], name: str = "all") -> Part:
    """Several engines as one service: what is counted adds up; of KV the fullest counts, of promises the longest.

    One that is not seen for a few moments (`HELD_SAMPLES`) was not without work: its gauges stay as they were, its
    totals go on evenly to where they are seen next. One that stays away for longer, or that a new one has come for,
    was gone from the first of them on.
    """
    several = list(parts)
    if len(several) == 1:
        return replace(several[0], name=name)
    times_s = several[0].times_s
    gauges = {
        key: np.fmax.reduce(rows) if at_most(key) else _sum(rows, _held(rows))
        for key, rows in _by_name(part.gauges for part in several).items()
    }
    totals = {
        key: _sum(rows, (_between(times_s, row) for row in rows))
        for key, rows in _by_name(part.totals for part in several).items()
    }
    spreads = _by_name(part.spreads for part in several)
    merged = {key: whole for key, found in spreads.items() if (whole := Spread.joined(found)) is not None}
    counted_s = {key: max(part.spread_s(key) for part in several if key in part.spreads) for key in merged}
    return Part(name, times_s, gauges, totals, merged, counted_s)


def at_most(gauge: str) -> bool:
    """Of several, does the largest count, and not their sum?"""
    return gauge.endswith("_ratio") or gauge.startswith("slo_")


def _by_name(parts: Iterable[Mapping[str, T]]) -> dict[str, list[T]]:
    found: dict[str, list[T]] = {}
    for part in parts:
        for key, one in part.items():
            found.setdefault(key, []).append(one)
    return found


def _sum(rows: Iterable[Floats], filled: Iterable[Floats]) -> Floats:
    """Of the filled ones, where any of `rows` is known: a moment at which nobody was seen stays unknown."""
    seen = np.isfinite(list(rows)).any(axis=0)
    return np.where(seen, np.nansum(list(filled), axis=0), np.nan)


def _held(rows: Iterable[Floats]) -> list[Floats]:
    known = [(row, np.flatnonzero(np.isfinite(row)).tolist()) for row in rows]
    began = [places[0] for _, places in known if places]
    held = []
    for row, places in known:
        filled = row.copy()
        for last, seen in zip(places, [*places[1:], len(row)], strict=True):
            if seen - last - 1 <= HELD_SAMPLES:
                successors = [new for new in began if last < new < seen] if seen == len(row) else []
                filled[last + 1 : min(successors, default=seen)] = row[last]
        held.append(filled)
    return held


def _span_s(times_s: Floats, known: Bools) -> float:
    found = times_s[known]
    return float(found[-1] - found[0]) if len(found) >= 2 else 0.0


def _names(several: list[str], most: int = 3) -> str:
    return ", ".join(several[:most]) + " and others" * (len(several) > most)


def _between(times_s: Floats, total: Floats) -> Floats:
    known = np.isfinite(total)
    return np.interp(times_s, times_s[known], total[known]) if known.any() else total


def number(value: Any) -> float | None:
    """What JSON has where a number belongs; None: something else, or not a finite one."""
    real = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if real and abs(value) <= sys.float_info.max else None


def positive(value: Any) -> float | None:
    """The same of a limit or a promise, where servers say 0 or -1 for none."""
    found = number(value)
    return found if found is not None and found > 0 else None
