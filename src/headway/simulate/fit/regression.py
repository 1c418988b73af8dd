"""Robust regression with coefficients that cannot be negative, pulled to a prior where the data say nothing.

Least squares of the *relative* error. Equations that disagree with all others of their kind lose weight (iteratively
reweighted, Cauchy's function: Holland and Welsch 1977), each kind by its own spread: a request's prefill scatters ten
times as much as its decode and must be heard nevertheless.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from headway.simulate.fit.terms import WIDTH, Equations, Floats

ROUNDS = 12  # of reweighting
REPLICATES = 200
BLOCKS = 40  # the bootstrap draws stretches of time, in which errors are alike
CAUCHY = 2.385  # times the spread: 95% as efficient as least squares where errors are normal
# As many independent observations the prior is weighed against: neighbours in time tell the same.
INDEPENDENT = 100.0


@dataclass(frozen=True, slots=True)
class Prior:
    """What is believed before anything was measured: `values`, each right to about `sigmas` (both ns)."""

    values: Floats
    sigmas: Floats


@dataclass(frozen=True, slots=True)
class Misfit:
    """How far equations of one kind are from what was measured: shares of it. `bias` above 0: predicted too long."""

    kind: str
    count: int
    bias: float
    median_error: float
    p95_error: float


@dataclass(frozen=True, slots=True)
class Solution:
    """Coefficients, ns, with the bounds between which 95% of the replicates lie."""

    values: Floats
    low: Floats
    high: Floats
    misfits: tuple[Misfit, ...]

    @property
    def loss(self) -> float:
        """One figure to choose between explanations by: the mean over kinds of the median error."""
        return float(np.mean([misfit.median_error for misfit in self.misfits])) if self.misfits else 0.0


def solve(
    equations: Equations, prior: Prior | None = None, *, bounds: bool = False, robust: bool = True, seed: int = 0
) -> Solution:
    """Fit. With `bounds`, also how sure: without, `low` and `high` are the values themselves.

    Without `robust` all equations are believed alike: they are of a formula.
    """
    kinds = np.array(equations.kinds)
    matrix = equations.matrix / equations.ns[:, None]
    scale = np.sqrt(np.mean(matrix**2, axis=0))
    scale[scale == 0] = 1.0
    pull = _Pull.of(prior, scale)
    columns = matrix / scale
    values, weights = _reweighted(columns, kinds, pull, ROUNDS if robust else 0)
    spread = []
    if bounds:
        draw = np.random.default_rng(seed)
        for chosen in _blocks(equations.order, draw):
            jitter = pull.drawn(draw)
            spread.append(_weighted(columns[chosen], weights[chosen], jitter) / scale)
    fitted = values / scale
    low, high = (np.percentile(spread, (2.5, 97.5), axis=0)) if spread else (fitted, fitted)
    return Solution(
        fitted,
        np.minimum(low, fitted),
        np.maximum(high, fitted),
        misfits(equations, fitted),
    )


def misfits(equations: Equations, values: Floats) -> tuple[Misfit, ...]:
    """Of each kind, how far `values` are from the equations."""
    ratios = equations.matrix @ values / equations.ns - 1.0
    kinds = np.array(equations.kinds)
    found = []
    for kind in sorted(set(equations.kinds)):
        of_kind = ratios[kinds == kind]
        errors = np.abs(of_kind)
        found.append(
            Misfit(
                kind,
                len(of_kind),
                float(np.median(of_kind)),
                float(np.median(errors)),
                float(np.percentile(errors, 95)),
            )
        )
    return tuple(found)


@dataclass(frozen=True, slots=True)
class _Pull:
    """A prior as equations: (value - centre) / sigma = 0, in scaled columns. `known`: those that have one."""

    centres: Floats
    sigmas: Floats
    known: list[int]

    @classmethod
    def of(cls, prior: Prior | None, scale: Floats) -> _Pull:
        if prior is None:
            return cls(np.zeros(WIDTH), np.ones(WIDTH), [])
        known = [column for column in range(WIDTH) if prior.sigmas[column] > 0]
        return cls(prior.values * scale, np.maximum(prior.sigmas * scale, 1e-300), known)

    def drawn(self, draw: np.random.Generator) -> _Pull:
        """Another prior that would have been as likely."""
        return _Pull(np.maximum(0.0, self.centres + self.sigmas * draw.standard_normal(WIDTH)), self.sigmas, self.known)


def _reweighted(columns: Floats, kinds: np.ndarray, pull: _Pull, rounds: int) -> tuple[Floats, Floats]:
    weights = np.ones(len(columns))
    for kind in set(kinds.tolist()):
        weights[kinds == kind] /= max(1, int(np.sum(kinds == kind)))
    base = weights.copy()
    values = _weighted(columns, weights, pull)
    for _ in range(rounds):
        errors = columns @ values - 1.0
        for kind in set(kinds.tolist()):
            of_kind = kinds == kind
            spread = 1.4826 * float(np.median(np.abs(errors[of_kind]))) + 1e-6
            weights[of_kind] = base[of_kind] / (1.0 + (errors[of_kind] / (CAUCHY * spread)) ** 2)
        values = _weighted(columns, weights, pull)
    return values, weights


def _weighted(columns: Floats, weights: Floats, pull: _Pull) -> Floats:
    """Minimise, over values >= 0, the weighted mean of squares and the prior's."""
    scaled = columns * weights[:, None]
    total = max(float(weights.sum()), 1e-300)
    gram = scaled.T @ columns / total
    right = scaled.sum(axis=0) / total
    if pull.known:
        # The spread that is left tells how much an observation is worth beside the prior.
        free = nonnegative(gram, right)
        variance = max(1e-4, float(1.0 - 2.0 * right @ free + free @ gram @ free))
        for column in pull.known:
            weight = variance / INDEPENDENT / pull.sigmas[column] ** 2
            gram[column, column] += weight
            right[column] += weight * pull.centres[column]
    return nonnegative(gram, right)


