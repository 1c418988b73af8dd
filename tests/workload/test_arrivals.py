"""Arrival processes: time never goes back, and the rate is the promised one, at every moment."""

from __future__ import annotations

import itertools
import math
import statistics
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.workload.arrivals import Arrivals, Bursts, Constant, Gamma, Poisson, RisingRate
from headway.workload.draws import stream
from headway.workload.errors import WorkloadError
from headway.workload.schedule import Stop

quick = settings(deadline=None)
rates = st.floats(0.01, 2000)
processes: st.SearchStrategy[Arrivals] = st.one_of(
    st.builds(Constant, rates),
    st.builds(Poisson, rates),
    st.builds(Gamma, rates, st.floats(0.01, 100)),
    st.builds(RisingRate, rates | st.just(0.0), rates, st.floats(0.1, 5000), st.sampled_from([0, 2, 3, 10])),
    st.builds(
        lambda base, more, period, share: Bursts(base, base + more, period, share),
        rates | st.just(0.0),
        rates,
        st.floats(0.5, 600),
        st.floats(0.01, 0.99),
    ),
)
# Everything that is Poisson at each moment, with a stretch that holds some thousand requests.
POISSON = [
    (Poisson(40), 100),
    (RisingRate(0, 80, 100), 100),
    (RisingRate(10, 70, 50), 100),
    (RisingRate(60, 5, 80), 100),
    (RisingRate(5, 95, 90, steps=10), 100),
    (RisingRate(0, 60, 60, steps=4), 100),
    (Bursts(10, 160, 20, 0.2), 100),
    (Bursts(0, 200, 7, 0.2), 100),
]


def rate_at(process: Arrivals, at_s: float) -> float:
    """As the process describes itself, and not as it computes what is expected."""
    if isinstance(process, RisingRate):
        level = next((one for one in process.levels if at_s < one.end_s), None)
        return process.end_rate if level is None else level.rate + level.slope * (at_s - level.start_s)
    if isinstance(process, Bursts):
        into_period = at_s % process.period_s / process.period_s
        return process.burst_rate if abs(into_period - 0.5) < process.on_share / 2 else process.base_rate
    return process.peak_rate


def drawn(process: Arrivals, seed: int, until_s: float) -> list[int]:
    return list(Stop(duration_s=until_s).cut(process.times(stream(seed, "arrivals"))))


@quick
@given(processes, st.integers())
def test_times_are_whole_and_never_decrease(process: Arrivals, seed: int) -> None:
    times = list(itertools.islice(process.times(stream(seed)), 300))
    assert all(type(at_ns) is int for at_ns in times)
    assert times[0] >= 0
    assert times == sorted(times)
    assert times == list(itertools.islice(process.times(stream(seed)), 300))


@quick
@given(processes, st.floats(0, 1), st.floats(0.01, 3000))
def test_what_is_expected_is_the_integral_of_the_rate(process: Arrivals, begin: float, length_s: float) -> None:
    """By the midpoint rule, whose error is bounded by the jumps: a burst's edge costs at most one cell."""
    cells = 2000
    cell_s = length_s / cells
    start_s = begin * length_s
    total = sum(rate_at(process, start_s + (cell + 0.5) * cell_s) for cell in range(cells)) * cell_s
    edges = 2 * length_s / process.period_s + 2 if isinstance(process, Bursts) else 12
    found = process.expected(start_s + length_s) - process.expected(start_s)
    assert found == pytest.approx(total, rel=1e-6, abs=edges * process.peak_rate * cell_s)


@quick
@given(processes, st.floats(0, 5000), st.floats(0.01, 100))
def test_no_rate_is_above_the_peak(process: Arrivals, at_s: float, length_s: float) -> None:
    found = process.expected(at_s + length_s) - process.expected(at_s)
    rounding = 1e-9 * (1 + process.peak_rate * (at_s + length_s))
    assert -rounding <= found <= process.peak_rate * length_s + rounding


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("process", "until_s"), POISSON, ids=str)
def test_as_many_come_as_are_expected(process: Arrivals, until_s: float, seed: int) -> None:
    """A Poisson count varies by its own root."""
    expected = process.expected(until_s)
    assert expected > 2000
    assert abs(len(drawn(process, seed, until_s)) - expected) < 4 * math.sqrt(expected)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("process", "until_s"), POISSON, ids=str)
