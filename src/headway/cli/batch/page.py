"""A batch's report as one HTML file: facts, plots, percentiles, failures and stragglers."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from headway.cli.batch.words import KEYS, NAMES, facts_of, percentiles_of
from headway.loadtest.report.page import Banner, Page, Section, Tile, render
from headway.loadtest.report.plot import Figure, Row, bars, line, points, stack
from headway.loadtest.report.tables import Cell, Table, facts
from headway.offline.manifest import Manifest
from headway.offline.summary import Summary
from headway.offline.tally import Floats, Tally

MOST_POINTS = 4000
BINS = 120
LENGTH_BINS = 40
CURVE_POINTS = 300
HEIGHT_PX = 220

# A part of an item's time, and a kind of its tokens, by the colours that they have on other pages.
PARTS = {"queue_s": "waiting", "prefill_s": "ttft", "decode_s": "itl", "wall_s": "e2e"}
TOKENS = {"input_tokens": "ttft", "output_tokens": "itl"}


def report(summary: Summary, tally: Tally, manifest: Manifest) -> str:
    items = Section("items", "Items", figures(tally), (_percentiles(summary), _stragglers(summary)))
    return render(
        Page(
            title=Path(manifest.input).name,
            lines=(manifest.input,),
            banner=_banner(summary, manifest),
            sections=[items, Section("batch", "Batch", tables=(facts("In all", dict(facts_of(summary))),))],
            tiles=_tiles(summary),
        )
    )


def _banner(summary: Summary, manifest: Manifest) -> Banner:
    if manifest.state != "done":
        return Banner("bad", manifest.state, manifest.reason or "Not every item has ended.")
    if summary.failed:
        failures = tuple(f"{name}: {count:,}" for name, count in summary.errors.items())
        return Banner("warn", "done, with failures", f"{summary.failed:,} items have no answer.", failures)
    return Banner("good", "done", "Every item has its answer.")


def _tiles(summary: Summary) -> tuple[Tile, ...]:
    of = (f"of {summary.items:,} items",) if summary.items is not None else ()
    return (
        Tile("answered", f"{summary.done:,}", of),
        Tile("failed", f"{summary.failed:,}", tone="bad" if summary.failed else ""),
        Tile("time", f"{summary.wall_s:,.1f} s", (_rate(summary.items_per_s, "items/s"),)),
        Tile("throughput", _rate(summary.tokens_per_s, "tokens/s"), (_rate(summary.output_tokens_per_s, "output"),)),
        Tile("input tokens", f"{summary.input_tokens:,}", (f"{summary.cached_tokens:,} from the prefix cache",)),
        Tile("output tokens", f"{summary.output_tokens:,}"),
    )


def _rate(value: float | None, unit: str) -> str:
    return "–" if value is None else f"{value:,.0f} {unit}" if value >= 10 else f"{value:.2f} {unit}"


def _percentiles(summary: Summary) -> Table:
    rows = tuple(tuple(map(Cell, row)) for row in percentiles_of(summary))
    return Table("Of items that have an answer", ("", *(f"p{key}" for key in KEYS), "most"), rows)


def _stragglers(summary: Summary) -> Table:
    rows = [
        (f"line {one.line:,}", f"{one.wall_s:,.3g} s", _count(one.input_tokens), _count(one.output_tokens))
        for one in summary.stragglers
    ]
    cells = tuple(tuple(map(Cell, row)) for row in rows)
    return Table("Those that took longest", ("", "in all", "input tokens", "output tokens"), cells)


def _count(tokens: int | None) -> str:
    return "–" if tokens is None else f"{tokens:,}"


# -- plots -------------------------------------------------------------------------------------------------------------


def figures(tally: Tally) -> list[Figure]:
    """Those that there is something to draw of."""
    return [throughput(tally), waits(tally), by_length(tally), lengths(tally)] if tally.done else []


def throughput(tally: Tally) -> Figure:
    """Tokens of items by when they ended. What a run of several hours paused for is not left out: it is drawn as 0."""
    ended_at = tally.ended_at()
    after_s = ended_at - ended_at.min()
    width_s = max(1.0, math.ceil(after_s.max() / BINS))
    edges = np.arange(0.0, after_s.max() + width_s * 1.001, width_s)
    traces = []
    for name, colour in TOKENS.items():
        tokens, _ = np.histogram(after_s, edges, weights=np.nan_to_num(tally.values(name)))
        told = {"hovertemplate": "%{y:,.0f}/s", "stackgroup": "all"}
        traces.append(line(edges[:-1], tokens / width_s, NAMES[name], colour, **told))
    caption = f"Tokens a second of the items that ended in each {width_s:g} s."
    row = Row("tokens/s", traces, {"rangemode": "tozero"}, height_px=HEIGHT_PX)
    return stack("throughput", "Throughput", caption, [row], {"title": {"text": "seconds since the first item ended"}})


def waits(tally: Tally) -> Figure:
    traces = []
    shares = np.linspace(0.0, 1.0, CURVE_POINTS)
    for name, colour in PARTS.items():
        seconds = _known(tally.values(name))
        if len(seconds):
            quantiles, label = np.quantile(seconds, shares), NAMES[name].removesuffix(", s")
            traces.append(line(quantiles, shares * 100, label, colour, hovertemplate="%{y:.1f}% in %{x:.3s}s"))
    caption = "The share of items that took at most so long in each part. Of servers that do not tell, the whole alone."
    row = Row("% of items", traces, {"rangemode": "tozero"}, height_px=HEIGHT_PX)
    axis = {"title": {"text": "seconds"}, "type": "log"}
    return stack("waits", "Time of an item", caption, [row], axis, hovermode="closest")


def by_length(tally: Tally) -> Figure:
    """Every so-many-th item, evenly over the run."""
    chosen = np.unique(np.linspace(0, tally.done - 1, min(tally.done, MOST_POINTS)).astype(np.int64))
    tokens = sum((np.nan_to_num(tally.values(name)) for name in TOKENS), np.zeros(tally.done))[chosen]
    told: dict[str, Any] = {
        "text": [f"line {tally.line(at)}" for at in chosen.tolist()],
        "hovertemplate": "%{text}, %{x} tokens, %{y:.3s}s",
        "showlegend": False,
    }
    dots = points(tokens, tally.values("wall_s")[chosen], "item", "e2e", **told)
    shown = "Each item" if len(chosen) == tally.done else f"{len(chosen):,} of {tally.done:,} items"
    caption = f"{shown}: its tokens, and how long it took. Points high above the others are stragglers."
    row = Row("seconds", [dots], {"type": "log"}, height_px=HEIGHT_PX)
    axis = {"title": {"text": "tokens, input and output"}, "type": "log"}
    return stack("by-length", "Time by length", caption, [row], axis, hovermode="closest")


def lengths(tally: Tally) -> Figure:
    traces = []
    for name, colour in TOKENS.items():
        tokens = _known(tally.values(name))
        if len(tokens):
            counts, edges = np.histogram(tokens, min(LENGTH_BINS, max(1, int(tokens.max() - tokens.min()) + 1)))
            told = {"opacity": 0.6, "hovertemplate": "%{y:,} items"}
            middles = (edges[:-1] + edges[1:]) / 2
            traces.append(bars(middles, counts, NAMES[name], colour, width=np.diff(edges), **told))
    row = Row("items", traces, {"rangemode": "tozero"}, height_px=HEIGHT_PX)
    caption = "How many items had so many tokens."
    return stack("lengths", "Lengths", caption, [row], {"title": {"text": "tokens"}}, barmode="overlay")


def _known(values: Floats) -> Floats:
    return values[~np.isnan(values)]
