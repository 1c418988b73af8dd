"""`Window`: how much one worker may have in flight, in sequences and tokens: as much as keeps it busy, and no queue.

What waits inside a worker waits in its order, not in ours. So the window grows while it is full and the worker does not
queue; and shrinks to what really runs as soon as it queues. What says that it does not queue must be newer than the
last change, and account for what was sent there.

There are workers that never queue: they begin whatever comes, and all of it goes slower. So it is learnt how long a
token takes by how many are in flight, a constant and a part for each (`Line`). A request more gains throughput as far
as the constant is what a token takes: where that is little (`LEAST_GAIN`) a window grows no more, and a larger shrinks.

A window grows at most to so many times what was in flight beside those that ended lately. A young one, of a worker that
is not known yet, is far too small for most, and nobody has ended. It grows by a half as often as all in flight have a
first byte, since whoever has one runs; as far as the last signal allows that told of a full window and no queue.
"""

from __future__ import annotations

import math

from headway.core.fleet.line import REMEMBERED, Line

GROW_EVERY_NS = 250_000_000
# After it shrank: it takes a while to drain.
REST_NS = 1_000_000_000
# By how much it grows at a time: after it shrank by little, then by half as much again each time.
LEAST_GROWTH, GROWTH = 0.05, 0.25
# Beyond so many times what was in flight beside those that ended lately nothing is known, unless the worker tells that
# nothing queues; and how much each that ended counts in that.
SEEN_RATIO, TOLD_RATIO, SEEN_RATE = 1.5, 3.0, 0.125
# Where little is gained it shrinks by no more at a time, since what is known of fewer is older.
SHRINK_RATIO = 0.5
# Of what a window grows by, the part that throughput must grow by.
LEAST_GAIN = 0.2
# Of fewer tokens than this it is the less certain how long one takes.
WHOLE_TOKENS = 16
# A window shrinks where less than this part of it is useful.
CLEARLY_RATIO = 0.8
# A window is young until its worker is seen to queue or to gain little, and no longer than this after it first grew.
YOUNG_NS = 2_000_000_000
YOUNG_GROWTH = 1.5
# How far first bytes let it grow before the next signal, there are servers that send theirs early; and altogether.
PROVEN_RATIO, YOUNG_RATIO = 3.5, 32.0


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
        "_proven",
        "_seen",
        "_young_until_ns",
        "pace",
        "sequences",
        "tokens",
        "young",
    )

    def __init__(self, first: int, most: int = 0) -> None:
        self._most = most or math.inf
        self._most_tokens = math.inf
        self._first = self.sequences = min(first, self._most)
        self.tokens = math.inf
        self.pace = Line()  # ns that a token takes, by how many are in flight
        self._seen = 0.0  # how many were in flight beside those that ended lately
        self._growth = GROWTH  # at the next change by a signal
        self._ended = 0  # since the last change by a signal
        self.young = True
        self._young_until_ns = 0  # 0: it has not grown yet
        self._proven = self.sequences * PROVEN_RATIO  # so far it may grow by first bytes
        self._changed_ns = 0
        self._full = False  # since then
        self._next_ns = 0  # when there may be another change by a signal

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
        if self._ended < self.sequences / 2 if true_ns is None else true_ns < self._changed_ns:
            return
        if now < self._next_ns:
            return
        if queued > 1 + self.sequences / 8:
            self._shrink(now, max(1.0, sequences - queued + 1), sequences, tokens)
        elif self._full and self._exceeds_useful(sequences):
            self._shrink(now, max(self.useful, self.sequences * SHRINK_RATIO), sequences, tokens)
        elif self._full and hidden <= 1 + sequences / 8 and (queued < 1 or true_ns is None):
            # It was full when the signal was true, too, and nothing queued.
            if self.young and not queued and sequences + 1 >= self.sequences * 7 / 8 and true_ns is not None:
                self._proven = min(self.sequences * PROVEN_RATIO, self._first * YOUNG_RATIO)
            most = min(self.useful, self._seen * (SEEN_RATIO if true_ns is None else TOLD_RATIO))
            if most >= self.sequences + 1:
                self._grow(now, min(most, self.sequences * (1.0 + self._growth)))
                self._growth = min(GROWTH, 1.5 * self._growth)
                self._restart(now, GROW_EVERY_NS)

    def begun(self, now: int, begun: int) -> None:
        """So many of those in flight have a first byte, and run. For a young window whose worker tells its queue."""
        if 0 < self._young_until_ns < now or self.useful < self.sequences:
            self.young = False
        elif self._full and begun >= int(self.sequences) and self.sequences * YOUNG_GROWTH <= self._proven:
            self._young_until_ns = self._young_until_ns or now + YOUNG_NS
            self._grow(now, self.sequences * YOUNG_GROWTH)

    def _exceeds_useful(self, sequences: int) -> bool:
        """Clearly; and those that were too many when it last shrank are gone, and others have ended since."""
        clearly = self.useful < self.sequences * CLEARLY_RATIO
        return clearly and sequences <= self.sequences + 1 and self._ended >= self.sequences / 2

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
        self.young, self._growth = False, LEAST_GROWTH
        self._restart(now, REST_NS)

    def _restart(self, now: int, rest_ns: int) -> None:
        self._full = False
        self._ended = 0
        self._changed_ns = now
        self._next_ns = now + rest_ns