def test_gaps_are_exponential_in_the_time_that_the_rate_keeps(process: Arrivals, until_s: float, seed: int) -> None:
    """The time-change theorem: measured by the integral of the rate, the gaps are those of a Poisson process."""
    masses = [process.expected(at_ns / 1e9) for at_ns in drawn(process, seed, until_s)]
    gaps = [after - before for before, after in itertools.pairwise([0.0, *masses])]
    error = 4 / math.sqrt(len(gaps))
    assert abs(statistics.fmean(gaps) - 1) < error
    assert abs(statistics.stdev(gaps) - 1) < 2 * error
    assert abs(sum(gap < math.log(2) for gap in gaps) / len(gaps) - 0.5) < error / 2


@pytest.mark.parametrize("burstiness", [0.1, 0.25, 1.0, 4.0, 100.0])
def test_gamma_gaps_have_the_mean_of_the_rate_and_a_spread_of_the_burstiness(burstiness: float) -> None:
    times = list(itertools.islice(Gamma(50, burstiness).times(stream(8)), 40_000))
    gaps = [(after - before) / 1e9 for before, after in itertools.pairwise([0, *times])]
    mean, spread = statistics.fmean(gaps), 1 / math.sqrt(burstiness)
    assert abs(mean * 50 - 1) < 4 * spread / math.sqrt(len(gaps))
    assert statistics.stdev(gaps) / mean == pytest.approx(spread, rel=0.05)


@quick
@given(rates, st.integers(0, 10_000_000))
def test_a_constant_rate_does_not_drift(rate: float, index: int) -> None:
    at_ns = next(itertools.islice(Constant(rate).times(stream(0)), index % 5000, None))
    assert abs(at_ns - (index % 5000) * 1e9 / rate) <= 1


