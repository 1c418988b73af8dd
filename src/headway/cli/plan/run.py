"""`run_plan`: progress on stderr, the plan on stdout, files where they were asked for."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.text import Text

from headway.cli.bench.flags import taken
from headway.cli.bench.run import console_beside, tell_written
from headway.cli.plan import words
from headway.cli.plan.flags import EffortOptions, HardwareOptions
from headway.cli.plan.hardware import candidates_of
from headway.cli.plan.measure import Measured, measure
from headway.cli.plan.traffic import traffic_of
from headway.cli.stages import stages
from headway.loadtest.bench.files import Files
from headway.loadtest.bench.options import PromiseOptions, TextOptions
from headway.loadtest.bench.outputs import check_apart, check_output, write_bytes
from headway.loadtest.bench.tester import INTERRUPTED
from headway.loadtest.report.terminal import TONE_STYLES, banner, bullet, draw
from headway.simulate.plan import Plan, Promise, Traffic, plan, plan_bytes

NOTHING_HOLDS, FAILED = 9, 1
_PLAN_SIGN = b'"kind": "plan"'


def run_plan(sources: Sequence[str], settings: dict[str, Any]) -> int:
    """The exit status. Raises `ConfigError`, `LoadTestError` and `WorkloadError`."""
    effort, hardware = taken(EffortOptions, settings), taken(HardwareOptions, settings)
    text, promised = taken(TextOptions, settings), taken(PromiseOptions, settings)
    files = _files(effort)
    promise = Promise(
        ttft_s=promised.slo_ttft, itl_s=promised.slo_itl, e2e_s=promised.slo_e2e, percentile=effort.percentile
    )
    traffic = traffic_of(settings)
    candidates = candidates_of(sources, hardware)
    with stages(quiet=effort.quiet) as progress:
        found = plan(
            traffic,
            promise,
            candidates,
            max_model_len=hardware.max_model_len,
            requests=effort.requests,
            seed=effort.seed,
            progress=progress,
        )
    measured, status = _measured(found, traffic, promise, text, effort)
    _tell(found, measured, files)
    return status or (0 if found.chosen is not None else NOTHING_HOLDS)


def _files(effort: EffortOptions) -> Files:
    """Known to be writable, and to overwrite no other work, before minutes are simulated. Raises InvalidPlan."""
    files = Files(json=Path(effort.json) if effort.json else None, html=Path(effort.html) if effort.html else None)
    check_apart(files.paths)
    Files(html=files.html).check()
    if files.json is not None:
        check_output(files.json, lambda head: _PLAN_SIGN in head, "plan")
    return files


def _measured(
    found: Plan, traffic: Traffic, promise: Promise, text: TextOptions, effort: EffortOptions
) -> tuple[list[Measured], int]:
    """The curve on a live server, where one was named."""
    if effort.measure is None:
        return [], 0
    option = found.best or next((option for option in found.options if option.curve), None)
    batches = [point.batch for point in option.curve if not point.outside] if option is not None else [1, 2, 4, 8]
    measured, swept = measure(
        effort.measure,
        batches,
        traffic,
        promise,
        text,
        folder=Path(effort.measure_output),
        window_s=effort.measure_window,
        quiet=effort.quiet,
    )
    if swept.failed:
        print(f"headway: {swept.failed}", file=sys.stderr)
        return measured, FAILED
    return measured, INTERRUPTED if swept.interrupted else 0


def _tell(found: Plan, measured: Sequence[Measured], files: Files) -> None:
    console = console_beside(files)
    try:
        if files.json is not None:
            write_bytes(files.json, _document(found, measured))
        if files.html is not None:
            from headway.cli.plan.page import page_of

            write_bytes(files.html, page_of(found, measured).encode())
    finally:  # a disk that is full costs the files, not what was found
        show(found, measured, console)
    tell_written(files, console)


def _document(found: Plan, measured: Sequence[Measured]) -> bytes:
    content = plan_bytes(found)
    if not measured:
        return content
    document = msgspec.json.decode(content) | {"measured": [asdict(one) for one in measured]}
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"


def show(found: Plan, measured: Sequence[Measured], console: Console) -> None:
    """On a terminal."""
    tone, word, sentence = words.headline(found)
    best = found.best
    console.print(banner(TONE_STYLES[tone], word, sentence, words.remarks(best) if best is not None else ()))
    holds = words.options_table(found)
    if holds.rows:
        console.print(draw(holds))
    for refusal in words.refusals(found):
        console.print(bullet(refusal))
    console.print(draw(words.asked_table(found)))
    lines = [line for option in found.options if (line := words.sparkline(option))]
    if lines:
        console.print(Text("\nThroughput by batch size", style="bold"))
        for line in lines:
            console.print(Text(f"  {line}"))
    detailed = best or next((option for option in found.options if option.curve), None)
    if detailed is not None and detailed.curve:
        console.print(draw(words.curve_table(detailed, found, measured)))
