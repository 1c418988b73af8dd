"""`read_result`: facts from a load test's `run.json`, and from `run.csv` where that is beside it.

A client sees what no server can: the whole time to a first token. With the table of requests, and a server that sends
`Server-Timing`, each request's own part on the server is known, and so what the network took.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from headway.core.errors import ConfigError
from headway.doctor.facts import Asked, Client, Facts, Part, Promise, number, positive
from headway.doctor.spread import Floats, Spread
from headway.simulate.fit.read import json_of, text_of

_SERIES = {"running": "running", "waiting": "waiting", "kv_used_ratio": "kv_ratio"}
_TOTALS = {
    "preemptions_total": "preemptions",
    "prompt_tokens_total": "prompt_tokens",
    "generation_tokens_total": "generation_tokens",
}
_PART = re.compile(r"([\w-]+);dur=([0-9.]+)")
# What a server's `Server-Timing` calls its parts, in ms.
_PARTS = {
    "queue": "queue_s",
    "prefill": "prefill_s",
    "decode": "decode_s",
    "tokenise": "tokenise_s",
    "network": "body_s",
}


def read_result(path: Path) -> Facts:
    """Raises `ConfigError` for what is no result of `headway bench`."""
    path = path / "run.json" if path.is_dir() else path
    result = json_of(path)
    summary = result.get("summary")
    if not isinstance(summary, dict) or not isinstance(summary.get("overall"), dict):
        raise ConfigError(f"{path}: no result of `headway bench`: it has no summary")
    told = summary["overall"].get("distributions") or {}
    table = path.with_suffix(".csv")
    rows = list(_rows(table, summary.get("window_s"))) if table.is_file() else []
    spreads = _spreads(rows)
    for name, ours in (("ttft", "ttft_s"), ("itl", "itl_s"), ("e2e", "e2e_s")):
        if ours not in spreads and (spread := _of_percentiles(told.get(name))) is not None:
            spreads[ours] = spread
    server_ttft = Spread.of([row["server_ttft_s"] for row in rows if "server_ttft_s" in row])
    client = Client(
        ttft_s=Spread.of([row["ttft_s"] for row in rows if "server_ttft_s" in row and "ttft_s" in row])
        if server_ttft is not None
        else spreads.get("ttft_s"),
        itl_s=spreads.get("itl_s"),
        e2e_s=spreads.get("e2e_s"),
        server_ttft_s=server_ttft,
        lag_s=_percentile(told.get("lag"), "99"),
    )
    seen = {name: spread for name, spread in spreads.items() if name not in ("ttft_s", "e2e_s")}
    signals, slo = (one if isinstance(one := result.get(name), dict) else {} for name in ("signals", "slo"))
    part = _part(signals, rows, seen)
    missing = [] if rows else [f"{table.name} is not beside it: single requests are not known, nor their server's part"]
    if not part.gauges:
        missing.append("the server's signals: the run was made without them")
    return Facts(
        f"load test of {(result.get('target') or {}).get('url', 'a server')}",
        part,
        promise=Promise.of(positive(slo.get("ttft_s")), positive(slo.get("itl_s")), positive(slo.get("e2e_s"))),
        client=client,
        demand=tuple(
            Asked(row["at_s"], max(1, int(row["prompt_tokens"])), max(1, int(row["output_tokens"])))
            for row in rows
            if {"at_s", "prompt_tokens", "output_tokens"} <= row.keys()
        ),
        missing=tuple(missing),
        kind=str(signals.get("source") or ""),
    )


def _rows(path: Path, window_s: Any) -> Iterable[dict[str, float]]:
    """The requests that ended well, of the window."""
    low, high = (0.0, math.inf)
    if isinstance(window_s, list) and len(window_s) == 2:
        low, high = (float(edge) for edge in window_s)
    for row in csv.DictReader(text_of(path).decode("utf-8", "replace").splitlines()):
        if row.get("fate") is None:
            raise ConfigError(f"{path}: this is no table of `headway bench`: it has no column 'fate'")
        at_s = _float(row.get("scheduled_s"))
        if row["fate"] != "ok" or at_s is None or not low <= at_s < high:
            continue
        names = {"ttft_s": "ttft_s", "e2e_s": "ended_after_s", "prompt_tokens": "input_tokens",
                 "output_tokens": "output_tokens", "first_s": "first_s", "last_s": "last_s"}  # fmt: skip
        found = {ours: value for ours, name in names.items() if (value := _float(row.get(name))) is not None}
        parts = {name: float(ms) / 1e3 for name, ms in _PART.findall(row.get("server_timing") or "")}
        found |= {ours: parts[name] for name, ours in _PARTS.items() if name in parts}
        if "ttft" in parts:
            found["server_ttft_s"] = parts["ttft"]
        elif {"queue", "prefill"} <= parts.keys():
            found["server_ttft_s"] = sum(parts.get(name, 0.0) for name in ("network", "tokenise", "queue", "prefill"))
        yield {"at_s": at_s, **found}


def _spreads(rows: list[dict[str, float]]) -> dict[str, Spread]:
    names = ("ttft_s", "e2e_s", "prompt_tokens", "output_tokens", *_PARTS.values())
    made = {name: Spread.of([row[name] for row in rows if name in row]) for name in names}
    made["decode_s"] = made["decode_s"] or Spread.of(
        [row["last_s"] - row["first_s"] for row in rows if {"first_s", "last_s"} <= row.keys()]
    )
    return {name: spread for name, spread in made.items() if spread is not None}


def _of_percentiles(told: Any) -> Spread | None:
    """A distribution of which only some percentiles are known: between them it is a straight line."""
    if not isinstance(told, Mapping) or not told.get("samples"):
        return None
    points = {0.0: number(told.get("min")), 100.0: number(told.get("max"))}
    for name, interval in (told.get("percentiles") or {}).items():
        points[float(name)] = number(interval.get("value")) if isinstance(interval, Mapping) else None
    known = sorted((share, value) for share, value in points.items() if value is not None)
    if len(known) < 2:
        return None
    shares, values = np.array(known).T
    at = (np.arange(200) + 0.5) / 2
    return Spread.of(np.interp(at, shares, values), np.full(200, float(told["samples"]) / 200))


def _percentile(told: Any, name: str) -> float | None:
    if not isinstance(told, Mapping):
        return None
    found = (told.get("percentiles") or {}).get(name)
    value = number(found.get("value")) if isinstance(found, Mapping) else None
    return value if value is not None else number(told.get("max"))


def _part(signals: Mapping[str, Any], rows: list[dict[str, float]], spreads: dict[str, Spread]) -> Part:
    """The server's signals over the run, and how many of the requests had ended by each."""
    times = np.zeros(0)
    series: Mapping[str, Any] = {}
    if isinstance(signals.get("times_s"), list):
        times = np.array(signals["times_s"], np.float64)
        series = signals.get("series") or {}
    columns = {name: _column(values) for name, values in series.items() if len(values) == len(times)}
    totals = {ours: columns[name] for name, ours in _TOTALS.items() if name in columns}
    ends = np.sort(np.array([row["at_s"] + row["e2e_s"] for row in rows if "e2e_s" in row]))
    if len(ends) and len(times):
        totals["ended"] = np.searchsorted(ends, times, side="right").astype(np.float64)
    return Part(
        "server", times, {ours: columns[name] for name, ours in _SERIES.items() if name in columns}, totals, spreads
    )


def _column(values: Any) -> Floats:
    return np.array([math.nan if value is None else float(value) for value in values], np.float64)


def _float(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if math.isfinite(value) else None
