"""`Finding`: one cause, its evidence, and what to do about it; and `Change`: the exact setting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

Confidence = Literal["high", "medium", "low"]

# The brief's four questions, and which of them a cause is an answer to.
CHAPTERS = {
    "concurrency": "TTFT gets worse as concurrency rises",
    "utilisation": "utilisation is high and users find it slow",
    "memory": "it starts, and runs out of memory at high concurrency",
    "low-rate": "requests are few and it is slow all the same",
}


@dataclass(frozen=True, slots=True)
class Change:
    """A setting of the server, the value to give it (None: a kind of change, not a number) and why.

    `engine` and `value` are what a simulation can change; `words` is what a person does.
    """

    words: str
    setting: str = ""
    value: float | str | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """`cost_s`: how much later a request is for it, on average; by it findings are compared.

    `explains`: causes that are only symptoms of this one.
    """

    cause: str
    title: str
    chapter: str
    evidence: tuple[str, ...]
    confidence: Confidence
    changes: tuple[Change, ...]
    cost_s: float = 0.0
    explains: Sequence[str] = field(default=())
    effect: tuple[str, ...] = ()  # of the change, simulated
