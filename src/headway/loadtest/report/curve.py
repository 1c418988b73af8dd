"""Several runs in one report: a sweep over loads or settings, or the probes of a search for the stable region."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from statistics import fmean

import numpy as np

from headway.loadtest.probe import LoadAnswer, Probe, Requirements, opinion, unseen
from headway.loadtest.report.palette import paint
from headway.loadtest.report.plot import Figure, PlotTrace, Row, latency_axis, line, marker_line, points, safe, stack
from headway.loadtest.report.tables import Cell, Table, gauge_text, percentile, promises
from headway.loadtest.report.tables import tone as tone_of
from headway.loadtest.report.timeline import limit
from headway.loadtest.report.wording import (
    TOO_SMALL,
    UNKNOWN,
    count,
    duration_or_bound,
    per_second,
    percent,
    scale,
    significant,
    within,
)
from headway.loadtest.result import Interval, Run, Slo, Word
from headway.loadtest.stable import Stable

QUANTITIES = ("ttft", "itl", "e2e")


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """One run of several. `load` is None where runs differ in something that has no order, such as a setting."""

    label: str  # what sets it apart: "12 req/s", "max_num_seqs=64"
    verdict: str
    request_rate: float
    output_token_rate: float | None  # None: not kept
    p99: Mapping[str, Interval]  # only where there were samples enough
    good: Interval | None
    kv_used_ratio: float | None
    load: float | None = None
    holds: bool | None = None  # whether it kept every promise; None: that was not the question
    why: str = ""  # what broke, in a line
    chosen: bool = False


@dataclass(frozen=True, slots=True)
class Curve:
    """The points, in order of load where they have one, and the limits that hold for all of them."""

    points: Sequence[CurvePoint]
    slo: Slo = field(default_factory=Slo)


def of_runs(labelled: Sequence[tuple[str, Run]]) -> Curve:
    found = [_of_run(label, run) for label, run in labelled]
    loads = {point.load for point in found}
    if len(loads) < len(found) or None in loads:  # settings differ, not loads: nothing to join points by
        found = [_without_load(point) for point in found]
    else:
        found.sort(key=lambda point: point.load or 0.0)
    slo = labelled[0][1].slo if all(run.slo == labelled[0][1].slo for _, run in labelled) else Slo()
    return Curve(found, slo)


def _of_run(label: str, run: Run) -> CurvePoint:
    overall = run.summary.overall
    findings = run.verdict.findings
    p99 = {name: found for name in QUANTITIES if (found := percentile(run, name)) is not None}
    return CurvePoint(
        label=label,
        verdict=run.verdict.name,
        request_rate=overall.request_rate,
        output_token_rate=overall.output_token_rate,
        p99=p99,
        good=overall.good_ratio,
        kv_used_ratio=run.signals.kv_used_ratio(run.summary.window_s),
        load=run.load.rate if run.load.loop == "open" else run.load.concurrency,
        why=findings[0].evidence if findings else "",
    )


def _without_load(point: CurvePoint) -> CurvePoint:
    return CurvePoint(
        point.label, point.verdict, point.request_rate, point.output_token_rate, point.p99, point.good,
        point.kv_used_ratio, None, point.holds, point.why, point.chosen,
    )  # fmt: skip


def of_stable(found: Stable, run: Run, wanted: Requirements) -> Curve:
    """A point a probe; `run` is any of them. Probes of one load are judged together, as the search judged them."""
    unit = load_unit(run)
    in_order = sorted(found.probes, key=lambda probe: probe.load)
    made = []
    for load, group in groupby(in_order, key=lambda probe: probe.load):
        same = list(group)
        judged = opinion(same, wanted, repeats=found.repeats)
        holds = {LoadAnswer.HOLDS: True, LoadAnswer.BREAKS: False}.get(judged.answer)
        for number, probe in enumerate(same, start=1):
            again = f", probe {number}" if len(same) > 1 else ""
            label = f"{significant(load)} {unit}{again}"
            why = judged.reason if number == len(same) else ""  # once for all of them
            made.append(_of_probe(label, probe, holds=holds, why=why, chosen=load == found.load))
    return Curve(made, run.slo)


def _of_probe(label: str, probe: Probe, *, holds: bool | None, why: str, chosen: bool) -> CurvePoint:
    return CurvePoint(
        label=label,
        verdict=probe.verdict,
        request_rate=probe.request_rate,
        output_token_rate=None,
        p99={name: found for name, found in probe.p99_s.items() if found.known is not None},
        good=probe.good,
        kv_used_ratio=probe.kv_used_ratio,
        load=probe.load,
        holds=holds,
        why=why,
        chosen=chosen,
    )


def load_unit(run: Run) -> str:
    return "req/s" if run.load.loop == "open" else "at a time"


# What ends a search and says nothing about the server: its border was not found.
NOT_THE_SERVERS = {
    "client": "This machine was the limit, not the server: its runs say what to do (--processes, or less on it).",
    "limit": "The search's own limit was reached, not the server's: raise --highest.",
    "probes": "The server's limit was not found: raise --most-probes. With --output a search goes on where it ended.",
}
NOT_NARROW = (
    "The search ended before the border was as narrow as was asked for: raise --most-probes. With --output it goes on."
)


def stable_headline(found: Stable, run: Run, wanted: Requirements) -> tuple[str, str, str, list[str]]:
    """(tone, word, sentence, evidence)."""
    evidence = [
        f"A load holds when {percent(wanted.good_ratio)} of all requests keep {promises(run.slo) or 'every promise'}."
    ]
    if untold := unseen(found.probes):
        evidence.append(untold)
    if found.load is None and found.bound == "client":
        return "warn", "No load could be tried", _sentence(found.reason), [*evidence, NOT_THE_SERVERS["client"]]
    if found.load is None and not found.converged:
        return "warn", "No load was seen to hold", _sentence(found.reason), [*evidence, NOT_THE_SERVERS["probes"]]
    if found.load is None:
        return "bad", "No load holds", _sentence(found.reason), evidence
    other = NOT_THE_SERVERS.get(found.bound, "")
    at_least = bool(other) or not found.converged
    if found.breaks_at is not None and not other:
        evidence.append(f"The lowest load that does not hold: {found.breaks_at:.4g} {load_unit(run)}.")
    if not found.sustained:
        evidence.append("It was not seen to hold for as long as was asked for.")
    if not found.converged and not other:
        evidence.append(NOT_NARROW)
    if other:
        evidence.append(other)
    tone = "good" if found.sustained and not at_least else "warn"
    up_to = "at least" if at_least else "up to"
    return tone, f"Stable {up_to} {found.load:.4g} {load_unit(run)}", _sentence(found.reason), evidence


def _sentence(reason: str) -> str:
    return f"{reason[:1].upper()}{reason[1:]}."


# -- the table -------------------------------------------------------------------------------------------------------


def table(curve: Curve) -> Table:
    points_ = curve.points
    judged = any(point.holds is not None for point in points_)
    with_tokens = any(point.output_token_rate is not None for point in points_)
    columns = ("", *("holds",) * judged, "verdict", "finished well", *("output",) * with_tokens)
    columns += ("TTFT p99", "ITL p99", "E2E p99", "good", "KV use")
    rows = [_row(point, curve.slo, judged=judged, with_tokens=with_tokens) for point in points_]
    return Table("Each run", columns, tuple(rows), _legend(points_) if judged else "")


def _legend(points_: Sequence[CurvePoint]) -> str:
    """What the words of a search's table mean, as far as it has them."""
    said = ["holds: of all probes of that load together"]
    if any(point.verdict == Word.CLIENT_LIMITED for point in points_):
        said[0] += f", but for those that are {Word.CLIENT_LIMITED}: this machine's delay is in their figures"
    if any(point.holds is None for point in points_):
        said.append("open: not decided")
    if any(point.chosen for point in points_):
        said.append("chosen: the load of the answer")
    return "; ".join(said) + "."


