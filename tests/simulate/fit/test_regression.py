"""The regression: exact where it claims to be, deaf to outliers, and modest where the data say nothing."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.simulate.fit.regression import Prior, nonnegative, solve
from headway.simulate.fit.terms import WIDTH, Equations

TRUTH = np.array([9e6, 4e5, 6e5, 1e3, 2e2, 5e6, 0.0])


def steps(count: int, draw: np.random.Generator) -> np.ndarray:
    prefill = np.where(draw.random(count) < 0.4, draw.integers(16, 512, count), 0)
    decode = draw.integers(1, 40, count)
    matrix = np.zeros((count, WIDTH))
    matrix[:, 0], matrix[:, 1], matrix[:, 2] = 1, prefill, decode
    matrix[:, 3] = decode * draw.integers(50, 900, count)
    matrix[:, 4] = prefill * draw.integers(0, 900, count)
    matrix[:, 5] = prefill > 0
    return matrix


def equations(matrix: np.ndarray, ns: np.ndarray) -> Equations:
    return Equations(matrix, ns, ["step"] * len(ns), np.arange(len(ns), dtype=np.float64))


@given(st.integers(0, 2**32 - 1), st.integers(1, 5))
def test_no_other_nonnegative_solution_is_better(seed: int, width: int) -> None:
    """Karush, Kuhn, Tucker: no gradient where a value is above 0, none downhill where it is 0."""
    draw = np.random.default_rng(seed)
    columns = draw.standard_normal((width + 3, width))
    right = columns.T @ draw.standard_normal(width + 3)
    gram = columns.T @ columns
    values = nonnegative(gram, right)
    gradient = gram @ values - right
    slack = 1e-6 * (1 + np.abs(gram).max())
    assert np.all(values >= 0)
    assert np.all(np.abs(gradient[values > 0]) <= slack)
    assert np.all(gradient[values == 0] >= -slack)


@settings(max_examples=20)
@given(st.integers(0, 2**32 - 1))
def test_steps_that_somebody_else_delayed_are_not_learnt_from(seed: int) -> None:
    draw = np.random.default_rng(seed)
    matrix = steps(600, draw)
    ns = matrix @ TRUTH * (1 + 0.02 * draw.standard_normal(600))
    ns[draw.random(600) < 0.1] *= 6
    found = solve(equations(matrix, ns)).values
    fresh = steps(200, np.random.default_rng(seed + 1))
    assert np.median(np.abs(fresh @ found / (fresh @ TRUTH) - 1)) < 0.02


def test_bounds_hold_the_truth_as_often_as_they_say() -> None:
    held = []
    for seed in range(10):
        draw = np.random.default_rng(seed)
        matrix = steps(200, draw)
        found = solve(equations(matrix, matrix @ TRUTH * (1 + 0.05 * draw.standard_normal(200))), bounds=True)
        held += list(((found.low <= TRUTH) & (found.high >= TRUTH))[:6])
    assert np.mean(held) > 0.7  # of so few, by a bootstrap that is a little too sure


def test_a_prior_speaks_where_the_data_do_not_and_nowhere_else() -> None:
    draw = np.random.default_rng(0)
    matrix = steps(300, draw)
    matrix[:, 2] = 32  # always as many sequences: nothing tells them from the step itself
    ns = matrix @ TRUTH * (1 + 0.01 * draw.standard_normal(300))
    prior = Prior(np.array([9e6, 8e5, 6e5, 2e3, 4e2, 0, 0]), np.array([3e6, 3e5, 2e5, 7e2, 1e2, 9e6, 0]))
    with_it, without = solve(equations(matrix, ns), prior).values, solve(equations(matrix, ns)).values
    assert abs(with_it[0] / TRUTH[0] - 1) < 0.35
    assert abs(with_it[2] / TRUTH[2] - 1) < 0.35
    assert max(abs(without[0] / TRUTH[0] - 1), abs(without[2] / TRUTH[2] - 1)) > 0.35  # so it was the prior
    assert abs(with_it[1] / TRUTH[1] - 1) < 0.05  # believed twice as much, measured otherwise
