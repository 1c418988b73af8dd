"""How long a step will take (`StepTimeModel`), and so how much prefill a step may carry (`Pace`).

The model is linear and physical: a constant (launching, sampling, bookkeeping), a part for each prefill token and each
decode sequence (matrix work), a part for each KV token that decode reads (memory), and one for prefill attention
(chunk × context). Its coefficients are never negative, so more work is never predicted to be faster.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

# How much an observation counts after each later one: about the last 400 steps matter.
FORGET = 0.9975
# What the profile taken at start keeps weighing, in observations: a phase of pure decode must not unlearn prefill.
PROFILE_WEIGHT = 20.0
REFIT_EVERY = 8
# A step this many times its prediction is somebody else's doing (a scheduler's hiccup, a page fault): not learnt from.
OUTLIER_RATIO = 4.0
# The quantile of (real / predicted) that the ITL promise is kept against.
MARGIN_QUANTILE = 0.98
MARGIN_RATE = 0.01
MAX_MARGIN = 2.0
ROUNDING_NS = 1  # time is whole ns: a step that takes as long as predicted is not late
# More than any chunk: no limit.
UNLIMITED_TOKENS = 1 << 30


class Shape(NamedTuple):
    """What a step's time depends on."""

    prefill_tokens: int = 0
    decode_seqs: int = 0
    context_tokens: int = 0  # KV tokens that the decode rows read
    attention_tokens: int = 0  # over all chunks: tokens × (context before the chunk + half of the chunk)


def chunk_attention(start: int, tokens: int) -> int:
    """`Shape.attention_tokens` of one chunk of `tokens` tokens at position `start`."""
    return tokens * start + tokens * tokens // 2


@dataclass(frozen=True, slots=True)
class StepTime:
    """Coefficients, in ns: of the constant and of each field of `Shape`."""

    step_ns: float
    prefill_token_ns: float
    decode_seq_ns: float
    context_token_ns: float
    attention_token_ns: float

    def predict_ns(self, shape: Shape) -> float:
        return (
            self.step_ns
            + self.prefill_token_ns * shape.prefill_tokens
            + self.decode_seq_ns * shape.decode_seqs
            + self.context_token_ns * shape.context_tokens
            + self.attention_token_ns * shape.attention_tokens
        )

    def prefill_ns(self, start: int, tokens: int) -> float:
        """What `tokens` more prefill tokens from position `start` add to a step."""
        return self.prefill_token_ns * tokens + self.attention_token_ns * chunk_attention(start, tokens)

    def tokens_within(self, start: int, budget_ns: float) -> int:
        """The largest chunk from position `start` that adds at most `budget_ns`."""
        if budget_ns <= 0:
            return 0
        square = self.attention_token_ns / 2
        linear = self.prefill_token_ns + self.attention_token_ns * start
        if budget_ns == math.inf or (linear <= 0 and square <= 0):
            return UNLIMITED_TOKENS
        if square <= 1e-9 * linear * (linear / budget_ns):  # the square vanishes, and so would the digits of its root
            root = budget_ns / linear
        else:
            root = (math.sqrt(linear * linear + 4 * square * budget_ns) - linear) / (2 * square)
        tokens = int(min(root, UNLIMITED_TOKENS))
        # `prefill_ns` counts whole tokens squared, and the root may have lost its digits: believe it if it is right.
        if self.prefill_ns(start, tokens) <= budget_ns < self.prefill_ns(start, tokens + 1):
            return tokens
        return bisect_right(range(1, UNLIMITED_TOKENS + 1), budget_ns, key=lambda n: self.prefill_ns(start, n))


class StepTimeModel:
    """`StepTime` learnt from observed steps: least squares of the *relative* error, coefficients not negative.

    Relative, because a promise is broken by proportion: 10 ms too long matters in a step of 20, not in one of 500.
    `frozen` models do not learn: a simulation must not depend on what it has simulated. `stated` ones keep their
    coefficients, and learn how late real steps are beyond them.
    """

    def __init__(self, coefficients: StepTime, *, frozen: bool = False, stated: bool = False) -> None:
        self.coefficients = coefficients
        self.frozen = frozen
        self.stated = stated
        self.margin = 1.0  # tracked MARGIN_QUANTILE of real / predicted, at least 1
        self._profile = _Normal()
        self._online = _Normal()
        self._observed = 0
        self._outliers = 0  # in a row

    def profile(self, observations: Sequence[tuple[Shape, int]]) -> None:
        """Learn from steps run for the purpose: (shape, ns) of a few, of every kind."""
        if not observations:
            return
        for shape, real_ns in observations:
            self._profile.add(shape, real_ns, PROFILE_WEIGHT / len(observations))
        self._refit()

    def observe(self, shape: Shape, real_ns: int) -> None:
        """Learn from a step that was run."""
        if self.frozen or real_ns <= 0:
            return
        ratio = (real_ns - ROUNDING_NS) / max(1.0, self.coefficients.predict_ns(shape))
        step = MARGIN_QUANTILE if ratio > self.margin else MARGIN_QUANTILE - 1.0
        self.margin = min(MAX_MARGIN, max(1.0, self.margin + MARGIN_RATE * step))
        if self.stated:
            return
        self._outliers = self._outliers + 1 if ratio > OUTLIER_RATIO else 0
        # So many in a row are no hiccups: the machine has become slower.
        if 0 < self._outliers <= REFIT_EVERY < self._observed:
            return
        self._online.decay(FORGET)
        self._online.add(shape, real_ns, 1.0)
        self._observed += 1
        if self._observed % REFIT_EVERY == 0:
            self._refit()

    def _refit(self) -> None:
        c = self.coefficients
        start = [c.step_ns, c.prefill_token_ns, c.decode_seq_ns, c.context_token_ns, c.attention_token_ns]
        self.coefficients = StepTime(*_solve([self._profile, self._online], start))


class _Normal:
    """The normal equations A x = b of weighted least squares, kept as sums."""

    __slots__ = ("a", "b")

    def __init__(self) -> None:
        self.a = [[0.0] * 5 for _ in range(5)]
        self.b = [0.0] * 5

    def decay(self, factor: float) -> None:
        for row in self.a:
            for j in range(5):
                row[j] *= factor
        for i in range(5):
            self.b[i] *= factor

    def add(self, shape: Shape, real_ns: int, weight: float) -> None:
        relative = [value / real_ns for value in (1, *shape)]
        for i, left in enumerate(relative):
            if left:
                row = self.a[i]
                for j, right in enumerate(relative):
                    row[j] += weight * left * right
                self.b[i] += weight * left


def _solve(parts: Sequence[_Normal], x: list[float], sweeps: int = 60) -> list[float]:
    """Minimise over x >= 0, from a start: coordinate descent (Franc, Hlaváč, Navara 2005), exact in the limit."""
    a = [[sum(part.a[i][j] for part in parts) for j in range(5)] for i in range(5)]
    b = [sum(part.b[i] for part in parts) for i in range(5)]
    for _ in range(sweeps):
        for i in range(5):
            if a[i][i] > 0:
                gradient = sum(a[i][j] * x[j] for j in range(5)) - b[i]
                x[i] = max(0.0, x[i] - gradient / a[i][i])
    return x
