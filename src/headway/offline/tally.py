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
        self.totals: Counter[str] = Counter()  # of `COUNTS`, over all items that are done

    @property
    def tokens(self) -> int:
        return self.totals["input_tokens"] + self.totals["output_tokens"]

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
        for name, times in self._parts.items():
            value = getattr(record, name)
            times.append(math.nan if value is None else value)
        for name, counts in self._counts.items():
            value = getattr(record, name)
            self.totals[name] += value or 0
            counts.append(-1 if value is None else min(value, 2**31 - 1))
        self._ended_at.append(record.ended_at)
        self._lines.append(record.line)

    def values(self, name: str) -> Floats:
        """Of each item, in order of end, the seconds of one of `PARTS` or the tokens of one of `COUNTS`. NaN is not
        known.
        """
        if name in PARTS:
            return np.array(self._parts[name], np.float64)
        counts = np.array(self._counts[name], np.float64)
        counts[counts < 0] = np.nan
        return counts

    def count(self, name: str, at: int) -> int | None:
        """The tokens of one item."""
        count = self._counts[name][at]
        return None if count < 0 else count

    def line(self, at: int) -> int:
        """Of the input, by order of end."""
        return self._lines[at]

    def ended_at(self) -> Floats:
        return np.array(self._ended_at, np.float64)
