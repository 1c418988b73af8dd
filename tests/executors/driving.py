"""A driver small enough to trust: feeds sequences to an executor in chunks, batches and scrambled blocks."""

from __future__ import annotations

import itertools
import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from headway.core.pace import chunk_attention
from headway.core.request import Reason, SamplingParams
from headway.core.scheduler.step import Begin, Row, RowResult, Step
from headway.executors.executor import Executor

GREEDY = SamplingParams(temperature=0.0, ignore_eos=True)
# Handles are unique for the life of an executor, and tests share executors.
HANDLES = itertools.count(1)


@dataclass(slots=True)
class Fed:
    """One sequence as the driver sees it."""

    handle: int
    prompt: list[int]
    params: SamplingParams
    max_tokens: int
    begun: bool = False
    fed: int = 0  # positions resident in `blocks`
    blocks: list[int] = field(default_factory=list)
    output: list[int] = field(default_factory=list)
    forced: list[int] | None = None  # what to feed instead of the own output
    ended: Reason | None = None

    @property
    def known(self) -> list[int]:
        """Every token that can be fed."""
        output = self.output if self.forced is None else self.forced[: len(self.output)]
        return self.prompt + output


def generate(
    executor: Executor,
    prompts: Sequence[Sequence[int]],
    *,
    max_tokens: int,
    params: SamplingParams | Sequence[SamplingParams] = GREEDY,
    chunk: int = 1 << 30,
    stagger: int = 0,
    preempt_at: Collection[tuple[int, int]] = (),
    pad_tokens: int = 0,
    forced: Sequence[list[int]] | None = None,
) -> list[list[int]]:
    """The output of each prompt.

    Prompt `i` joins at step `i * stagger` and is fed `chunk` tokens a step beside the decodes of others.
    `preempt_at` holds (prompt index, output tokens so far) at which a sequence loses its blocks and is fed again.
    With `forced`, outputs are recorded but those tokens are fed on, so that each is a judgement of its own.
    """
    each = [params] * len(prompts) if isinstance(params, SamplingParams) else list(params)
    sequences = [
        Fed(next(HANDLES), list(prompt), each[index], max_tokens, forced=None if forced is None else forced[index])
        for index, prompt in enumerate(prompts)
    ]
    free = list(range(executor.info.num_blocks))
    random.Random(7).shuffle(free)
    to_preempt = set(preempt_at)
    for step_id in itertools.count():
        running = [s for i, s in enumerate(sequences) if s.ended is None and i * stagger <= step_id]
        if not running and all(s.ended for s in sequences):
            break
        for index, sequence in enumerate(sequences):
            if (index, len(sequence.output)) in to_preempt:
                to_preempt.remove((index, len(sequence.output)))
                free.extend(sequence.blocks)
                sequence.blocks, sequence.fed = [], 0
        rows = [next_row(executor, sequence, chunk, free) for sequence in running]
        results = {result.seq: result for result in executor.run(step_of(rows, step_id, pad_tokens)).results}
        for row, sequence in zip(rows, running, strict=True):
            sequence.fed += len(row.tokens)
            _apply(sequence, results.get(sequence.handle))
            if sequence.ended:
                free.extend(sequence.blocks)
    executor.run(Step(-1, [], 0, 0, 0, dropped=[sequence.handle for sequence in sequences]))
    return [sequence.output for sequence in sequences]


def next_row(executor: Executor, sequence: Fed, chunk: int, free: list[int]) -> Row:
    known = sequence.known
    end = min(len(known), sequence.fed + chunk)
    while len(sequence.blocks) * executor.info.block_size < end:
        sequence.blocks.append(free.pop())
    begin = None if sequence.begun else Begin(sequence.params, tuple(sequence.prompt), sequence.max_tokens)
    sequence.begun = True
    tokens = known[sequence.fed : end]
    return Row(sequence.handle, sequence.fed, tokens, list(sequence.blocks), end == len(known), begin)


def step_of(rows: list[Row], step_id: int = 0, pad_tokens: int = 0, dropped: Sequence[int] = ()) -> Step:
    decodes = [row for row in rows if len(row.tokens) == 1]
    return Step(
        id=step_id,
        rows=rows,
        prefill_tokens=sum(len(row.tokens) for row in rows) - len(decodes),
        decode_tokens=len(decodes),
        context_tokens=sum(row.start for row in decodes),
        attention_tokens=sum(chunk_attention(row.start, len(row.tokens)) for row in rows if len(row.tokens) > 1),
        dropped=list(dropped),
        pad_tokens=pad_tokens,
    )


def _apply(sequence: Fed, result: RowResult | None) -> None:
    if result is not None:
        sequence.output += result.tokens
        sequence.ended = result.ended


def one_row(
    prompt: Sequence[int], *, max_tokens: int = 8, params: SamplingParams = GREEDY, blocks: Sequence[int] = (0,)
) -> Row:
    """A first row that feeds the whole prompt and samples."""
    return Row(next(HANDLES), 0, list(prompt), list(blocks), True, Begin(params, tuple(prompt), max_tokens))
