"""Runs put together from scripted records: everything a verdict or a comparison looks at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from headway.loadtest.record import Record
from headway.loadtest.result import ClientFigures, Environment, Load, Run, Signals, Slo, Target
from headway.loadtest.summary import client_figures, summarise
from headway.loadtest.table import measured_window, tabulate
from headway.loadtest.verdict import judge

SLO = Slo(ttft_s=2.0)


def load(duration_s: float | None = None, **changes: Any) -> Load:
    return Load(
        **{
            "profile": "rate",
            "loop": "open",
            "description": "scripted",
            "duration_s": duration_s,
            "warmup_s": 0.0,
            "options": {"burstiness": 1.0, "shared_prefix_tokens": 0},
            **changes,
        }
    )


def client(
    records: Sequence[Record],
    what: Load,
    *,
    cpu_ratio: float = 0.3,
    loop_lags_s: npt.ArrayLike = (),
    freezes: Sequence[tuple[float, float, int]] = (),
    stolen_ratio: float = 0.0,
) -> ClientFigures:
    table = tabulate(records)
    window = measured_window(what, table)
    lags = np.asarray(loop_lags_s, np.float64)
    return client_figures(
        table,
        what,
        window,
        processes=1,
        cpu_ratio=cpu_ratio,
        loop_lags_s=lags if len(lags) else np.full(100, 1e-4),
        freezes=freezes,
        stolen_ratio=stolen_ratio,
    )


def run(
    records: Sequence[Record],
    what: Load,
    *,
    slo: Slo = SLO,
    cpu_ratio: float = 0.3,
    loop_lags_s: npt.ArrayLike = (),
    freezes: Sequence[tuple[float, float, int]] = (),
    stolen_ratio: float = 0.0,
    signals: Signals | None = None,
    environment: Environment | None = None,
    bursts_s: Sequence[tuple[float, float]] = (),
    **ended: Any,
) -> Run:
    table = tabulate(records)
    summary = summarise(table, what, slo, bursts_s=bursts_s)
    made = client(
        records, what, cpu_ratio=cpu_ratio, loop_lags_s=loop_lags_s, freezes=freezes, stolen_ratio=stolen_ratio
    )
    return Run(
        started_at="2026-11-30T12:00:00Z",
        elapsed_s=what.duration_s or 0.0,
        target=Target(url="http://server", endpoint="chat", model="m"),
        load=what,
        slo=slo,
        environment=environment or Environment(),
        client=made,
        summary=summary,
        verdict=judge(table, summary, made, what, **ended),
        signals=signals or Signals(),
    )
