"""`Tally`: what a batch has come to so far, in a few numbers an item: a million of them take some 40 MB."""

from __future__ import annotations

import math
from array import array
from collections import Counter

import numpy as np
import numpy.typing as npt

from headway.offline.record import Record

PARTS = ("queue_s", "prefill_s", "decode_s", "wall_s")
COUNTS = ("input_tokens", "cached_tokens", "output_tokens")

Floats = npt.NDArray[np.float64]


class Tally:
    """Of items that have an answer; those that have none are counted by class alone."""

    def __init__(self) -> None:
        self._parts = {name: array("f") for name in PARTS}
        self._counts = {name: array("i") for name in COUNTS}  # -1 where it is not known
        self._ended_at = array("d")
        self._lines = array("q")
        self.done = 0
        self.cut = 0
        self.retried = 0  # that took more than one try
        self.errors: Counter[str] = Counter()
        self.tokens = 0  # of all items that are done

    @property
    def failed(self) -> int:
        return self.errors.total()

    def add(self, record: Record) -> None:
        if record.error_class:
            self.errors[record.error_class] += 1
            return
        self.done += 1
        self.cut += record.cut
        self.retried += record.tries > 1
        self.tokens += (record.input_tokens or 0) + (record.output_tokens or 0)
        for name, times in self._parts.items():
            value = getattr(record, name)
            times.append(math.nan if value is None else value)
        for name, counts in self._counts.items():
            value = getattr(record, name)
            counts.append(-1 if value is None else min(value, 2**31 - 1))
        self._ended_at.append(record.ended_at)
        self._lines.append(record.line)

    def times(self, name: str) -> Floats:
        """Seconds of each item, NaN where not known, in order of end."""
        return np.array(self._parts[name], np.float64)

    def counts(self, name: str) -> Floats:
        """Tokens of each item, NaN where not known."""
        counts = np.array(self._counts[name], np.float64)
        counts[counts < 0] = np.nan
        return counts

    def ended_at(self) -> Floats:
        return np.array(self._ended_at, np.float64)

    def lines(self) -> npt.NDArray[np.int64]:
        return np.array(self._lines, np.int64)
