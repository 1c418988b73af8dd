"""Comparisons: what must be equal, what is unknown, and what is more than noise."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.loadtest.bench.files import Files, read, save
from headway.loadtest.bench.options import (
    Burst,
    ClientOptions,
    Ramp,
    Rate,
    ServerOptions,
    TextOptions,
    WindowOptions,
    load_options,
)
from headway.loadtest.bench.profiles import Terms, offer
from headway.loadtest.bench.tester import Result
from headway.loadtest.compare import DIFFERENT, UNKNOWN, Comparison, _difference, _drawn, compare, distance
from headway.loadtest.record import Record
from headway.loadtest.report import versus
from headway.loadtest.report.json_file import parse_run, run_bytes
from headway.loadtest.result import Environment, Interval, Load, Run, Slo, Word
from headway.metrics import latency
from headway.workload.tokens import Calibration
from tests.loadtest import queues
from tests.loadtest.runs import load, run

KNOWN = Environment(
    model="m",
    precision="bf16",
    quantisation="none",
    device="CPU",
    device_count=1,
    framework="headway 1",
    flags={"a": "1"},
)


def records_of(seed: int, service_s: float = 0.05, rate: float = 8.0) -> list[Record]:
    rng = np.random.default_rng(seed)
    arrived = queues.poisson(rng, rate, 300)
    return queues.records(queues.single(arrived, rng.exponential(service_s, len(arrived))))


def run_of(records: list[Record], environment: Environment = KNOWN, what: Load | None = None, **more: Any) -> Run:
    return run(records, what or load(300.0, rate=8.0), environment=environment, **more)


def changed(run: Run, **environment: Any) -> Run:
    return msgspec.structs.replace(run, environment=msgspec.structs.replace(run.environment, **environment))


@pytest.fixture(scope="module")
def records() -> list[list[Record]]:
    return [records_of(0), records_of(1), records_of(2, service_s=0.08)]


@pytest.fixture(scope="module")
def runs(records) -> list[Run]:
    return [run_of(some) for some in records]


def states(comparison: Comparison, state: str) -> set[str]:
    return {condition.name for condition in comparison.conditions if condition.state == state}


# -- may they be compared? -------------------------------------------------------------------------------------------


def test_two_runs_of_the_same_are_comparable(runs, records):
    for more in ((), (records[0], records[1])):
        comparison = compare(runs[0], runs[1], *more)
        assert comparison.comparable
        assert not states(comparison, DIFFERENT) | states(comparison, UNKNOWN)
        assert comparison.settings == []


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"model": "other"}, "model"),
        ({"precision": "f32"}, "precision"),
        ({"quantisation": "int4"}, "quantisation"),
        ({"device": "GPU"}, "device"),
        ({"device_count": 2}, "device_count"),
        ({"framework": "vllm 1"}, "framework"),
    ],
)
def test_another_means_is_not_comparable(runs, change, name):
    comparison = compare(runs[0], changed(runs[1], **change))
    assert not comparison.comparable
    assert states(comparison, DIFFERENT) == {name}
    assert compare(runs[0], changed(runs[1], **change), varied={name}).comparable


def test_unknown_is_not_equal(runs):
    comparison = compare(changed(runs[0], precision=None), changed(runs[1], precision=None))
    assert not comparison.comparable
    assert states(comparison, UNKNOWN) == {"precision"}
    assert states(comparison, DIFFERENT) == set()


def test_what_a_simulation_was_not_told_of_its_server_is_as_it_was_fitted(runs):
    untold = changed(runs[1], precision=None, quantisation=None, device_count=None, framework=None)
    simulated = msgspec.structs.replace(untold, simulation="m on a device")
    for pair in ((runs[0], simulated), (simulated, runs[0]), (simulated, simulated)):
        assert compare(*pair).comparable
    told = changed(simulated, precision="f32")
    assert states(compare(runs[0], told), DIFFERENT) == {"precision"}
    unknown = changed(runs[0], precision=None)
    assert states(compare(unknown, simulated), UNKNOWN) == {"precision"}
    assert states(compare(runs[0], changed(simulated, model="other")), DIFFERENT) == {"model"}


def test_another_load_or_promise_is_not_comparable(runs):
    rate = compare(runs[0], run_of(records_of(3), what=load(300.0, rate=9.0)))
    assert states(rate, DIFFERENT) == {"rate"}
    slo = compare(runs[0], run_of(records_of(3), slo=Slo(ttft_s=1.0)))
    assert states(slo, DIFFERENT) == {"slo ttft_s"}


@pytest.mark.parametrize(
    ("a", "b", "differ"),
    [
        (Rate(constant=True), Rate(burstiness=0.1), {"constant", "burstiness"}),
        (Rate(), Rate(request_rate=5), {"rate"}),
        (Ramp(start_rate=1, end_rate=10), Ramp(start_rate=9, end_rate=10), {"start_rate"}),
        (Burst(period=60), Burst(period=90), {"period"}),
        (Burst(base_rate=4), Burst(base_rate=5), {"base_rate"}),
        (TextOptions(shared_prefix_tokens=64), TextOptions(), {"shared_prefix_tokens"}),
        (TextOptions(unique_prefix=True), TextOptions(), {"unique_prefix"}),
        (TextOptions(prompts="sample"), TextOptions(), {"prompts"}),
        (TextOptions(tenants="a=3,b=1"), TextOptions(), {"tenants"}),
        (ServerOptions(stream=False), ServerOptions(), {"stream"}),
        (ServerOptions(n=2), ServerOptions(), {"n"}),
        (ServerOptions(temperature=1.0), ServerOptions(), {"temperature"}),
        (ServerOptions(extra_body='{"top_k": 1}'), ServerOptions(), {"extra_body"}),
        (ClientOptions(respect_retry_after=True), ClientOptions(), {"respect_retry_after"}),
        (ClientOptions(processes=2), ClientOptions(), set()),
        (TextOptions(tokenizer="none"), TextOptions(), set()),
    ],
)
def test_another_option_of_the_load_is_another_load(runs, a, b, differ):
    """The lengths of its requests are compared by themselves."""
    one, other = (with_load(runs[0], part) for part in (a, b))
    assert states(compare(one, other), DIFFERENT) == differ
    assert compare(one, other).comparable == (not differ)
    assert compare(one, other, varied=differ).comparable


def with_load(run: Run, part: Any) -> Run:
    """As a run of the profile, or with these options, would have it."""
    profile = part if isinstance(part, Rate | Ramp | Burst) else Rate()
    terms = Terms(WindowOptions(), part if isinstance(part, TextOptions) else TextOptions(), Calibration(), None)
    server = part if isinstance(part, ServerOptions) else ServerOptions()
    client = part if isinstance(part, ClientOptions) else ClientOptions()
    described = offer(profile, terms).described
    mine = msgspec.structs.replace(described, options=described.options | load_options(server, client))
    return msgspec.structs.replace(run, load=mine)


def test_a_ramp_that_takes_longer_is_another(runs):
    def ramp(seconds: float) -> Run:
        terms = Terms(WindowOptions(duration=seconds), TextOptions(), Calibration(), None)
        return msgspec.structs.replace(runs[0], load=offer(Ramp(end_rate=9), terms).described)

    assert states(compare(ramp(60), ramp(120)), DIFFERENT) == {"duration_s"}


def test_a_run_that_does_not_tell_its_options_is_not_known_to_be_alike(runs):
    """Of an older headway: its file is read, and says less."""
    older = json.loads(run_bytes(runs[0]))
    del older["load"]["options"]
    old = parse_run(json.dumps(older).encode(), "run.json")
    assert old.load.options == {}
    for one, other in ((old, old), (old, runs[1]), (runs[1], old)):
        comparison = compare(one, other)
        assert states(comparison, UNKNOWN) == {"options"}
        assert not comparison.comparable
        assert compare(one, other, varied={"options"}).comparable


def test_a_verdict_stands_with_the_run_that_has_it(runs):
    limited = run_of(records_of(3), cpu_ratio=1.0)
    word = limited.verdict.name
    assert word != Word.VALID
    said = {"a": (limited, runs[0], f"verdict: {word} in A, VALID in B")}
    said["b"] = (runs[0], limited, f"verdict: VALID in A, {word} in B")
    said["both"] = (limited, limited, f"verdict: {word} in A, {word} in B")
    for one, other, line in said.values():
        comparison = compare(one, other)
        assert states(comparison, DIFFERENT) == {"verdict"}
        assert versus.obstacles(comparison) == [line]
    assert not versus.obstacles(compare(runs[0], runs[1]))


def test_what_differs_besides_is_told_and_is_no_obstacle(runs):
    other = changed(runs[1], flags={"a": "2", "b": "x"}, noted={"who": "me"})
    other = msgspec.structs.replace(
        other, load=msgspec.structs.replace(other.load, seed=5, settings={"prompts": "text"})
    )
    comparison = compare(runs[0], other)
    assert comparison.comparable
    told = {condition.name: (condition.a, condition.b) for condition in comparison.settings}
    assert told == {
        "seed": ("0", "5"),
        "load prompts": ("unknown", "text"),
        "flag a": ("1", "2"),
        "flag b": ("unknown", "x"),
        "note who": ("unknown", "me"),
    }


def test_other_lengths_are_not_comparable(runs, records):
    longer = records_of(1)
    for record in longer[: len(longer) // 2]:
        record.asked_output_tokens *= 4
        record.output_tokens *= 4
    by_records = compare(runs[0], run_of(longer), records[0], longer)
    assert states(by_records, DIFFERENT) == {"asked_output_tokens"}
    assert "output_tokens" in states(compare(runs[0], run_of(longer)), DIFFERENT)


# -- is a difference more than noise? --------------------------------------------------------------------------------


def test_the_same_server_measured_twice_differs_by_noise(runs, records):
    for more in ((), (records[0], records[1])):
        comparison = compare(runs[0], runs[1], *more)
        beyond = {figure.name for figure in comparison.figures if figure.exceeds_noise}
        assert not beyond & {"ttft p50", "itl p50", "tpot p50", "e2e p50"}
        for figure in comparison.figures:
            if figure.a.value is not None and figure.b.value is not None:
                assert figure.change.value == pytest.approx(figure.b.value - figure.a.value)


def test_a_figure_among_what_was_given_up_is_compared_by_its_bound(runs):
    """Nobody knows how long those would have taken: at least as long as they were waited for."""
    broken = msgspec.convert(msgspec.to_builtins(runs[1]), type(runs[1]))
    broken.summary.overall.distributions["ttft"].percentiles["95"] = Interval(value=None, low=30.0)
    for one, other, sign in ((runs[0], broken, "≥ +"), (broken, runs[0], "≤ -")):
        comparison = compare(one, other)
        (figure,) = (figure for figure in comparison.figures if figure.name == "ttft p95")
        assert (figure.change.value, figure.exceeds_noise) == (None, None)
        (row,) = (row for row in versus.differences(comparison).rows if row[0].text.startswith("TTFT p95"))
        assert "≥ 30" in row[1].text + row[2].text
        assert row[3].text.startswith(sign)


def test_a_bound_is_compared_with_the_end_of_an_interval():
    """Had the other been as long as it may be, the change would be that much smaller."""
    at_least, known = Interval(value=None, low=30.0), Interval(value=10.0, low=8.0, high=13.0)
    open_above = Interval(value=10.0, low=8.0)
    for a, b, low, high in (
        (known, at_least, 17.0, None),
        (at_least, known, None, -17.0),
        (open_above, at_least, None, None),
        (at_least, open_above, None, None),
        (at_least, at_least, None, None),
    ):
        change = _difference("ttft p99", a, b).change
        assert (change.value, change.low, change.high) == (None, low, high)


def test_draws_that_both_lie_beyond_the_samples_bound_nothing():
    """A tenth of both waits was given up after 30 s: whether the one p90 is larger or the other, nobody can tell."""
    waits = np.where(np.arange(2000) % 10 == 0, np.inf, np.random.default_rng(0).uniform(1, 2, 2000))
    sample = {"ttft": latency.Samples(waits, None, np.where(np.isinf(waits), 30.0, np.nan))}
    assert _drawn([sample, sample], "ttft", 90.0, (0, 1)) == (-np.inf, np.inf)
    low, high = _drawn([sample, sample], "ttft", 50.0, (0, 1)) or (np.nan, np.nan)
    assert -0.1 < low < 0 < high < 0.1


def test_a_slower_server_is_slower_by_more_than_noise(runs, records):
    for more in ((), (records[0], records[2])):
        comparison = compare(runs[0], runs[2], *more)
        figures = {figure.name: figure for figure in comparison.figures}
        for name in ("ttft p50", "e2e p50", "itl p50", "tpot p50"):
            figure = figures[name]
            assert figure.exceeds_noise is True
            assert figure.relative is not None
            assert figure.relative > 0.3
            assert figure.change.low is not None
            assert figure.change.low > 0


def test_a_percentile_that_is_not_told_is_not_compared(runs):
    figures = {figure.name: figure for figure in compare(runs[0], runs[1]).figures}
    assert figures["ttft p99.9"].exceeds_noise is None
    assert figures["ttft p99.9"].change.value is None


@pytest.mark.slow
def test_false_alarms_are_as_rare_as_said():
    """Pairs of runs of one server: a twentieth of the figures may differ by chance, and not many more."""
    alarms: list[bool] = []
    some = [records_of(seed) for seed in range(20, 40)]
    made = [run_of(each) for each in some]
    for one in range(0, 20, 2):
        comparison = compare(made[one], made[one + 1], some[one], some[one + 1])
        alarms += [figure.exceeds_noise for figure in comparison.figures if figure.exceeds_noise is not None]
    assert len(alarms) > 150
    assert np.mean(alarms) < 0.12


def test_goodput_and_the_share_of_good_requests_are_compared():
    fast, slow = run_of(records_of(0), slo=Slo(ttft_s=0.2)), run_of(records_of(1, 0.08), slo=Slo(ttft_s=0.2))
    figures = {figure.name: figure for figure in compare(fast, slow).figures}
    assert figures["good_ratio"].exceeds_noise
    assert figures["goodput"].change.value is not None
    assert figures["goodput"].change.value < 0
    assert figures["goodput"].exceeds_noise
    assert figures["goodput"].change.high is not None
    assert figures["goodput"].change.high < 0


@pytest.mark.slow
def test_two_runs_of_one_server_do_not_differ_by_their_saved_files(tmp_path):
    """Single gaps are not in a file, and what they tell of rates is: ten pairs, of which one may differ."""
    differ, rates = [], []
    for number in range(10):
        read_back = []
        for seed in (100 + 2 * number, 101 + 2 * number):
            some = records_of(seed)
            path = tmp_path / f"{seed}.json"
            save(
                Result(run_of(some, slo=Slo(ttft_s=0.2, itl_s=0.2)), some),
                Files(json=path, csv=path.with_suffix(".csv")),
            )
            read_back.append(read(path))
        (one, of_one), (other, of_other) = read_back
        comparison = compare(one, other, of_one, of_other)
        differ.append(comparison.differs)
        figures = {figure.name: figure for figure in comparison.figures}
        for name in ("output_token_rate", "goodput"):
            change = figures[name].change
            assert change.low is not None
            assert change.high is not None
            rates.append(change.low <= 0 <= change.high)
    assert sum(differ) <= 2
    assert np.mean(rates) >= 0.85


@settings(max_examples=10, deadline=None)
@given(st.sampled_from([(0, 1), (0, 2), (1, 2)]))
def test_a_comparison_turned_round_is_the_same_the_other_way(runs, pair):
    there, back = compare(runs[pair[0]], runs[pair[1]]), compare(runs[pair[1]], runs[pair[0]])
    assert there.comparable == back.comparable
    for one, other in zip(there.figures, back.figures, strict=True):
        assert (one.name, one.exceeds_noise) == (other.name, other.exceeds_noise)
        if one.change.value is not None and other.change.value is not None:
            assert one.change.value == pytest.approx(-other.change.value)
        if one.change.low is not None and other.change.high is not None:
            assert one.change.low == pytest.approx(-other.change.high)


def test_a_comparison_is_json(runs):
    comparison = compare(runs[0], runs[2])
    assert msgspec.json.decode(msgspec.json.encode(comparison), type=Comparison) == comparison


# -- distance ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("a", "b", "apart"),
    [([1, 2, 3], [1, 2, 3], 0), ([1, 2], [3, 4], 1), ([1, 2, 3, 4], [3, 4, 5, 6], 0.5), ([1], [1, 2], 0.5)],
)
def test_distance_by_hand(a, b, apart):
    assert distance(np.array(a, float), np.array(b, float)) == apart


@given(st.lists(st.integers(0, 9), min_size=1), st.lists(st.integers(0, 9), min_size=1))
def test_distance_is_a_distance(a, b):
    x, y = np.array(a, float), np.array(b, float)
    assert 0 <= distance(x, y) == distance(y, x) <= 1
    assert distance(x, x) == 0