def _row(point: CurvePoint, slo: Slo, *, judged: bool, with_tokens: bool) -> tuple[Cell, ...]:
    cells = [Cell(f"{point.label}, chosen" if point.chosen else point.label)]
    if judged:
        tone = "" if point.holds is None else "good" if point.holds else "bad"
        cells.append(Cell({None: "open", True: "yes", False: "no"}[point.holds], tone=tone))
    cells.append(Cell(point.verdict, tone="" if point.verdict == Word.VALID else "bad"))
    cells.append(Cell(per_second(point.request_rate)))
    if with_tokens:
        cells.append(Cell(per_second(point.output_token_rate, "tok")))
    limits = {"ttft": slo.ttft_s, "itl": slo.itl_s, "e2e": slo.e2e_s}
    cells += [_latency(point.p99.get(name), limits[name]) for name in QUANTITIES]
    cells.append(Cell(percent(point.good.value if point.good else None)))
    cells.append(Cell(UNKNOWN if point.kv_used_ratio is None else gauge_text("kv_used_ratio", point.kv_used_ratio)))
    return tuple(cells)


def _latency(found: Interval | None, at_most: float | None) -> Cell:
    if found is None:
        return Cell(TOO_SMALL, tone="quiet")
    over = "bad" if tone_of(found, at_most) == "bad" else ""
    below = within(found, scale(found.value)[0]) if found.value is not None else ""
    return Cell(duration_or_bound(found), below, over)


