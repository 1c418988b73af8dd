"""The seam between deciding and computing: an `Executor` turns a `Step` into an `Outcome`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from headway.core.pace import StepTime
from headway.core.scheduler.step import Outcome, Step


@dataclass(frozen=True, slots=True)
class ExecutorInfo:
    """What an executor really is, fixed at start: stated, not asked for."""

    name: str  # "openvino", "simulated"
    block_size: int  # tokens in one KV block
    num_blocks: int  # KV blocks that exist
    chunk_multiple_tokens: int  # chunks that do not finish a prompt must end at a multiple of this position
    kv_bytes_per_token: int
    vocab_size: int
    max_model_len: int  # positions the model was trained for
    precision: str  # of the matrix work, as the runtime reports it: "bf16", "f32"
    kv_cache_dtype: str
    instruction_set: str  # e.g. "avx512_bf16"; "" where it means nothing
    threads: int
    step_time: StepTime | None = None  # what a step takes, where that is known and need not be measured


class Executor(Protocol):
    """Runs steps, one at a time. Synchronous: whoever drives it owns processes and threads.

    Contract (tests/executors/test_contract.py holds it for every implementation):
    - every row with `samples` yields exactly one `RowResult`, in row order; other rows none;
    - a result holds one token, unless `Step.repeat` asks for more: then every row, all of them decode rows, yields the
      same number of tokens, at least one and at most `repeat`, and stops with the first that ends one of them. Each
      token but the last was fed in turn, `Outcome.seconds` is the time of all those steps. One token is always right;
    - a result ends (`ended`) on an end-of-sequence or stop token id (`Reason.STOP`; the token is included) or when the
      sequence has produced `max_tokens` tokens (`Reason.LENGTH`);
    - a sequence is known from its `Begin` until it is named in `Step.dropped`; after a preemption its tokens are fed
      again without a new `Begin` and what it draws does not change;
    - the caller's step is not modified.
    """

    @property
    def info(self) -> ExecutorInfo: ...

    def run(self, step: Step) -> Outcome:
        """Compute the step. Raises on a broken step or a broken device; the executor is then not usable again."""
        ...

    def close(self) -> None:
        """Free everything. Idempotent."""
        ...
