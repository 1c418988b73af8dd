"""What one engine may do in a step (`SchedulerLimits`), and what it has done (`Counters`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from headway.core.errors import ConfigError
from headway.core.scheduler.step import Outcome, Step

KvFull = Literal["preempt", "wait", "reject"]


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """The limits of one step. A chunk that does not finish its prompt ends at a multiple of `chunk_multiple_tokens`.

    `kv_full` says what happens when a running sequence needs a block and none is free: `preempt` (someone gives up its
    KV and is recomputed), `wait` (the worst case is set aside at start, so it never happens), `reject` (the newest
    fails).
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    chunk_multiple_tokens: int = 1
    kv_full: KvFull = "preempt"

    def __post_init__(self) -> None:
        least = self.max_num_seqs + self.chunk_multiple_tokens - 1
        if self.max_num_seqs < 1 or self.max_num_batched_tokens < least:
            raise ConfigError(
                f"max_num_seqs is {self.max_num_seqs} and must be at least 1; max_num_batched_tokens is "
                f"{self.max_num_batched_tokens} and must be at least {least}, so that every running sequence can "
                "decode and a prompt still gets a chunk"
            )


@dataclass(slots=True)
class Counters:
    """Totals since start. Seconds are what the executor reported; a mixed step's are split by its tokens."""

    steps: int = 0
    prefill_tokens: int = 0
    decode_tokens: int = 0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    predicted_seconds: float = 0.0  # what the step-time model said of the steps
    real_seconds: float = 0.0  # from plan to commit
    error_seconds: float = 0.0  # sum of |real - predicted|
    pad_tokens: int = 0
    preemptions: int = 0
    recomputed_tokens: int = 0
    ended: dict[str, int] = field(default_factory=dict)  # by finish reason, or by state where there is none

    def count(self, step: Step, outcome: Outcome) -> None:
        """Add a committed step."""
        repeated = len(outcome.results[0].tokens) if step.repeat > 1 else 1  # a leap stops when somebody ends
        self.steps += repeated
        self.prefill_tokens += step.prefill_tokens
        self.decode_tokens += step.decode_tokens * repeated
        self.pad_tokens += step.pad_tokens
        prefill_share = step.prefill_tokens / step.tokens
        self.prefill_seconds += outcome.seconds * prefill_share
        self.decode_seconds += outcome.seconds * (1.0 - prefill_share)

    def predicted(self, predicted_ns: float, real_ns: int) -> None:
        """Add what was expected of a step, and what came."""
        self.predicted_seconds += predicted_ns / 1e9
        self.real_seconds += real_ns / 1e9
        self.error_seconds += abs(real_ns - predicted_ns) / 1e9
