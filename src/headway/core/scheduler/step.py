"""What passes between the core and an executor: one `Step` down, one `Outcome` back.

Prefill and decode are both token counts: a row feeds `tokens` at positions `start .. start+len(tokens)`. A decode
row feeds one token, a chunk feeds some of a prompt. Rows are small and self-contained (token ids and block
indices) so that they can cross a process boundary.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as ReadOnlySequence
from dataclasses import dataclass, field

from headway.core.pace import Shape
from headway.core.request import Reason, SamplingParams


@dataclass(slots=True)
class Row:
    """One sequence's share of a step."""

    seq: int  # the sequence's handle, unique for the life of the engine
    start: int  # position of the first token fed; everything before it is resident in `blocks`
    tokens: ReadOnlySequence[int]  # ids fed in this step, at least one
    blocks: ReadOnlySequence[int]  # the whole block table, long enough for start + len(tokens)
    samples: bool  # the last position's logits yield a token
    begin: Begin | None = None  # given with a sequence's first row on this executor


@dataclass(frozen=True, slots=True)
class Begin:
    """What an executor must know once about a sequence before it can sample for it."""

    params: SamplingParams
    prompt: ReadOnlySequence[int]  # the whole prompt: penalties count it
    max_tokens: int


@dataclass(slots=True)
class Step:
    """The work of one inference call."""

    id: int
    rows: list[Row]
    prefill_tokens: int
    decode_tokens: int
    context_tokens: int  # KV tokens read by the decode rows
    attention_tokens: int = 0  # over all chunks: tokens × (context before the chunk + half of the chunk)
    dropped: list[int] = field(default_factory=list)  # handles that ended since the last step: forget them
    planned_ns: int = 0  # when
    pad_tokens: int = 0  # computed and thrown away; only static batching has any
    repeat: int = 1  # decode steps in one go: each row yields up to so many tokens, all rows equally many

    @property
    def shape(self) -> Shape:
        """What its time depends on."""
        return Shape(
            self.prefill_tokens + self.pad_tokens, self.decode_tokens, self.context_tokens, self.attention_tokens
        )

    @property
    def tokens(self) -> int:
        return self.prefill_tokens + self.decode_tokens


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """How likely the model found the chosen token, and its `top` rivals, before temperature and penalties."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(slots=True)
class RowResult:
    """What one sampling row produced. Rows that do not sample have no result."""

    seq: int
    tokens: list[int]
    ended: Reason | None = None
    logprobs: list[TokenLogprob] | None = None  # beside `tokens`, when asked
    failed: str = ""  # why nothing could be drawn for this row: `tokens` is empty then, and the other rows go on


@dataclass(slots=True)
class Outcome:
    """The result of a step. `seconds` is what the inference itself took, for the step-time model."""

    step_id: int
    results: list[RowResult]
    seconds: float = 0.0


class BrokenOutcome(ValueError):
    """An executor answered something else than what it was asked: it is not to be trusted any more."""


def answers(step: Step, outcome: Outcome) -> Iterator[RowResult]:
    """Results in row order, once they are known to answer exactly the sampling rows of `step`."""
    if outcome.step_id != step.id:
        raise BrokenOutcome(f"the outcome answers step {outcome.step_id}, not step {step.id}")
    expected = [row.seq for row in step.rows if row.samples]
    given = [result.seq for result in outcome.results]
    if given != expected:
        raise BrokenOutcome(f"step {step.id} sampled for sequences {expected}, the outcome holds {given}")
    lengths = {len(result.tokens) for result in outcome.results}
    drawn = max(lengths, default=1)
    if not 1 <= drawn <= step.repeat and not all(result.failed for result in outcome.results):
        raise BrokenOutcome(f"step {step.id} produced {drawn} tokens a sequence; 1 to {step.repeat} were to be drawn")
    for result in outcome.results if len(lengths) > 1 else ():
        if not result.failed and len(result.tokens) != drawn:
            raise BrokenOutcome(
                f"step {step.id} produced {len(result.tokens)} tokens for sequence {result.seq}, and {drawn} for others"
            )
    return iter(outcome.results)
