"""`Steps`: how long a step takes, and so how many sequences and prompt tokens fit into one. For all who advise.

The formula is the core's (`core/pace.py`). What `advise` and the doctor aim at stands here as well, so that no two of
them advise different numbers from the same facts.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass

from headway.core.pace import Shape, StepTime

KV_AIM = 0.85  # of the KV cache, when slots are counted by it
ITL_AIM = 0.9  # of the promise, so that chance does not break it
GAINS = 1.15  # a batch twice as large must bring so many times the tokens; less is not worth its latency
LEAST_BUDGET_TOKENS = 64


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps of one engine under its load. `context_tokens`: the KV tokens of one running sequence, the mean.

    `prompt_tokens`: the longest prompt; unknown (None), it is whatever a step takes in. `prefill_step_ns`: more, of a
    step with any prompt in it.
    """

    time: StepTime
    context_tokens: float = 0.0
    prompt_tokens: float | None = None
    prefill_step_ns: float = 0.0

    def step_s(self, tokens: int, seqs: float) -> float:
        """A step of `tokens`, s: so many sequences decode, as far as they fit, and prompts take the rest.

        Attention is of the end of the longest prompt, where a token sees most; of more tokens than that has, of whole
        prompts as long: t tokens that end at the L-th see t × (L - t / 2) before them.
        """
        decode = min(round(seqs), tokens)
        prompt = tokens - decode
        longest = prompt if self.prompt_tokens is None else self.prompt_tokens
        attention = round(prompt * (longest - min(prompt, longest) / 2))
        shape = Shape(prompt, decode, round(decode * self.context_tokens), attention)
        return (self.time.predict_ns(shape) + (self.prefill_step_ns if prompt else 0.0)) / 1e9

    def decode_s(self, seqs: float) -> float:
        """A step in which so many sequences decode, and nothing else happens, s."""
        return self.step_s(round(seqs), seqs)

    def seqs_within(self, most: int, within_s: float) -> int:
        """How many sequences, up to `most`, decode in that time; 0: not even one."""
        return _largest(most, lambda seqs: self.decode_s(seqs) <= within_s)

    def budget_within(self, most: int, seqs: float, within_s: float) -> int:
        """The largest token budget, up to `most`, whose full step takes no longer while so many decode; 0: none."""
        return _largest(most, lambda tokens: self.step_s(tokens, seqs) <= within_s)

    def gain(self, now: float, to: float) -> float:
        """Tokens a second of decode at one batch size over those at another."""
        before_s, after_s = self.decode_s(now), self.decode_s(to)
        return to / now * (before_s / after_s if after_s > 0 else 1.0)

    def pays(self, now: float, to: float) -> bool:
        """Is the larger batch worth it, by `GAINS` for each doubling?"""
        return self.gain(now, to) >= math.pow(GAINS, math.log2(to / now))


def seqs_by_kv(each: float, capacity: float = 1.0) -> float:
    """How many sequences fit into KV when each holds so much of it, in whatever unit; any number of empty ones."""
    return KV_AIM * capacity / each if each > 0 else math.inf


def _largest(most: int, fits: Callable[[int], bool]) -> int:
    """The largest of 1 … `most` that fits, where smaller ones fit as well; 0 when none does."""
    return bisect_left(range(1, most + 1), True, key=lambda number: not fits(number))
