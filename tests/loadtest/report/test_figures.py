"""Every figure shows what can be computed from the records, and plotly knows everything that is said to it."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import plotly.graph_objects as go  # type: ignore[import-untyped]
import pytest

from headway.loadtest.record import Fate, Record
from headway.loadtest.report import figures
from headway.loadtest.report.bins import TokenTimes, time_bins, token_times
from headway.loadtest.report.columns import Columns, columns
from headway.loadtest.report.csv_file import read_records, write_records
from headway.loadtest.report.html import run_sections
from headway.loadtest.report.palette import COLOURS
from headway.loadtest.report.plot import Figure
from headway.loadtest.report.timeline import timeline
from headway.loadtest.report.wording import duration
from headway.loadtest.result import Run, Signals
from tests.loadtest.report.sample_run import Sample, changed, many


def prepared(run: Run, records: list[Record]) -> tuple[Columns, TokenTimes]:
    seen = columns(records, run.summary.window_s)
    return seen, token_times(seen, time_bins(run.elapsed_s))


def traces(figure: Figure, title: str) -> dict[str, dict[str, Any]]:
    """The traces of the row under that title, by name."""
    names = [note["text"] for note in figure.wide.layout["annotations"] if note["text"].startswith("<b>")]
    number = names.index(f"<b>{title}</b>") + 1
    axis = "y" if number == 1 else f"y{number}"
    return {trace["name"]: trace for trace in figure.data if trace["yaxis"] == axis}


def run_figures(run: Run, records: list[Record]) -> list[Figure]:
    return [figure for section in run_sections(run, records) for figure in section.figures]


def test_plotly_accepts_every_property(made: Sample, ramped: Sample) -> None:
    drawn = [*run_figures(made.run, made.records), *run_figures(ramped.run, ramped.records)]
    assert {figure.id for figure in drawn} == {
        "timeline",
        "tail",
        "by-input",
        "input-lengths",
        "output-lengths",
        "lag",
        "ramp",
    }
    for figure in drawn:
        painted = re.sub(
            r"\{c:([\w-]+)\}",
            lambda found: COLOURS[found[1]][0],
            msgspec.json.encode([figure.data, figure.wide.layout, figure.narrow.layout]).decode(),
        )
        data, *layouts = msgspec.json.decode(painted)
        for layout in layouts:
            go.Figure(data=data, layout=layout)  # raises for an unknown property or an impossible value


def test_bars_of_fates_count_every_request(made: Sample) -> None:
    seen, tokens = prepared(made.run, made.records)
    row = traces(timeline(made.run, seen, tokens), "Requests/s by outcome")
    width = tokens.bins.width_s
    for fate, name in ((Fate.OK, "ok"), (Fate.LIMITED, "limited"), (Fate.SERVER_ERROR, "server error")):
        expected = sum(record.fate is fate for record in made.records)
        drawn = sum(row[name]["y"]) * width if name in row else 0
        assert drawn == pytest.approx(expected)
    assert sum(row["due"]["y"]) * width == pytest.approx(len(made.records))


def test_ttft_over_time_is_that_of_the_requests_due_then(made: Sample) -> None:
    seen, tokens = prepared(made.run, made.records)
    row = traces(timeline(made.run, seen, tokens), "TTFT")
    width = tokens.bins.width_s
    for place in range(0, tokens.bins.count, 7):
        due = [
            (record.first_ns - record.scheduled_ns) / 1e9
            for record in made.records
            if int(record.scheduled_ns / 1e9 / width) == place and record.first_ns >= 0
        ]
        for name, ratio in (("p50", 0.5), ("p99", 0.99)):
            shown = row[name]["y"][place]
            assert (shown is None) is (not due)
            if due:
                assert shown == pytest.approx(np.quantile(due, ratio), rel=1e-4)


def test_failures_are_marked_where_they_were_due(made: Sample) -> None:
    seen, tokens = prepared(made.run, made.records)
    marks = traces(timeline(made.run, seen, tokens), "TTFT")["failed"]
    failed = [record for record in made.records if not record.ok]
    assert len(marks["x"]) == len(failed) > 0
    assert marks["x"] == pytest.approx([record.scheduled_ns / 1e9 for record in failed], rel=1e-4)
    for text, record in zip(marks["text"], failed, strict=True):
        assert text.endswith(f"after {duration((record.ended_ns - record.scheduled_ns) / 1e9)}")


def test_server_signals_are_on_the_same_axis_as_they_were_read(made: Sample) -> None:
    seen, tokens = prepared(made.run, made.records)
    figure = timeline(made.run, seen, tokens)
    assert {trace["xaxis"] for trace in figure.data} == {"x"}
    signals = made.run.signals
    for title, name, trace in (("Requests inside", "running", "running"), ("KV cache", "kv_used_ratio", "used")):
        shown = traces(figure, title)[trace]
        assert shown["x"] == pytest.approx(signals.times_s, rel=1e-4)
        assert shown["y"] == pytest.approx(signals.series[name], rel=1e-4)
    counter = [value for value in signals.series["generation_tokens_total"] if value is not None]
    grown = traces(figure, "Output tokens/s")["server's count"]
    assert sum(np.array(grown["y"]) * np.diff(signals.times_s)) == pytest.approx(counter[-1] - counter[0], rel=1e-3)


def test_warm_up_and_cool_down_are_shaded(made: Sample) -> None:
    seen, tokens = prepared(made.run, made.records)
    figure = timeline(made.run, seen, tokens)
    shaded = [(shape["x0"], shape["x1"]) for shape in figure.wide.layout["shapes"] if shape["type"] == "rect"]
    start, end = made.run.summary.window_s
    assert shaded == [(0.0, start), (end, made.run.elapsed_s)]


def test_in_flight_here_is_a_count_of_the_records(made: Sample) -> None:
    seen, tokens = prepared(made.run, made.records)
    shown = traces(timeline(made.run, seen, tokens), "Requests inside")["in flight"]
    for at_s, count in list(zip(shown["x"], shown["y"], strict=True))[::11]:
        at_ns = at_s * 1e9
        assert count == sum(record.sent_ns <= at_ns < record.ended_ns for record in made.records)


def test_rows_of_signals_that_were_not_exported_are_absent(made: Sample) -> None:
    bare = changed(made.run, signals=Signals())
    seen, tokens = prepared(bare, made.records)
    titles = [note["text"] for note in timeline(bare, seen, tokens).wide.layout["annotations"]]
    assert "<b>KV cache</b>" not in titles
    assert "<b>TTFT</b>" in titles


def test_gaps_in_a_signal_and_a_restart_of_the_server(made: Sample) -> None:
    signals = Signals(
        source="vllm", times_s=[0.0, 1.0, 2.0, 3.0],
        series={"generation_tokens_total": [100.0, None, 300.0, 50.0], "running": [1.0, None, None, 2.0]},
    )  # fmt: skip
    run = changed(made.run, signals=signals)
    seen, tokens = prepared(run, made.records)
    figure = timeline(run, seen, tokens)
    grown = traces(figure, "Output tokens/s")["server's count"]
    assert (grown["x"], grown["y"]) == ([2.0, 3.0], [100.0, 50.0])
    assert traces(figure, "Requests inside")["running"]["y"] == [1.0, None, None, 2.0]


def test_a_long_runs_signals_keep_their_peaks(made: Sample) -> None:
    rng = np.random.default_rng(1)
    running = rng.random(5000)
    signals = Signals(
        source="vllm", times_s=list(np.linspace(0, 120, 5000)),
        series={"running": running.tolist(), "generation_tokens_total": np.cumsum(running).tolist()},
    )  # fmt: skip
    run = changed(made.run, signals=signals)
    seen, tokens = prepared(run, made.records)
    figure = timeline(run, seen, tokens)
    shown = traces(figure, "Requests inside")["running"]
    assert len(shown["y"]) <= 2 * tokens.bins.count
    assert max(shown["y"]) == pytest.approx(running.max(), rel=1e-4)
    assert min(shown["y"]) == pytest.approx(running.min(), rel=1e-4)
    grown = traces(figure, "Output tokens/s")["server's count"]
    assert np.average(grown["y"][1:-1]) == pytest.approx(running.sum() / 120, rel=0.02)
    assert "lowest and the highest" in figure.caption


def test_the_tail_meets_the_table(made: Sample) -> None:
    """At p50 and p90 the curves go through the summary's figures, and are dotted where it has none."""
    seen, tokens = prepared(made.run, made.records)
    figure = figures.tail(made.run, seen, tokens)
    for key, title, tolerance in (("ttft", "TTFT", 0.05), ("itl", "ITL", 0.05), ("e2e", "E2E", 0.05)):
        solid = next(trace for trace in figure.data if trace["name"] == title)
        assert solid["line"]["dash"] == "solid"
        percentiles = made.run.summary.overall.distributions[key].percentiles
        for name in ("50", "90"):
            value = percentiles[name].value
            assert value is not None
            shown = np.interp(figures.nines(float(name) / 100), solid["x"], solid["y"])
            assert shown == pytest.approx(value, rel=tolerance)
        trusted = max(float(name) for name, interval in percentiles.items() if interval.value is not None)
        assert max(solid["x"]) == pytest.approx(figures.nines(trusted / 100), rel=1e-3)
        dotted = [trace for trace in figure.data if trace["name"].startswith(f"{title}, n too small")]
        assert dotted
        assert min(dotted[0]["x"]) == pytest.approx(max(solid["x"]), rel=1e-3)


