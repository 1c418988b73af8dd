"""Two runs side by side, from what `compare` found: may they be compared, and what differs by more than noise."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from headway.loadtest.compare import DIFFERENT, SAME, SMALLER_IS_BETTER, Comparison, Condition, Difference
from headway.loadtest.compare import UNKNOWN as UNKNOWN_STATE
from headway.loadtest.report.palette import paint
from headway.loadtest.report.plot import Figure, PlotTrace, Row, latency_axis, points, stack
from headway.loadtest.report.tables import Cell, Table
from headway.loadtest.report.wording import LATENCIES, TOO_SMALL, UNKNOWN, duration, scale, significant, within
from headway.loadtest.result import Interval, Run

RATES = {
    "request_rate": "Finished well, req/s",
    "output_token_rate": "Output, tokens/s",
    "input_token_rate": "Input, tokens/s",
    "goodput": "Goodput, req/s",
}


def headline(found: Comparison, varied: Collection[str] = ()) -> tuple[str, str, str]:
    """(tone, word, sentence)."""
    beyond = [figure for figure in found.figures if figure.exceeds_noise]
    told = sum(figure.exceeds_noise is not None for figure in found.figures)
    sentence = f"{len(beyond)} of {told} figures differ by more than noise."
    states = {one.state for one in found.conditions if one.name not in varied}
    if UNKNOWN_STATE in states and DIFFERENT not in states:
        return "warn", "Perhaps comparable", f"Nothing is known to differ, but not everything is known. {sentence}"
    if DIFFERENT in states:
        return "bad", "Not comparable", f"The runs did not do the same work on the same means. {sentence}"
    if varied:
        sentence = f"Apart from {', '.join(sorted(varied))}, which is the question. {sentence}"
    return "good", "Comparable", sentence


def obstacles(found: Comparison, varied: Collection[str] = ()) -> list[str]:
    """What stands between the two runs, a line each."""
    return [_said(one) for one in found.conditions if one.state != SAME and one.name not in varied]


def _said(condition: Condition) -> str:
    if condition.state == DIFFERENT:
        return f"{condition.name}: {condition.a} in A, {condition.b} in B"
    return f"{condition.name}: not told by both ({condition.a} in A, {condition.b} in B)"


def differences(found: Comparison) -> Table:
    """B against A, figure by figure. Only what exceeds noise is marked as better or worse."""
    rows = [_row(figure) for figure in found.figures if any(one.known is not None for one in (figure.a, figure.b))]
    note = (
        "Change: B − A with its 95% confidence interval. More than noise: it leaves out zero also at the level that is"
        " left for one of so many figures (Holm); if nothing changed, any does so in one comparison of twenty."
        + " ≥ and ≤: by what one of them was at least, in its run, and the end of the other's interval."
        * any(figure.change.value is None for figure in found.figures)
        + " –: nobody can tell, as one of the two has too few samples for a value with an interval."
        * any(figure.exceeds_noise is None for figure in found.figures)
    )
    return Table("Figures", ("", "A", "B", "change", "relative", "more than noise"), tuple(rows), note)


def _row(figure: Difference) -> tuple[Cell, ...]:
    factor, unit = _unit(figure)
    title = _title(figure.name) + (f", {unit}" if unit else "")
    tone = ""
    if figure.exceeds_noise and figure.change.value:
        rose = figure.change.value > 0
        smaller_is_better = figure.name.partition(" ")[0] in SMALLER_IS_BETTER
        tone = "bad" if rose is smaller_is_better else "good"
    return (
        Cell(title),
        *(_value(one, factor) for one in (figure.a, figure.b)),
        _change(figure.change, factor, tone),
        Cell(UNKNOWN if figure.relative is None else f"{figure.relative:+.1%}"),
        Cell({None: UNKNOWN, True: "yes", False: "no"}[figure.exceeds_noise], tone=tone),
    )


def _value(found: Interval, factor: float) -> Cell:
    if found.value is not None:
        return Cell(significant(found.value * factor))
    return Cell(within(found, factor)) if found.known is not None else Cell(TOO_SMALL, tone="quiet")


def _change(change: Interval, factor: float, tone: str) -> Cell:
    if change.value is not None:
        return Cell(f"{change.value * factor:+.3g}", _signed(change, factor), tone)
    for sign, bound in (("≥", change.low), ("≤", change.high)):
        if bound is not None:
            return Cell(f"{sign} {bound * factor:+.3g}")
    return Cell(UNKNOWN)


def _signed(interval: Interval, factor: float) -> str:
    if interval.low is not None and interval.high is not None:
        return f"{interval.low * factor:+.3g} to {interval.high * factor:+.3g}"
    return within(interval, factor)


def _title(name: str) -> str:
    quantity, _, percentile = name.partition(" ")
    if quantity in LATENCIES:
        return f"{LATENCIES[quantity][0]} {percentile}"
    return "Promise kept" if name == "good_ratio" else RATES.get(name, name)


def _unit(figure: Difference) -> tuple[float, str]:
    if figure.name == "good_ratio":
        return 100.0, "%"
    if figure.name.partition(" ")[0] not in LATENCIES:
        return 1.0, ""
    values = (figure.a.value, figure.b.value, figure.a.at_least, figure.b.at_least)
    return scale(next((value for value in values if value is not None), 0.0))


def conditions(found: Comparison) -> Table:
    """What must be equal, with what it was."""
    rows = [
        (Cell(one.name), Cell(one.a), Cell(one.b), Cell(one.state, tone="good" if one.state == SAME else "bad"))
        for one in found.conditions
    ]
    return Table("Conditions", ("", "A", "B", "state"), tuple(rows))


def settings(found: Comparison) -> Table | None:
    """What else differs, and is no obstacle."""
    if not found.settings:
        return None
    rows = [(Cell(one.name), Cell(one.a), Cell(one.b)) for one in found.settings]
    return Table("Other differences", ("", "A", "B"), tuple(rows))


def percentiles(a: Run, b: Run) -> Figure:
    """Latencies of both at each percentile, with intervals: where those overlap far, there is little to tell."""
    keys = list(a.summary.overall.distributions["ttft"].percentiles)
    rows = []
    for name in ("ttft", "itl", "e2e"):
        traces, values = [], []
        for label, run in (("A", a), ("B", b)):
            if (trace := _percentiles(label, run, name, keys)) is not None:
                traces.append(trace)
                values += trace["y"]
        if traces:
            rows.append(Row(LATENCIES[name][0], traces, latency_axis(np.array(values)), height_px=130))
    caption = (
        "Whiskers: 95% confidence intervals; one that is not there has no bound. A percentile for which a run has too "
        "few samples, or that lies among requests that were given up, is not drawn."
    )
    axis = {
        "tickvals": list(range(len(keys))),
        "ticktext": [f"p{key}" for key in keys],
        "range": [-0.5, len(keys) - 0.5],
    }
    return stack("percentiles", "Latencies of both", caption, rows, axis, hovermode="closest")


def _percentiles(label: str, run: Run, name: str, keys: Sequence[str]) -> PlotTrace | None:
    symbol, shift = ("circle-open", -0.08) if label == "A" else ("circle", 0.08)
    distribution = run.summary.overall.distributions.get(name)
    found = [(place, distribution.percentiles[key]) for place, key in enumerate(keys)] if distribution else []
    known = [(place, interval, interval.value) for place, interval in found if interval.value is not None]
    if not known:
        return None
    whiskers = {
        "type": "data", "symmetric": False, "thickness": 1, "width": 3, "color": paint(name),
        "array": [interval.high - value if interval.high is not None else 0.0 for _, interval, value in known],
        "arrayminus": [value - interval.low if interval.low is not None else 0.0 for _, interval, value in known],
    }  # fmt: skip
    return points(
        [place + shift for place, _, _ in known], [value for _, _, value in known], label, name, symbol=symbol,
        marker={"size": 8, "opacity": 1.0}, error_y=whiskers,
        text=[f"p{keys[place]}: {duration(value)}" for place, _, value in known], hovertemplate=f"{label} %{{text}}",
    )  # fmt: skip
