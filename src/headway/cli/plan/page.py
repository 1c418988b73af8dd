"""The HTML report of a plan: what it takes, and the curves of all hardware in one figure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from headway.cli.plan import words
from headway.cli.plan.measure import Measured
from headway.loadtest.report.page import Banner, Page, Section, Tile, render
from headway.loadtest.report.plot import Figure, PlotTrace, Row, latency_axis, line, points, safe, stack
from headway.loadtest.report.wording import limit_text, percent
from headway.simulate.plan import Option, Plan

# A hardware keeps its colour in all rows; these have no other meaning here.
COLOURS = ("ttft", "itl", "running", "e2e", "kv", "tokens", "waiting", "client")


def page_of(plan: Plan, measured: Sequence[Measured] = ()) -> str:
    tone, word, sentence = words.headline(plan)
    best = plan.best
    drawn = [option for option in plan.options if any(point.output_token_rate for point in option.curve)]
    sections = [
        Section("takes", "What it takes", tables=(words.options_table(plan), words.asked_table(plan)),
                notes=words.refusals(plan)),
    ]  # fmt: skip
    if drawn:
        sections.append(Section("curve", "Throughput and latency", figures=(figure(plan, drawn, measured),)))
    for number, option in enumerate(drawn):
        shown = measured if option.name == plan.chosen or len(drawn) == 1 else ()
        table = words.curve_table(option, plan, shown)
        sections.append(Section(f"hardware-{number}", option.name, tables=(table,), notes=words.remarks(option)))
    return render(
        Page(
            title=f"Plan: {plan.asked.request_rate:,.4g} requests/s",
            lines=(plan.asked.traffic,),
            banner=Banner(tone, word, sentence, words.remarks(best) if best is not None else words.refusals(plan)),
            sections=sections,
            tiles=_tiles(best) if best is not None else (),
            foot=f"Simulated with seed {plan.asked.seed}; the same command gives the same plan.",
        )
    )


def _tiles(best: Option) -> tuple[Tile, ...]:
    assert best.cost is not None
    return (
        Tile("replicas", f"{best.count:,}", (best.name,)),
        Tile("per hour", f"{best.cost.per_hour:,.2f}"),
        Tile("per million output tokens", words.money(best.cost.per_million_output_tokens)),
        Tile("headroom", f"{best.headroom_ratio or 0.0:.0%}"),
        Tile("KV use", percent(best.kv_used_ratio.value if best.kv_used_ratio else None)),
    )


def figure(plan: Plan, drawn: Sequence[Option], measured: Sequence[Measured]) -> Figure:
    """Output tokens per second of one replica against ITL and TTFT, a point a batch size, joined in order."""
    tail, limits = plan.asked.promise.tail, dict(plan.asked.promise.limits())
    rows = []
    for name in ("itl", "ttft"):
        traces: list[PlotTrace] = []
        heights: list[float] = []
        for number, option in enumerate(drawn):
            colour = COLOURS[number % len(COLOURS)]
            known = [point for point in option.curve if point.output_token_rate and getattr(point, f"{name}_s")]
            values = [float(getattr(point, f"{name}_s")) for point in known]
            heights += values
            rates = [point.output_token_rate or 0.0 for point in known]
            labels = [safe(f"{option.name}, batch {point.batch}") for point in known]
            traces.append(line(rates, values, option.name, colour, hoverinfo="skip", hovertemplate=None))
            told: dict[str, Any] = {"showlegend": False, "text": labels, "hovertemplate": "%{text}: %{y:.3s}s"}
            traces.append(points(rates, values, option.name, colour, **told))
            at_knee = [at for at, point in enumerate(known) if option.knee and point.batch == option.knee.batch]
            traces += _knee(rates, values, at_knee, colour, shown=number == 0)
        traces += _measured(measured, name)
        heights += [value for one in measured if (value := getattr(one, f"{name}_s"))]
        limit_s = limits.get(name)
        axis = latency_axis(np.array([*heights, *([limit_s] if limit_s else [])], np.float64))
        lines = ((limit_s, f"promised {limit_text(limit_s)}", "bad"),) if limit_s else ()
        rows.append(Row(f"{name.upper()} {tail}", traces, axis, lines, height_px=190, limits_left=True))
    caption = (
        "Each point is a batch size of one replica with every slot taken, from 1 by doubling. A diamond is the knee, "
        "where throughput over latency is highest: before it a larger batch brings more than it costs, after it less."
    )
    if measured:
        caption += " Crosses were measured on the live server."
    return stack(
        "batches", "Batch size: throughput against latency", caption, rows,
        {"title": {"text": "output tokens per second of one replica"}}, hovermode="closest",
    )  # fmt: skip


def _knee(
    rates: Sequence[float], values: Sequence[float], places: Sequence[int], colour: str, *, shown: bool
) -> list[PlotTrace]:
    if not places:
        return []
    at = places[0]
    marker = {"size": 13, "opacity": 1.0, "line": {"width": 0}}
    return [
        points(
            [rates[at]], [values[at]], "knee", colour, symbol="diamond", showlegend=shown, marker=marker,
            hovertemplate="%{y:.3s}s",
        )
    ]  # fmt: skip


def _measured(measured: Sequence[Measured], name: str) -> list[PlotTrace]:
    known = [one for one in measured if one.output_token_rate and getattr(one, f"{name}_s")]
    if not known:
        return []
    return [
        points(
            [one.output_token_rate or 0.0 for one in known], [float(getattr(one, f"{name}_s")) for one in known],
            "measured", "bad", symbol="x", marker={"size": 9, "opacity": 1.0},
            text=[safe(f"{one.concurrency} at a time") for one in known], hovertemplate="%{text}: %{y:.3s}s",
        )
    ]  # fmt: skip
