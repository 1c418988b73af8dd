"""`Window`: how much one worker may have in flight, in sequences and tokens: as much as keeps it busy, and no queue.

What waits inside a worker waits in its order, not in ours. So the window grows while it is full and the worker does not
queue: by a quarter while that gains throughput, by a little when it does not; and shrinks to what really runs as soon
as it queues. What says that it does not queue must be newer than the last change, and account for what was sent there.
"""

from __future__ import annotations

import math

GROW_EVERY_NS = 250_000_000
# After a queue: it takes a while to drain.
REST_NS = 1_000_000_000
GAIN = 1.02
GROWTH, SLOW_GROWTH = 1.25, 1.05


class Window:
    """`most` bounds `sequences`; 0 is no bound."""

    __slots__ = ("_done_tokens", "_ended", "_full", "_most", "_next_ns", "_rate", "_since_ns", "sequences", "tokens")

    def __init__(self, first: int, most: int = 0) -> None:
        self._most = most or math.inf
        self.sequences: float = min(first, self._most)
        self.tokens = math.inf
        self._full = False  # since the last change, as are the next two
        self._done_tokens = 0
        self._ended = 0
        self._since_ns = self._next_ns = 0  # of the last change, and when there may be another
        self._rate = 0.0  # tokens a second when it last grew

    def open(self, sequences: int) -> bool:
        """Is there a place beside so many in flight?"""
        self._full = self._full or sequences + 1 >= int(self.sequences)
        return sequences < int(self.sequences)

    def holds(self, tokens: int, more: int, *, of: float = 1.0) -> bool:
        """Do `more` tokens fit beside those in flight, into such a part `of` the window? Alone anything does."""
        fit = not tokens or tokens + more <= self.tokens * of
        self._full = self._full or not fit
        return fit

    def done(self, tokens: int, *, ended: bool) -> None:
        """So much work has been finished: what throughput is measured by."""
        self._done_tokens += tokens
        self._ended += ended

    def adjust(
        self, now: int, *, queued: float, sequences: int, tokens: int, true_ns: int | None = None, hidden: float = 0.0
    ) -> None:
        """Of `sequences` in flight with `tokens` at `true_ns`, `queued` waited inside the worker, as it told.

        Of no time, it is a belief: it follows from requests that have ended, so after a change some first have to.
        `hidden` were sent to it before `true_ns` and had not ended, and it spoke of none of them: they may queue.
        """
        if self._ended < self.sequences / 2 if true_ns is None else true_ns < self._since_ns:
            return
        if now < self._next_ns:
            return
        if queued > 1 + self.sequences / 8:
            runs = max(1.0, sequences - queued + 1)
            if runs < self.sequences and sequences:
                self.tokens = max(1.0, min(self.tokens, tokens * runs / sequences))
            self.sequences = min(self.sequences, runs)
            self._restart(now, REST_NS)
        elif self._full and hidden <= 1 + sequences / 8:
            elapsed_s = (now - self._since_ns) / 1e9
            rate = self._done_tokens / elapsed_s if elapsed_s > 0 else 0.0
            growth = GROWTH if rate > self._rate * GAIN else SLOW_GROWTH
            self._rate = rate
            before = self.sequences
            self.sequences = min(self._most, max(before + 1, before * growth))
            self.tokens *= self.sequences / before
            self._restart(now, GROW_EVERY_NS)

    def _restart(self, now: int, rest_ns: int) -> None:
        self._full = False
        self._done_tokens = self._ended = 0
        self._since_ns, self._next_ns = now, now + rest_ns
