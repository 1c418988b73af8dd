"""The other figures of a run: its tail, its lengths, the client's lag, and for a ramp the knee."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from headway.loadtest.knee import describe
from headway.loadtest.report.bins import SAMPLE_RULE, TimeBins, TokenTimes, fair_sample, time_bins
from headway.loadtest.report.columns import Columns
from headway.loadtest.report.palette import SERIES
from headway.loadtest.report.plot import (
    Figure,
    PlotTrace,
    Row,
    is_wide,
    latency_axis,
    line,
    marker_line,
    points,
    shaded,
    stack,
    steps,
    tokens_axis,
)
from headway.loadtest.report.timeline import RATE_HOVER, in_flight, limit
from headway.loadtest.report.wording import count, duration, limit_text, significant
from headway.loadtest.result import Distribution, Run
from headway.metrics import latency
from headway.metrics.latency import Floats
from headway.metrics.percentiles import quantiles

MOST_POINTS = 4_000
TAIL_POINTS = 240
CLASSES = 36  # of a histogram
RAMP_BINS = 40
TICKS = {"50": 0.5, "90": 0.9, "99": 0.99, "99.9": 0.999, "99.99": 0.9999, "99.999": 0.99999}


# -- the tail --------------------------------------------------------------------------------------------------------


def tail(run: Run, seen: Columns, tokens: TokenTimes) -> Figure:
    """Latency at every percentile, on an axis that gives each further nine the same room."""
    due = seen.table.timings.due_within(run.summary.window_s)
    waited_s, open_s = latency.waited_s(due), latency.open_gaps_s(due)
    traces = [
        *_tail(run, "ttft", latency.Samples(latency.ttft_s(due), None, waited_s)),
        *_tail(run, "itl", tokens.samples(open_s[open_s > 0])),
        *_tail(run, "e2e", latency.Samples(latency.e2e_s(due), None, waited_s)),
    ]
    limits = {"ttft": run.slo.ttft_s, "itl": run.slo.itl_s, "e2e": run.slo.e2e_s}
    lines = [
        (value, f"{key.upper()} SLO {limit_text(value)}", key) for key, value in limits.items() if value is not None
    ]
    heights = [value for trace in traces for value in trace["y"] if value is not None]
    axis = latency_axis(heights, [value for value, _, _ in lines], most_ticks=12)
    caption = (
        "Of the requests that were due in the measured window; ITL of all gaps between their tokens. Dotted: the run "
        "has too few samples there for a figure that would hold up. Where a line ends early, the rest was given up."
    )
    x_axis = {"tickvals": [nines(ratio) for ratio in TICKS.values()], "ticktext": [f"p{key}" for key in TICKS]}
    row = Row("Latency up to this percentile", traces, axis, lines, height_px=330)
    return stack("tail", "How the tail grows", caption, [row], x_axis | {"tickangle": 0}, hovermode="closest")


def _tail(run: Run, key: str, samples: latency.Samples) -> Iterator[PlotTrace]:
    """A curve, solid where the summary trusts the percentile and dotted beyond."""
    seconds, weights, at_least = samples
    there = ~np.isnan(seconds)
    count = int(there.sum() if weights is None else weights[there].sum())
    if not np.isfinite(seconds).any():
        return
    name, last = key.upper(), nines(1 - 1 / count) if count > 1 else 0.0
    backed = min(last, _backed(run.summary.overall.distributions.get(key)))
    for start, end, dash in ((0.0, backed, "solid"), (backed, last, "dot")):
        if end > start:
            x = np.linspace(start, end, TAIL_POINTS)
            label, is_named = (name, True) if dash == "solid" else (f"{name}, n too small", backed == 0)
            y = quantiles(seconds, 1 - 10**-x, weights, at_least)
            y[np.isinf(y)] = np.nan
            drawn = line(x, y, label, key, dash=dash, legendgroup=name, showlegend=is_named)
            drawn["customdata"] = [f"p{significant(100 * (1 - 10**-at), 5)}" for at in x]
            yield drawn | {"hovertemplate": "%{y:.3s}s at %{customdata}"}


def nines(ratio: float) -> float:
    """0.9 is 1, 0.99 is 2, 0.999 is 3."""
    return -math.log10(max(1e-12, 1 - ratio))


def _backed(found: Distribution | None) -> float:
    """Up to where the summary trusts a percentile, in nines."""
    trusted = [
        float(key) for key, interval in (found.percentiles if found else {}).items() if interval.value is not None
    ]
    return nines(max(trusted) / 100) if trusted else 0.0


# -- what the prompt's length does -----------------------------------------------------------------------------------


def by_input(run: Run, seen: Columns) -> Figure | None:
    """TTFT against input tokens, a colour a kind; None when no first token arrived."""
    known = np.flatnonzero(np.isfinite(seen.ttft_s) & (seen.input_tokens >= 0) & seen.measured)
    if not known.size:
        return None
    x, y, kinds = seen.input_tokens[known], seen.ttft_s[known], seen.kind[known]
    kept = fair_sample(x, y, MOST_POINTS)
    often = Counter(kinds)
    named = [name for name, _ in often.most_common(len(SERIES) - 1)]
    traces = [
        _cloud(x, y, kept[kinds[kept] == name], name or "requests", colour)
        for name, colour in zip(named, SERIES, strict=False)
    ]
    if len(often) > len(named):
        rest = kept[~np.isin(kinds[kept], named)]
        traces.append(_cloud(x, y, rest, f"{len(often) - len(named)} other kinds", SERIES[-1]))
    caption = f"All {count(len(x), 'request')} of the window that got a first token."
    if len(kept) < len(x):
        caption = f"{len(kept):,} of {count(len(x), 'request')} that got a first token in the window: {SAMPLE_RULE}."
    limits = limit(run.slo.ttft_s)
    row = Row("TTFT", traces, latency_axis(y, [value for value, _, _ in limits], most_ticks=10), limits, height_px=440)
    return stack("by-input", "TTFT against prompt length", caption, [row], tokens_axis(x), hovermode="closest")


def _cloud(x: Floats, y: Floats, chosen: NDArray[np.int64], name: str, colour: str) -> PlotTrace:
    return points(x[chosen], y[chosen], name, colour, hovertemplate="%{y:.3s}s for %{x:,} tokens")


def lengths(seen: Columns) -> list[Figure]:
    """How many tokens went in and came out, over what was asked for."""
    if not len(seen):
        return []
    return [
        _histogram("input-lengths", "Input tokens", seen.input_tokens, seen.asked_input_tokens, "ttft"),
        _histogram("output-lengths", "Output tokens", seen.output_tokens, seen.asked_output_tokens, "e2e"),
    ]


def _histogram(id: str, title: str, counted: Floats, asked: Floats, colour: str) -> Figure:
    both = np.concatenate([counted, asked])
    edges = (np.geomspace if is_wide(both) else np.linspace)(both.min(), both.max() + 1, CLASSES + 1)
    traces = [
        steps(edges, np.histogram(counted, edges)[0], "counted", colour, filled=True),
        steps(edges, np.histogram(asked, edges)[0], "asked for", "ink", filled=False),
    ]
    row = Row("Requests", traces, {"rangemode": "tozero"}, height_px=140)
    return stack(id, title, "As the server counted them, and as asked for; of all requests.", [row], tokens_axis(both))


# -- the client ------------------------------------------------------------------------------------------------------


def lag(run: Run, seen: Columns, bins: TimeBins) -> Figure | None:
    """How late requests were sent; None when none was."""
    if not np.isfinite(seen.lag_s).any():
        return None
    worst = bins.quantiles(seen.scheduled_s, seen.lag_s, 1.0)
    p50 = bins.quantiles(seen.scheduled_s, seen.lag_s, 0.5)
    p50, worst = np.maximum(p50, 1e-6), np.maximum(worst, 1e-6)
    rows = [
        Row(
            "Sent later than scheduled",
            [line(bins.middles_s, p50, "p50", "client"), line(bins.middles_s, worst, "latest", "client", dash="dot")],
            latency_axis(p50, worst),
            height_px=130,
        )
    ]
    caption = (
        "The client's own delay, from a request's scheduled time until its bytes were given to the socket. It is part "
        "of every latency above, so that a late client cannot hide queueing."
    )
    return stack("lag", "Schedule lag", caption, rows, {"range": [0, max(run.elapsed_s, 1e-3)], "ticksuffix": "s"})


# -- ramp ------------------------------------------------------------------------------------------------------------


def ramp(run: Run, seen: Columns) -> Figure | None:
    """Latency and throughput against the load of the moment; None for other profiles."""
    if run.load.profile != "ramp":
        return None
    bins = time_bins(run.elapsed_s, RAMP_BINS)
    if run.load.loop == "open":
        load, unit = bins.counts(seen.scheduled_s) / bins.width_s, "requests/s due"
    else:
        load, unit = in_flight(seen, bins.middles_s, run.elapsed_s), "requests in flight"
    p50, p99 = (bins.quantiles(seen.scheduled_s, seen.ttft_s, ratio) for ratio in (0.5, 0.99))
    done = bins.counts(seen.ended_s[seen.ok]) / bins.width_s
    loaded = np.flatnonzero(load > 0)  # afterwards the queue is worked off
    load, p50, p99, done = load[loaded], p50[loaded], p99[loaded], done[loaded]
    rows = [
        Row(
            "TTFT",
            [_dots(load, p50, "p50", "ttft", "circle"), _dots(load, p99, "p99", "ttft", "circle-open")],
            latency_axis(p50, p99),
            height_px=150,
            spoken="TTFT",
        ),
        Row(
            "Finished well/s",
            [_dots(load, done, "requests/s", "ok", "circle") | {"hovertemplate": RATE_HOVER}],
            {"rangemode": "tozero"},
        ),
    ]
    caption = f"Each point is {duration(bins.width_s)} of the run. {describe(run.summary.knee or {}).capitalize()}."
    knee = run.summary.knee or {}
    marks = []
    if "load" in knee:
        marks = [
            shaded(knee["low"], knee["high"]),
            marker_line(knee["load"], f"knee {significant(knee['load'])}", "bad"),
        ]
    return stack("ramp", "Load against latency: the knee", caption, rows, {"title": {"text": unit}}, marks=marks)


def _dots(x: Floats, y: Floats, name: str, colour: str, symbol: str) -> PlotTrace:
    return points(x, y, name, colour, symbol=symbol, marker={"size": 7, "opacity": 0.9})
