"""Sweeps, searches and comparisons: nothing is claimed that the runs do not say."""

from __future__ import annotations

import io

import msgspec
import pytest
from rich.console import Console

from headway.loadtest.compare import Comparison, Difference, compare
from headway.loadtest.probe import Probe, Requirements, probe_of
from headway.loadtest.report import curve, versus
from headway.loadtest.report.html import compare_page, stable_page, sweep_page
from headway.loadtest.report.terminal import print_comparison, print_stable, print_sweep
from headway.loadtest.result import Interval, Slo
from headway.loadtest.stable import Stable
from tests.loadtest.report.sample_run import Sample, changed, sample

RATES = (8.0, 16.0, 12.0)


@pytest.fixture(scope="module")
def swept() -> list[Sample]:
    return [sample(rate=rate, duration_s=100.0, faults=False) for rate in RATES]


@pytest.fixture(scope="module")
def found(swept: list[Sample]) -> Stable:
    probes = [probe_of(one.run, rate) for one, rate in zip(swept, RATES, strict=True)]
    return Stable(load=12.0, reason="at 16: KV use 96%", bound="memory", breaks_at=16.0, tolerance=0.25, sustained=True,
                  converged=True, probes=probes)  # fmt: skip


def test_points_are_the_runs_figures_in_order_of_load(swept: list[Sample]) -> None:
    made = curve.of_runs([(f"{one.run.load.rate:g}", one.run) for one in swept])
    assert [point.label for point in made.points] == ["8", "12", "16"]
    for point, one in zip(made.points, sorted(swept, key=lambda one: one.run.load.rate or 0), strict=True):
        assert point.request_rate == one.run.summary.overall.request_rate
        for name, interval in point.p99.items():
            assert interval == one.run.summary.overall.distributions[name].percentiles["99"]
            assert interval.value is not None


def test_runs_that_differ_in_a_setting_keep_their_order_and_are_not_joined(swept: list[Sample]) -> None:
    same_load = [("b", swept[0].run), ("a", swept[0].run)]
    made = curve.of_runs(same_load)
    assert [point.label for point in made.points] == ["b", "a"]
    assert {trace["mode"] for trace in curve.figure(made).data} == {"markers"}
    joined = curve.figure(curve.of_runs([(str(number), one.run) for number, one in enumerate(swept)]))
    assert "lines" in {trace["mode"] for trace in joined.data}


def test_limits_are_drawn_where_they_hold_for_all(swept: list[Sample]) -> None:
    other = changed(swept[1].run, slo=Slo(ttft_s=9.0))
    assert curve.of_runs([("a", swept[0].run), ("b", swept[1].run)]).slo == swept[0].run.slo
    assert curve.of_runs([("a", swept[0].run), ("b", other)]).slo == Slo()


def test_the_answer_of_a_search_is_marked_and_its_border_told(swept: list[Sample], found: Stable) -> None:
    tone, word, sentence, evidence = curve.stable_headline(found, swept[0].run, Requirements())
    assert (tone, word, sentence) == ("good", "Stable up to 12 req/s", "At 16: KV use 96%.")
    assert any("16 req/s" in line for line in evidence)
    made = curve.of_stable(found, swept[0].run, Requirements())
    assert [(point.load, point.chosen) for point in made.points] == [(8.0, False), (12.0, True), (16.0, False)]
    assert made.points[2].holds is False
    figure = curve.figure(made)
    chosen = made.points[1].request_rate
    lines = [shape["x0"] for shape in figure.wide.layout["shapes"] if shape.get("x0") == shape.get("x1")]
    assert lines == [chosen]


def test_probes_of_one_load_are_told_apart_and_judged_together() -> None:
    def probe(load: float, good: float) -> Probe:
        return Probe(
            load=load, window_s=60.0, requests=1000, good=Interval(value=good, low=good - 0.001, high=good + 0.0005),
            slo_ratios={"ttft": good}, request_rate=load, goodput=load,
            p99_s={"ttft": Interval(value=0.1), "itl": Interval(value=None), "e2e": Interval(value=None, low=30.0)},
            error_ratio=0.0, verdict="VALID",
        )  # fmt: skip

    probes = [probe(5.0, 0.999), probe(5.0, 0.9985), probe(10.0, 0.9)]
    answer = Stable(
        load=5.0, reason="x", bound="promise", breaks_at=10.0, tolerance=0.5, sustained=False, converged=False,
        probes=probes,
    )  # fmt: skip
    run = sample(rate=2.0, duration_s=30.0).run
    made = curve.of_stable(answer, run, Requirements())
    assert [point.label for point in made.points] == ["5.00 req/s, probe 1", "5.00 req/s, probe 2", "10.0 req/s"]
    assert [point.holds for point in made.points] == [True, True, False]
    assert "itl" not in made.points[0].p99, "too few samples are no figure"
    (row, *_) = curve.table(made).rows
    assert [cell.text for cell in row[-5:-2]] == ["100 ms", "n too small", "≥ 30.0 s"], "what was given up is a bound"
    drawn = [trace for trace in curve.figure(made).data if "triangle-up" in str(trace.get("marker"))]
    assert drawn
    assert {height for trace in drawn for height in trace["y"]} == {30.0}
    assert [line for line in curve.remarks(made) if "10.0" in line]
    tone, *_, evidence = curve.stable_headline(answer, run, Requirements())
    assert tone == "warn"
    assert len(evidence) == 5
    assert [line for line in evidence if line.startswith("Memory was not seen")]


