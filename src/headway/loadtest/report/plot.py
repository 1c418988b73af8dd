"""The few parts that figures are made of: lines, points, bars and stacked rows over one x axis, as plotly's JSON.

A figure holds names of colours (see `palette`) and no text that was not escaped: plotly reads some HTML in its texts.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from headway.loadtest.report.palette import paint
from headway.loadtest.report.wording import printable

PlotTrace = dict[str, Any]

TOP_PX = 26  # for plotly's buttons, beside the figure's title
BOTTOM_PX = 26  # for the ticks of the x axis
TITLE_PX = 20  # of a row, and of the x axis
HEAD_PX = 30  # of a row, for title and legend on one line
LEGEND_PX = 19  # a further line of it
PHONE_PX = 285  # what a phone leaves for a plot
HIGHEST_NARROW_PX = 300

SECONDS = {"tickformat": "~s", "ticksuffix": "s"}
HOVER_SECONDS = "%{y:.3s}s"
WIDE = 30.0  # a series whose largest value is this many times its smallest is drawn on a logarithmic axis


@dataclass(frozen=True, slots=True)
class Layout:
    """Where everything is, for screens of one width."""

    height_px: int
    layout: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Figure:
    """`caption` says how to read it, and by what rule points were chosen or binned."""

    id: str
    title: str
    caption: str
    data: list[PlotTrace]
    wide: Layout
    narrow: Layout  # a phone, where legends need lines of their own


def told(values: ArrayLike) -> list[float | None]:
    """Five digits are more than a plot shows; None where there is nothing."""
    return [float(f"{value:.5g}") if np.isfinite(value) else None for value in np.asarray(values, dtype=np.float64)]


def safe(text: str) -> str:
    """A name or a message as a figure may hold it."""
    return html.escape(printable(text, 120), quote=False)


def line(x: ArrayLike, y: ArrayLike, name: str, colour: str, *, dash: str = "solid", **more: Any) -> PlotTrace:
    return {
        "type": "scatter", "mode": "lines", "x": told(x), "y": told(y), "name": safe(name),
        "line": {"color": paint(colour), "width": 1.8, "dash": dash}, "hovertemplate": HOVER_SECONDS, **more,
    }  # fmt: skip


def points(x: ArrayLike, y: ArrayLike, name: str, colour: str, *, symbol: str = "circle", **more: Any) -> PlotTrace:
    marker = {"color": paint(colour), "symbol": symbol, "size": 5, "opacity": 0.7, **more.pop("marker", {})}
    return {
        "type": "scatter", "mode": "markers", "x": told(x), "y": told(y), "name": safe(name), "marker": marker,
        "hovertemplate": HOVER_SECONDS, **more,
    }  # fmt: skip


def steps(edges: ArrayLike, counts: ArrayLike, name: str, colour: str, *, filled: bool) -> PlotTrace:
    """A histogram as a line of steps; unlike bars it keeps its edges on a logarithmic axis."""
    heights = np.append(np.asarray(counts, dtype=np.float64), 0.0)
    drawn = line(edges, heights, name, colour, hovertemplate="%{y:,} requests")
    drawn["line"] = {"color": paint(colour), "width": 1.2, "shape": "hv"}
    return drawn | ({"fill": "tozeroy"} if filled else {})


def bars(x: ArrayLike, y: ArrayLike, name: str, colour: str, *, width: ArrayLike, **more: Any) -> PlotTrace:
    widths = told(np.broadcast_to(np.asarray(width, dtype=np.float64), np.shape(np.asarray(x))))
    return {
        "type": "bar", "x": told(x), "y": told(y), "width": widths, "name": safe(name),
        "marker": {"color": paint(colour), "line": {"width": 0}}, "hovertemplate": "%{y:.3~s}", **more,
    }  # fmt: skip


def log_axis(low: float, high: float, most_ticks: int, text: Callable[[float], str]) -> dict[str, Any]:
    """A logarithmic axis with ticks at 1-2-5 steps, or at decades where those would be too many."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    shown: list[float] = []
    for factors in ((1, 2, 5), (1, 3), (1,)):
        values = [factor * 10.0**power for power in powers for factor in factors]
        shown = [value for value in values if low <= value <= high]
        if len(shown) <= most_ticks:
            break
    at = {"tickvals": shown, "ticktext": [text(value) for value in shown]}
    return {"type": "log", "range": [math.log10(low), math.log10(high)], **at}


def seconds_text(seconds: float) -> str:
    factor, unit = (1.0, "s") if seconds >= 0.99 else (1e3, "ms") if seconds >= 0.99e-3 else (1e6, "µs")
    return f"{seconds * factor:,.3g} {unit}"


