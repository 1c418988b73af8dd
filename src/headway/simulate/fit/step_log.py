"""`StepLog`: what `headway serve --step-log` wrote, as one equation a step."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headway.core.errors import ConfigError
from headway.core.scheduler.policies import POLICIES
from headway.simulate.fit.model import Server, Valid
from headway.simulate.fit.read import Line, lines_of
from headway.simulate.fit.terms import Equations, Floats

LOG_VERSION = 1
LEAST_STEPS = 50
# What follows the last commit so soon was planned in the same breath; what passes in between belongs to the step.
_SAME_BREATH_NS = 20_000_000
_COUNTS = ("prefill_tokens", "pad_tokens", "decode_tokens", "context_tokens", "attention_tokens")


@dataclass(frozen=True, slots=True)
class StepLog:
    """Steps of one server. `shapes` (n, 4): prefill tokens, decoding sequences, context, attention."""

    name: str
    shapes: Floats
    took_ns: Floats
    planned_ns: Floats
    server: Server
    model: str
    device: str

    @property
    def equations(self) -> Equations:
        """One for each step."""
        count = len(self.shapes)
        prefill = (self.shapes[:, 0] > 0).astype(np.float64)
        matrix = np.column_stack([np.ones(count), self.shapes, prefill, np.zeros(count)])
        return Equations(matrix, self.took_ns, ["step"] * count, self.planned_ns)

    @property
    def valid(self) -> Valid:
        """The steps that were seen."""
        return valid_of(self.shapes)


def valid_of(shapes: Floats) -> Valid:
    """From (n, 4): prefill tokens, decoding sequences, context, attention of each step."""
    decoding = shapes[shapes[:, 1] > 0, 1]
    most = shapes.max(axis=0)
    return Valid(
        steps=len(shapes),
        max_prefill_tokens=int(most[0]),
        min_decode_seqs=int(decoding.min()) if len(decoding) else 0,
        max_decode_seqs=int(most[1]),
        max_context_tokens=int(most[2]),
        max_attention_tokens=int(most[3]),
    )


def read_step_log(path: Path) -> StepLog:
    """The last run in the file. Raises `ConfigError`: no such log, too few steps, a line that means nothing."""
    return step_log_of(lines_of(path), path)


def step_log_of(lines: Iterable[Line], path: Path) -> StepLog:
    """The same, of lines that were read."""
    header: Line | None = None
    steps: list[tuple[float, ...]] = []
    for line in lines:
        kind = line.fields.get("kind")
        if kind == "header":
            header, steps = _checked(line), []
        elif header is None:
            raise line.wrong("a step log begins with a line of kind 'header'")
        elif kind == "step":
            steps.append(_step(line, steps[-1] if steps else None))
    if header is None:
        raise ConfigError(f"{path}: no step log: it has no header")
    if len(steps) < LEAST_STEPS:
        raise ConfigError(f"{path}: {len(steps)} steps; a fit needs at least {LEAST_STEPS}. Log a longer run.")
    table = np.array(steps)
    planned, committed, alive = table[:, 0], table[:, 1], table[:, 2]
    pause = np.append(planned[1:] - committed[:-1], 0.0)
    at_once = (alive > 0) & (pause > 0) & (pause < _SAME_BREATH_NS)
    took = np.maximum(1.0, committed - planned + np.where(at_once, pause, 0.0))
    executor = _fields(header, "executor")
    return StepLog(
        path.name,
        table[:, 3:],
        took,
        planned,
        _server(_fields(header, "config"), executor),
        str(header.fields.get("model", "")),
        str(_fields(header, "config").get("device", "")),
    )


def _checked(line: Line) -> Line:
    if line.fields.get("log") != "step" or line.fields.get("version") != LOG_VERSION:
        said = f"log {line.fields.get('log')!r} of version {line.fields.get('version')!r}"
        raise line.wrong(f"{said}; a step log of version {LOG_VERSION} is expected (headway serve --step-log)")
    return line


def _step(line: Line, before: tuple[float, ...] | None) -> tuple[float, ...]:
    planned, committed = line.number("planned_ns"), line.number("committed_ns")
    if committed < planned:
        raise line.wrong(f"committed_ns is {committed:.0f}, before planned_ns ({planned:.0f})")
    if before is not None and planned < before[0]:
        raise line.wrong(f"planned_ns is {planned:.0f}, before that of the step above; steps are in order of time")
    prefill, pad, decode, context, attention = (line.number(name) for name in _COUNTS)
    alive = (line.maybe("running") or 0.0) + (line.maybe("waiting") or 0.0)
    return (planned, committed, alive, prefill + pad, decode, context, attention)


def _fields(header: Line, name: str) -> dict[str, Any]:
    value = header.fields.get(name)
    return value if isinstance(value, dict) else {}


def _server(config: dict[str, Any], executor: dict[str, Any]) -> Server:
    fields: dict[str, Any] = {
        "policy": config.get("policy"),
        "max_num_seqs": config.get("max_num_seqs"),
        "max_num_batched_tokens": config.get("max_num_batched_tokens"),
        "num_blocks": executor.get("num_blocks"),
        "block_size": executor.get("block_size"),
        "chunk_multiple_tokens": executor.get("chunk_multiple_tokens"),
    }
    given: dict[str, Any] = {name: n for name, n in fields.items() if isinstance(n, int) and n > 0}
    given["policy"] = fields["policy"] if fields["policy"] in POLICIES else "headway"
    given["prefix_cache"] = config.get("prefix_cache_scope") != "off"
    # Our own server keeps its policy's rule, and plans when a step has ended.
    given["whole_prompt_kv"], given["plans_ahead"] = POLICIES[given["policy"]].whole_prompt_kv, False
    return Server(**given, known=dict.fromkeys(given, "given"))