def test_a_client_limited_probe_of_a_load_that_holds_is_explained(swept: list[Sample], found: Stable) -> None:
    limited = [*found.probes, msgspec.structs.replace(found.probes[2], verdict="CLIENT-LIMITED")]
    made = curve.of_stable(msgspec.structs.replace(found, probes=limited), swept[0].run, Requirements())
    note = curve.table(made).note
    assert note == (
        "holds: of all probes of that load together, but for those that are CLIENT-LIMITED: this machine's delay is in "
        "their figures; chosen: the load of the answer."
    )
    out = io.StringIO()
    print_stable(found, swept[0].run, console=Console(file=out, width=80))
    assert "chosen: the load of the answer." in " ".join(out.getvalue().split())


def test_what_is_said_of_several_runs_is_said_once() -> None:
    def point(label: str, verdict: str, why: str) -> curve.CurvePoint:
        return curve.CurvePoint(label, verdict, 1.0, None, {}, None, None, why=why)

    few = [f"{there} requests in the window have a TTFT, p95 needs 200" for there in (71, 20, 35)]
    points = [*(point(f"c={number}", "TOO-FEW-SAMPLES", why) for number, why in enumerate(few))]
    points.append(point("c=9", "UNSTEADY", "the queue grew by 1,200"))
    assert curve.remarks(curve.Curve(points)) == [
        "TOO-FEW-SAMPLES in 3 of 4: 20–71 requests in the window have a TTFT, p95 needs 200",
        "c=9: the queue grew by 1,200",
    ]
    points.append(point("c=10", "UNSTEADY", "the queue grew by 900"))
    assert curve.remarks(curve.Curve(points))[1] == "UNSTEADY in 2 of 5: the queue grew by 900–1,200"


def test_no_load_holds(swept: list[Sample], found: Stable) -> None:
    nothing = msgspec.structs.replace(found, load=None, breaks_at=8.0)
    tone, word, *_ = curve.stable_headline(nothing, swept[0].run, Requirements())
    assert (tone, word) == ("bad", "No load holds")
    assert "No load holds" in stable_page(nothing, swept[0].run)


def test_runs_without_enough_samples_make_a_page_all_the_same() -> None:
    small = sample(rate=1.0, duration_s=20.0)
    text = sweep_page([("a", small.run), ("b", small.run)])
    assert "too few requests in every run" in text


def test_pages_and_terminals_say_the_same(swept: list[Sample], found: Stable) -> None:
    for width in (60, 80, 140):
        out = io.StringIO()
        console = Console(file=out, width=width)
        print_sweep([(label, one.run) for label, one in zip("abc", swept, strict=True)], console=console)
        print_stable(found, swept[0].run, console=console)
        print_comparison(compare(swept[0].run, swept[2].run), console=console)
        text = out.getvalue()
        assert max(map(len, text.splitlines())) <= width
        assert "Stable up to 12 req/s" in text
        assert "Not comparable" in text
        assert "…" not in text, "no figure is cut"
    page = stable_page(found, swept[0].run)
    for row in curve.table(curve.of_stable(found, swept[0].run, Requirements())).rows:
        assert row[0].text in page


# -- comparisons -----------------------------------------------------------------------------------------------------


def test_a_run_compared_with_itself_differs_in_nothing(made: Sample) -> None:
    found = compare(made.run, made.run, made.records, made.records)
    tone, word, sentence = versus.headline(found)
    assert (tone, word) == ("warn", "Perhaps comparable")  # its quantisation is not known
    assert sentence.startswith("Nothing is known to differ")
    assert " 0 of " in sentence
    assert versus.headline(found, {"quantisation"})[:2] == ("good", "Comparable")
    assert not [cell for row in versus.differences(found).rows for cell in row if cell.tone in {"good", "bad"}]
    assert versus.settings(found) is None


def test_what_differs_is_named(swept: list[Sample]) -> None:
    slow, fast = swept[1], swept[0]
    found = compare(fast.run, slow.run, fast.records, slow.records)
    assert versus.headline(found)[1] == "Not comparable"
    assert any(line.startswith("rate: 8 in A, 16 in B") for line in versus.obstacles(found))
    assert not any(line.startswith("rate") for line in versus.obstacles(found, {"rate"}))


@pytest.mark.parametrize(
    ("name", "change", "beyond", "tone"),
    [
        ("ttft p50", 0.1, True, "bad"),
        ("ttft p50", -0.1, True, "good"),
        ("itl p99", 0.1, False, ""),
        ("e2e p90", 0.1, None, ""),
        ("goodput", 0.1, True, "good"),
        ("good_ratio", -0.1, True, "bad"),
    ],
)
def test_only_what_exceeds_noise_is_better_or_worse(name: str, change: float, beyond: bool | None, tone: str) -> None:
    figure = Difference(
        name=name,
        a=Interval(value=0.5),
        b=Interval(value=0.5 + change),
        change=Interval(value=change),
        relative=change / 0.5,
        exceeds_noise=beyond,
    )  # fmt: skip
    found = Comparison(comparable=True, conditions=[], settings=[], figures=[figure])
    (row,) = versus.differences(found).rows
    assert row[3].tone == row[5].tone == tone
    assert row[3].text[0] == ("+" if change > 0 else "-")


def test_both_runs_are_drawn_with_their_intervals(swept: list[Sample]) -> None:
    a, b = swept[0].run, swept[1].run
    figure = versus.percentiles(a, b)
    for trace in figure.data:
        run = {"A": a, "B": b}[trace["name"]]
        values = [
            interval.value for d in run.summary.overall.distributions.values() for interval in d.percentiles.values()
        ]
        for height in trace["y"]:
            assert any(value == pytest.approx(height, rel=1e-4) for value in values if value is not None)
    assert "A against B" in compare_page(a, b, compare(a, b))