def test_a_ramp_in_steps_is_steady_on_each_and_ends_on_the_last() -> None:
    ramp = RisingRate(10, 40, 40, steps=4)
    assert [(level.start_s, level.end_s, level.rate) for level in ramp.levels] == [
        (0, 10, 10),
        (10, 20, 20),
        (20, 30, 30),
        (30, 40, 40),
    ]
    assert ramp.expected(50) == 1400
    assert ramp.expected(400) == 1000 + 360 * 40
    counts = [0] * 4
    for seed in range(20):
        for at_ns in drawn(ramp, seed, 40):
            counts[at_ns // 10_000_000_000] += 1
    for count, rate in zip(counts, (10, 20, 30, 40), strict=True):
        assert abs(count - 20 * 10 * rate) < 4 * math.sqrt(20 * 10 * rate)


def test_a_ramp_in_a_line_holds_the_mean_of_its_ends() -> None:
    assert RisingRate(10, 40, 40).expected(40) == 1000
    assert RisingRate(0, 40, 40).expected(20) == 200
    assert RisingRate(0, 40, 40).expected(80) == 800 + 40 * 40


@quick
@given(st.floats(1, 500), st.floats(0.5, 60), st.floats(0.05, 0.95), st.integers())
def test_with_no_base_all_requests_are_in_bursts(rate: float, period_s: float, share: float, seed: int) -> None:
    process = Bursts(0, rate, period_s, share)
    times = list(itertools.islice(process.times(stream(seed)), 100))
    windows = iter(process.windows(times[-1] / 1e9 + period_s))
    window = next(windows)
    for at_ns in times:
        while at_ns > window.end_ns:
            window = next(windows)
        assert window.start_ns <= at_ns


@quick
@given(st.floats(0.5, 600), st.floats(0.01, 0.99), st.floats(0.1, 5000))
def test_windows_are_the_time_at_the_high_rate(period_s: float, share: float, until_s: float) -> None:
    process = Bursts(1, 3, period_s, share)
    windows = process.windows(until_s)
    busy_s = sum(window.end_ns - window.start_ns for window in windows) / 1e9
    assert process.expected(until_s) == pytest.approx(until_s + 2 * busy_s, rel=1e-6, abs=1e-6)
    assert all(before.end_ns < after.start_ns for before, after in itertools.pairwise(windows))
    if windows:
        assert windows[0].start_ns == pytest.approx(period_s * (1 - share) / 2 * 1e9, abs=2)  # calm comes first


@quick
@given(processes, st.integers(), st.integers(1, 300), st.floats(0.01, 100))
def test_a_load_stops_by_count_by_time_or_by_what_comes_first(
    process: Arrivals, seed: int, requests: int, duration_s: float
) -> None:
    counted = list(Stop(requests=requests).cut(process.times(stream(seed))))
    assert len(counted) == requests
    both = list(Stop(duration_s, requests).cut(process.times(stream(seed))))
    assert both == [at_ns for at_ns in counted if at_ns < duration_s * 1e9]


def test_a_request_due_at_the_very_end_is_left_out() -> None:
    assert drawn(Constant(10), 0, 1.0) == [round(index * 1e8) for index in range(10)]


GOOD: dict[str, tuple[Any, dict[str, Any]]] = {
    "constant": (Constant, {"rate": 5}),
    "poisson": (Poisson, {"rate": 5}),
    "gamma": (Gamma, {"rate": 5, "burstiness": 0.5}),
    "ramp": (RisingRate, {"start_rate": 1, "end_rate": 5, "duration_s": 10}),
    "bursts": (Bursts, {"base_rate": 1, "burst_rate": 5, "period_s": 10, "on_share": 0.2}),
    "stop": (Stop, {"duration_s": 10}),
}
MAY_BE_ZERO = {"start_rate", "base_rate"}
BAD_VALUES = [0, -1, -0.0, math.nan, math.inf, -math.inf, 1e300, 10**400, "5", True, [1]]
CASES = [
    (name, field, value)
    for name, (_, fields) in GOOD.items()
    for field in fields
    for value in BAD_VALUES
    if not (field in MAY_BE_ZERO and isinstance(value, int | float) and not isinstance(value, bool) and value == 0)
]


@pytest.mark.parametrize(("name", "field", "value"), CASES, ids=lambda value: str(value)[:12])
def test_a_bad_value_is_refused_by_name(name: str, field: str, value: Any) -> None:
    kind, fields = GOOD[name]
    with pytest.raises(WorkloadError, match=rf"^{field} must be ") as error:
        kind(**{**fields, field: value})
    assert error.value.field == field


def test_values_that_do_not_go_together_are_refused() -> None:
    with pytest.raises(WorkloadError, match=r"burst_rate must be more than base_rate \(5\), not 5"):
        Bursts(5, 5, 10, 0.5)
    with pytest.raises(WorkloadError, match="steps must be 0"):
        RisingRate(1, 5, 10, steps=1)
    with pytest.raises(WorkloadError, match="must stop"):
        Stop()
    with pytest.raises(WorkloadError, match=r"^requests must be 1 to"):
        Stop(requests=0)


@pytest.mark.parametrize(
    ("process", "said"),
    [
        (Constant(5), "5 requests/s, evenly spaced"),
        (Gamma(5, 0.25), "5 requests/s, gamma gaps of burstiness 0.25 (gap CV 2)"),
        (RisingRate(1, 5, 60, 5), "1 requests/s to 5 requests/s in 5 steps over 60 s, Poisson"),
        (Bursts(1, 20, 30, 0.2), "1 requests/s, with 20 requests/s for 6 s of every 30 s"),
    ],
)
def test_a_process_tells_people_what_it_is(process: Arrivals, said: str) -> None:
    assert process.description == said
