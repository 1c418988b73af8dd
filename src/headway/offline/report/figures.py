"""The plots of a batch's report, as plotly's JSON. Colours are names: the page's script knows the values of a theme."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from headway.offline.tally import Floats, Tally

MOST_POINTS = 4000
BINS = 120
LENGTH_BINS = 40
CURVE_POINTS = 300

Trace = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Figure:
    """`caption` says how to read it."""

    id: str
    title: str
    caption: str
    data: list[Trace]
    x: str  # names of the axes
    y: str
    log_x: bool = False
    log_y: bool = False


def figures(tally: Tally) -> list[Figure]:
    """Those that there is something to draw of."""
    if not tally.done:
        return []
    return [throughput(tally), waits(tally), by_length(tally), lengths(tally)]


def throughput(tally: Tally) -> Figure:
    """Tokens of items by when they ended. What a run of several hours paused for is not left out: it is drawn as 0."""
    ended_at = tally.ended_at()
    after_s = ended_at - ended_at.min()
    width_s = max(1.0, math.ceil(after_s.max() / BINS)) if len(after_s) else 1.0
    edges = np.arange(0.0, after_s.max() + width_s * 1.001, width_s)

    def rates(name: str) -> Floats:
        tokens, _ = np.histogram(after_s, edges, weights=np.nan_to_num(tally.counts(name)))
        return np.asarray(tokens / width_s, np.float64)

    data = [
        _line(edges[:-1], rates(name), label, colour, fill=True)
        for name, label, colour in (("input_tokens", "input", "one"), ("output_tokens", "output", "two"))
    ]
    return Figure(
        "throughput",
        "Throughput",
        f"Tokens a second of the items that ended in each {width_s:g} s.",
        data,
        "seconds since the first item ended",
        "tokens/s",
    )


def waits(tally: Tally) -> Figure:
    data = []
    shares = np.linspace(0.0, 1.0, CURVE_POINTS)
    for name, label, colour in (
        ("queue_s", "queue", "three"),
        ("prefill_s", "prefill", "one"),
        ("decode_s", "decode", "two"),
        ("wall_s", "in all", "four"),
    ):
        seconds = _known(tally.times(name))
        if len(seconds):
            data.append(_line(np.quantile(seconds, shares), shares * 100, label, colour))
    return Figure(
        "waits",
        "Time of an item",
        "The share of items that took at most so long in each part. Of servers that do not tell, the whole alone.",
        data,
        "seconds",
        "% of items",
        log_x=True,
    )


def by_length(tally: Tally) -> Figure:
    """Every so-many-th item, evenly over the run."""
    chosen = np.unique(np.linspace(0, tally.done - 1, min(tally.done, MOST_POINTS)).astype(np.int64))
    tokens = np.nan_to_num(tally.counts("input_tokens")) + np.nan_to_num(tally.counts("output_tokens"))
    walls = tally.times("wall_s")
    lines = tally.lines()[chosen]
    points = {
        "type": "scattergl",
        "mode": "markers",
        "x": _told(tokens[chosen]),
        "y": _told(walls[chosen]),
        "text": [f"line {line}" for line in lines.tolist()],
        "name": "item",
        "marker": {"color": "{c:four}", "size": 4, "opacity": 0.6},
        "hovertemplate": "%{text}: %{x} tokens, %{y:.3s} s<extra></extra>",
        "showlegend": False,
    }
    shown = "Each item" if len(chosen) == tally.done else f"{len(chosen):,} of {tally.done:,} items"
    return Figure(
        "by-length",
        "Time by length",
        f"{shown}: its tokens, input and output, and how long it took. Points high above the others are stragglers.",
        [points],
        "tokens",
        "seconds",
        log_x=True,
        log_y=True,
    )


def lengths(tally: Tally) -> Figure:
    data = []
    for name, label, colour in (("input_tokens", "input", "one"), ("output_tokens", "output", "two")):
        tokens = _known(tally.counts(name))
        if len(tokens):
            counts, edges = np.histogram(tokens, min(LENGTH_BINS, max(1, int(tokens.max() - tokens.min()) + 1)))
            bars = {"type": "bar", "x": _told((edges[:-1] + edges[1:]) / 2), "y": counts.tolist(), "name": label}
            data.append(
                {**bars, "width": _told(np.diff(edges)), "marker": {"color": f"{{c:{colour}}}", "opacity": 0.6}}
            )
    return Figure("lengths", "Lengths", "How many items had so many tokens.", data, "tokens", "items")


def _known(values: Floats) -> Floats:
    return values[~np.isnan(values)]


def _line(x: Floats, y: Floats, name: str, colour: str, *, fill: bool = False) -> Trace:
    line = {"type": "scatter", "mode": "lines", "x": _told(x), "y": _told(y), "name": name}
    return {**line, "line": {"color": f"{{c:{colour}}}", "width": 2}, **({"stackgroup": "all"} if fill else {})}


def _told(values: Floats) -> list[float | None]:
    """Five digits are more than a plot shows."""
    return [float(f"{value:.5g}") if np.isfinite(value) else None for value in values]
