"""A few seconds of measured steps at start, so that the first promise is kept with numbers and not with hope."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from headway.core.pace import Shape, chunk_attention
from headway.core.request import SamplingParams
from headway.core.scheduler.step import Begin, Outcome, Row, Step
from headway.executors.executor import ExecutorInfo

# (decode sequences, their context) and (chunk, position it begins at): one of every kind, small and large.
DECODES = ((1, 64), (4, 64), (16, 64), (48, 64), (8, 1024))
CHUNKS = ((32, 0), (128, 0), (256, 0), (128, 1024))
REPEATS = 2  # beside one that warms up

GREEDY = SamplingParams(temperature=0.0)


def profile(
    run: Callable[[Step], Outcome], info: ExecutorInfo, *, max_num_seqs: int, max_num_batched_tokens: int
) -> list[tuple[Shape, int]]:
    """Run one step of each kind that fits the limits, on an idle executor. Returns (shape, real ns) of each."""
    observations = []
    dropped: list[int] = []
    for number, rows in enumerate(_steps(info, max_num_seqs, max_num_batched_tokens)):
        for repeat in range(REPEATS + 1):
            step = _step(number * (REPEATS + 1) + repeat, rows, info.block_size, dropped)
            dropped = [row.seq for row in step.rows]
            started = time.perf_counter_ns()
            run(step)
            if repeat:
                observations.append((step.shape, time.perf_counter_ns() - started))
    run(Step(0, [], 0, 0, 0, dropped=dropped))
    return observations


def _steps(info: ExecutorInfo, max_num_seqs: int, max_num_batched_tokens: int) -> Iterator[list[tuple[int, int]]]:
    """Rows as (tokens, start)."""
    kinds = [[(1, context)] * min(count, max_num_seqs) for count, context in DECODES]
    kinds += [[(min(tokens, max_num_batched_tokens), start)] for tokens, start in CHUNKS]
    for rows in kinds:
        blocks = sum(-(-(start + tokens) // info.block_size) for tokens, start in rows)
        if blocks <= info.num_blocks and max(start + tokens for tokens, start in rows) < info.max_model_len:
            yield rows


def _step(number: int, rows: list[tuple[int, int]], block_size: int, dropped: list[int]) -> Step:
    """What is in KV does not matter for the time. Handles are negative: no scheduler gives those."""
    decode = [start for tokens, start in rows if tokens == 1]
    chunks = [(tokens, start) for tokens, start in rows if tokens > 1]
    made: list[Row] = []
    first_block = 0
    for index, (tokens, start) in enumerate(rows):
        handle = -(number * 1000 + index + 1)
        blocks = -(-(start + tokens) // block_size)
        begin = Begin(GREEDY, [1] * (start + tokens), 2)
        made.append(Row(handle, start, [1] * tokens, range(first_block, first_block + blocks), True, begin))
        first_block += blocks
    attention = sum(chunk_attention(start, tokens) for tokens, start in chunks)
    prefill = sum(tokens for tokens, _ in chunks)
    return Step(number, made, prefill, len(decode), sum(decode), attention, dropped=dropped)
