"""`Line`: what something of a worker comes to by how much there is of something else, learnt from what was seen.

How long a first byte takes by the prompt tokens read before it; how long a token takes by how many are in flight. A
constant and a slope by least squares, neither below 0. The slope only counts as far as it is evident (two standard
errors): a server whose first byte takes long whatever else it has to do is not taken to be one that reads slowly.
"""

from __future__ import annotations

import math

FEWEST = 3.0
# About so many of the latest count.
REMEMBERED = 50.0
# Where `x` was nearly the same each time nothing is known of a slope.
LEAST_SPREAD = 1e-6


class Line:
    """Of one worker. `slope` is what one more adds, `constant` what there is without any."""

    __slots__ = ("_count", "_x", "_xx", "_xy", "_y", "_yy", "constant", "slope")

    def __init__(self) -> None:
        self.constant = self.slope = 0.0
        self._count = self._x = self._y = self._xx = self._xy = self._yy = 0.0  # sums

    def __bool__(self) -> bool:
        """Is anything known?"""
        return self._count > 0

    def at(self, x: float) -> float:
        """What it comes to for `x`."""
        return self.constant + self.slope * x

    def observe(self, x: float, y: float, *, weight: float = 1.0, remembered: float = REMEMBERED) -> None:
        """It was `y` for `x`."""
        keep = 1.0 - 1.0 / remembered
        self._count = self._count * keep + weight
        self._x = self._x * keep + weight * x
        self._y = self._y * keep + weight * y
        self._xx = self._xx * keep + weight * x * x
        self._xy = self._xy * keep + weight * x * y
        self._yy = self._yy * keep + weight * y * y
        self._fit()

    def _fit(self) -> None:
        count = self._count
        x, y = self._x / count, self._y / count
        spread = self._xx / count - x * x
        self.slope, self.constant = 0.0, y
        if count < FEWEST or spread < LEAST_SPREAD * x * x:
            return
        slope = (self._xy / count - x * y) / spread
        left = max(0.0, self._yy / count - y * y - slope * slope * spread)
        evident = slope - 2.0 * math.sqrt(left / (spread * count))
        # The constant is not below 0, so the slope is at most the line's through the origin.
        self.slope = min(max(0.0, evident), y / x) if x else 0.0
        self.constant = max(0.0, y - self.slope * x)
