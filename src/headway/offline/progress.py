"""`Progress`: how far a batch is, and when it will be done. Told by tokens: items differ too much to be counted."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

WINDOW_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """`ratio` is of tokens, 0 to 1. `eta_s` is None while nothing can be said. `limit`: items that may run at once."""

    done: int
    failed: int
    in_flight: int
    limit: int
    ratio: float
    tokens_per_s: float
    eta_s: float | None
    reading: bool  # the input's end has not been seen
    words: str = ""  # what stands in the way


class Pace:
    """From what was guessed of items and what they came to: how many tokens are left, and how fast they go."""

    def __init__(self) -> None:
        self._guessed = 0  # of items that ended here
        self._real = 0
        self._samples: deque[tuple[float, int]] = deque()  # when, and how many tokens by then

    def ended(self, guessed_tokens: int, real_tokens: int) -> None:
        self._guessed += guessed_tokens
        self._real += real_tokens

    @property
    def scale(self) -> float:
        """How many tokens come of each that was guessed."""
        return self._real / self._guessed if self._guessed else 1.0

    def rate(self, now_s: float) -> float:
        """Tokens a second, over the last minute. Ask regularly."""
        self._samples.append((now_s, self._real))
        while now_s - self._samples[0][0] > WINDOW_S:
            self._samples.popleft()
        since_s, before = self._samples[0]
        return (self._real - before) / (now_s - since_s) if now_s > since_s else 0.0
