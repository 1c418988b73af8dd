"""What a fleet's gateway counts and times of the calls themselves. Cheap: these stand in the path of every token."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from headway.metrics.breakdown import Calls
from headway.metrics.gaps import AllGaps
from headway.metrics.histogram import Histogram
from headway.metrics.names import DURATION_BUCKETS_S, TTFT_BUCKETS_S

if TYPE_CHECKING:
    from headway.gateway.fleet.trail import Trail

# Calls that are over are added up so many at a time, or when somebody reads: a call itself costs an append.
BATCH = 512
S_PER_NS = 1e-9


class Figures:
    """One gateway's, since its start."""

    def __init__(self) -> None:
        self.ttft_s = Histogram(TTFT_BUCKETS_S)
        self.gaps = AllGaps()
        self.gateway_s = Histogram(TTFT_BUCKETS_S)
        self._duration_s = Histogram(DURATION_BUCKETS_S)
        self._network_s = Histogram(TTFT_BUCKETS_S)
        self._tokenise_s = Histogram(TTFT_BUCKETS_S)
        self._queue_s = Histogram(DURATION_BUCKETS_S)
        self._worker_s = Histogram(DURATION_BUCKETS_S)
        self._calls = Calls()
        self._input_tokens = self._prefill_tokens = 0
        self._unseen_tokens = self._unseen_firsts = 0  # of output that nobody saw come, all of it and each first one
        self._ended: dict[str, int] = {}
        self._over: list[Trail] = []
        self.returned = 0  # requests that went to another worker
        self.keys_ignored = 0  # that were no good, where none was needed
        self.failures: dict[tuple[str, str], int] = {}  # (worker, code)

    # -- as it happens ---------------------------------------------------------------------------------------------

    def over(self, trail: Trail) -> None:
        """A call has ended, and told everything."""
        self._over.append(trail)
        if len(self._over) >= BATCH:
            self._add_up()

    def refused(self, outcome: str, labels: Mapping[str, str]) -> None:
        """A call was not let in. Nothing is added up for it: refusals are many when there is least time for them."""
        self._calls.refused(outcome, labels)

    def count_failure(self, worker: str, code: str) -> None:
        self.failures[worker, code] = self.failures.get((worker, code), 0) + 1

    def _add_up(self) -> None:
        if not self._over:
            return
        trails, self._over = self._over, []
        times = [
            (one.arrival_ns, one.received_ns, one.ready_ns, one.sent_ns or one.ended_ns, one.ended_ns) for one in trails
        ]
        parts = np.diff(np.array(times, np.int64), axis=1).astype(np.float64) * S_PER_NS
        sent = [one for one in trails if one.sent_ns]
        was_sent = np.array([bool(one.sent_ns) for one in trails])
        self._network_s.note_all(parts[:, 0])
        self._tokenise_s.note_all(parts[:, 1])
        self._queue_s.note_all(parts[was_sent, 2])
        self._worker_s.note_all(parts[was_sent, 3])
        self._duration_s.note_all(parts.sum(axis=1))
        for how, count in Counter([one.state for one in trails]).items():
            self._ended[how] = self._ended.get(how, 0) + count
        for one in sent:
            self._count_tokens(one)
        for one in trails:
            self._calls.ended(one)
        self._calls.settle()
        for one in trails:
            one.counted()

    def _count_tokens(self, one: Trail) -> None:
        self._input_tokens += one.prompt_tokens
        self._prefill_tokens += one.prompt_tokens - one.cached_tokens
        seen = bool(one.first_ns) + (one.gaps.count if one.gaps is not None else 0)
        self._unseen_tokens += max(0, one.output_tokens - seen)
        self._unseen_firsts += one.output_tokens > 0 and not one.first_ns

    # -- as it is read ---------------------------------------------------------------------------------------------

    @property
    def calls(self) -> Calls:
        self._add_up()
        return self._calls

    @property
    def itl_s(self) -> Histogram:
        """As it is now."""
        return self.gaps.histogram

    @property
    def duration_s(self) -> Histogram:
        self._add_up()
        return self._duration_s

    @property
    def network_s(self) -> Histogram:
        self._add_up()
        return self._network_s

    @property
    def tokenise_s(self) -> Histogram:
        self._add_up()
        return self._tokenise_s

    @property
    def queue_s(self) -> Histogram:
        self._add_up()
        return self._queue_s

    @property
    def worker_s(self) -> Histogram:
        self._add_up()
        return self._worker_s

    @property
    def ended(self) -> Mapping[str, int]:
        """By finish reason, else by how it ended."""
        self._add_up()
        return self._ended

    @property
    def input_tokens(self) -> int:
        """Of those that were sent to a worker."""
        self._add_up()
        return self._input_tokens

    @property
    def prefill_tokens(self) -> int:
        """Computed by the workers, as far as they say."""
        self._add_up()
        return self._prefill_tokens

    @property
    def decode_tokens(self) -> int:
        """After each first one, which is its prefill's."""
        self._add_up()
        return self.itl_s.count + self._unseen_tokens - self._unseen_firsts

    @property
    def unseen_tokens(self) -> int:
        """Output tokens that nobody saw come: they were in no stream, or are its worker's correction."""
        self._add_up()
        return self._unseen_tokens
