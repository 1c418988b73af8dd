"""What a report says in words and numbers: tables made from a `Run`, drawn alike on a terminal and on a page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from headway.loadtest.knee import describe
from headway.loadtest.report.wording import (
    COUNTED,
    FATES,
    LATENCIES,
    PERCENTILES,
    TOO_SMALL,
    UNKNOWN,
    count,
    duration,
    duration_or_bound,
    limit_text,
    per_second,
    percent,
    scale,
    significant,
    size,
    spread,
    typical,
    within,
)
from headway.loadtest.result import Distribution, Group, Interval, Run, Slo, Summary, growth


@dataclass(frozen=True, slots=True)
class Cell:
    """A figure, and its interval or explanation in smaller letters below it."""

    text: str
    below: str = ""
    tone: str = ""  # "bad": beyond a limit; "good": within it; "quiet": nothing to read


@dataclass(frozen=True, slots=True)
class Table:
    title: str
    columns: tuple[str, ...]  # the first names the row
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""


def facts(title: str, rows: Mapping[str, str], note: str = "") -> Table:
    """Names and values; what is empty is left out."""
    return Table(title, ("", ""), tuple((Cell(name), Cell(value)) for name, value in rows.items() if value), note)


def evidence(run: Run) -> list[str]:
    """Why the verdict is what it is, a line each. A run that is VALID shows what was checked."""
    return [*_findings(run), *run.verdict.remarks, *([INTERRUPTED] if run.interrupted else [])]


INTERRUPTED = "The run was interrupted: these are the figures of what was measured until then."


def _findings(run: Run) -> list[str]:
    found = run.verdict
    if found.findings:
        return [
            finding.evidence if finding.verdict == found.name else f"{finding.verdict}: {finding.evidence}"
            for finding in found.findings
        ]
    made, overall = run.client, run.summary.overall
    failed = overall.requests - overall.fates.get("ok", 0)
    sent = f"{per_second(made.sent_rate, 'req')} sent"
    sent += f" of {per_second(made.offered_rate)} offered" if made.offered_rate is not None else " by a closed loop"
    share = percent(failed / max(1, overall.requests))
    return [
        f"{sent}; schedule lag {spread(made.lag)}; {percent(made.cpu_ratio)} of a core used.",
        f"{count(overall.requests, 'request')} in the window, {failed:,} of them not ok ({share}).",
    ]


# -- latencies -------------------------------------------------------------------------------------------------------


def latencies(run: Run) -> Table:
    """Each at p50 … p99.9 with its interval. What exceeds an SLO is marked."""
    distributions = run.summary.overall.distributions
    limits = {"ttft": run.slo.ttft_s, "itl": run.slo.itl_s, "e2e": run.slo.e2e_s}
    rows: dict[str, tuple[Cell, ...]] = {}
    note = "Below each value: its 95% confidence interval. «n too small»: the samples say nothing reliable there."
    for name, (title, meaning) in LATENCIES.items():
        if (found := distributions.get(name)) is None or not found.samples:
            continue
        factor, unit = scale(typical(found))
        cells = tuple(percentile_cell(found, key, factor, limits.get(name)) for key in PERCENTILES)
        if name in SAME_AS and _alike(found, distributions.get(SAME_AS[name])):
            note += f" {title}: within 1% of {LATENCIES[SAME_AS[name]][0]}."
        else:
            rows[name] = (Cell(f"{title}, {unit}", meaning), *cells)
    if any(cell.tone == "bad" for row in rows.values() for cell in row):
        note += " «!»: over the SLO."
    return Table("Latency", ("", *(f"p{key}" for key in PERCENTILES)), tuple(rows.values()), note)


# Told apart only when they differ: when the client was late, or chunks held several tokens.
SAME_AS = {"ttft_from_send": "ttft", "e2e_from_send": "e2e", "icl": "itl"}


def _alike(one: Distribution, other: Distribution | None) -> bool:
    """At all percentiles; unknown is like unknown."""
    if other is None:
        return False
    pairs = [
        (one.percentiles[key].value, other.percentiles[key].value)
        for key in one.percentiles
        if key in other.percentiles
    ]
    return all(a == b or (a is not None and b is not None and abs(a - b) <= 0.01 * abs(b)) for a, b in pairs)


def percentile(run: Run, quantity: str, key: str = "99") -> Interval | None:
    """None when the run has too few samples for it. One that lies among requests that were given up has no value, but
    a lower bound.
    """
    found = run.summary.overall.distributions.get(quantity)
    interval = found.percentiles.get(key) if found is not None else None
    return interval if interval is not None and interval.known is not None else None


def percentile_cell(found: Distribution, key: str, factor: float, limit_s: float | None = None) -> Cell:
    interval = found.percentiles.get(key)
    if interval is None or interval.known is None:
        return Cell(TOO_SMALL, tone="quiet")
    over = "bad" if tone(interval, limit_s) == "bad" else ""
    if interval.value is None:  # it lies among those that nobody waited for
        return Cell(within(interval, factor) + "!" * bool(over), tone=over)
    return Cell(significant(interval.value * factor) + "!" * bool(over), within(interval, factor) or TOO_SMALL, over)


def tone(interval: Interval | None, limit_s: float | None) -> str:
    """Against a limit: "bad", "good", or "" where that cannot be told."""
    if interval is None or limit_s is None:
        return ""
    if interval.value is None:
        return "bad" if interval.at_least is not None and interval.at_least > limit_s else ""
    return "bad" if interval.value > limit_s else "good"


# -- load, throughput, what was promised -----------------------------------------------------------------------------


def load(run: Run) -> Table:
    client, overall, made = run.client, run.summary.overall, run.load
    start, end = run.summary.window_s
    offered = (
        per_second(client.offered_rate, "req")
        if client.offered_rate is not None
        else "as fast as answers come (closed loop)"
    )
    measured = f"{significant(start)}–{significant(end)} s of {significant(run.elapsed_s)} s"
    ended_later = (
        " in the window: those sent in it ended after it"
        if overall.fates.get("ok") and not overall.request_rate
        else ""
    )
    share = f", {percent(client.sent_rate / client.offered_rate)} of it" if client.offered_rate else ""
    rows = {
        "Simulated": run.simulation,
        "Load": f"{made.description} ({made.loop} loop, seed {made.seed})",
        "Measured": f"{measured}, {count(overall.requests, 'request')}",
        "Offered": offered,
        "Sent": f"{per_second(client.sent_rate, 'req')}{share}",
        "Schedule lag": spread(client.lag),
        "Finished well": per_second(overall.request_rate, "req") + ended_later,
        "Input": per_second(overall.input_token_rate, "tokens"),
        "Output": per_second(overall.output_token_rate, "tokens"),
        "Recovery": _recovery(run.summary),
        "Knee": describe(run.summary.knee) if run.summary.knee is not None else "",
    }
    return facts("Load and throughput", rows)


def _recovery(found: Summary) -> str:
    if found.recovery_s is None:
        return ""
    at_least = "at least " if found.unrecovered_bursts else ""
    still = f"; {count(found.unrecovered_bursts, 'burst')} not recovered from before the next" if at_least else ""
    return f"{at_least}{duration(found.recovery_s)} after the worst burst{still}"


def promises(slo: Slo) -> str:
    """The SLO in words; empty when nothing is promised."""
    limits = {"TTFT": slo.ttft_s, "ITL": slo.itl_s, "E2E": slo.e2e_s}
    return ", ".join(f"{name} ≤ {limit_text(limit)}" for name, limit in limits.items() if limit is not None)


def goodput(run: Run) -> Table | None:
    """None when nothing was promised."""
    overall = run.summary.overall
    if not (said := promises(run.slo)) or overall.good_ratio is None:
        return None
    ratio = overall.good_ratio
    between = f" (95%: {percent(ratio.low)}–{percent(ratio.high)})" if ratio.low is not None else ""
    each = (f"{name.upper()} {percent(ratio)}" for name, ratio in overall.slo_ratios.items())
    judged = overall.requests - overall.undecided_requests
    rows = {
        "Promised": said,
        "Kept, each": ", ".join(each),
        "Kept, all": f"{percent(ratio.value)} of all {count(judged, 'request')}{between}",
        "Goodput": per_second(overall.goodput, "req"),
    }
    note = "A request is good when it met every limit; refused and failed ones are not."
    if left := overall.undecided_requests:
        note += f" {count(left, 'request')} not counted: due too shortly before the run was cut to break every limit."
    return facts("Promise (SLO)", rows, note)


# -- what went wrong -------------------------------------------------------------------------------------------------


def fates(run: Run) -> Table:
    overall = run.summary.overall
    rows = []
    for name, title in FATES.items():
        if number := overall.fates.get(name, 0):
            tone = "" if name == "ok" else "bad"
            rows.append((Cell(title), Cell(f"{number:,}", tone=tone), Cell(percent(number / max(1, overall.requests)))))
    return Table("How requests ended", ("", "requests", "share"), tuple(rows))


def errors(run: Run) -> Table | None:
    if not run.summary.errors:
        return None
    ranked = sorted(run.summary.errors.items(), key=lambda item: -item[1])
    return Table("Errors", ("message", "times"), tuple((Cell(text), Cell(f"{times:,}")) for text, times in ranked))


# -- the server ------------------------------------------------------------------------------------------------------

GAUGES = {
    "running": "Running",
    "waiting": "Waiting",
    "kv_used_ratio": "KV use",
    "memory_bytes": "Memory",
    "desired_replicas": "Desired replicas",
}
COUNTERS = {
    "preemptions_total": "Preemptions",
    "prompt_tokens_total": "Prompt tokens",
    "generation_tokens_total": "Generated tokens",
}


def gauge_text(name: str, value: float) -> str:
    if name == "kv_used_ratio":
        return percent(value)
    return size(value) if name == "memory_bytes" else significant(value)


def signals(run: Run) -> Table | None:
    """Mean and peak of what the server exported, and of its counters' growth; None when it exported nothing.

    Gauges are of the measured window: while a run drains, or before it is warm, they are of another load.
    """
    rows, window_s = [], run.summary.window_s
    for name, values in run.signals.series.items():
        known = [(at_s, value) for at_s, value in zip(run.signals.times_s, values, strict=False) if value is not None]
        if known and name in GAUGES:
            heights = [value for _, value in run.signals.within(name, window_s) or known]
            shown = (sum(heights) / len(heights), max(heights))
            rows.append((Cell(GAUGES[name]), *(Cell(gauge_text(name, height)) for height in shown), Cell("")))
        elif len(known) > 1 and name in COUNTERS:
            average, peak, total = _counter(known)
            if name == "preemptions_total" and (grown := run.signals.preemptions(window_s)) is not None:
                total = Cell(f"{grown:,.0f}", "when measured")
            rows.append((Cell(COUNTERS[name]), average, peak, total))
    if not rows:
        return None
    times = count(len(run.signals.times_s), "time")
    note = (
        f"Read from the server ({run.signals.source}) {times} during the run. What rises and falls is told of the "
        "measured window."
    )
    return Table("Server signals", ("", "mean", "peak", "in all"), tuple(rows), note)


def _counter(known: Sequence[tuple[float, float]]) -> tuple[Cell, Cell, Cell]:
    """Its growth per second, on average and between two readings at most."""
    total = growth([value for _, value in known])
    span_s = known[-1][0] - known[0][0]
    rates = [
        growth((before, after)) / (then_s - at_s)
        for (at_s, before), (then_s, after) in pairwise(known)
        if then_s > at_s
    ]
    return (
        Cell(per_second(total / span_s if span_s > 0 else None)),
        Cell(per_second(max(rates, default=None))),
        Cell(f"{total:,.0f}"),
    )


# -- groups ----------------------------------------------------------------------------------------------------------


def groups(title: str, found: Mapping[str, Group]) -> Table | None:
    """One line a kind or a tenant; None when there is nothing to tell apart."""
    if len(found) < 2:
        return None
    promised = any(group.good_ratio is not None for group in found.values())
    columns = ("", "requests", "ok", "TTFT p50", "TTFT p99", "ITL p99", "E2E p99") + ("good",) * promised
    rows = []
    for name, group in found.items():
        cells = [Cell(name or "(none)"), Cell(f"{group.requests:,}"), Cell(percent(_ok_ratio(group)))]
        for quantity, key in (("ttft", "50"), ("ttft", "99"), ("itl", "99"), ("e2e", "99")):
            cells.append(_with_unit(group.distributions.get(quantity), key))
        if promised:
            cells.append(Cell(percent(group.good_ratio.value if group.good_ratio else None)))
        rows.append(tuple(cells))
    return Table(title, columns, tuple(rows))


def _ok_ratio(group: Group) -> float | None:
    return group.fates.get("ok", 0) / group.requests if group.requests else None


def _with_unit(found: Distribution | None, key: str) -> Cell:
    interval = found.percentiles.get(key) if found is not None else None
    if interval is None or interval.value is None:
        quiet = interval is None or interval.known is None
        return Cell(duration_or_bound(interval), tone="quiet" if quiet else "")
    factor, _ = scale(interval.value)
    return Cell(duration(interval.value), within(interval, factor))


def lengths(run: Run) -> Table | None:
    rows = []
    for name, title in (("input_tokens", "Input, tokens"), ("output_tokens", "Output, tokens")):
        if (found := run.summary.overall.distributions.get(name)) is not None and found.samples:
            values: list[float | None] = [found.mean, found.min]
            values += [
                interval.value if interval else None for interval in map(found.percentiles.get, ("50", "90", "99"))
            ]
            values.append(found.max)
            rows.append((Cell(title), *(Cell(UNKNOWN if v is None else significant(v)) for v in values)))
    return Table("Lengths", ("", "mean", "min", "p50", "p90", "p99", "max"), tuple(rows)) if rows else None


# -- rivals and counting ---------------------------------------------------------------------------------------------


def rivals(run: Run, tool: str) -> Table | None:
    """The figures as another tool would have printed them, under its own names."""
    if not (figures := run.summary.rivals.get(tool)):
        return None
    rows = tuple(
        (Cell(name), Cell(UNKNOWN if value is None else significant(value))) for name, value in figures.items()
    )
    return Table(f"As {tool} defines them", ("its name", "value"), rows)


def notes(run: Run) -> tuple[str, ...]:
    """What a reader has to know about how tokens were counted."""
    return tuple(_notes(run))


def _notes(run: Run) -> Iterator[str]:
    total = sum(run.summary.counting.values())
    for name, requests in run.summary.counting.items():
        of_all = "all requests" if requests == total else count(requests, "request")
        yield f"Output tokens of {of_all}: {COUNTED.get(name, name)}."
    if run.summary.count_mismatches:
        yield (
            f"In {count(run.summary.count_mismatches, 'request')} the server's usage and this client's tokenizer differ"
            " by more than the tolerance."
        )
    if told := run.load.settings.get("server"):
        yield f"Server: {told}."
    if not run.signals.source:
        yield "The server exported no signals that could be read, so its queue and KV cache are not shown."
