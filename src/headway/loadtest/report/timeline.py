"""Latency and the server's signals on one clock: the figure that shows *why* a tail is long."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from headway.loadtest.report.bins import SAMPLE_RULE, TimeBins, TokenTimes, extremes, fair_sample, last_of_each
from headway.loadtest.report.columns import FATES, Columns
from headway.loadtest.report.palette import paint
from headway.loadtest.report.plot import (
    Figure,
    Mark,
    PlotTrace,
    Row,
    bars,
    latency_axis,
    line,
    points,
    shaded,
    stack,
)
from headway.loadtest.report.wording import FATES as FATE_WORDS
from headway.loadtest.report.wording import count, duration, limit_text
from headway.loadtest.result import Run
from headway.metrics.latency import Floats

MOST_CROSSES = 300
MOST_READINGS = 600  # of a signal that are drawn as they are
RATE_HOVER = "%{y:.3~s}/s"
COUNT_HOVER = "%{y:,.4~r}"


def timeline(run: Run, seen: Columns, tokens: TokenTimes) -> Figure:
    bins = tokens.bins
    rows = [
        _ttft(run, seen, bins),
        *_itl(run, tokens),
        _ends(run, seen, bins),
        *_tokens(run, tokens),
        _concurrency(run, seen, bins),
        *_memory(run, bins),
    ]
    caption = (
        f"Bins of {duration(bins.width_s)}. TTFT stands where the request was due, a gap where it ended. Where a bin "
        "holds fewer than 100 values, its p99 is close to its largest. Shaded: warm-up and cool-down, which no figure "
        f"of the summary counts. {_crosses_rule(seen)}"
    )
    if not tokens.known:
        caption += " Gaps between tokens over time are not drawn: the file of requests does not keep them."
    if len(run.signals.times_s) > MOST_READINGS:
        caption += " Of the server's signals, each bin shows the lowest and the highest reading."
    return stack(
        "timeline", "Latency and the server, on one clock", caption, rows,
        {"range": [0, _end_s(run)], "ticksuffix": "s", "showspikes": True, "spikemode": "across", "spikethickness": 1,
         "spikedash": "dot", "spikecolor": paint("muted")},
        marks=list(_shading(run)), barmode="stack", bargap=0,
    )  # fmt: skip


def _end_s(run: Run) -> float:
    return max(run.elapsed_s, 1e-3)


def _shading(run: Run) -> Iterator[Mark]:
    """What is not measured."""
    start, end = run.summary.window_s
    for low, high, name in ((0.0, start, "warm-up"), (end, _end_s(run), "cool-down")):
        if high - low > 1e-9:
            yield shaded(low, high, name if high - low > 0.15 * _end_s(run) else "")  # a phone has room for the word


def limit(value: float | None, colour: str = "bad") -> list[tuple[float, str, str]]:
    return [] if value is None else [(value, f"SLO {limit_text(value)}", colour)]


def _ttft(run: Run, seen: Columns, bins: TimeBins) -> Row:
    p50, p99 = (bins.quantiles(seen.scheduled_s, seen.ttft_s, ratio) for ratio in (0.5, 0.99))
    axis = latency_axis(p50, p99, np.array([run.slo.ttft_s or np.nan]))
    traces = [line(bins.middles_s, p50, "p50", "ttft"), line(bins.middles_s, p99, "p99", "ttft", dash="dot")]
    if (crosses := _crosses(seen, 10 ** axis["range"][0] * 1.2 if "range" in axis else 0.0)) is not None:
        traces.append(crosses)
    return Row("TTFT", traces, axis, limit(run.slo.ttft_s), spoken="TTFT")


def _crosses(seen: Columns, height_s: float) -> PlotTrace | None:
    """Where requests failed, along the bottom: they have no latency, only a time that they took to fail."""
    places = _failed(seen)
    if not places.size:
        return None
    after_s = seen.ended_s - seen.scheduled_s
    kept = places[fair_sample(seen.scheduled_s[places], after_s[places], MOST_CROSSES)]
    words = [f"{FATE_WORDS[FATES[seen.fate[place]].value]} after {duration(after_s[place])}" for place in kept]
    return points(
        seen.scheduled_s[kept], np.full(len(kept), height_s), "failed", "bad", symbol="x-thin",
        marker={"line": {"color": paint("bad"), "width": 1.4}, "size": 6, "opacity": 1.0}, text=words,
        hovertemplate="%{text}", cliponaxis=False,
    )  # fmt: skip


def _failed(seen: Columns) -> NDArray[np.int64]:
    return np.flatnonzero(~seen.ok & np.isfinite(seen.ended_s))


def _crosses_rule(seen: Columns) -> str:
    failed = len(_failed(seen))
    if not failed:
        return "No request failed."
    rule = f" {MOST_CROSSES} of {count(failed, 'failure')} are drawn: {SAMPLE_RULE}." if failed > MOST_CROSSES else ""
    return f"× marks when a request that failed was due.{rule}"


def _itl(run: Run, tokens: TokenTimes) -> Iterator[Row]:
    if not tokens.known:
        return
    p50, p99 = tokens.quantiles(0.5), tokens.quantiles(0.99)
    middles = tokens.bins.middles_s
    traces = [line(middles, p50, "p50", "itl"), line(middles, p99, "p99", "itl", dash="dot")]
    axis = latency_axis(p50, p99, np.array([run.slo.itl_s or np.nan]))
    yield Row("ITL", traces, axis, limit(run.slo.itl_s), spoken="ITL")


def _ends(run: Run, seen: Columns, bins: TimeBins) -> Row:
    """Requests per second by how they ended, in the bin in which they did, under the rate at which they were due."""
    ended_s = np.where(np.isfinite(seen.ended_s), seen.ended_s, seen.scheduled_s)
    traces = []
    for code, fate in enumerate(FATES):
        if (chosen := seen.fate == code).any():
            rate = bins.counts(ended_s[chosen]) / bins.width_s
            name = fate.value.replace("_", " ")
            traces.append(bars(bins.middles_s, rate, name, fate.value, width=bins.width_s, hovertemplate=RATE_HOVER))
    due = "due" if run.load.loop == "open" else "begun"
    offered = bins.counts(seen.scheduled_s) / bins.width_s
    traces.append(line(bins.middles_s, offered, due, "ink", hovertemplate=RATE_HOVER) | {"line": _thin_step()})
    return Row("Requests/s by outcome", traces, {"rangemode": "tozero"})


def _thin_step() -> dict[str, object]:
    return {"color": paint("ink"), "width": 1, "shape": "hvh"}


def _tokens(run: Run, tokens: TokenTimes) -> Iterator[Row]:
    traces = []
    if tokens.known:
        rate = tokens.tokens / tokens.bins.width_s
        traces.append(line(tokens.bins.middles_s, rate, "received", "tokens", hovertemplate=RATE_HOVER))
    if (told := counter(run, "generation_tokens_total", tokens.bins)) is not None:
        traces.append(line(*told, "server's count", "tokens", dash="dot", hovertemplate=RATE_HOVER))
    if traces:
        yield Row("Output tokens/s", traces, {"rangemode": "tozero"}, spoken="tokens")


def signal(run: Run, name: str) -> tuple[Floats, Floats] | None:
    """(times, values) of a series; nan is a gap. None when the server does not export it."""
    values = run.signals.series.get(name)
    if not values:
        return None
    return np.array(run.signals.times_s), np.array([np.nan if value is None else value for value in values])


def gauge(run: Run, name: str, bins: TimeBins) -> tuple[Floats, Floats] | None:
    """As `signal`; of a long run only the lowest and the highest value of each bin."""
    told = signal(run, name)
    if told is None or len(told[0]) <= MOST_READINGS:
        return told
    kept = extremes(*told, bins)
    return told[0][kept], told[1][kept]


def counter(run: Run, name: str, bins: TimeBins) -> tuple[Floats, Floats] | None:
    """(times, growth per second); of a long run from bin to bin. None too for a counter that was read only once."""
    told = signal(run, name)
    if told is None:
        return None
    known = np.isfinite(told[1])
    times, values = told[0][known], told[1][known]
    if len(times) > MOST_READINGS:
        kept = last_of_each(times, bins)
        times, values = times[kept], values[kept]
    return _growth(times, values) if len(times) > 1 else None


def _growth(times: Floats, values: Floats) -> tuple[Floats, Floats]:
    """Between two readings, at the later. A fall is a restart: it counts from zero."""
    steps = np.diff(values)
    steps = np.where(steps < 0, values[1:], steps)
    with np.errstate(divide="ignore", invalid="ignore"):
        return times[1:], steps / np.diff(times)


def _concurrency(run: Run, seen: Columns, bins: TimeBins) -> Row:
    times = bins.middles_s
    traces = [line(times, in_flight(seen, times, _end_s(run)), "in flight", "client", hovertemplate=COUNT_HOVER)]
    for name in ("running", "waiting"):
        told = gauge(run, name, bins)
        traces += [] if told is None else [line(*told, name, name, hovertemplate=COUNT_HOVER)]
    return Row("Requests inside", traces, {"rangemode": "tozero"})


def in_flight(seen: Columns, times_s: Floats, end_s: float) -> Floats:
    """Sent and not yet ended, at each time. What never ended did so with the run."""
    sent = np.isfinite(seen.sent_s)
    ended = np.where(np.isfinite(seen.ended_s), seen.ended_s, end_s)[sent]
    begun = np.searchsorted(np.sort(seen.sent_s[sent]), times_s, side="right")
    return (begun - np.searchsorted(np.sort(ended), times_s, side="right")).astype(np.float64)


def _memory(run: Run, bins: TimeBins) -> Iterator[Row]:
    if (told := gauge(run, "kv_used_ratio", bins)) is not None:
        used = line(*told, "used", "kv", hovertemplate="%{y:.1%}")
        yield Row("KV cache", [used], {"range": [0, 1.02], "tickformat": ".0%"}, spoken="KV cache")
    if (told := counter(run, "preemptions_total", bins)) is not None and told[1].any():
        rate = bars(*told, "per second", "preemptions", width=_width(told[0]), hovertemplate=RATE_HOVER)
        yield Row("Preemptions", [rate], {"rangemode": "tozero", "nticks": 3}, height_px=56, spoken="preemptions")
    if (told := gauge(run, "memory_bytes", bins)) is not None:
        used = line(*told, "used", "memory", hovertemplate="%{y:.3s}B")
        yield Row(
            "Server memory",
            [used],
            {"rangemode": "tozero", "tickformat": "~s", "ticksuffix": "B"},
            height_px=80,
            spoken="memory",
        )


def _width(times: Floats) -> float:
    return float(np.median(np.diff(times))) if len(times) > 1 else 1.0
