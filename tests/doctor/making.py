"""Facts made by hand, for tests of rules: a service in plain numbers, all of them changeable."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from headway.core.pace import StepTime
from headway.doctor.facts import Facts, Part, Settings
from headway.doctor.spread import Spread

GPU = StepTime(16.5e6, 120e3, 50e3, 140.0, 0.0)
SAMPLES = 61


def spread(*values: float, count: int = 200) -> Spread:
    """These values, each as often as the others."""
    made = Spread.of(list(values) * max(1, count // len(values)))
    assert made is not None
    return made


def lognormal(median: float, sigma: float, count: int = 400, seed: int = 0) -> Spread:
    draw = random.Random(seed)
    made = Spread.of([median * 2.718281828 ** (sigma * draw.gauss(0, 1)) for _ in range(count)])
    assert made is not None
    return made


def series(value: float | list[float]) -> np.ndarray:
    return np.array(value if isinstance(value, list) else [value] * SAMPLES, np.float64)


def rising(total: float) -> np.ndarray:
    return np.linspace(0.0, total, SAMPLES)


def facts(
    gauges: dict[str, Any] | None = None,
    totals: dict[str, Any] | None = None,
    spreads: dict[str, Any] | None = None,
    **given: Any,
) -> Facts:
    """A minute of a healthy server, but for what is given: None is not known. A gauge may be a list of 61."""
    healthy_gauges: dict[str, Any] = {"running": 4.0, "waiting": 0.0, "kv_ratio": 0.2}
    healthy_totals: dict[str, Any] = {
        "prompt_tokens": 30_000.0,
        "generation_tokens": 12_000.0,
        "steps": 2_400.0,
        "ended": 120.0,
    }
    healthy_spreads: dict[str, Any] = {
        "ttft_s": spread(0.08, 0.1, 0.12),
        "queue_s": spread(0.01, 0.02),
        "prefill_s": spread(0.07, 0.08),
        "itl_s": spread(0.018, 0.02, 0.022, count=3_000),
        "e2e_s": spread(2.0, 2.5),
        "decode_s": lognormal(2.0, 0.4),
        "prompt_tokens": lognormal(250.0, 0.4),
        "output_tokens": lognormal(100.0, 0.4),
    }
    part = Part(
        "engine",
        np.arange(float(SAMPLES)),
        {name: series(value) for name, value in {**healthy_gauges, **(gauges or {})}.items() if value is not None},
        {name: rising(total) for name, total in {**healthy_totals, **(totals or {})}.items() if total is not None},
        {name: one for name, one in {**healthy_spreads, **(spreads or {})}.items() if one is not None},
    )
    settings = given.pop("settings", Settings(max_num_seqs=16, max_num_batched_tokens=512, kv_tokens=40_000.0))
    return Facts("headway", part, settings=settings, step_time=given.pop("step_time", GPU), kind="headway", **given)