def tokens_axis(values: ArrayLike) -> dict[str, Any]:
    """Logarithmic where lengths differ by orders of magnitude."""
    title = {"title": {"text": "tokens"}}
    if not is_wide(values):
        return title
    low, high = float(np.nanmin(values)) / 1.1, float(np.nanmax(values)) * 1.1
    return title | log_axis(low, high, 6, lambda tokens: f"{tokens:,.6g}")


def is_wide(*series: ArrayLike) -> bool:
    """Whether a logarithmic axis shows more. Zeros cannot be drawn on one."""
    values = np.concatenate([np.asarray(one, dtype=np.float64).ravel() for one in series])
    values = values[np.isfinite(values)]
    return bool(values.size and values.min() > 0 and values.max() > WIDE * values.min())


def latency_axis(*series: ArrayLike, most_ticks: int = 5) -> dict[str, Any]:
    """Seconds, logarithmic where a linear axis would flatten all but the worst."""
    if not is_wide(*series):
        return {**SECONDS, "rangemode": "tozero"}
    values = np.concatenate([np.asarray(one, dtype=np.float64).ravel() for one in series])
    return log_axis(float(np.nanmin(values)) / 1.3, float(np.nanmax(values)) * 1.3, most_ticks, seconds_text)


def axis(**more: Any) -> dict[str, Any]:
    return {
        "gridcolor": paint("grid"), "linecolor": paint("rule"), "zeroline": False, "ticks": "",
        "automargin": False, **more,
    }  # fmt: skip


def note(text: str, **where: Any) -> dict[str, Any]:
    """A text in the figure. `text` may hold markup: escape what is not ours."""
    return {"text": text, "showarrow": False, "font": {"size": 11, "color": paint("muted")}, **where}


def limit_line(axis_id: str, value: float, text: str, colour: str = "bad") -> tuple[dict[str, Any], dict[str, Any]]:
    """(shape, annotation) of a horizontal line. On a logarithmic axis the annotation's y must be made the logarithm."""
    shape = {
        "type": "line", "xref": "paper", "x0": 0, "x1": 1, "yref": axis_id, "y0": value, "y1": value,
        "line": {"color": paint(colour), "width": 1.2, "dash": "dash"},
    }  # fmt: skip
    words = note(text, xref="paper", x=1, xanchor="right", yref=axis_id, y=value, yanchor="bottom")
    return shape, words | {"font": {"size": 11, "color": paint(colour)}, "bgcolor": paint("panel"), "borderpad": 1}


def base_layout(**more: Any) -> dict[str, Any]:
    return {
        "font": {"family": "system-ui, -apple-system, Segoe UI, Roboto, sans-serif", "size": 12, "color": paint("ink")},
        "paper_bgcolor": "rgba(0,0,0,0)", "plot_bgcolor": "rgba(0,0,0,0)",
        "margin": {"l": 54, "r": 10, "t": TOP_PX, "b": BOTTOM_PX}, "hovermode": "x unified", "hoversubplots": "axis",
        "uirevision": "kept",  # a change of theme redraws, and keeps the zoom
        "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": paint("muted"), "activecolor": paint("ink")},
        "hoverlabel": {"bgcolor": paint("panel"), "bordercolor": paint("rule"), "font": {"color": paint("ink")}},
        "showlegend": True, "annotations": [], "shapes": [], **more,
    }  # fmt: skip


