"""What a step's time is made of, as columns of a regression (`COLUMNS`), and observations of it (`Equations`).

An equation says: these many steps, prefill tokens, decoding sequences, … took so long in sum. One step gives one; so
does a request's prefill, or its whole decode, where single steps are not told. `Prefix` sums columns over the steps of
a simulation, so that any stretch of it is one subtraction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from headway.core.pace import chunk_attention
from headway.executors.simulated import StepCost
from headway.simulate.run import StepRecord

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

# In order: what a file calls them too. `request_ns` is outside of steps: network, parsing, tokenising.
COLUMNS = (
    "step_ns",
    "prefill_token_ns",
    "decode_seq_ns",
    "context_token_ns",
    "attention_token_ns",
    "prefill_step_ns",
    "request_ns",
)
WIDTH = len(COLUMNS)
REQUEST = COLUMNS.index("request_ns")
ATTENTION = COLUMNS.index("attention_token_ns")
WORDS = {
    "step_ns": "a step, whatever it carries",
    "prefill_token_ns": "a prompt token",
    "decode_seq_ns": "a decoding sequence",
    "context_token_ns": "a KV token that decode reads",
    "attention_token_ns": "a prompt token × a token before it",
    "prefill_step_ns": "more, of a step with any prompt in it",
    "request_ns": "a request outside the engine",
}


def step_cost(values: Floats) -> StepCost:
    """Coefficients, as the simulator takes them: whole ns, but for attention, of which a GPU does several in one."""
    whole = [max(0, round(float(value))) for value in values[:REQUEST]]
    attention = round(max(0.0, float(values[ATTENTION])), 3)
    return replace(StepCost(*whole), prefill_attention_ns=attention)


@dataclass(slots=True)
class Equations:
    """`matrix` (n, WIDTH) times the coefficients (ns) should give `ns` (n). `kinds` names what each is of.

    `order` says which lie near each other in time, for the bootstrap.
    """

    matrix: Floats = field(default_factory=lambda: np.empty((0, WIDTH)))
    ns: Floats = field(default_factory=lambda: np.empty(0))
    kinds: list[str] = field(default_factory=list)
    order: Floats = field(default_factory=lambda: np.empty(0))

    def __len__(self) -> int:
        return len(self.kinds)

    @classmethod
    def joined(cls, parts: Sequence[Equations]) -> Equations:
        """All of them; parts keep apart in time."""
        offset, orders = 0.0, []
        for part in parts:
            orders.append(part.order + offset)
            offset += float(np.ptp(part.order)) + 1e12 if len(part) else 0.0
        return cls(
            np.concatenate([np.empty((0, WIDTH)), *(part.matrix for part in parts)]),
            np.concatenate([np.empty(0), *(part.ns for part in parts)]),
            [kind for part in parts for kind in part.kinds],
            np.concatenate([np.empty(0), *orders]),
        )


class Prefix:
    """Columns of a simulation's steps, summed from its start: what was computed until any time."""

    def __init__(self, steps: Sequence[StepRecord]) -> None:
        self.planned_ns: Integers = np.array([step.planned_ns for step in steps], np.int64)
        self.ended_ns: Integers = np.array([step.ended_ns for step in steps], np.int64)
        rows = np.zeros((len(steps) + 1, WIDTH))
        for number, step in enumerate(steps, 1):
            rows[number] = _row(step)
        self._sums: Floats = np.cumsum(rows, axis=0)
        self.shapes: Floats = rows[1:, 1:5] / np.maximum(1.0, rows[1:, :1])  # of each step: (n, 4)

    def until(self, at_ns: Integers) -> Floats:
        """(n, WIDTH) for n times. A step that is under way then counts by the share of it that has passed."""
        done = np.searchsorted(self.ended_ns, at_ns, side="right")
        inside = np.minimum(done, len(self.ended_ns) - 1)
        lasts = np.maximum(1, self.ended_ns[inside] - self.planned_ns[inside])
        share = np.clip((at_ns - self.planned_ns[inside]) / lasts, 0.0, 1.0) * (done < len(self.ended_ns))
        sums: Floats = self._sums[done] + share[:, None] * (self._sums[inside + 1] - self._sums[inside])
        return sums


def _row(step: StepRecord) -> tuple[float, ...]:
    repeat, decode = step.repeat, step.decode_tokens
    attention = 0
    if step.prefill_tokens:
        chunks = ((row.start, row.tokens) for row in step.rows if row.tokens > 1 or not row.samples)
        attention = sum(chunk_attention(start, tokens) for start, tokens in chunks)
    context = repeat * step.context_tokens + decode * (repeat * (repeat - 1) // 2)
    prefill = step.prefill_tokens + step.pad_tokens
    return (repeat, prefill, decode * repeat, context, attention, float(prefill > 0), 0.0)
