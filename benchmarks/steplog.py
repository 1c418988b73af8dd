"""Reads the step log of `headway serve --step-log` and fits the step-time model to it.

The log's fields are described in docs/reference/logs.md. A step takes a constant, and so much for each prefill token,
decode sequence, KV token that decode reads, and (chunk × context) of prefill attention.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

PARTS = ("prefill_tokens", "decode_tokens", "context_tokens", "attention_tokens")
SWEEPS = 2_000


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Seconds: of the constant and of each of `PARTS`."""

    step_s: float
    prefill_token_s: float
    decode_sequence_s: float
    context_token_s: float
    attention_token_s: float

    def decode_s(self, sequences: int, context_tokens: int) -> float:
        """A step of decode alone."""
        return self.step_s + self.decode_sequence_s * sequences + self.context_token_s * context_tokens

    def chunk_s(self, start: int, tokens: int) -> float:
        """What `tokens` of a prompt from position `start` add to a step."""
        return self.prefill_token_s * tokens + self.attention_token_s * (tokens * start + tokens * tokens / 2)

    def chunk_within(self, start: int, budget_s: float) -> int:
        """The largest chunk from `start` that adds at most `budget_s`."""
        low, high = 0, 1 << 20
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.chunk_s(start, middle) <= budget_s else (low, middle - 1)
        return low


def read(path: Path, kind: str = "step") -> list[dict[str, Any]]:
    """The lines of one kind, in order. A last line that is still being written is left out."""
    lines = []
    for text in path.read_bytes().split(b"\n")[:-1]:
        line = json.loads(text)
        if line["kind"] == kind:
            lines.append(line)
    return lines


def fit(steps: Sequence[dict[str, Any]]) -> StepTimes:
    """Least squares of the relative error, no coefficient below zero, over measured `real_s`."""
    real = np.array([step["real_s"] for step in steps])
    rows = np.array([[1.0, *(step[part] for part in PARTS)] for step in steps]) / real[:, None]
    return StepTimes(*(float(value) for value in _not_negative(rows, np.ones(len(steps)))))


def _not_negative(rows: NDArray[np.float64], values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Minimise |rows · x - values|² over x >= 0, by coordinate descent on scaled columns."""
    scale = np.linalg.norm(rows, axis=0)
    scale[scale == 0] = 1.0
    a = (rows / scale).T @ (rows / scale)
    b = (rows / scale).T @ values
    x = np.zeros(len(b))
    for _ in range(SWEEPS):
        for i in range(len(b)):
            if a[i, i] > 0:
                x[i] = max(0.0, x[i] - (a[i] @ x - b[i]) / a[i, i])
    return np.asarray(x / scale)
