"""`Window`: how much one worker may have in flight, in sequences and tokens: as much as keeps it busy, and no queue.

What waits inside a worker waits in its order, not in ours. So the window grows while it is full and the worker does not
queue; and shrinks to what really runs as soon as it queues. What says that it does not queue must be newer than the
last change, and account for what was sent there.

There are workers that never queue: they begin whatever comes, and all of it goes slower. So it is learnt how long a
token takes by how many are in flight, a constant and a part for each (`Line`). A request more gains throughput as far
as the constant is what a token takes: where that is little (`LEAST_GAIN`) a window grows no more, and a larger shrinks.

A window grows at most to so many times what was in flight beside those that ended lately. Before anybody has ended, and
its worker is known, it grows by first bytes (`SlowStart`).
"""

from __future__ import annotations

import math

from headway.core.fleet.line import REMEMBERED, Line
from headway.core.fleet.slow_start import SlowStart

# Growth is by signals that show what the last one did; gauges are often set only so often.
GROW_EVERY_NS = 250_000_000
# After it shrank: what is too much takes a while to end, and until then queues as before.
REST_NS = 1_000_000_000
# By how much it grows at a time; and after it shrank, since it is near what the worker can do: by little, then by half
# as much again each time. From a quarter at once it would swing between too much and too little where signals are late.
GROWTH, LEAST_GROWTH = 0.25, 0.05
# Beyond so many times what was in flight beside those that ended lately nothing is known: a window at most doubles with
# each generation of requests, whatever signals say in between, which may be old, or silent about a queue.
SEEN_RATIO = 2.0
# How much each that ended counts in that: about the last eight.
SEEN_RATE = 0.125
# Of what a window grows by, the part that throughput must grow by: for less all others would get slower.
LEAST_GAIN = 0.2
# Where little is gained it shrinks by no more at a time, and not below that part of what was in flight beside those
# that ended lately: of fewer, what is known is older, or only where a line would go on.
SHRINK_RATIO = 0.5
# Of fewer tokens than this it is the less certain how long one takes: they may have come in one piece.
WHOLE_TOKENS = 16


