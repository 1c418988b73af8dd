"""Reports as HTML: of one run, of a sweep, of a search for the stable region, of two runs side by side.

Each is a banner that says what to make of it, a few large figures, and sections of plots and tables.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TypeVar

from headway.loadtest.compare import Comparison
from headway.loadtest.probe import Requirements
from headway.loadtest.record import Record
from headway.loadtest.report import circumstances, curve, figures, tables, versus
from headway.loadtest.report.bins import time_bins, token_times
from headway.loadtest.report.columns import columns
from headway.loadtest.report.page import Banner, Page, Section, Tile, render
from headway.loadtest.report.timeline import timeline
from headway.loadtest.report.wording import count, duration_or_bound, limit_text, moment, per_second, percent
from headway.loadtest.result import Run, Word
from headway.loadtest.stable import Stable

Part = TypeVar("Part")


# -- one run ---------------------------------------------------------------------------------------------------------


def run_page(run: Run, records: Sequence[Record], *, rivals: Sequence[str] = ()) -> str:
    """`records`: all of the run's; figures say how they chose among them. `rivals`: tools whose terms are shown too."""
    word = run.verdict.name
    return render(
        Page(
            title=run.environment.model or run.target.model,
            lines=(run.load.description, f"{run.target.url} · {moment(run.started_at)}"),
            banner=Banner(word.tone, word, word.meaning, tables.evidence(run)),
            tiles=_tiles(run),
            sections=run_sections(run, records, rivals),
            foot=_foot(run),
        )
    )


def run_sections(run: Run, records: Sequence[Record], rivals: Sequence[str] = ()) -> list[Section]:
    """In the order in which questions come: what happened when, how long it took, what failed, for whom, under what."""
    seen = columns(records, run.summary.window_s)
    bins = time_bins(run.elapsed_s)
    tokens = token_times(seen, bins)
    of_requests = [tables.lengths(run), *_groups(run)]
    sections = [
        Section("timeline", "Timeline", (timeline(run, seen, tokens),), present([tables.signals(run)])),
        Section("latency", "Latency", (figures.tail(run, seen, tokens),), (tables.latencies(run),)),
        Section("knee", "Knee", present([figures.ramp(run, seen)])),
        Section("load", "Load and promise", tables=present([tables.load(run), tables.goodput(run)])),
        Section("ends", "How requests ended", tables=present([tables.fates(run), tables.errors(run)])),
        Section(
            "requests", "Requests", present([figures.by_input(run, seen), *figures.lengths(seen)]), present(of_requests)
        ),
        Section("client", "Client", present([figures.lag(run, seen, bins)]), (circumstances.client(run),)),
        Section("rivals", "In other tools' terms", tables=present([tables.rivals(run, tool) for tool in rivals])),
        Section("server", "Server and settings", tables=_circumstances(run), notes=tables.notes(run)),
    ]
    return [section for section in sections if section.figures or section.tables]


def _circumstances(run: Run) -> list[tables.Table]:
    return [circumstances.environment(run), circumstances.settings(run)]


def _groups(run: Run) -> list[tables.Table | None]:
    return [tables.groups("By kind", run.summary.by_kind), tables.groups("By tenant", run.summary.by_tenant)]


def present(parts: Sequence[Part | None]) -> list[Part]:
    return [part for part in parts if part is not None]


def _tiles(run: Run) -> list[Tile]:
    made, overall = run.client, run.summary.overall
    if made.offered_rate:
        sent = [f"{per_second(made.offered_rate)} offered", f"{percent(made.sent_rate / made.offered_rate)} of it sent"]
    else:
        sent = [f"closed loop of {run.load.concurrency:,}" if run.load.concurrency else "closed loop"]
    limits = {"ttft": run.slo.ttft_s, "itl": run.slo.itl_s, "e2e": run.slo.e2e_s}
    into = [f"{per_second(overall.input_token_rate)} in"]
    return [
        Tile("Finished well", per_second(overall.request_rate, "req"), sent),
        *(_latency_tile(run, name, limit_s) for name, limit_s in limits.items()),
        Tile("Output tokens", per_second(overall.output_token_rate), into),
        _success_tile(run),
    ]


def _latency_tile(run: Run, name: str, limit_s: float | None) -> Tile:
    middle, high = tables.percentile(run, name, "50"), run.summary.overall.distributions[name].percentiles["99"]
    below = [f"p50 {duration_or_bound(middle)}"] if middle is not None else []
    tone = ""
    if limit_s is not None:
        below.append(f"SLO {limit_text(limit_s)}")
        tone = tables.tone(high, limit_s)
    return Tile(f"{name.upper()} p99", duration_or_bound(high), below, tone)


def _success_tile(run: Run) -> Tile:
    overall = run.summary.overall
    if overall.good_ratio is not None:
        return Tile(
            "Promise kept", percent(overall.good_ratio.value), [f"goodput {per_second(overall.goodput, 'req')}"]
        )
    ok = overall.fates.get("ok", 0)
    return Tile("Succeeded", percent(ok / overall.requests if overall.requests else None), [count(ok, "request")])


def _foot(run: Run) -> str:
    version = run.environment.client.get("headway", "")
    return f"Made by headway {version}, report schema {run.schema_version}. This file needs no network.".replace(
        " ,", ","
    )


# -- several runs ----------------------------------------------------------------------------------------------------


def sweep_page(labelled: Sequence[tuple[str, Run]]) -> str:
    """Throughput against p99, and a line a run. The first run tells the server and the settings."""
    swept = curve.of_runs(labelled)
    valid = sum(point.verdict == Word.VALID for point in swept.points)
    tone = "good" if valid == len(labelled) else "warn"
    banner = Banner(tone, count(len(labelled), "run"), f"{valid} of {len(labelled)} are VALID.")
    return _several_page("Sweep", labelled[0][1], swept, banner)


def stable_page(found: Stable, run: Run, *, wanted: Requirements | None = None) -> str:
    """The stable region. `run` is any of the search's: it tells the promises, the server and the settings."""
    probed = curve.of_stable(found, run, wanted or Requirements())
    return _several_page(
        "Stable region", run, probed, Banner(*curve.stable_headline(found, run, wanted or Requirements()))
    )


def _several_page(title: str, run: Run, swept: curve.Curve, banner: Banner) -> str:
    server = _circumstances(run)
    return render(
        Page(
            title=f"{title}: {run.environment.model or run.target.model}",
            lines=(f"{run.target.url} · {moment(run.started_at)}",),
            banner=banner,
            sections=(
                Section("curve", "Load and latency", (curve.figure(swept),)),
                Section("runs", "Runs", tables=(curve.table(swept),), notes=curve.remarks(swept)),
                Section("server", "Server and settings", tables=server),
            ),
            foot=_foot(run),
        )
    )


def compare_page(a: Run, b: Run, found: Comparison, *, varied: Collection[str] = ()) -> str:
    """Run `b` against run `a`. `varied` as it was given to `compare`."""
    tone, word, meaning = versus.headline(found, varied)
    return render(
        Page(
            title="A against B",
            lines=[
                f"{name}: {circumstances.environment_line(run)} · {moment(run.started_at)}"
                for name, run in (("A", a), ("B", b))
            ],
            banner=Banner(tone, word, meaning, versus.obstacles(found, varied)),
            sections=(
                Section("figures", "What differs", (versus.percentiles(a, b),), (versus.differences(found),)),
                Section("conditions", "Conditions", tables=present([versus.conditions(found), versus.settings(found)])),
            ),
            foot=_foot(b),
        )
    )
