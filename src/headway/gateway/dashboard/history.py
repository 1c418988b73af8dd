"""`History`: the last quarter of an hour, a reading a second, and what the plots show of it."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from headway.gateway.dashboard.reading import Between, Reading

EVERY_S = 1.0
KEPT_S = 900
# A point of a plot tells so much time before it: enough requests for a percentile, little enough to see a burst.
POINT_S = 10
# Names of lanes and workers may come and go with a reload; of so many columns, no more are begun.
MAX_COLUMNS = 160

Row = Sequence[float | None]


class History:
    """Columns are only ever added, so a row that was told stays true; it may be shorter than a later one."""

    def __init__(self, kept_s: int = KEPT_S) -> None:
        self.columns: list[str] = []
        self.number = 0  # of the last row; the first is 1
        self._places: dict[str, int] = {}
        self._readings: deque[Reading] = deque(maxlen=kept_s + 1)
        self._rows: deque[Row] = deque(maxlen=kept_s + 1)

    def add(self, reading: Reading) -> None:
        readings = self._readings
        readings.append(reading)
        before = readings[max(0, len(readings) - 1 - POINT_S)]
        point = Between(before, reading).point()
        for name in point:
            if name not in self._places and len(self.columns) < MAX_COLUMNS:
                self._places[name] = len(self.columns)
                self.columns.append(name)
        self._rows.append([point.get(name) for name in self.columns])
        self.number += 1

    def rows(self, after: int, most: int) -> list[Row]:
        """Those after row `after`, at most so many of the last ones."""
        wanted = min(self.number - after, most, len(self._rows)) if after <= self.number else min(most, len(self._rows))
        return [self._rows[place] for place in range(len(self._rows) - wanted, len(self._rows))]

    def last(self, seconds: int) -> Between | None:
        """The last so many seconds, or what there is of them; None before there are two readings."""
        readings = self._readings
        if len(readings) < 2:
            return None
        return Between(readings[max(0, len(readings) - 1 - seconds)], readings[-1])
