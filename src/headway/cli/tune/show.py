"""What a tuning says on a terminal, and its page with a plot."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rich.console import Console, Group

from headway.loadtest.report.page import Banner, Page, Section, render
from headway.loadtest.report.palette import SERIES
from headway.loadtest.report.plot import Figure, PlotTrace, Row, line, points, stack
from headway.loadtest.report.terminal import TONE_STYLES, banner, draw, paragraph
from headway.tune import Report
from headway.tune.tables import headline, sentences, tables

MOST_LINES = 6  # of a figure


def print_report(report: Report, console: Console) -> None:
    """The verdict first."""
    tone, word, sentence, evidence = headline(report)
    head = banner(TONE_STYLES[tone], word, sentence, evidence)
    console.print(Group(head, *map(draw, tables(report)), *map(paragraph, sentences(report))))


def page(report: Report) -> str:
    """One HTML file that needs nothing else."""
    tone, word, sentence, evidence = headline(report)
    found = tables(report)
    sections = [Section("asked", "What was asked", tables=found[:1])]
    if report.trials:
        sections.append(Section("tests", "Live tests", (_predicted(report),), found[1:2], sentences(report)))
    if report.searched:
        sections.append(Section("search", "Search", (_search(report),), found[-1:]))
    return render(
        Page(
            title=report.model or report.url,
            lines=(report.load, f"{report.url} · {report.started_at}"),
            banner=Banner(tone, word, sentence, evidence),
            sections=[section for section in sections if section.figures or section.tables],
        )
    )


def _search(report: Report) -> Figure:
    """Goodput over slots, a line for each token budget."""
    best: dict[int, float] = {}
    for one in report.searched:
        if _is_power(tokens := one.settings.max_num_batched_tokens):
            best[tokens] = max(best.get(tokens, 0.0), one.predicted.goodput)
    on_grid = sorted(sorted(best, key=lambda tokens: best[tokens])[-MOST_LINES:])
    traces: list[PlotTrace] = []
    for number, tokens in enumerate(on_grid):
        of_it = sorted(
            (one.settings.max_num_seqs, one.predicted.goodput)
            for one in report.searched
            if one.settings.max_num_batched_tokens == tokens
        )
        colour, dash = SERIES[number % len(SERIES)], "solid" if number < len(SERIES) else "dot"
        seqs, goodput = zip(*of_it, strict=True)
        traces.append(line(seqs, goodput, f"{tokens:,} tokens", colour, dash=dash, hovertemplate="%{y:.3~s}/s"))
    caption = "Predicted, each simulated with the requests of the live tests. The best token budgets are shown."
    row = Row("goodput, requests/s", traces, {"rangemode": "tozero"}, height_px=260)
    ticks = sorted({one.settings.max_num_seqs for one in report.searched if _is_power(one.settings.max_num_seqs)})
    axis = {
        "title": {"text": "max_num_seqs"}, "type": "log", "tickvals": ticks, "ticktext": [str(tick) for tick in ticks],
    }  # fmt: skip
    return stack("curve", "Goodput by settings", caption, [row], axis)


def _is_power(number: int) -> bool:
    return number & (number - 1) == 0


def _predicted(report: Report) -> Figure:
    """Predicted against measured, by live test."""
    numbers = [trial.number for trial in report.trials]
    measured = [trial.measured.goodput for trial in report.trials]
    predicted = [trial.predicted.goodput for trial in report.trials]
    words = list(_labels(report))
    told = "%{text}: %{y:.3~s}/s"
    traces = [
        points(numbers, measured, "measured", "good", marker={"size": 10}, text=words, hovertemplate=told),
        points(numbers, predicted, "predicted", "ttft", symbol="x", marker={"size": 9}, text=words, hovertemplate=told),
    ]
    row = Row("goodput, requests/s", traces, {"rangemode": "tozero"}, height_px=200)
    axis = {"title": {"text": "live test"}, "tickvals": numbers, "range": [0.5, math.ceil(len(numbers)) + 0.5]}
    return stack("tests", "Predicted beside measured", "Each live test, and what was predicted of it.", [row], axis)


def _labels(report: Report) -> Iterator[str]:
    for trial in report.trials:
        yield trial.settings.label
