"""`Observed`: what was seen of a server from outside: when its requests passed which station, and what it counted.

Of a server with event stamps (vLLM's `queued_ts`, `scheduled_ts`, `first_token_ts`, `last_token_ts`), or of a client
that knows when it asked and when tokens came. Times are seconds after the first arrival.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from headway.core.errors import ConfigError
from headway.simulate.fit.read import Line, json_of, lines_of, text_of
from headway.simulate.fit.served import Demand
from headway.simulate.fit.terms import Floats, Integers

LEAST_FINISHED = 20
_ANOTHER_CLOCK_S = 3600.0  # arrivals so far from all other times are by another clock, whose offset has to be guessed
_STATIONS = ("queued", "scheduled", "first_token", "last_token")


@dataclass(frozen=True, slots=True)
class Series:
    """What a server counted, at `at_s` after the first arrival. `kv_ratio` is 0 where it did not say."""

    at_s: Floats
    running: Floats
    waiting: Floats
    kv_ratio: Floats


@dataclass(frozen=True, slots=True)
class Observed:
    """By request, in order of arrival. NaN: not seen (yet). Without event stamps, `scheduled_s` is NaN throughout.

    `arrival_s` is at the engine's door: when it was asked, and what usually passes until the engine hears of it.
    """

    name: str
    arrival_s: Floats
    prompt_tokens: Integers
    output_tokens: Integers
    queued_s: Floats
    scheduled_s: Floats
    first_s: Floats
    last_s: Floats
    series: Series | None = None
    meta: Mapping[str, Any] = field(default_factory=dict)
    request_s: float = 0.0  # from asking to the engine's door, as far as clocks tell

    def __len__(self) -> int:
        return len(self.arrival_s)

    @property
    def stamped(self) -> bool:
        """Did the server say when it scheduled requests?"""
        return bool(np.any(np.isfinite(self.scheduled_s)))

    @property
    def demand(self) -> Demand:
        """What was asked."""
        ns = np.round(self.arrival_s * 1e9).astype(np.int64)
        return Demand(ns, self.prompt_tokens, self.output_tokens)

    def until(self, at_s: float) -> Observed:
        """What could be known at a moment: later times are unseen. Arrivals and lengths stay: they are the demand."""

        def seen(times: Floats) -> Floats:
            return np.where(times <= at_s, times, np.nan)

        series = self.series
        if series is not None:
            early = series.at_s <= at_s
            series = Series(series.at_s[early], series.running[early], series.waiting[early], series.kv_ratio[early])
        return replace(
            self,
            queued_s=seen(self.queued_s),
            scheduled_s=seen(self.scheduled_s),
            first_s=seen(self.first_s),
            last_s=seen(self.last_s),
            series=series,
        )

    def finished_by(self, share: float) -> float:
        """The moment at which this share of the requests had finished, s."""
        return float(np.sort(self.last_s)[max(0, round(share * len(self)) - 1)])


def read_folder(folder: Path) -> Observed:
    """`requests.jsonl`, and beside it, where they are, `timeseries.csv` and `meta.json`. Raises `ConfigError`."""
    meta = json_of(folder / "meta.json") if (folder / "meta.json").is_file() else {}
    observed = replace(read_requests(folder / "requests.jsonl"), meta=meta, name=folder.name)
    if (folder / "timeseries.csv").is_file():
        observed = replace(observed, series=read_series(folder / "timeseries.csv"))
    return observed


def read_requests(path: Path) -> Observed:
    """Per-request records as JSON lines. Raises `ConfigError` for what no server can have meant."""
    rows: list[tuple[float, ...]] = []
    seen: set[object] = set()
    for line in lines_of(path):
        name = line.fields.get("request_id", line.fields.get("id", len(rows)))
        if name in seen:
            raise line.wrong(f"request_id {name!r} was there before")
        seen.add(name)
        rows.append(_request(line))
    if not rows:
        raise ConfigError(f"{path}: no requests in it")
    return _observed(path.name, rows, str(path))


def _request(line: Line) -> tuple[float, ...]:
    prompt = line.whole("input_toks", "prompt_tokens", "input_tokens", least=1)
    output = line.whole("output_toks", "output_tokens", "completion_tokens", least=1)
    names = {station: (f"{station}_ts", f"{station}_s") for station in _STATIONS}
    queued = line.number(*names["queued"])
    times = [queued] + [line.maybe(*names[station]) for station in _STATIONS[1:]]
    before, last = "queued", queued
    for station, at in zip(_STATIONS[1:], times[1:], strict=True):
        if at is None:
            continue
        if at < last:
            raise line.wrong(f"{names[station][0]} is {at}, before {names[before][0]} ({last})")
        before, last = station, at
    arrival = line.maybe("arrival_time", "arrival_ts", "arrival_s")
    known = [math.nan if at is None else at for at in times]
    return (math.nan if arrival is None else arrival, prompt, output, *known)


def _observed(name: str, rows: list[tuple[float, ...]], where: str) -> Observed:
    table = np.array(sorted(rows, key=lambda row: (row[3], row[0])), np.float64)
    arrival, prompt, output, queued, scheduled, first, last = table.T
    finished = int(np.sum(np.isfinite(last)))
    if finished < LEAST_FINISHED:
        raise ConfigError(f"{where}: {finished} requests finished; a fit needs at least {LEAST_FINISHED}")
    arrival, request_s = _at_the_door(arrival, queued)
    order = np.argsort(arrival, kind="stable")
    zero = float(arrival.min())
    return Observed(
        name,
        arrival_s=arrival[order] - zero,
        prompt_tokens=prompt[order].astype(np.int64),
        output_tokens=output[order].astype(np.int64),
        queued_s=queued[order] - zero,
        scheduled_s=scheduled[order] - zero,
        first_s=first[order] - zero,
        last_s=last[order] - zero,
        request_s=request_s,
    )


def _at_the_door(arrival: Floats, queued: Floats) -> tuple[Floats, float]:
    """Arrivals by the clock of the other times, and what passes before the engine can hear of one.

    The engine takes requests in between steps: the fastest found it idle.
    """
    if not np.all(np.isfinite(arrival)):
        return queued.copy(), 0.0
    late = queued - arrival
    fastest = float(np.percentile(late, 1)) if len(late) >= 100 else float(late.min())
    if abs(fastest) > _ANOTHER_CLOCK_S:
        return np.minimum(arrival + fastest, queued), 0.0
    return np.minimum(arrival + max(0.0, fastest), queued), max(0.0, fastest)


def read_series(path: Path) -> Series:
    """`t,…,running,waiting,kv_cache_pct` each second. Raises `ConfigError`."""
    rows = list(csv.DictReader(text_of(path).decode("utf-8", "replace").splitlines()))
    points: list[tuple[float, ...]] = []
    for number, row in enumerate(rows, 2):
        where = f"{path} line {number}"
        point = []
        for name in ("t", "running", "waiting", "kv_cache_pct"):
            try:
                value = float(row[name])
            except (KeyError, TypeError, ValueError):
                raise ConfigError(f"{where}: {name} is {row.get(name)!r}, and must be a number") from None
            if not math.isfinite(value) or value < 0:
                raise ConfigError(f"{where}: {name} is {value}, and must be at least 0")
            point.append(value)
        if points and point[0] <= points[-1][0]:
            raise ConfigError(f"{where}: t is {point[0]:g}, after {points[-1][0]:g}; times must increase")
        points.append(tuple(point))
    if not points:
        raise ConfigError(f"{path}: no rows in it")
    at, running, waiting, kv = np.array(points).T
    return Series(at, running, waiting, kv / 100.0)
