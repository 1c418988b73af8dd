"""The job of the offline benchmark: four system prompts, mixed lengths, seeded; and the same as a batch's input.

Token ids rather than text, and a fixed number of output tokens with end-of-sequence ignored, so that every side does
the same work. Imports nothing but the standard library: it also runs in the peers' environments.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ITEMS = 2000
SYSTEM_PROMPTS = 4
SYSTEM_TOKENS = (192, 256, 320, 384)
QUESTION_TOKENS = (8, 16, 32, 64, 128, 256)
OUTPUT_TOKENS = (8, 16, 32, 64)
TOKEN_IDS = (100, 40_000)  # from, up to: ordinary tokens, away from the special ones
SIMULATED_IDS = (260, 500)  # of the simulated model, which knows few words
MEASURED_SEED = 0
WARM_UP_SEED, WARM_UP_ITEMS = 1, 64

# The same limits for every side.
MAX_NUM_SEQS = 64
MAX_NUM_BATCHED_TOKENS = 512


@dataclass(frozen=True)
class Job:
    """`prompts[i]`, which begins with one of the system prompts, is to be continued by exactly `outputs[i]` tokens."""

    prompts: list[list[int]]
    outputs: list[int]

    @property
    def tokens(self) -> int:
        return sum(map(len, self.prompts)) + sum(self.outputs)


def ids_of(executor: str) -> tuple[int, int]:
    return SIMULATED_IDS if executor == "simulated" else TOKEN_IDS


def make_job(
    items: int, seed: int = MEASURED_SEED, ids: tuple[int, int] = TOKEN_IDS, systems: int = SYSTEM_PROMPTS
) -> Job:
    """Same seed, same job, on every machine and Python."""
    draw = random.Random(seed)

    def words(count: int) -> list[int]:
        return [draw.randrange(*ids) for _ in range(count)]

    beginnings = [words(SYSTEM_TOKENS[number % len(SYSTEM_TOKENS)]) for number in range(systems)]
    prompts = [draw.choice(beginnings) + words(draw.choice(QUESTION_TOKENS)) for _ in range(items)]
    return Job(prompts, [draw.choice(OUTPUT_TOKENS) for _ in range(items)])


def lines(job: Job) -> Iterator[str]:
    for number, (prompt, output) in enumerate(zip(job.prompts, job.outputs, strict=True)):
        body = {"prompt": prompt, "max_tokens": output, "ignore_eos": True, "temperature": 0, "seed": number}
        yield json.dumps({"custom_id": f"item-{number}", "method": "POST", "url": "/v1/completions", "body": body})


def write(job: Job, path: Path) -> None:
    path.write_text("".join(line + "\n" for line in lines(job)))


def told(job: Job, wall_s: float, produced: int, **more: float) -> str:
    """A side's result, in one line."""
    if produced != sum(job.outputs):
        raise SystemExit(f"the side produced {produced} tokens instead of {sum(job.outputs)}: not the same work")
    return json.dumps({"wall_s": wall_s, "total_tok_s": job.tokens / wall_s, "output_tok_s": produced / wall_s, **more})
