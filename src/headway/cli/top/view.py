"""A `Frame` on a terminal. A dash is what the server does not tell."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from headway.cli.top.frame import Frame, Tenant, Worker

MOST_TENANTS = 10
_BAR = 20
# From here on something is worth a look.
KV_FULL_RATIO = 0.9


def view(frame: Frame, title: str, note: str = "") -> RenderableType:
    parts: list[RenderableType] = [_title(frame, title, note), _concurrency(frame), _rates(frame)]
    if frame.times:
        parts.append(_times(frame))
    if frame.workers:
        parts.append(_workers(frame.workers))
    if frame.tenants and frame.tenants != [one for one in frame.tenants if not one.name]:
        parts.append(_tenants(frame.tenants))
    return Group(*(piece for part in parts for piece in (part, Text())))


def _title(frame: Frame, title: str, note: str) -> Text:
    text = Text.assemble((title, "bold"), f"  {frame.server}, the last {frame.window_s:.0f} s")
    if note:
        text.append(f"  {note}", "bold red")
    return text


def _pairs(rows: Iterator[tuple[str, str | Text]]) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="cyan", no_wrap=True)
    table.add_column()
    for label, told in rows:
        table.add_row(label, told)
    return table


def _concurrency(frame: Frame) -> Table:
    now = frame.now

    def rows() -> Iterator[tuple[str, str | Text]]:
        if now["in_service"] is not None:
            yield "requests", f"{whole(now['in_service'])} in the service"
        preempted = f", {whole(now['preempted'])} preempted" if now["preempted"] else ""
        yield "sequences", f"{whole(now['running'])} running{preempted}"
        tokens = [
            f"{whole(now[what])} {where}"
            for what, where in (("step_tokens", "in the step"), ("kv_tokens", "resident in KV"))
            if now[what] is not None
        ]
        if tokens:
            yield "tokens", ", ".join(tokens)
        waiting = f"{whole(now['waiting'])} waiting"
        if now["waiting_tokens"] is not None:
            waiting += f", {whole(now['waiting_tokens'])} tokens"
        lanes = "  ".join(f"{lane} {whole(count)}" for lane, count in frame.lanes.items() if count)
        yield "queue", f"{waiting}{':  ' if lanes else ''}{lanes}"
        if now["kv_used_ratio"] is not None:
            yield "KV", _kv(frame)
        if now["pressure_ratio"] is not None:
            yield "ladder", _ladder(frame)

    return _pairs(rows())


def _kv(frame: Frame) -> Text:
    ratio = frame.now["kv_used_ratio"] or 0.0
    filled = min(_BAR, round(ratio * _BAR))
    text = Text.assemble(("█" * filled, "red" if ratio >= KV_FULL_RATIO else "green"), ("░" * (_BAR - filled), "dim"))
    text.append(f" {ratio:.0%} used")
    if (reserved := frame.now["kv_reserved_bytes"]) is not None:
        text.append(f", {gib(reserved)} reserved")
    if (memory := frame.now["memory_bytes"]) is not None:
        text.append(f"; memory {gib(memory)}")
    looked_up = frame.rates["lookup_tokens"]
    if looked_up:
        text.append(f"; {(frame.rates['hit_tokens'] or 0.0) / looked_up:.0%} of looked-up tokens cached")
    return text


def _ladder(frame: Frame) -> Text:
    now = frame.now
    names = f" ({', '.join(frame.levels)})" if frame.levels else ""
    text = Text(f"level {whole(now['ladder_level'])}{names}", "bold yellow" if frame.levels else "")
    text.append(f", pressure {now['pressure_ratio'] or 0.0:.2f}", "")
    if now["replicas"] is not None and now["desired_replicas"] is not None:
        text.append(f"; {whole(now['replicas'])} workers up, {whole(now['desired_replicas'])} wanted")
    return text


def _rates(frame: Frame) -> Table:
    def rows() -> Iterator[tuple[str, str | Text]]:
        told = "  ".join(f"{how} {rate(count)}" for how, count in frame.outcomes.items() if count)
        yield "requests/s", f"{rate(frame.rates['ended'])}{'  ' if told else ''}{told}"
        prefill, decode = frame.rates["prompt_tokens"], frame.rates["generation_tokens"]
        yield "tokens/s", f"prefill {rate(prefill)}  decode {rate(decode)}"
        if frame.rates["preemptions"]:
            yield "preemptions/s", rate(frame.rates["preemptions"])

    return _pairs(rows())


def _times(frame: Frame) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="cyan")
    for column in ("", "p50", "p90", "p99", "mean", "count"):
        table.add_column(column, justify="right" if column else "left")
    for what, one in frame.times.items():
        shown = (one.p50_s, one.p90_s, one.p99_s, one.mean_s)
        table.add_row(Text(what, "cyan"), *map(seconds, shown), whole(one.count))
    return table


def _workers(workers: list[Worker]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="cyan")
    for column in ("worker", "", "in flight", "window", "running", "waiting", "KV", "TTFT"):
        table.add_column(column, justify="left" if column in ("worker", "") else "right")
    for one in workers:
        table.add_row(
            one.name,
            _state(one),
            whole(one.in_flight),
            whole(one.window),
            whole(one.running),
            whole(one.waiting),
            "–" if one.kv_used_ratio is None else f"{one.kv_used_ratio:.0%}",
            seconds(one.ttft_s) if one.ttft_s else "–",
        )
    return table


def _state(worker: Worker) -> Text:
    if worker.draining:
        return Text("draining", "yellow")
    if worker.up >= 1:
        return Text("up", "green")
    return Text("on trial", "yellow") if worker.up > 0 else Text("down", "bold red")


def _tenants(tenants: list[Tenant]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="cyan")
    for column in ("tenant", "requests/s", "limited/s", "tokens/s", "share", "by weight", "waiting"):
        table.add_column(column, justify="left" if column == "tenant" else "right")
    for one in tenants[:MOST_TENANTS]:
        table.add_row(
            one.name or "(no key)",
            rate(one.requests_per_s),
            rate(one.limited_per_s),
            rate(one.tokens_per_s),
            "–" if one.share is None else f"{one.share:.0%}",
            "–" if one.fair is None else f"{one.fair:.0%}",
            whole(one.waiting),
        )
    if len(tenants) > MOST_TENANTS:
        table.add_row(Text(f"and {len(tenants) - MOST_TENANTS} more", "dim"))
    return table


def whole(value: float | None) -> str:
    return "–" if value is None else "no limit" if math.isinf(value) else f"{value:,.0f}"


def rate(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def seconds(value: float) -> str:
    if math.isinf(value):
        return "beyond"
    return f"{value * 1e3:,.3g} ms" if value < 1 else f"{value:,.3g} s"


def gib(value: float) -> str:
    return f"{value / (1 << 30):,.2f} GiB"
