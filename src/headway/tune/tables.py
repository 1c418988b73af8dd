"""A tuning in words and numbers: a headline and tables, drawn alike on a terminal and on a page."""

from __future__ import annotations

from collections.abc import Sequence

from headway.loadtest.report.tables import Cell, Table, facts
from headway.loadtest.report.wording import UNKNOWN, duration, percent, significant
from headway.tune.predict import Figures
from headway.tune.report import Report, Trial
from headway.tune.settings import Settings

SHOWN = 8  # of the points that were simulated
COVERED = 0.9  # of the steps' time: below it a prediction is mostly an extrapolation


def headline(report: Report) -> tuple[str, str, str, list[str]]:
    """Tone, word, sentence, and evidence: first what matters most to whoever runs the server."""
    evidence = [f"{report.notes[number]}." for number in range(len(report.notes))]
    decision = report.decision
    if report.not_restored:
        return "bad", "NOT RESTORED", report.not_restored, evidence
    if report.interrupted:
        return "warn", "INTERRUPTED", f"Interrupted after {_tests(report)}. {_restored(report)}".strip(), evidence
    if report.failed:
        return "bad", "FAILED", f"{report.failed} {_restored(report)}".strip(), evidence
    if decision.winner is None or decision.winner == report.current:
        words = f"The settings that it has are kept ({_label(report.current)}): {decision.why}."
        return "good", "NOTHING BETTER", words, evidence
    word = "KEPT" if decision.kept == decision.winner else "FOUND"
    return "good", word, f"{decision.winner.label}: {decision.why}.", evidence


def _tests(report: Report) -> str:
    count = len(report.trials)
    return "1 live test" if count == 1 else f"{count} live tests"


def _restored(report: Report) -> str:
    return f"The server has its old settings again ({_label(report.current)})." if report.restored else ""


def _label(settings: Settings | None) -> str:
    return settings.label if settings is not None else UNKNOWN


def tables(report: Report) -> list[Table]:
    """Those that there is something to tell in."""
    found = [_asked(report)]
    if report.trials:
        found.append(_trials(report.trials, report))
    if report.searched:
        found.append(_searched(report))
    return [table for table in found if table.rows]


def sentences(report: Report) -> list[str]:
    """Below the tables: advice, and how the winner is made to last."""
    said = [f"Of {_label(report.current)}: {line}" for line in report.advice]
    if report.flags and report.decision.winner != report.current:
        lasts = "For its next start" if report.decision.kept == report.decision.winner else "Start it with"
        said.append(f"{lasts}: {report.flags}")
    return said


def _asked(report: Report) -> Table:
    slo = report.slo
    promises = {"TTFT": slo.ttft_s, "ITL": slo.itl_s, "E2E": slo.e2e_s}
    rows = {
        "Server": f"{report.model} at {report.url}" + (f" ({report.framework})" if report.framework else ""),
        "Load": report.load,
        "Promised": ", ".join(f"{name} {duration(limit)}" for name, limit in promises.items() if limit is not None),
        "Searched": report.objective,
        "Fitted to": report.fitted_from,
        "Had": _label(report.current),
    }
    return facts("What was asked", rows)


def _trials(trials: Sequence[Trial], report: Report) -> Table:
    """Predicted beside measured."""
    rows = []
    for trial in trials:
        predicted, measured = trial.predicted, trial.measured
        kept = trial.settings == report.decision.kept and not trial.current
        name = f"{_short(trial.settings)}{' (had)' if trial.current else ''}"
        rows.append(
            (
                Cell(name, tone="good" if kept else ""),
                _pair(significant(predicted.goodput), significant(measured.goodput)),
                _pair(percent(predicted.good_ratio), percent(measured.good_ratio)),
                _pair(duration(predicted.ttft_p95_s), duration(measured.ttft_p95_s)),
                _pair(duration(predicted.itl_p95_s), duration(measured.itl_p95_s)),
                _pair(significant(predicted.output_token_rate), significant(measured.output_token_rate)),
                Cell(trial.verdict),
            )
        )
    columns = ("seqs × tokens", "goodput/s", "good", "TTFT p95", "ITL p95", "tokens/s", "verdict")
    note = "In order of the live tests: measured, and below it what was predicted."
    return Table("Live tests", columns, tuple(rows), note)


def _pair(predicted: str, measured: str) -> Cell:
    return Cell(measured, predicted)


def _short(settings: Settings) -> str:
    lanes = [settings.long_prompt_slots, settings.long_output_slots]
    said = f"{settings.max_num_seqs} × {settings.max_num_batched_tokens:,}"
    if any(lanes):
        said += f", lanes {'/'.join(str(slots or '–') for slots in lanes)}"
    return said


def _searched(report: Report) -> Table:
    top = report.searched[:SHOWN]
    shown = [*top, *(one for one in report.searched[SHOWN:] if one.settings == report.current)]
    rows = tuple(
        (
            Cell(_short(one.settings) + (" (had)" if one.settings == report.current else "")),
            *_figures(one.predicted),
            Cell(percent(one.predicted.covered), tone="bad" if one.predicted.covered < COVERED else ""),
        )
        for one in shown
    )
    note = f"The best of {len(report.searched):,} simulated."
    if any(one.predicted.covered < COVERED for one in shown):
        note += " Seen: of the time, the share in steps like those that were measured; else it extrapolates."
    columns = ("seqs × tokens", "goodput/s", "good", "TTFT p95", "ITL p95", "tokens/s", "seen")
    return Table("Best on virtual time", columns, rows, note)


def _figures(found: Figures) -> list[Cell]:
    return [
        Cell(significant(found.goodput)),
        Cell(percent(found.good_ratio)),
        Cell(duration(found.ttft_p95_s)),
        Cell(duration(found.itl_p95_s)),
        Cell(significant(found.output_token_rate)),
    ]
