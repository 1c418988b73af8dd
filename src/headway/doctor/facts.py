"""`Facts`: what is known of a server over a window. Every signal may be unknown, and unknown is never zero.

Rules read nothing else: no clock, no file, no socket. Names of signals are ours whatever the server's (`names.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from headway.core.pace import StepTime
from headway.doctor.spread import Floats, Spread

Bools = npt.NDArray[np.bool_]

# What people accept where nobody has promised anything. A second is about what feels like an answer to a question
# (Nielsen 1993); they read four words a second, so that gaps above a quarter of a second are slower than they read.
USUAL_TTFT_S, USUAL_ITL_S = 1.0, 0.25
# Where nothing is promised: clouds' gateways cut off a call after 29 or 30 s.
USUAL_E2E_S = 30.0
# A single gap that is no longer felt as reading on but as a stop: twice the usual one.
USUAL_STALL = 2.0


@dataclass(frozen=True, slots=True)
class Promise:
    """What users are promised, in seconds. `said` is False where it is only what people usually accept."""

    ttft_s: float = USUAL_TTFT_S
    itl_s: float = USUAL_ITL_S
    e2e_s: float = USUAL_E2E_S
    said: bool = False

    @property
    def stall_s(self) -> float:
        """What 1 in 100 gaps may take. A promised ITL is a promise about the p99; the usual one is of most gaps."""
        return self.itl_s if self.said else USUAL_STALL * self.itl_s


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """One engine, or a whole service: series over `times_s`, NaN where a sample is missing; distributions over all.

    `totals` count from the window's start, whatever restarts lie in between.
    """

    name: str
    times_s: Floats
    gauges: Mapping[str, Floats] = field(default_factory=dict)
    totals: Mapping[str, Floats] = field(default_factory=dict)
    spreads: Mapping[str, Spread] = field(default_factory=dict)

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
        """The same, a second."""
        grown, window_s = self.increase(name), self.window_s
        return grown / window_s if grown is not None and window_s > 0 else None

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

    @property
    def window_s(self) -> float:
        return float(self.times_s[-1] - self.times_s[0]) if len(self.times_s) >= 2 else 0.0

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

    def with_notes(self, *notes: str) -> Facts:
        return replace(self, notes=(*self.notes, *notes))


def joined(parts: Iterable[Part], name: str = "all") -> Part:
    """Several engines as one service: what is counted adds up; of KV the fullest counts."""
    several = list(parts)
    if len(several) == 1:
        return replace(several[0], name=name)
    times_s = several[0].times_s
    gauges: dict[str, Floats] = {}
    totals: dict[str, Floats] = {}
    spreads: dict[str, list[Spread]] = {}
    for part in several:
        for key, series in part.gauges.items():
            gauges[key] = _both(gauges.get(key), series, most=key.endswith("_ratio"))
        for key, series in part.totals.items():
            totals[key] = _both(totals.get(key), series, most=False)
        for key, spread in part.spreads.items():
            spreads.setdefault(key, []).append(spread)
    merged = {key: whole for key, found in spreads.items() if (whole := Spread.joined(found)) is not None}
    return Part(name, times_s, gauges, totals, merged)


def _both(one: Floats | None, other: Floats, *, most: bool) -> Floats:
    if one is None:
        return other
    return np.fmax(one, other) if most else np.where(np.isnan(one), other, one + np.nan_to_num(other))