def nonnegative(gram: Floats, right: Floats) -> Floats:
    """The x >= 0 that minimises x'Gx - 2b'x. A column of zeros stays at 0.

    Lawson and Hanson's active sets (1974, chapter 23): free the value whose gradient falls most, solve for the free
    ones, and go towards that only as far as the first that would become negative, which is then held at 0.
    """
    width = len(right)
    values, free = np.zeros(width), np.zeros(width, dtype=bool)
    tolerance = 1e-9 * (float(np.abs(right).max(initial=0.0)) + 1e-300)
    for _ in range(10 * width):
        gradient = np.where(free | (np.diag(gram) <= 0), -np.inf, right - gram @ values)
        if gradient.max(initial=-np.inf) <= tolerance:
            break
        free[int(gradient.argmax())] = True
        while True:
            wanted = np.zeros(width)
            wanted[free] = _solved(gram[np.ix_(free, free)], right[free])
            if np.all(wanted[free] > 0):
                values = wanted
                break
            low = free & (wanted <= 0)
            step = float(np.min(values[low] / np.maximum(values[low] - wanted[low], 1e-300)))
            values += step * (wanted - values)
            free &= ~(low & (values <= 1e-12 * (float(values.max()) + 1e-300)))
            values[~free] = 0.0
            if not free.any():
                break
    return values


def _solved(gram: Floats, right: Floats) -> Floats:
    """With so little added to the diagonal that columns that say the same share what they explain."""
    ridge = 1e-10 * float(np.trace(gram)) / len(gram)
    return np.asarray(np.linalg.solve(gram + ridge * np.eye(len(gram)), right), np.float64)


def _blocks(order: Floats, draw: np.random.Generator) -> Iterator[np.ndarray]:
    """Indices of each replicate: stretches of neighbours, drawn with replacement."""
    stretches = np.array_split(np.argsort(order, kind="stable"), min(BLOCKS, len(order)))
    for _ in range(REPLICATES):
        yield np.concatenate([stretches[k] for k in draw.integers(0, len(stretches), len(stretches))])
