"""`measure`: the curve on a live server: a closed loop of each batch size, by the load tester."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from headway.cli.bench.run import waiting, watched
from headway.cli.key import key_of_environment
from headway.loadtest.bench.grid import Axis
from headway.loadtest.bench.options import (
    Concurrency,
    Options,
    PromiseOptions,
    ServerOptions,
    TextOptions,
    WindowOptions,
)
from headway.loadtest.bench.several import Audience
from headway.loadtest.bench.sweep import Grid, Swept, sweep
from headway.loadtest.bench.tester import OnProgress
from headway.loadtest.result import Load, Run
from headway.metrics.percentiles import key
from headway.simulate.plan import Promise, Traffic


@dataclass(frozen=True, slots=True)
class Measured:
    """One closed loop. Times in s at the promise's percentile; None: too few samples to tell."""

    concurrency: int
    request_rate: float | None
    output_token_rate: float | None
    ttft_s: float | None
    itl_s: float | None
    verdict: str

    @property
    def remark(self) -> str:
        return "" if self.verdict == "VALID" else self.verdict


def measure(
    url: str,
    batches: Sequence[int],
    traffic: Traffic,
    promise: Promise,
    text: TextOptions,
    *,
    folder: Path,
    window_s: float,
    quiet: bool,
) -> tuple[list[Measured], Swept]:
    """What was measured, and as far as it came. Raises `LoadTestError` when nothing was."""
    options = Options(
        server=ServerOptions(api_key=key_of_environment(url)),
        window=WindowOptions(duration=window_s, percentile=promise.percentile),
        promise=PromiseOptions(slo_ttft=promise.ttft_s, slo_itl=promise.itl_s, slo_e2e=promise.e2e_s),
        text=_text(traffic, text),
    )
    grid = Grid(Concurrency(), (Axis("concurrency", tuple(map(str, batches))),))
    swept = asyncio.run(sweep(url, grid, options, folder=folder, seen_by=_terminal(quiet=quiet)))
    return [_measured(run, promise) for _, run in swept.runs], swept


def _text(traffic: Traffic, text: TextOptions) -> TextOptions:
    """The same lengths; of a mix or a recorded day, lengths with their mean and spread."""
    if not traffic.whole and (text.input_len or text.output_len or text.prompts != "words"):
        return text
    lengths = traffic.lengths
    sides = []
    for tokens in (lengths.prompt, lengths.output):
        mean, std = float(tokens.mean()), float(tokens.std())
        low, high = int(tokens.min()), int(tokens.max())
        sides.append(f"lognormal:{mean:.6g},{std:.6g},{low}:{high}" if std > 0 else str(low))
    return TextOptions(input_len=sides[0], output_len=sides[1])


def _measured(run: Run, promise: Promise) -> Measured:
    overall = run.summary.overall

    def at(name: str) -> float | None:
        found = overall.distributions.get(name)
        interval = found.percentiles.get(key(promise.percentile)) if found is not None else None
        return interval.value if interval is not None else None

    return Measured(
        concurrency=run.load.concurrency or 0,
        request_rate=overall.request_rate,
        output_token_rate=overall.output_token_rate,
        ttft_s=at("ttft"),
        itl_s=at("itl"),
        verdict=run.verdict.name,
    )


def _terminal(*, quiet: bool) -> Audience:
    """What a person sees meanwhile."""

    def watch(what: str, load: Load) -> AbstractContextManager[OnProgress | None]:
        return watched(what, load, quiet=quiet)

    def wait(words: str) -> AbstractContextManager[None]:
        return waiting(words, quiet=quiet)

    def warn(words: str) -> None:
        print(f"headway: {words}", file=sys.stderr)

    return Audience(watch, wait, warn)