def test_prompt_length_scatter_shows_all_or_says_what_it_left_out(made: Sample) -> None:
    seen = columns(made.records, made.run.summary.window_s)
    figure = figures.by_input(made.run, seen)
    assert figure is not None
    began = int((np.isfinite(seen.ttft_s) & seen.measured).sum())
    assert sum(len(trace["x"]) for trace in figure.data) == began
    assert {trace["name"] for trace in figure.data} == {"short", "long"}
    assert f"{began:,} requests" in figure.caption
    large = many(made, 20_000)
    run = changed(large.run, summary=msgspec.structs.replace(large.run.summary, window_s=(0.0, large.run.elapsed_s)))
    seen = columns(large.records, run.summary.window_s)
    thinned = figures.by_input(run, seen)
    assert thinned is not None
    assert sum(len(trace["x"]) for trace in thinned.data) == figures.MOST_POINTS
    assert "every extreme is kept" in thinned.caption
    assert max(max(trace["y"]) for trace in thinned.data) == pytest.approx(np.nanmax(seen.ttft_s), rel=1e-4)


def test_histograms_count_every_request(made: Sample) -> None:
    seen = columns(made.records, made.run.summary.window_s)
    for figure in figures.lengths(seen):
        row = traces(figure, "Requests")
        assert sum(row["counted"]["y"]) == sum(row["asked for"]["y"]) == len(made.records)


