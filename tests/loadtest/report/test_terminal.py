"""The terminal's report: everything that matters, verdict first, within 80 columns, and plain where it must be."""

from __future__ import annotations

import io
import re

import msgspec
import pytest
from rich.console import Console

from headway.loadtest.report import tables
from headway.loadtest.report.html import run_page
from headway.loadtest.report.terminal import print_run
from headway.loadtest.report.wording import TOO_SMALL, significant
from headway.loadtest.result import Environment, Finding, Interval, Run, Signals, Slo, Verdict, Word
from tests.loadtest.report.sample_run import Sample, changed


def printed(run: Run, *, width: int = 80, terminal: bool = False, **options: object) -> str:
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=terminal, color_system="truecolor" if terminal else None)
    print_run(run, console=console, **options)  # type: ignore[arg-type]
    return out.getvalue()


@pytest.mark.parametrize("width", [60, 80, 120])
def test_nothing_is_wider_than_the_terminal(made: Sample, width: int) -> None:
    text = printed(made.run, width=width, rivals=("vllm", "aiperf", "guidellm"))
    assert max(map(len, text.splitlines())) <= width


def test_the_verdict_is_first_with_its_findings(made: Sample) -> None:
    findings = [Finding(verdict=Word.CLIENT_LIMITED, evidence="92 of 183 requests/s were sent")]
    findings.append(Finding(verdict=Word.UNSTEADY, evidence="the queue grew by 14"))
    text = printed(changed(made.run, verdict=Verdict(name=Word.CLIENT_LIMITED, findings=findings)))
    lines = text.splitlines()
    assert lines[0].strip() == "CLIENT-LIMITED"
    assert "· 92 of 183 requests/s were sent" in text
    assert "· UNSTEADY: the queue grew by 14" in text
    assert text.index("UNSTEADY:") < text.index("Offered")


def test_a_valid_run_shows_what_was_checked(made: Sample) -> None:
    text = printed(changed(made.run, verdict=Verdict(name=Word.VALID, findings=[])))
    assert text.startswith("VALID")
    assert "schedule lag p50" in text


def test_an_interrupted_run_says_so_at_once(made: Sample) -> None:
    text = printed(changed(made.run, interrupted=True))
    assert text.index("interrupted") < text.index("Offered")
    assert "interrupted" not in printed(made.run)


def test_every_verdict_has_a_meaning() -> None:
    assert all(word.meaning and word.tone in {"good", "warn", "bad"} for word in Word)


def test_every_latency_is_there_with_its_interval_or_says_why_not(made: Sample) -> None:
    text = printed(made.run)
    for title in ("TTFT, ", "ITL, ", "TPOT, ", "E2E, "):
        assert title in text
    found = made.run.summary.overall.distributions["ttft"].percentiles["50"]
    assert found.value is not None
    assert found.low is not None
    in_ms = found.value < 1
    assert significant(found.value * (1e3 if in_ms else 1)) in text
    assert f"{significant(found.low * (1e3 if in_ms else 1))}–" in text
    assert TOO_SMALL in text, "a few hundred requests have no p99.9"


def test_the_same_from_the_actual_send_is_a_row_only_when_it_differs(made: Sample) -> None:
    assert "TTFT from send: within 1% of TTFT" in " ".join(printed(made.run).split())
    summary = msgspec.structs.replace(made.run.summary)
    summary.overall = msgspec.structs.replace(summary.overall)
    distributions = summary.overall.distributions = dict(summary.overall.distributions)
    distributions["ttft_from_send"] = distributions["tpot"]  # a late client
    text = printed(changed(made.run, summary=summary))
    assert "TTFT from send, ms" in text
    assert "TTFT from send: within" not in text


def test_unknown_is_neither_zero_nor_nan(made: Sample) -> None:
    summary = msgspec.structs.replace(made.run.summary)
    overall = msgspec.structs.replace(summary.overall)
    ttft = overall.distributions["ttft"]
    nothing = {name: Interval(value=None) for name in ttft.percentiles}
    overall.distributions = {"ttft": msgspec.structs.replace(ttft, mean=None, percentiles=nothing)}
    summary.overall = overall
    text = printed(changed(made.run, summary=summary, environment=Environment(), signals=Signals(), slo=Slo()))
    assert not re.search(r"\bnan\b", text.lower())
    assert "None" not in text
    row = next(line for line in text.splitlines() if line.startswith("TTFT"))
    assert row.count(TOO_SMALL) == 5
    assert "no signals" in text


