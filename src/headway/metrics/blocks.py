"""How far the mean of correlated samples may be off: they are drawn again in blocks, in order of time.

Requests that are neighbours in time shared a queue, a batch and a stall, so a thousand of them say less than a thousand
independent ones would. Resampling single requests would pretend otherwise and print intervals that are far too short.

The blocks are circular (Politis and Romano 1992, "A circular block-resampling procedure for stationary data"). Their
length is found by the blocking method (Flyvbjerg and Petersen 1989, J. Chem. Phys. 91:461), with the stopping rule of
Lee et al. 2011 (Phys. Rev. E 83:066706). For uncorrelated samples it comes to (2n)^(1/3), the rate that is optimal for
the variance of a mean (Künsch 1989; Hall, Horowitz and Jing 1995, Biometrika 82:561); correlation lengthens it.
"""

from __future__ import annotations

from math import sqrt
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Series = npt.NDArray[np.float64] | npt.NDArray[np.bool_]

REPLICATES = 1000
# With fewer blocks there is nothing to draw from; with more, nothing is gained: the spread is known to 5 % by then.
MIN_BLOCKS = 8
MAX_BLOCKS = 1000
MIN_FREEDOM = 3
MAX_CELLS = 1 << 16  # of more samples, neighbours are added up first: a million cost what these do
Z95 = 1.959964  # the normal distribution's 97.5 % quantile


class Blocks(NamedTuple):
    """How to cut a series into blocks, and what its correlation costs."""

    length: int  # samples to a block
    inflation: float  # variance of the mean, as a multiple of what independent samples would give; at least 1


def blocks(series: Series) -> Blocks:
    """The shortest blocks that are long against the correlation of `series`, samples in order of time.

    The block doubles until length³ ≥ 2·n·inflation², where the inflation is what blocks of that length see. A series
    that is correlated over its whole length (a trend, one long stall) ends with `MIN_BLOCKS` blocks.
    """
    n = len(series)
    independent = _variance(series) / n if n else 0.0
    sums, weights, length = _cells(series, None)
    means, inflation = sums / weights, 1.0
    if independent > 0:
        while len(means) >= 2 * MIN_BLOCKS:
            # Estimates from fewer blocks are noisier; only an increase is believed.
            inflation = max(inflation, means.var(ddof=1) / len(means) / independent)
            if length**3 >= 2 * n * inflation**2:
                break
            means = means[: len(means) // 2 * 2].reshape(-1, 2).mean(axis=1)
            length *= 2
    return Blocks(max(length, -(-n // MAX_BLOCKS), 1), float(inflation))


def deviations(
    series: Series, rng: np.random.Generator, weights: npt.NDArray[np.integer] | None = None, *, at_least: int = 1
) -> Floats:
    """By how much the (weighted) mean of `series` may be off: `REPLICATES` draws, around zero.

    Blocks are twice as long as `blocks` finds, and `at_least` so long: what is best for a variance is short for an
    interval, which is to cover. And the draws are widened for what a bootstrap misses: that the spread is estimated
    around the sample's own mean (√(k/(k − 1)) for k blocks), and from few events. How few says the kurtosis of the
    block sums: their variance is known as well as with 2k / (kurtosis − 1) degrees of freedom, so Student's t stands
    for the normal. A hundred blocks of which two hold all that is not zero tell about as much as two.
    """
    if len(series) < 2:
        return np.zeros(REPLICATES)
    sums, heavy, size = _cells(series, weights)
    # How far each cell moves the mean. With weights it is a ratio of sums, and this its linear part.
    influence = (sums - heavy * (sums.sum() / heavy.sum())) / heavy.sum()
    n = len(influence)
    length = min(max(2 * blocks(influence).length, at_least // size), max(n // MIN_BLOCKS, 1))
    count = -(-n // length)
    total = np.zeros(n + length + 1)  # the end of the series is followed by its beginning
    np.cumsum(influence, out=total[1 : n + 1])
    total[n + 1 :] = total[n] + total[1 : length + 1]

    starts = rng.integers(0, n, size=(REPLICATES, count), dtype=np.int32)
    drawn = (total[starts + length] - total[starts]).sum(axis=1) * (n / (count * length))
    every = np.arange(0, n, max(length // 4, 1))
    freedom = _freedom(total[every + length] - total[every], count)
    spread: Floats = drawn * sqrt(count * length / n * count / max(count - 1, 1)) * student_t95(freedom) / Z95
    return spread


def student_t95(freedom: float) -> float:
    """The 97.5 % quantile of Student's t, to 0.5 % from 4 degrees of freedom on (Abramowitz and Stegun 26.7.5)."""
    z = Z95
    return (
        z
        + (z**3 + z) / (4 * freedom)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * freedom**3)
    )


def _freedom(sums: Floats, count: int) -> float:
    """As how many degrees of freedom the variance of `count` blocks is known, from sums over (overlapping) blocks."""
    squares = (sums - sums.mean()) ** 2
    variance = squares.mean()
    kurtosis = float((squares**2).mean() / variance**2) if variance > 0 else 3.0
    return min(max(2 * count / max(kurtosis - 1, 1e-9), MIN_FREEDOM), max(count - 1, MIN_FREEDOM))


def _cells(series: Series, weights: npt.NDArray[np.integer] | None) -> tuple[Floats, Floats, int]:
    """Weighted sums over cells of neighbours, their weights, and the samples to a cell: one, unless there are many."""
    n = len(series)
    size = max(-(-n // MAX_CELLS), 1)
    values = series if weights is None else series * weights
    if size == 1:
        return values.astype(np.float64), np.ones(n) if weights is None else weights.astype(np.float64), 1
    starts = np.arange(0, n, size)
    sums = np.add.reduceat(values, starts, dtype=np.float64)
    if weights is not None:
        return sums, np.add.reduceat(weights, starts, dtype=np.float64), size
    return sums, np.diff(starts, append=n).astype(np.float64), size


def _variance(series: Series) -> float:
    if series.dtype == np.bool_:  # without a copy in floating point
        share = float(series.mean())
        return share * (1 - share)
    return float(series.var())