def test_lag_is_the_clients_own(made: Sample) -> None:
    seen = columns(made.records, made.run.summary.window_s)
    figure = figures.lag(made.run, seen, time_bins(made.run.elapsed_s))
    assert figure is not None
    worst = max(value for value in traces(figure, "Sent later than scheduled")["latest"]["y"] if value is not None)
    assert worst == pytest.approx(max(r.sent_ns - r.scheduled_ns for r in made.records) / 1e9, rel=1e-4)


def test_a_ramp_shows_its_knee(ramped: Sample, made: Sample) -> None:
    seen = columns(ramped.records, ramped.run.summary.window_s)
    figure = figures.ramp(ramped.run, seen)
    assert figure is not None
    knee = ramped.run.summary.knee
    assert knee is not None
    assert [shape["x0"] for shape in figure.wide.layout["shapes"]] == [knee["low"], knee["load"]]
    done = traces(figure, "Finished well/s")["requests/s"]
    bins = time_bins(ramped.run.elapsed_s, figures.RAMP_BINS)
    due = {int(record.scheduled_ns / 1e9 / bins.width_s) for record in ramped.records}
    while_due = sum(record.ok and int(record.ended_ns / 1e9 / bins.width_s) in due for record in ramped.records)
    assert sum(done["y"]) * bins.width_s == pytest.approx(while_due, abs=1), "not what was worked off afterwards"
    assert figures.ramp(made.run, columns(made.records, made.run.summary.window_s)) is None


def test_a_run_in_which_nothing_came_back(made: Sample) -> None:
    dead = [replace(record, first_ns=-1, last_ns=-1, ended_ns=record.sent_ns + 1000, gaps_ns=type(record.gaps_ns)("q"),
                    gap_tokens=type(record.gap_tokens)("H"), fate=Fate.CONNECTION, chunks=0, first_tokens=0,
                    output_tokens=-1, input_tokens=-1) for record in made.records]  # fmt: skip
    drawn = run_figures(made.run, dead)
    assert {figure.id for figure in drawn} == {"timeline", "tail", "input-lengths", "output-lengths", "lag"}


def test_records_read_back_from_csv_claim_nothing_about_single_gaps(made: Sample) -> None:
    out = io.StringIO(newline="")
    write_records(out, made.records)
    out.seek(0)
    back = [line.record for line in read_records(out, "it")]
    seen, tokens = prepared(made.run, back)
    figure = timeline(made.run, seen, tokens)
    assert "not drawn" in figure.caption
    assert "received" not in traces(figure, "Output tokens/s")
    titles = [note["text"] for note in figure.wide.layout["annotations"]]
    assert "<b>ITL</b>" not in titles
    whole = timeline(made.run, *prepared(made.run, made.records))
    assert traces(figure, "TTFT") == traces(whole, "TTFT")


def test_a_run_without_records(made: Sample) -> None:
    assert run_figures(changed(made.run, elapsed_s=0.0), [])


def test_names_from_outside_are_escaped(made: Sample) -> None:
    evil = [replace(record, kind=f"<a href='x'>{record.kind}</a>") for record in made.records]
    for figure in run_figures(made.run, evil):
        assert "<a " not in msgspec.json.encode([figure.data, figure.wide.layout, figure.narrow.layout]).decode()
