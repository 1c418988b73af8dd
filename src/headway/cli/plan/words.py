"""What a plan says in words and numbers, for terminal and page alike: tables of `loadtest/report`."""

from __future__ import annotations

from collections.abc import Sequence

from headway.cli.plan.measure import Measured
from headway.loadtest.report.tables import Cell, Table, facts
from headway.loadtest.report.wording import UNKNOWN, duration, per_second, percent, significant
from headway.simulate.plan import CurvePoint, Estimate, Option, Plan
from headway.simulate.plan.result import WORDS, count_text

NAMES = ("ttft", "itl", "e2e")


def headline(plan: Plan) -> tuple[str, str, str]:
    """(tone, word, sentence)."""
    best = plan.best
    if best is None or best.cost is None:
        return "bad", "No hardware keeps it", f"Promised: {plan.asked.promise}."
    replicas = "1 replica" if best.count == 1 else f"{best.count} replicas"
    sentence = f"{best.flags}, {best.cost.per_hour:,.2f} an hour, {money(best.cost.per_million_output_tokens)} per "
    return "good", f"{replicas} of {best.name}", f"{sentence}million output tokens."


def asked_table(plan: Plan) -> Table:
    asked = plan.asked
    peak = f", {per_second(asked.peak_request_rate)} in the busiest minute"
    return facts(
        "What was planned for",
        {
            "traffic": asked.traffic,
            "rate": per_second(asked.request_rate) + (peak if asked.peak_request_rate > asked.request_rate else ""),
            "tokens of a request": f"{asked.prompt_tokens_mean:,.0f} in and {asked.output_tokens_mean:,.0f} out on "
            f"average, {asked.longest_request_tokens:,} together at most",
            "promised": str(asked.promise),
        },
    )


def options_table(plan: Plan) -> Table:
    tail = plan.asked.promise.tail
    columns = ("", "replicas", "seqs", "tokens", *(f"{name.upper()} {tail}" for name in NAMES))
    columns += ("KV use", "headroom", "per hour", "per M out")
    rows = tuple(_option_row(option, plan) for option in plan.options if option.status == "holds")
    note = "Below each figure: between steps as fast and as slow as they may be, and what chance does."
    return Table("What it takes", columns, rows, note)


def _option_row(option: Option, plan: Plan) -> tuple[Cell, ...]:
    assert option.cost is not None
    limits = dict(plan.asked.promise.limits())
    chosen = ", cheapest" if option.name == plan.chosen else ""
    count, _, spread = count_text(option).partition(" ")
    return (
        Cell(option.name + chosen),
        Cell(count, spread.strip("()")),
        Cell(f"{option.max_num_seqs:,}"),
        Cell(f"{option.max_num_batched_tokens:,}"),
        *(_latency(option.latencies[name], limits.get(name)) for name in NAMES),
        Cell(percent(option.kv_used_ratio.value if option.kv_used_ratio else None), _share_range(option.kv_used_ratio)),
        Cell(f"{option.headroom_ratio or 0.0:.0%}"),
        Cell(f"{option.cost.per_hour:,.2f}"),
        Cell(money(option.cost.per_million_output_tokens), f"{money(option.cost.per_million_tokens)} with prompts"),
    )


def money(amount: float) -> str:
    return f"{amount:,.2f}" if amount >= 1 else f"{amount:.3g}"


def _latency(found: Estimate, limit_s: float | None) -> Cell:
    """Red where the slow end of what may be is beyond the promise."""
    high = duration(found.high) if found.high is not None else "no end"
    tone = "" if limit_s is None else "good" if found.high is not None and found.high <= limit_s else ""
    return Cell(duration(found.value), f"{duration(found.low)} to {high}", tone)


def _share_range(found: Estimate | None) -> str:
    return "" if found is None or found.low is None else f"{percent(found.low)} to {percent(found.high)}"


def refusals(plan: Plan) -> list[str]:
    """Why others do not do."""
    return [
        f"{option.name}: {WORDS[option.status]}. {sentence(why)}"
        for option in plan.options
        if option.status != "holds"
        for why in option.why or [""]
    ]


def remarks(option: Option) -> list[str]:
    """What bounds one that holds, what breaks first, and advice."""
    said = [*option.bound_by, *(f"{why}, which breaks the promise first" for why in option.why)]
    if option.headroom_ratio is not None:
        said.append(f"{option.headroom_ratio:.0%} more of this traffic would still keep the promise")
    return [*map(sentence, said), *option.advice, *option.notes]


def sentence(text: str) -> str:
    text = text[:1].upper() + text[1:]
    return text if not text or text.endswith(".") else f"{text}."


def curve_table(option: Option, plan: Plan, measured: Sequence[Measured] = ()) -> Table:
    tail = plan.asked.promise.tail
    by_batch = {one.concurrency: one for one in measured}
    columns: tuple[str, ...] = ("batch", "output", f"TTFT {tail}", f"ITL {tail}", "keeps it")
    columns += ("measured output", f"measured TTFT {tail}", f"measured ITL {tail}") if measured else ()
    rows = []
    for point in option.curve:
        cells = _point_cells(point)
        if measured:
            cells += _measured_cells(by_batch.get(point.batch))
        rows.append(cells)
    knee = option.knee
    note = "One replica with every slot taken."
    if knee is not None:
        note += f" The knee, where throughput over latency is highest: a batch of {knee.batch:,}."
    return Table(f"Batch size, throughput and latency: {option.name}", columns, tuple(rows), note)


def _point_cells(point: CurvePoint) -> tuple[Cell, ...]:
    if point.outside:
        return (Cell(f"{point.batch:,}"), Cell("outside what was measured", point.outside), *(Cell(UNKNOWN),) * 3)
    keeps = Cell("yes", tone="good") if point.keeps else Cell("no", tone="bad")
    return (
        Cell(f"{point.batch:,}"),
        Cell(per_second(point.output_token_rate, "tok")),
        Cell(duration(point.ttft_s)),
        Cell(duration(point.itl_s)),
        keeps,
    )


def _measured_cells(found: Measured | None) -> tuple[Cell, ...]:
    if found is None:
        return (Cell(UNKNOWN),) * 3
    return (
        Cell(per_second(found.output_token_rate, "tok"), found.remark),
        Cell(duration(found.ttft_s)),
        Cell(duration(found.itl_s)),
    )


def sparkline(option: Option) -> str:
    """The curve in one line: a bar for each batch, as high as its throughput; beyond the promise in brackets."""
    known = [point for point in option.curve if point.output_token_rate]
    if len(known) < 2:
        return ""
    most = max(point.output_token_rate or 0.0 for point in known)
    bars = "▁▂▃▄▅▆▇█"
    drawn = [(point, bars[min(7, int(8 * (point.output_token_rate or 0.0) / most))]) for point in known]
    kept = "".join(bar for point, bar in drawn if point.keeps)
    beyond = "".join(bar for point, bar in drawn if not point.keeps)
    knee = f", knee at {option.knee.batch:,}" if option.knee is not None else ""
    shown = kept + (f"[{beyond}]" if beyond else "")
    sizes = f"batch {known[0].batch:,} to {known[-1].batch:,}"
    return f"{option.name} {shown} up to {significant(most)} tok/s, {sizes}{knee}; in brackets the promise breaks"