LEGEND = {
    "orientation": "h", "yanchor": "bottom", "bgcolor": "rgba(0,0,0,0)", "font": {"size": 11}, "itemwidth": 30,
    "traceorder": "normal",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Row:
    """One plot of a stack. `limits`: horizontal lines (value, text, colour)."""

    title: str
    traces: Sequence[PlotTrace]
    axis: dict[str, Any] = field(default_factory=dict)
    limits: Sequence[tuple[float, str, str]] = ()
    height_px: int = 112
    limits_left: bool = False  # where their words hide less
    spoken: str = ""  # before a trace's name where it stands beside those of other rows

    def head_px(self, *, narrow: bool) -> int:
        """Room for the title, and for the legend below it where both do not fit on one line."""
        names = [trace["name"] for trace in self.traces if trace.get("showlegend", True)]
        if not narrow or not names:
            return HEAD_PX
        entry_px = 50 + 6.5 * max(map(len, names))  # plotly gives all entries the width of the longest
        if 8 * len(self.title) + entry_px * len(names) <= PHONE_PX:
            return HEAD_PX
        return HEAD_PX + LEGEND_PX * math.ceil(len(names) / max(1, PHONE_PX // entry_px))


@dataclass(frozen=True, slots=True)
class Mark:
    """Something drawn over all rows: a shape, with or without words."""

    shape: dict[str, Any]
    words: dict[str, Any] | None = None


def stack(
    id: str,
    title: str,
    caption: str,
    rows: Sequence[Row],
    x_axis: dict[str, Any],
    *,
    marks: Sequence[Mark] = (),
    **more: Any,
) -> Figure:
    """Rows under each other, all over one x axis, each with its own title and legend."""
    data = [
        trace | _hover(row, trace) | {"xaxis": "x", "yaxis": f"y{_suffix(at)}", "legend": f"legend{_suffix(at)}"}
        for at, row in enumerate(rows, start=1)
        for trace in row.traces
    ]
    wide, narrow = (_laid_out(rows, x_axis, marks, more, narrow=narrow) for narrow in (False, True))
    return Figure(id, title, caption, data, wide, narrow)


def _hover(row: Row, trace: PlotTrace) -> PlotTrace:
    """What is said of a point: whose it is, then its values."""
    if trace["hovertemplate"] is None:
        return {}
    said = " ".join(part for part in (row.spoken, trace["name"]) if part)
    return {"hovertemplate": f"{said}: {trace['hovertemplate']}<extra></extra>"}


def _suffix(number: int) -> str:
    """How plotly numbers axes and legends."""
    return "" if number == 1 else str(number)


def _laid_out(
    rows: Sequence[Row], x_axis: dict[str, Any], marks: Sequence[Mark], more: dict[str, Any], *, narrow: bool
) -> Layout:
    heads_px = [row.head_px(narrow=narrow) for row in rows]
    plots_px = [min(row.height_px, HIGHEST_NARROW_PX) if narrow else row.height_px for row in rows]
    inner_px = sum(heads_px) + sum(plots_px)
    bottom_px = BOTTOM_PX + TITLE_PX * ("title" in x_axis)
    layout = base_layout(**more)
    layout["margin"] = layout["margin"] | {"b": bottom_px}
    layout["shapes"] = [mark.shape for mark in marks]
    layout["annotations"] = [mark.words for mark in marks if mark.words is not None]
    top_px = 0
    for number, (row, head_px, plot_px) in enumerate(zip(rows, heads_px, plots_px, strict=True), start=1):
        high = 1 - (top_px + head_px) / inner_px
        top_px += head_px + plot_px
        _add_row(layout, row, _suffix(number), (max(0.0, 1 - top_px / inner_px), high), head_px)
    layout["xaxis"] = axis(anchor=f"y{_suffix(len(rows))}", **x_axis)
    return Layout(TOP_PX + inner_px + bottom_px, layout)


def _add_row(layout: dict[str, Any], row: Row, suffix: str, domain: tuple[float, float], head_px: int) -> None:
    """Its axis, legend, title and limits."""
    high = domain[1]
    # One drags over time, or over load: a vertical zoom would only lose the curve.
    layout[f"yaxis{suffix}"] = axis(**{"domain": domain, "anchor": "x", "nticks": 5, "fixedrange": True, **row.axis})
    layout[f"legend{suffix}"] = LEGEND | {"x": 1, "xanchor": "right", "y": high}
    head = note(f"<b>{row.title}</b>", xref="paper", x=0, xanchor="left", yref="paper", y=high, yanchor="bottom")
    head |= {"font": {"size": 12, "color": paint("ink")}, "yshift": max(4, head_px - HEAD_PX)}
    layout["annotations"].append(head)
    for value, text, colour in row.limits:
        shape, words = limit_line(f"y{suffix}", value, text, colour)
        words |= {"x": 0, "xanchor": "left"} if row.limits_left else {}
        layout["shapes"].append(shape)
        layout["annotations"].append(words | ({"y": math.log10(value)} if row.axis.get("type") == "log" else {}))


def marker_line(at: float, text: str, colour: str) -> Mark:
    """A vertical line."""
    shape = {
        "type": "line", "xref": "x", "x0": at, "x1": at, "yref": "paper", "y0": 0, "y1": 1,
        "line": {"color": paint(colour), "width": 1.2, "dash": "dash"},
    }  # fmt: skip
    words = note(safe(text), xref="x", x=at, xanchor="right", yref="paper", y=0, yanchor="bottom")
    return Mark(shape, words | {"font": {"size": 11, "color": paint(colour)}})


def shaded(low: float, high: float, text: str = "") -> Mark:
    """A range of x."""
    shape = {
        "type": "rect", "layer": "below", "xref": "x", "x0": low, "x1": high, "yref": "paper", "y0": 0, "y1": 1,
        "fillcolor": paint("shade"), "line": {"width": 0},
    }  # fmt: skip
    words = note(safe(text), xref="x", x=(low + high) / 2, yref="paper", y=0, yanchor="bottom") if text else None
    return Mark(shape, words)
