"""`PromptTime`: how long one worker takes from a request to its first byte, by what has to be read before that byte.

Learnt from what it did: the wait is a constant and a part for each prompt token that stood before the first byte, its
own and those of requests that were sent before it and had none yet. Least squares, with nothing below 0. The part for
each token only counts as far as it is evident (two standard errors): a server whose first byte takes long whatever
else it has to do is not taken to be one that reads slowly.
"""

from __future__ import annotations

import math

# How much each later request leaves of an earlier one: about the last fifty count.
REMEMBERED = 0.98
FEWEST = 3.0


class PromptTime:
    """Of one worker. `token_ns` is what a prompt token more adds, `constant_ns` what there is without any."""

    __slots__ = ("_count", "_t", "_tt", "_tw", "_w", "_ww", "constant_ns", "token_ns")

    def __init__(self) -> None:
        self.constant_ns = self.token_ns = 0.0
        self._count = self._t = self._w = self._tt = self._tw = self._ww = 0.0  # sums, of tokens and waits

    def __bool__(self) -> bool:
        """Is anything known?"""
        return self._count > 0

    def ns(self, tokens: float) -> float:
        """How long a prompt takes at a worker that has no other to read."""
        return self.constant_ns + self.token_ns * tokens

    def observe(self, tokens: int, wait_ns: int) -> None:
        """So many tokens stood before a first byte, and it took so long."""
        self._count = self._count * REMEMBERED + 1.0
        self._t = self._t * REMEMBERED + tokens
        self._w = self._w * REMEMBERED + wait_ns
        self._tt = self._tt * REMEMBERED + tokens * tokens
        self._tw = self._tw * REMEMBERED + tokens * wait_ns
        self._ww = self._ww * REMEMBERED + wait_ns * wait_ns
        self._fit()

    def _fit(self) -> None:
        count = self._count
        tokens, wait = self._t / count, self._w / count
        spread = self._tt / count - tokens * tokens
        self.token_ns, self.constant_ns = 0.0, wait
        if count < FEWEST or spread < 1.0:
            return
        slope = (self._tw / count - tokens * wait) / spread
        left = max(0.0, self._ww / count - wait * wait - slope * slope * spread)
        evident = slope - 2.0 * math.sqrt(left / (spread * count))
        # The constant is not below 0, so the slope is at most the line's through the origin.
        self.token_ns = min(max(0.0, evident), wait / max(1.0, tokens))
        self.constant_ns = max(0.0, wait - self.token_ns * tokens)
