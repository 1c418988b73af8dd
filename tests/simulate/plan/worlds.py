"""Replicas whose steps cost round numbers, and traffic that is small enough to be tried often."""

from __future__ import annotations

from typing import Any

from headway.core.pace import Shape
from headway.executors.simulated import StepCost
from headway.simulate.fit import Valid
from headway.simulate.plan import Candidate, Limits, Room, Steady, StepCosts
from headway.workload.lengths import Independent, Lengths
from headway.workload.mix import Mix, Share

MS = 1_000_000
# 10 ms a step, and 1 ms for each sequence that decodes: power is highest at a batch of ten.
COST = StepCost(10 * MS, 20_000, MS, 0, 0, 0)


def exactly(cost: StepCost) -> StepCosts:
    """Known without doubt."""
    return StepCosts(cost, cost, cost)


def candidate(name: str = "box", price: float = 1.0, cost: StepCost = COST, **changes: Any) -> Candidate:
    """A replica with KV for 100,000 tokens, unless `room` says otherwise."""
    room = changes.pop("room", Room(6_250, 16))

    def memory(_limits: Limits, _max_model_len: int) -> Room:
        return room

    fields: dict[str, Any] = {"costs": exactly(cost), "memory": memory, "context_tokens": 8_192, **changes}
    return Candidate(name=name, price_per_hour=price, **fields)


def traffic(rate: float, prompt: Lengths, output: Lengths, burstiness: float = 1.0) -> Steady:
    return Steady(rate, Mix((Share("", 1.0, Independent(prompt, output)),)), burstiness)


def seen(shape: Shape, *, least_seqs: int = 1) -> Valid:
    """Steps up to this one."""
    return Valid(
        steps=1_000,
        max_prefill_tokens=shape.prefill_tokens,
        min_decode_seqs=least_seqs,
        max_decode_seqs=shape.decode_seqs,
        max_context_tokens=shape.context_tokens,
        max_attention_tokens=shape.attention_tokens,
    )