def test_fates_promises_signals_and_groups(made: Sample) -> None:
    text = printed(made.run)
    for name, number in made.run.summary.overall.fates.items():
        assert re.search(rf"\b{number:,}\b", text), name
    assert "TTFT ≤ 500 ms" in text
    assert "Goodput" in text
    for title in ("KV use", "Waiting", "Preemptions", "By kind", "By tenant", "acme", "globex", "short", "long"):
        assert title in text
    assert "qwen3-8b · bf16 · vllm 0.14.0" in text


def test_signals_are_of_the_window_and_no_mean_is_above_its_peak(made: Sample) -> None:
    """While a run drains, everything is as full as it was left; its load is over."""
    start_s, end_s = made.run.summary.window_s
    times = [start_s, end_s, end_s + 1, end_s + 2]
    series: dict[str, list[float | None]] = {
        "kv_used_ratio": [0.1, 0.3, 0.9, 0.9],
        "waiting": [2.0, 4.0, 90.0, 90.0],
    }
    signals = Signals(source="it", times_s=times, series=series)
    told = tables.signals(changed(made.run, signals=signals))
    assert told is not None
    assert [[cell.text for cell in row[1:3]] for row in told.rows] == [["20.0%", "30.0%"], ["3.00", "4.00"]]


def test_what_ended_after_the_window_is_not_nothing(made: Sample) -> None:
    overall = msgspec.structs.replace(made.run.summary.overall, request_rate=0.0)
    summary = msgspec.structs.replace(made.run.summary, overall=overall)
    text = " ".join(printed(changed(made.run, summary=summary)).split())
    assert "0 req/s in the window: those sent in it ended after it" in text


def test_rivals_are_there_when_asked_for(made: Sample) -> None:
    assert "As vllm defines them" not in printed(made.run)
    text = printed(made.run, rivals=("vllm", "nobody"))
    for name in made.run.summary.rivals["vllm"]:
        assert name in text
    assert "nobody" not in text


def test_no_colour_where_there_is_none(made: Sample, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "\x1b" not in printed(made.run)
    assert "\x1b[" in printed(made.run, terminal=True)
    monkeypatch.setenv("NO_COLOR", "1")
    out = io.StringIO()
    print_run(made.run, console=Console(file=out, force_terminal=True, width=80))
    assert not re.search(r"\x1b\[(?:\d+;)*(?:3[0-9]|9[0-7]|38)", out.getvalue()), "bold and dim are no colours"


def test_a_servers_words_are_shown_as_they_are_and_steer_nothing(made: Sample) -> None:
    summary = msgspec.structs.replace(made.run.summary, errors={"[red]\x1b[2J\x1b]0;gone\x07 <b>500</b>": 3})
    text = printed(changed(made.run, summary=summary), terminal=True)
    assert "\x1b[2J" not in text
    assert "\x1b]0" not in text
    assert "[red]" in text
    assert "<b>500</b>" in text


def test_a_percentile_that_nobody_waited_for_is_told_by_its_lower_bound(made: Sample) -> None:
    run = msgspec.convert(msgspec.to_builtins(made.run), Run)
    run.summary.overall.distributions["e2e"].percentiles["99"] = Interval(value=None, low=30.0)
    row = next(line for line in printed(run, width=200).splitlines() if line.startswith("E2E, "))
    assert "≥ " in row


def test_remarks_stand_below_the_verdict(made: Sample) -> None:
    said = Verdict(name=Word.VALID, findings=[], remarks=["a third was turned away"])
    assert "a third was turned away" in printed(changed(made.run, verdict=said))


def test_why_a_load_ended_early_is_told(made: Sample) -> None:
    run = changed(made.run, ended_early="line 31 is torn")
    page = run_page(run, made.records)
    assert "line 31 is torn" in page
