"""`read_steps`: facts from a step log (`docs/reference/logs.md`): every step and request, so nothing has to be guessed.

Series are made of the step that each of their times lies in: a line tells what stood after its step, when those who
ended have left, so they are put back. The model of steps is fitted to the steps themselves.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from headway.core.errors import ConfigError
from headway.doctor.facts import Asked, Facts, Part, Promise, Settings
from headway.doctor.spread import Floats, Spread
from headway.simulate.fit.read import Line, lines_of
from headway.simulate.fit.regression import solve
from headway.simulate.fit.step_log import step_log_of
from headway.simulate.fit.terms import step_cost

NS = 1e-9
MOST_POINTS = 240
# What follows the last commit so soon was planned in the same breath: what passes in between belongs to the step.
_SAME_BREATH_NS = 20_000_000
# A request's end and its step's are the same moment, but for how their times are written.
_SAME_MOMENT_NS = 50_000
_STEP = (
    *("planned_ns", "committed_ns", "prefill_tokens", "decode_tokens", "running", "waiting", "preempted"),
    *("kv_tokens", "kv_blocks_used"),
)
_REQUEST = (
    "arrival_ns",
    "prompt_tokens",
    "cached_tokens",
    "output_tokens",
    "queue_s",
    "prefill_s",
    "decode_s",
    "e2e_s",
)


@dataclass(slots=True)
class _Log:
    """The last run in a file."""

    header: dict[str, Any]
    lines: list[Line]  # the header's and the steps'
    steps: list[tuple[float, ...]] = field(default_factory=list)
    requests: list[tuple[float, ...]] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)


def read_steps(path: Path, since_s: float | None = None) -> Facts:
    """Of the last `since_s` seconds, or of all. Raises `ConfigError`: no step log, or nothing in it."""
    log = _read(path)
    if not log.steps:
        raise ConfigError(f"{path}: no steps in it: nothing ran")
    steps = np.array(log.steps)
    requests = np.array(log.requests).reshape(-1, len(_REQUEST))
    end_ns = float(steps[-1, 1])
    begin_ns = float(steps[0, 0])
    if since_s is not None:
        begin_ns = max(begin_ns, end_ns - since_s / NS)
        steps = steps[steps[:, 1] >= begin_ns]
        ended_ns = requests[:, 0] + requests[:, 7] / NS
        kept = ended_ns >= begin_ns
        requests, log.reasons = requests[kept], [why for why, one in zip(log.reasons, kept, strict=True) if one]
    config, executor = _fields(log.header, "config"), _fields(log.header, "executor")
    finished = np.array([why in ("stop", "length") for why in log.reasons], np.bool_)
    block, blocks = executor.get("block_size"), executor.get("num_blocks")
    part = _part(steps, requests, (begin_ns, end_ns), blocks or math.nan, block or math.nan)
    coefficients, notes = _coefficients(log.lines, path)
    cost = step_cost(coefficients) if coefficients is not None else None
    return Facts(
        f"step log of {log.header.get('model') or 'a model'}",
        part,
        settings=Settings(
            max_num_seqs=config.get("max_num_seqs"),
            max_num_batched_tokens=config.get("max_num_batched_tokens"),
            kv_tokens=float(block * blocks) if block and blocks else None,
            block_tokens=block,
            max_model_len=executor.get("max_model_len"),
            prefix_cache=config.get("prefix_cache_scope") != "off",
            kv_full=config.get("kv_full"),
            policy=config.get("policy"),
            slo_ttft_s=config.get("slo_ttft"),
            slo_itl_s=config.get("slo_itl"),
            told=config,
        ),
        promise=Promise.of(config.get("slo_ttft"), config.get("slo_itl")),
        step_time=cost.step_time if cost is not None else None,
        prefill_step_ns=cost.prefill_step_ns if cost is not None else 0.0,
        demand=_demand(requests[finished], begin_ns),
        missing=("network and pre-processing: a step log begins at the engine's door",),
        notes=notes,
        kind="headway",
    )


def _read(path: Path) -> _Log:
    log: _Log | None = None
    for line in lines_of(path, torn="skip"):
        kind = line.fields.get("kind")
        if kind == "header":
            if line.fields.get("log") != "step":
                raise line.wrong("a step log is expected (headway serve --step-log), not a decision log")
            log = _Log(dict(line.fields), [line])
        elif log is None:
            raise line.wrong("a step log begins with a line of kind 'header'")
        elif kind == "step":
            log.steps.append(tuple(_maybe(line, name) for name in _STEP))
            log.lines.append(line)
        elif kind == "request":
            log.requests.append(tuple(_maybe(line, name) for name in _REQUEST))
            log.reasons.append(str(line.fields.get("end", "")))
    if log is None:
        raise ConfigError(f"{path}: no step log: it has no header")
    return log


def _maybe(line: Line, name: str) -> float:
    value = line.maybe(name)
    return math.nan if value is None else value


def _part(steps: Floats, requests: Floats, window_ns: tuple[float, float], blocks: float, block_tokens: float) -> Part:
    """`blocks` of KV, each of so many tokens."""
    begin_ns, end_ns = window_ns
    window_s = max(1e-9, (end_ns - begin_ns) * NS)
    every_s = max(1.0, window_s / MOST_POINTS) if window_s > 8.0 else window_s / 8.0
    at_ns = begin_ns + np.arange(0.0, window_s + every_s / 2, every_s) / NS
    commits, ended_ns = steps[:, 1], requests[:, 0] + requests[:, 7] / NS
    began_ns = np.concatenate(
        (steps[:1, 0], np.where(steps[1:, 0] - commits[:-1] < _SAME_BREATH_NS, commits[:-1], steps[1:, 0]))
    )
    # The step that each time lies in; between two steps what stood after the last one, before the first nothing.
    following = np.searchsorted(commits, at_ns, side="right")
    last, during = np.maximum(following - 1, 0), np.minimum(following, len(steps) - 1)
    inside = (following < len(steps)) & (began_ns[during] <= at_ns)
    place = np.where(inside, during, last)
    # Who ended with which step, and the tokens that they held.
    left = np.searchsorted(commits, ended_ns - _SAME_MOMENT_NS)
    held = np.nan_to_num(requests[:, 1] + requests[:, 3])

    def stood(column: int) -> Floats:
        return np.where(inside | (following > 0), steps[place, column], 0.0)

    def of_those_who_left(each: Floats) -> Floats:
        summed = np.bincount(left, np.nan_to_num(each), len(steps) + 1)
        return np.where(inside, summed[place], 0.0)

    def counted(ns: Floats, amounts: Floats) -> Floats:
        order = np.argsort(ns, kind="stable")
        upto = np.concatenate(([0.0], np.cumsum(amounts[order])))
        return upto[np.searchsorted(ns[order], at_ns, side="right")]

    preempted = np.maximum(0.0, np.diff(steps[:, 6], prepend=steps[:1, 6]))
    running, out = stood(4) + of_those_who_left(np.ones(len(requests))), stood(6)
    # Of those who wait after a step some came during it, and of those before it some were started with it.
    waiting = np.where(inside & (following > 0), np.minimum(steps[last, 5], stood(5)), stood(5))
    gauges = {"running": running, "waiting": waiting, "preempted": out, "in_service": running + waiting + out}
    kv_blocks = stood(8) + of_those_who_left(np.ceil(held / block_tokens))
    gauges |= {"kv_tokens": stood(7) + of_those_who_left(held), "kv_ratio": np.minimum(kv_blocks / blocks, 1.0)}
    totals = {
        "steps": counted(commits, np.ones(len(steps))),
        "prompt_tokens": counted(commits, steps[:, 2]),
        "generation_tokens": counted(commits, steps[:, 3]),
        "step_real_s": counted(commits, (commits - began_ns) * NS),
        "preemptions": counted(commits, preempted),
        "ended": counted(ended_ns, np.ones(len(requests))),
        "lookup_tokens": counted(requests[:, 0] + requests[:, 4] / NS, requests[:, 1]),
        "hit_tokens": counted(requests[:, 0] + requests[:, 4] / NS, requests[:, 2]),
    }
    return Part("engine", (at_ns - begin_ns) * NS, gauges, totals, _spreads(steps, requests, began_ns))


def _spreads(steps: Floats, requests: Floats, began_ns: Floats) -> dict[str, Spread]:
    told = requests[:, 3] > 0
    columns = {
        "queue_s": requests[:, 4],
        "prefill_s": requests[told, 5],
        "ttft_s": requests[told, 4] + requests[told, 5],
        "decode_s": requests[told, 6],
        "e2e_s": requests[told, 7],
        "prompt_tokens": requests[:, 1],
        "output_tokens": requests[told, 3],
    }
    spreads = {name: Spread.of(values) for name, values in columns.items()}
    spreads["itl_s"] = Spread.of((steps[:, 1] - began_ns) * NS, steps[:, 3])
    spreads["step_tokens"] = Spread.of(steps[:, 2] + steps[:, 3])
    return {name: spread for name, spread in spreads.items() if spread is not None}


def _coefficients(lines: Sequence[Line], path: Path) -> tuple[Floats | None, tuple[str, ...]]:
    """Of the time of steps, as fitted; and why not."""
    try:
        log = step_log_of(lines, path)
    except ConfigError as error:
        return None, (f"how long steps take is not fitted: {error}",)
    return solve(log.equations).values, ()


def _demand(requests: Floats, begin_ns: float) -> tuple[Asked, ...]:
    order: Sequence[int] = np.argsort(requests[:, 0], kind="stable").tolist()
    return tuple(
        Asked(max(0.0, (one[0] - begin_ns) * NS), max(1, int(one[1])), max(1, int(one[3])), int(one[2]))
        for one in (requests[place] for place in order)
    )


def _fields(header: dict[str, Any], name: str) -> dict[str, Any]:
    value = header.get(name)
    return value if isinstance(value, dict) else {}