class Window:
    """`most` bounds `sequences`; 0 is no bound."""

    __slots__ = (
        "_changed_ns",
        "_ended",
        "_first",
        "_full",
        "_growth",
        "_most",
        "_most_tokens",
        "_next_ns",
        "_seen",
        "pace",
        "sequences",
        "slow_start",
        "tokens",
    )

    def __init__(self, first: int, most: int = 0) -> None:
        self._most = most or math.inf
        self._most_tokens = math.inf
        self.sequences = self._first = min(first, self._most)
        self.tokens = math.inf
        self.pace = Line()  # ns that a token takes, by how many are in flight
        self._seen = 0.0  # how many were in flight beside those that ended lately
        self._growth = GROWTH  # at the next change by a signal
        self._ended = 0  # since the last change by a signal
        self.slow_start: SlowStart | None = SlowStart(self.sequences)  # until its worker is known
        self._changed_ns = 0
        self._full = False  # was it, since then?
        self._next_ns = 0  # when there may be another change by a signal

    def bound_tokens(self, most: float) -> None:
        """More tokens than this the worker cannot hold."""
        self._most_tokens = most
        self.tokens = min(self.tokens, most)

    def open(self, sequences: int) -> bool:
        """Is there a place beside so many in flight?"""
        return sequences < int(self.sequences)

    def holds(self, tokens: int, more: int, *, of: float = 1.0) -> bool:
        """Do `more` tokens fit beside those in flight, into such a part `of` the window? Alone anything does."""
        return not tokens or tokens + more <= self.tokens * of

    def filled(self) -> None:
        """Its last place is taken, or somebody did not fit: what is told from now on is told of a full window."""
        self._full = True

    def ended(self, beside: float, tokens: int, took_ns: int) -> None:
        """A request has, whose tokens took so long, with so many in flight on average, itself among them."""
        self._ended += 1
        self._seen += (beside - self._seen) * (SEEN_RATE if self._seen else 1.0)
        if tokens > 0 and took_ns:
            weight = min(1.0, tokens / WHOLE_TOKENS)
            self.pace.observe(beside, took_ns / tokens, weight=weight, remembered=max(REMEMBERED, 2.0 * beside))

    @property
    def useful(self) -> float:
        """With more in flight than this, a request more would gain next to nothing."""
        if not self.pace.slope:
            return math.inf
        return max(1.0, self.pace.constant / self.pace.slope * (1.0 / LEAST_GAIN - 1.0))

    def adjust(
        self, now: int, *, queued: float, sequences: int, tokens: int, true_ns: int | None = None, hidden: float = 0.0
    ) -> None:
        """Of `sequences` in flight with `tokens` at `true_ns`, `queued` waited inside the worker, as it told.

        Of no time, it is a belief: it follows from requests that have ended, so after a change some first have to.
        `hidden` were sent to it before `true_ns` and had not ended, and it spoke of none of them: they may queue.
        """
        if now < self._next_ns or not self._is_news(true_ns):
            return
        if queued > 1 + self.sequences / 8:
            self._shrink(now, max(1.0, sequences - queued + 1), sequences, tokens)
        elif self._exceeds(least := self._least, sequences):
            self._shrink(now, max(least, self.sequences * SHRINK_RATIO), sequences, tokens)
        elif not self._full:
            return
        elif hidden <= 1 + sequences / 8 and (queued < 1 or true_ns is None):
            if self.slow_start is not None and not queued and true_ns is not None:
                self.slow_start.told(sequences)
            most = min(self.useful, self._seen * SEEN_RATIO)
            if most >= self.sequences + 1:
                self._grow(now, min(most, self.sequences * (1.0 + self._growth)))
                self._growth = min(GROWTH, 1.5 * self._growth)
                self._restart(now, GROW_EVERY_NS)

    def begun(self, now: int, begun: int) -> None:
        """So many of those in flight have a first byte, and run. For a worker that tells its queue."""
        if self.slow_start is None:
            return
        if self.slow_start.over(now) or self.useful < self.sequences:
            self.slow_start = None
        elif begun >= int(self.sequences) and (to := self.slow_start.grown(now, self.sequences)) > self.sequences:
            self._grow(now, to)

    def _is_news(self, true_ns: int | None) -> bool:
        """Was it true after the last change?"""
        return true_ns >= self._changed_ns if true_ns is not None else self._ended >= self.sequences / 2

    @property
    def _least(self) -> float:
        """Below this it does not shrink for little gain: what fewer would gain is not known before fewer are there.

        It need not be full for that: prompts that are to be read, or tokens, may keep places empty, and too many be in
        flight. But then the window that it began with is soon enough: a token takes longer while others' prompts are
        read, which looks like little gain where few are in flight.
        """
        seen = max(self.useful, self._seen * SHRINK_RATIO)
        return seen if self._full else max(seen, self._first)

    def _exceeds(self, least: float, sequences: int) -> bool:
        """And those that were too many when it last shrank are gone, and others have ended since."""
        too_many = least < min(self.sequences, sequences + 1)
        return too_many and self.sequences >= sequences - 1 and self._ended >= self.sequences / 2

    def _grow(self, now: int, to: float) -> None:
        before = self.sequences
        self.sequences = min(self._most, max(before + 1, to))
        self.tokens = min(self._most_tokens, self.tokens * self.sequences / before)
        self._changed_ns, self._full = max(self._changed_ns, now), False

    def _shrink(self, now: int, to: float, sequences: int, tokens: int) -> None:
        """`tokens` belong to `sequences`."""
        if to < self.sequences and sequences:
            self.tokens = max(1.0, min(self.tokens, tokens * to / sequences))
        self.sequences = max(1.0, min(self.sequences, to))
        self.slow_start, self._growth = None, LEAST_GROWTH
        self._restart(now, REST_NS)

    def _restart(self, now: int, rest_ns: int) -> None:
        self._full = False
        self._ended = 0
        self._changed_ns = now
        self._next_ns = now + rest_ns
