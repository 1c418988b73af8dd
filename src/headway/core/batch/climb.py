"""`Climb`: how many items one worker has at once. It climbs while that gains throughput, and yields when it is told to.

The load is raised in rounds. A round lasts until as many items have ended as may run, and at least `ROUND_NS`; if its
throughput beats the best before by `GAIN`, the limit goes up: doubled at first, later by a quarter. After two rounds in
a row without gain it goes back to the least limit that reached the best, rests there, and tries again later, since what
a server can carry changes.

A refusal (429, 503) lowers the limit at once and lets the worker rest, as long as it says or longer each time. Rounds
whose items take much longer than at the best, for less throughput, lower it as well: that is a queue inside the worker.

Where others on the worker were promised something, `strained` says how near that is to being broken: from `NEARLY` on
the limit does not rise, at 1 it is halved, and where it cannot be, nothing begins for a while.
"""

from __future__ import annotations

ROUND_NS = 1_000_000_000
GAIN = 1.05
FIRST_GROWTH, GROWTH = 2.0, 1.25
REFUSED, TOO_SLOW, OUT_OF_MEMORY, STRAINED = 0.7, 0.8, 0.75, 0.5
NEARLY = 0.8
YIELD_NS = 2_000_000_000
SLOWER = 2.0  # so much longer per token than at the best is a queue
REST_ROUNDS = 10
NEWS = 0.3  # of a round at rest in what counts as the best: what a server can carry changes
FIRST_PAUSE_NS, LONGEST_PAUSE_NS = 500_000_000, 60_000_000_000


class Climb:
    """`first` items at once to begin with, never more than `most`; with equal numbers it only ever goes down.

    `now` is in ns, of any clock that does not go back.
    """

    def __init__(self, first: int, most: int) -> None:
        self.limit = float(min(first, most))
        self.most = float(most)
        self.not_before_ns = 0  # nothing begins sooner
        self._growth = FIRST_GROWTH
        self._refusals = 0  # in a row
        self._best_rate = 0.0
        self._best_limit = self.limit
        self._best_ns_per_token = 0.0
        self._barren = 0  # rounds in a row without gain
        self._rest = 0
        self._started = False
        self._held = False  # somebody else's promise is too near for more
        # Of this round:
        self._since_ns = 0
        self._tokens = self._took_ns = self._ended = 0
        self._full = False

    @property
    def most_at_once(self) -> int:
        return max(1, int(self.limit))

    def room(self, in_flight: int, now: int) -> int:
        """How many more may begin."""
        if now < self.not_before_ns:
            return 0
        return max(0, self.most_at_once - in_flight)

    def began(self, in_flight: int, now: int) -> None:
        """One more began, which makes so many."""
        if not self._started:
            self._started = True
            self._begin_round(now)
        self._full = self._full or in_flight >= self.most_at_once

    def done(self, tokens: int, took_ns: int, now: int) -> None:
        """An item was finished: what throughput and delay are measured by."""
        self._refusals = 0
        self._tokens += tokens
        self._took_ns += took_ns
        self._ended += 1
        if self._ended >= self.most_at_once and now - self._since_ns >= ROUND_NS:
            self._judge(now)

    def refused(self, retry_after_ns: int, now: int) -> None:
        """There was too much for it. Refusals that come together count once."""
        if now < self.not_before_ns:
            self.not_before_ns = max(self.not_before_ns, now + retry_after_ns)
            return
        self._refusals += 1
        pause_ns = min(LONGEST_PAUSE_NS, FIRST_PAUSE_NS << min(10, self._refusals - 1))
        self.not_before_ns = now + max(retry_after_ns, pause_ns)
        self._lower(REFUSED, now)

    def timed_out(self, now: int) -> None:
        """An item took too long, which counts once a round."""
        if now - self._since_ns >= ROUND_NS:
            self._lower(TOO_SLOW, now)

    def strained(self, strain: float, now: int) -> None:
        """What others were promised, measured over promised. To be told once a second: it halves as often."""
        self._held = strain >= NEARLY
        if strain < 1.0:
            return
        if self.limit <= 1.0:
            self.not_before_ns = max(self.not_before_ns, now + YIELD_NS)
        self._lower(STRAINED, now)

    def out_of_memory(self, in_flight: int, fits: int, now: int) -> None:
        """`in_flight` at once were too many though no item alone is; `fits` of them were not. Never again so many."""
        self.most = max(1.0, min(self.most, in_flight * OUT_OF_MEMORY, max(1, fits) * 2 * OUT_OF_MEMORY))
        self.limit = min(self.limit, self.most)
        self._best_limit = min(self._best_limit, self.most)
        self._begin_round(now)

    def _judge(self, now: int) -> None:
        """A round is over."""
        rate = self._tokens / (now - self._since_ns)
        ns_per_token = self._took_ns / max(1, self._tokens)
        if rate > self._best_rate * GAIN:
            self._best_rate, self._best_limit, self._best_ns_per_token = rate, self.limit, ns_per_token
            self._barren = self._rest = 0
            self._raise(self._growth)
        else:
            self._without_gain(rate, ns_per_token)
        self._begin_round(now)

    def _without_gain(self, rate: float, ns_per_token: float) -> None:
        self._growth = GROWTH
        if ns_per_token > SLOWER * self._best_ns_per_token and rate < self._best_rate / GAIN:
            self.limit = max(1.0, self.limit * TOO_SLOW)
            return
        if self._rest:
            self._rest -= 1
            self._best_rate += NEWS * (rate - self._best_rate)
            if not self._rest and self._raise(GROWTH):
                self._barren = 1
            return
        self._barren += 1
        if self._barren >= 2:
            self.limit = min(self.limit, self._best_limit)
            self._barren = 0
            self._rest = REST_ROUNDS

    def _raise(self, growth: float) -> bool:
        """Only where there was work for what it had."""
        if not self._full or self._held:
            return False
        self.limit = min(self.most, max(self.limit + 1, self.limit * growth))
        return True

    def _lower(self, factor: float, now: int) -> None:
        self._growth = GROWTH
        self.limit = max(1.0, self.limit * factor)
        self._best_limit = min(self._best_limit, self.limit)
        self._rest = REST_ROUNDS
        self._begin_round(now)

    def _begin_round(self, now: int) -> None:
        self._since_ns = now
        self._tokens = self._took_ns = self._ended = 0
        self._full = False
