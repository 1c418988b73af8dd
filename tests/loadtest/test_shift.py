"""Steps and tails: found when they come late, and not seen where there are none."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.loadtest import steady
from headway.loadtest.record import Record
from headway.loadtest.result import Load, Verdict, Word
from headway.loadtest.shift import shift
from headway.loadtest.verdict import DEFAULT, QUANTILES
from headway.metrics import latency
from headway.metrics.latency import Floats, Timings
from tests.loadtest import queues
from tests.loadtest.runs import load, run

WINDOW_S = (50.0, 400.0)
CLOSED = load(400.0, loop="closed", profile="concurrency", concurrency=4)


# -- one series ----------------------------------------------------------------------------------------------------


def test_a_step_is_found_where_it_is_and_as_large_as_it_is():
    blocks = np.concatenate([np.full(16, 0.1), np.full(4, 0.2)]) * np.exp(np.random.default_rng(0).normal(0, 0.05, 20))
    found = shift(blocks)
    assert found.place == 16
    assert found.before == pytest.approx(0.1, rel=0.05)
    assert found.relative == pytest.approx(1.0, abs=0.15)
    assert found.p_value < 0.001


def test_what_is_the_same_all_along_has_no_step():
    assert shift(np.full(20, 0.3)).p_value == 1
    assert shift(np.full(20, np.nan)).p_value == 1
    assert shift(np.zeros(20)).p_value == 1


def test_one_block_that_is_off_is_no_step():
    blocks = np.exp(np.random.default_rng(1).normal(0, 0.1, 20))
    blocks[-1] *= 10
    assert shift(blocks).p_value > 0.001


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32), st.integers(8, 20), st.floats(1e-3, 1e3), st.floats(-2, 2))
def test_a_step_does_not_care_for_units_nor_for_its_direction(seed, n, factor, step):
    blocks = np.exp(np.random.default_rng(seed).normal(0, 0.2, n) + step * (np.arange(n) >= n // 2))
    one, scaled, inverse = shift(blocks), shift(blocks * factor), shift(1 / blocks)
    assert scaled.p_value == pytest.approx(one.p_value)
    assert scaled.change == pytest.approx(one.change * factor, rel=1e-6)
    assert inverse.p_value == pytest.approx(one.p_value)
    assert (1 + inverse.relative) * (1 + one.relative) == pytest.approx(1)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(1e-4, 10), min_size=9, max_size=20), st.sets(st.integers(0, 8), max_size=3))
def test_empty_blocks_are_left_out(values, holes):
    blocks = np.array(values)
    kept = np.delete(blocks, list(holes))
    blocks[list(holes)] = np.nan
    if len(kept) >= 5:
        assert shift(blocks).p_value == shift(kept).p_value


# -- steady runs ---------------------------------------------------------------------------------------------------


def alarms(times: Timings) -> list[str]:
    """As a verdict sees a run, but for its floor in seconds."""
    found = []
    for name, seconds in (("E2E", latency.e2e_s(times)), ("TTFT", latency.ttft_s(times))):
        for quantile in QUANTILES:
            drift = steady.drift(times, seconds, WINDOW_S, quantile)
            if drift is None:
                continue
            if drift.trend.real() and abs(drift.trend.relative) > DEFAULT.latency_drift:
                found.append(f"{name} {quantile} drifts")
            if drift.steps() and abs(drift.shift.relative) > DEFAULT.latency_drift:
                found.append(f"{name} {quantile} steps")
    return found


def queue_at(rng: np.random.Generator, utilisation: float) -> Timings:
    arrived = queues.poisson(rng, 10 * utilisation, WINDOW_S[1])
    return queues.timings(queues.single(arrived, rng.exponential(0.1, len(arrived))))


def spent(rng: np.random.Generator, service: Floats) -> Timings:
    due = np.sort(rng.uniform(0, WINDOW_S[1], len(service)))
    return queues.timings(queues.Served(due, due, due + service))


def remembering(rng: np.random.Generator, memory: float, n: int = 2000) -> Timings:
    """Requests whose neighbours took about as long: a first-order autoregression of logarithms."""
    walk = rng.normal(size=n)
    for place in range(1, n):
        walk[place] = memory * walk[place - 1] + (1 - memory**2) ** 0.5 * walk[place]
    return spent(rng, 0.1 * np.exp(0.5 * walk))


def two_kinds(rng: np.random.Generator) -> Timings:
    return spent(rng, np.where(rng.uniform(size=600) < 0.5, 0.1, 1.0) * rng.uniform(0.8, 1.2, 600))


STEADY = {
    "M/M/1 at 0.3": lambda rng: queue_at(rng, 0.3),
    "M/M/1 at 0.6": lambda rng: queue_at(rng, 0.6),
    "M/M/1 at 0.8": lambda rng: queue_at(rng, 0.8),
    "M/M/1 at 0.9": lambda rng: queue_at(rng, 0.9),
    "memory of 10": lambda rng: remembering(rng, 0.9),
    "memory of 100": lambda rng: remembering(rng, 0.99),
    "long tail": lambda rng: spent(rng, 0.1 * (1 + rng.pareto(1.5, 3000))),
    "two kinds": two_kinds,
    "few": lambda rng: spent(rng, rng.lognormal(-2, 0.5, 100)),
}


@pytest.mark.slow
def test_steady_runs_are_not_told_to_drift():
    """Correlated ones too: 270 runs, each with up to sixteen questions, and at most one in a hundred cries wolf."""
    seen = {
        (name, seed): found
        for name, make in STEADY.items()
        for seed in range(30)
        if (found := alarms(make(np.random.default_rng([seed, len(name)]))))
    }
    assert len(seen) <= 0.01 * 30 * len(STEADY), seen


# -- runs that are not -----------------------------------------------------------------------------------------------


def closed_loop(rng: np.random.Generator, *, late: float = 1.0, tail: float = 1.0) -> list[Record]:
    """Four slots for 400 s, each request about 0.5 s. From 320 s on it takes `late` times as long; over the run, one in
    eight takes up to `tail` times as long.
    """
    start, end = [], []
    for _ in range(4):
        at = rng.uniform(0, 0.5)
        while at < 400:
            service = 0.5 * rng.lognormal(0, 0.3) * (late if at > 320 else 1.0)
            if rng.uniform() < 0.125:
                service *= 1 + (tail - 1) * at / 400
            start.append(at)
            at += service
            end.append(at)
    order = np.argsort(start)
    return queues.records(queues.Served(np.array(start)[order], np.array(start)[order], np.array(end)[order]))


def judged(records: list[Record], what: Load = CLOSED) -> Verdict:
    return run(records, what).verdict


@pytest.mark.parametrize("seed", range(5))
def test_a_latency_that_doubles_at_the_end_is_unsteady(seed):
    found = judged(closed_loop(np.random.default_rng(seed), late=2.0))
    assert found.name == Word.UNSTEADY
    step = next(finding.evidence for finding in found.findings if finding.evidence.startswith("E2E stepped"))
    assert "s at 320 s (+" in step
    assert judged(closed_loop(np.random.default_rng(seed))).name == Word.VALID


def test_a_latency_that_halves_at_the_end_is_unsteady_too():
    assert judged(closed_loop(np.random.default_rng(0), late=0.5)).name == Word.UNSTEADY


@pytest.mark.parametrize("seed", range(5))
def test_a_tail_that_grows_over_a_median_that_does_not_is_unsteady(seed):
    records = closed_loop(np.random.default_rng(seed), tail=8.0)
    found = judged(records)
    assert found.name == Word.UNSTEADY
    assert any(finding.evidence.startswith("E2E at p9") for finding in found.findings)
    times = run(records, CLOSED).summary.overall.distributions["e2e"]
    assert times.samples > 2000, "and not for want of samples"


def test_a_step_that_nobody_can_feel_is_none():
    """0.5 ms become 0.7 ms: real, +40 %, and less than the client itself may be late."""
    rng = np.random.default_rng(0)
    due = np.sort(rng.uniform(0, 400, 4000))
    service = rng.uniform(0.0004, 0.0006, 4000)
    for made in (service + 0.0002 * (due > 320), service + 0.0002 * due / 400):
        quick = queues.records(queues.Served(due, due, due + made))
        assert judged(quick, load(400.0)).name == Word.VALID
        slow = queues.records(queues.Served(due, due, due + 100 * made))
        assert judged(slow, load(400.0)).name == Word.UNSTEADY
