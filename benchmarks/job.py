"""The job that every side of the throughput benchmark runs: 64 completions of seeded, meaningless prompts.

Token ids rather than text, and a fixed number of output tokens with end-of-sequence ignored, so that every side does
the same work. Imports nothing but the standard library: it also runs in the peers' environments.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from dataclasses import dataclass

REQUESTS = 64
PROMPT_TOKENS = (64, 128, 256, 512)
OUTPUT_TOKENS = (32, 64, 128)
TOKEN_IDS = (100, 40_000)  # from, up to: ordinary tokens, away from the special ones

# The same limits for every side.
MAX_NUM_SEQS = 64
MAX_NUM_BATCHED_TOKENS = 512
KV_CACHE_GIB = 2

MEASURED_SEED = 0
WARM_UP_SEED = 1


@dataclass(frozen=True)
class Job:
    """`prompts[i]` is to be continued by exactly `outputs[i]` tokens."""

    prompts: list[list[int]]
    outputs: list[int]

    @property
    def tokens(self) -> int:
        return sum(map(len, self.prompts)) + sum(self.outputs)


def make_job(seed: int) -> Job:
    """Same seed, same job, on every machine and Python: lengths and ids come from one `random.Random`."""
    draw = random.Random(seed)
    prompts = []
    for _ in range(REQUESTS):
        length = draw.choice(PROMPT_TOKENS)
        prompts.append([draw.randrange(*TOKEN_IDS) for _ in range(length)])
    return Job(prompts, [draw.choice(OUTPUT_TOKENS) for _ in range(REQUESTS)])


def measure(run: Callable[[Job], int]) -> None:
    """Run a warm-up job, then the measured one, and print one JSON line. `run` returns the output tokens it got."""
    for seed in (WARM_UP_SEED, MEASURED_SEED):
        job = make_job(seed)
        start = time.perf_counter()
        produced = run(job)
        wall_s = time.perf_counter() - start
        if produced != sum(job.outputs):
            raise SystemExit(f"the side produced {produced} tokens instead of {sum(job.outputs)}: not the same work")
    result = {"wall_s": wall_s, "total_tok_s": job.tokens / wall_s, "output_tok_s": sum(job.outputs) / wall_s}
    print(json.dumps(result), flush=True)
