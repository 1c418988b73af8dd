"""`Window`: how much one worker may have in flight, in sequences and tokens: as much as keeps it busy, and no queue.

What waits inside a worker waits in its order, not in ours. So the window grows while it is full and the worker does not
queue: by a quarter while that gains throughput, by a little when it does not; and shrinks to what really runs as soon
as it queues. What says that it does not queue must be newer than the last change, and account for what was sent there.

A young window, of a worker that is not known yet, is far too small for most. It grows by a half, with every signal; and
before the next one by first bytes, since whoever has one runs: at scrapes five times a second most of its first seconds
would be lost.
"""

from __future__ import annotations

import math

GROW_EVERY_NS = 250_000_000
# After a queue: it takes a while to drain.
REST_NS = 1_000_000_000
GAIN = 1.02
GROWTH, SLOW_GROWTH = 1.25, 1.05
# A window is young until its worker is seen to queue or not to gain, and for no longer than this after it first grew.
YOUNG_NS = 2_000_000_000
YOUNG_GROWTH = 1.5
# While it is young throughput must gain a part of what the window did: what was just filled always reads some prompts.
YOUNG_GAIN = 0.33
# How far first bytes let it grow before the next signal: there are servers that send theirs early.
PROVEN_RATIO = 3.5


class Window:
    """`most` bounds `sequences`; 0 is no bound."""

    __slots__ = (
        "_changed_ns",
        "_done_tokens",
        "_ended",
        "_full",
        "_measured",
        "_most",
        "_most_tokens",
        "_next_ns",
        "_proven",
        "_rate",
        "_since_ns",
        "_young_until_ns",
        "sequences",
        "tokens",
        "young",
    )

    def __init__(self, first: int, most: int = 0) -> None:
        self._most = most or math.inf
        self._most_tokens = math.inf
        self.sequences: float = min(first, self._most)
        self.tokens = math.inf
        self.young = True
        self._young_until_ns = 0  # 0: it has not grown yet
        self._proven = self.sequences * PROVEN_RATIO  # so far it may grow by first bytes
        self._changed_ns = 0
        self._full = False  # since then
        self._since_ns = self._next_ns = 0  # of the last change by a signal, and when there may be another
        self._done_tokens = 0  # since the last change by a signal
        self._ended = 0  # since then, too
        self._rate = 0.0  # tokens a second when it last grew
        self._measured = self.sequences  # what it was then

    def bound_tokens(self, most: float) -> None:
        """More tokens than this the worker cannot hold."""
        self._most_tokens = most
        self.tokens = min(self.tokens, most)

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
        if self._ended < self.sequences / 2 if true_ns is None else true_ns < self._changed_ns:
            return
        if now < self._next_ns:
            return
        if queued > 1 + self.sequences / 8:
            runs = max(1.0, sequences - queued + 1)
            if runs < self.sequences and sequences:
                self.tokens = max(1.0, min(self.tokens, tokens * runs / sequences))
            self.sequences = min(self.sequences, runs)
            self.young = False
            self._restart(now, REST_NS)
        elif self._full and hidden <= 1 + sequences / 8:
            self.young = self.young and not 0 < self._young_until_ns < now
            gains = self._gains(now)
            # It was full when the signal was true, too, and nothing queued.
            fast = self.young and gains and not queued and sequences + 1 >= self.sequences * 7 / 8
            fast = fast and true_ns is not None
            self._proven = self.sequences * PROVEN_RATIO if fast else 0.0
            self._young_until_ns = self._young_until_ns or now + YOUNG_NS
            self._grow(now, YOUNG_GROWTH if fast else GROWTH if gains else SLOW_GROWTH)
            self._restart(now, 0 if fast else GROW_EVERY_NS)

    def begun(self, now: int, begun: int) -> None:
        """So many of those in flight have a first byte, and run. For a young window whose worker tells its queue."""
        if 0 < self._young_until_ns < now:
            self.young = False
        elif self._full and begun >= int(self.sequences) and self.sequences * YOUNG_GROWTH <= self._proven:
            self._young_until_ns = self._young_until_ns or now + YOUNG_NS
            self._grow(now, YOUNG_GROWTH)

    def _gains(self, now: int) -> bool:
        """Is so much more done than when it last grew? If not, a window is young no more."""
        elapsed_s = (now - self._since_ns) / 1e9
        rate = self._done_tokens / elapsed_s if elapsed_s > 0 else 0.0
        least = 1.0 + (self.sequences / self._measured - 1.0) * YOUNG_GAIN if self.young else GAIN
        gains = rate > self._rate * least
        self._rate, self._measured = rate, self.sequences
        if not gains and self._ended >= self.sequences / 2:
            self.young = False
        return gains

    def _grow(self, now: int, growth: float) -> None:
        before = self.sequences
        self.sequences = min(self._most, max(before + 1, before * growth))
        self.tokens = min(self._most_tokens, self.tokens * self.sequences / before)
        self._changed_ns, self._full = max(self._changed_ns, now), False

    def _restart(self, now: int, rest_ns: int) -> None:
        self._full = False
        self._done_tokens = self._ended = 0
        self._since_ns = self._changed_ns = now
        self._next_ns = now + rest_ns