def remarks(curve: Curve) -> list[str]:
    """Why a run is not VALID, or why a load does not hold; runs of which the same is said are told together."""
    told = [point for point in curve.points if point.why]
    if any(point.holds is not None for point in told):  # of a search: one reason a load
        return list(dict.fromkeys(f"{point.label}: {point.why}" for point in told))
    alike: dict[tuple[str, str], list[CurvePoint]] = {}
    for point in told:
        alike.setdefault((point.verdict, _NUMBER.sub("#", point.why)), []).append(point)
    return [
        f"{verdict} in {len(same)} of {len(curve.points)}: {_ranged([point.why for point in same])}"
        if len(same) > 1
        else f"{same[0].label}: {same[0].why}"
        for (verdict, _), same in alike.items()
    ]


_NUMBER = re.compile(r"(?<![\w.])\d+(?:,\d{3})*(?:\.\d+)?")  # none in a name, such as p95


def _ranged(texts: Sequence[str]) -> str:
    """Texts that differ in their numbers only, as one: where a number differs, from the lowest to the highest."""
    columns = zip(*(_NUMBER.findall(text) for text in texts), strict=True)
    spans = iter([sorted(set(column), key=lambda number: float(number.replace(",", ""))) for column in columns])

    def span(_: re.Match[str]) -> str:
        found = next(spans)
        return found[0] if len(found) == 1 else f"{found[0]}–{found[-1]}"

    return _NUMBER.sub(span, texts[0])


# -- the figure ------------------------------------------------------------------------------------------------------


def figure(curve: Curve) -> Figure:
    """Throughput against p99: what a promise costs, and where it breaks."""
    limits = {"ttft": curve.slo.ttft_s, "itl": curve.slo.itl_s, "e2e": curve.slo.e2e_s}
    rows = []
    for quantity, at_most in limits.items():
        known = [point for point in curve.points if quantity in point.p99]
        if known:
            values = np.array([_height(point.p99[quantity]) for point in known], dtype=np.float64)
            axis = latency_axis(values, np.array([at_most or np.nan]))
            rows.append(
                Row(
                    f"{quantity.upper()} p99",
                    _traces(known, quantity),
                    axis,
                    limit(at_most),
                    height_px=150,
                    limits_left=True,
                )
            )
    if not rows:
        nothing = line([], [], "", "ttft", showlegend=False)
        rows.append(Row("TTFT p99: too few requests in every run", [nothing]))
    caption = (
        "Each point is a run: what finished well there, and its p99. Whiskers: 95% confidence intervals; one that is "
        "not there has no bound. A triangle: it is at least that, for it lies among requests that were given up."
    )
    missing = sum("ttft" not in point.p99 for point in curve.points)
    if missing:
        caption += f" {count(missing, 'run')} had too few requests for a TTFT p99."
    holding = [point.request_rate for point in curve.points if point.chosen]
    return stack(
        "curve", "Throughput against p99", caption, rows,
        {"title": {"text": "requests finished well per second"}},
        marks=[marker_line(fmean(holding), "highest that holds", "good")] if holding else [], hovermode="closest",
    )  # fmt: skip


def _height(found: Interval) -> float:
    """Where it is drawn."""
    return found.known or 0.0


def _traces(known: Sequence[CurvePoint], quantity: str) -> list[PlotTrace]:
    traces = []
    if all(point.load is not None for point in known):  # a curve over loads; settings have no order to be joined in
        rates, values = _means(known, quantity)
        traces.append(line(rates, values, "", quantity, showlegend=False, hoverinfo="skip", hovertemplate=None))
    kinds = ((True, "holds", "circle", "good"), (False, "breaks", "x", "bad"), (None, "run", "circle", quantity))
    for holds, name, symbol, colour in kinds:
        if chosen := [point for point in known if point.holds is holds]:
            traces.append(_marks(chosen, quantity, name, symbol, colour))
    return traces


def _means(known: Sequence[CurvePoint], quantity: str) -> tuple[list[float], list[float]]:
    """(rate, p99) of each load, over its probes."""
    groups = [list(group) for _, group in groupby(known, key=lambda point: point.load)]
    rates = [fmean(point.request_rate for point in group) for group in groups]
    return rates, [fmean(_height(point.p99[quantity]) for point in group) for group in groups]


def _marks(chosen: Sequence[CurvePoint], quantity: str, name: str, symbol: str, colour: str) -> PlotTrace:
    found = [point.p99[quantity] for point in chosen]
    values = list(map(_height, found))
    pairs = list(zip(found, values, strict=True))
    symbols = [symbol if interval.value is not None else "triangle-up" for interval in found]
    whiskers = {
        "type": "data", "symmetric": False, "thickness": 1, "width": 3, "color": paint(colour),
        "array": [interval.high - value if interval.high is not None else 0.0 for interval, value in pairs],
        "arrayminus": [value - interval.low if interval.low is not None else 0.0 for interval, value in pairs],
    }  # fmt: skip
    return points(
        [point.request_rate for point in chosen], values, name, colour,
        marker={"symbol": symbols, "size": 9, "opacity": 1.0}, text=[safe(point.label) for point in chosen],
        error_y=whiskers, hovertemplate="%{text}: %{y:.3s}s at %{x:.3~s}/s",
    )  # fmt: skip
