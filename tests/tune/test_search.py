"""The search against truths: it loses nothing that a whole grid would find, and says what it cannot find."""

from __future__ import annotations

import math

import pytest

from headway.loadtest.errors import InvalidPlan
from headway.loadtest.result import Slo
from headway.simulate.fit import StepFit
from headway.tune import Settings
from headway.tune.feasible import alone, check
from headway.tune.predict import NO_DOUBT, Doubt
from headway.tune.search import NEAR, SEQS, SURE, TOKENS, Climb, Grid, Search
from tests.tune.truths import SMALL, options, predicted, workload, world

BAD = Settings(1, 32)


@pytest.mark.parametrize(("rate", "lengths"), [(6.0, "64:256"), (1.5, "256:1024")])
def test_what_is_left_out_of_the_grid_is_no_better(rate: float, lengths: str) -> None:
    load = workload(rate, asked=options(duration_s=4.0, lengths=lengths))
    search = Search(world(), load, grid=Grid(SEQS[::2], TOKENS[:7:2]))
    best = search.run(BAD)[0].predicted
    whole = (
        predicted(world(), Settings(seqs, tokens), load).good_ratio
        for tokens in TOKENS[:7:2]
        for seqs in SEQS[::2]
        if seqs <= tokens
    )
    assert best.good_ratio >= max(whole) * (1 - NEAR)


def test_the_best_of_two_that_keep_everything_is_further_from_breaking_a_promise() -> None:
    load = workload(1.0, asked=options())
    first, *rest = Search(world(), load, grid=SMALL).run(None)
    assert first.predicted.good_ratio == 1.0
    kept = [point.predicted.load_on_promises for point in rest if point.predicted.good_ratio == 1.0]
    assert kept
    assert min(kept) >= first.predicted.load_on_promises


def test_lanes_are_searched_only_where_some_requests_are_long() -> None:
    def searched(lengths: str) -> set[tuple[int | None, int | None]]:
        load = workload(4.0, asked=options(duration_s=4.0, lengths=lengths))
        search = Search(world(), load, lane_tokens=(1000, 1000), grid=SMALL)
        search.run(None)
        return {(point.settings.long_prompt_slots, point.settings.long_output_slots) for point in search.points}

    assert searched("16:64") == {(None, None)}
    mixed = searched("700:1300")
    assert len(mixed) > 1
    assert {slots for _, slots in mixed} == {None}


def test_the_highest_load_holds_and_a_little_more_does_not() -> None:
    asked = options(duration_s=4.0)
    climb = Climb(world(), lambda rate: workload(rate, asked=asked), 0.95, lambda *_: None, grid=SMALL)
    rate = climb.run(BAD, start=1.0)
    assert rate is not None

    def best(at: float) -> float:
        load = workload(at, asked=asked)
        return max(
            predicted(world(), Settings(seqs, tokens), load).good_ratio
            for tokens in SMALL.tokens
            for seqs in SMALL.seqs
            if seqs <= tokens
        )

    # Loads at two rates differ by chance as well: there is no sharp border.
    assert best(rate * SURE**6) < 0.99
    assert rate > 2.0


def test_no_load_is_found_where_a_promise_breaks_alone() -> None:
    slo = Slo(itl_s=0.001)
    asked = options(slo, duration_s=2.0)
    climb = Climb(world(), lambda rate: workload(rate, slo, asked), 0.95, lambda *_: None, grid=SMALL)
    assert climb.run(Settings(8, 256), start=1.0) is None


# -- promises that nothing can keep ------------------------------------------------------------------------------------


def prefill_s(fit: StepFit, tokens: int) -> float:
    cost = fit.cost
    return (cost.step_ns + cost.prefill_token_ns * tokens) / 1e9  # this truth has no attention term


def test_a_promise_that_breaks_alone_is_named_with_its_numbers() -> None:
    asked = options(duration_s=10.0, lengths="2000")
    for slo, term in ((Slo(ttft_s=0.5, itl_s=1.0), "ttft"), (Slo(ttft_s=60.0, itl_s=0.005), "itl")):
        found = alone(world().fit, workload(1.0, slo, asked))
        with pytest.raises(InvalidPlan, match=f"--slo-{term}"):
            check(found, 0.0)
    found = alone(world().fit, workload(1.0, Slo(ttft_s=0.5), asked))
    assert found[0].tail_s == pytest.approx(prefill_s(world().fit, 2000))
    with pytest.raises(InvalidPlan, match=r"one prefill of p99 length \(2,000 tokens\) takes 0\.969 s"):
        check(found, 0.0)


def test_a_promise_that_only_the_longest_break_is_a_remark_unless_more_is_wanted() -> None:
    found = alone(world().fit, workload(4.0, Slo(ttft_s=0.5), options(duration_s=20.0, lengths="16:2000")))
    assert len(check(found, 0.0)) == 1
    assert 0.3 < found[0].share < 0.7
    with pytest.raises(InvalidPlan, match="No settings keep this promise"):
        check(found, 0.95)


def test_who_is_alone_is_served_as_fast_as_is_said() -> None:
    """The formula and the simulation are two ways to the same figure."""
    slo = Slo(ttft_s=5.0, itl_s=5.0, e2e_s=50.0)
    asked = options(slo, duration_s=100.0, lengths="700", outputs="20")
    load = workload(0.05, slo, asked)
    found = predicted(world(), Settings(4, 4096), load)
    by_term = {one.term: one.tail_s for one in alone(world().fit, load)}
    assert found.ttft_p95_s == pytest.approx(by_term["ttft"], rel=1e-6)
    assert found.itl_p95_s == pytest.approx(by_term["itl"], rel=1e-2)
    assert found.e2e_p95_s == pytest.approx(by_term["e2e"], rel=1e-2)


def test_predictions_are_deterministic_and_more_server_is_never_worse() -> None:
    load = workload(5.0)
    assert predicted(world(), Settings(8, 256), load) == predicted(world(), Settings(8, 256), load)
    faster, slower = (predicted(world(scale), Settings(16, 256), load) for scale in (0.5, 2.0))
    assert faster.good_ratio >= slower.good_ratio
    assert faster.good_ratio == 1.0
    assert math.isclose(faster.request_rate, load.rate, rel_tol=0.1)


def test_a_doubt_only_makes_promises_harder_to_keep() -> None:
    load = workload(6.0)
    found = world().foresee(Settings(16, 1024), load)
    shares = [
        found.judged(doubt).good_ratio for doubt in (NO_DOUBT, Doubt(1.1), Doubt(1.1, 0.02), Doubt(1.1, 0.02, 1.3))
    ]
    assert shares == sorted(shares, reverse=True)
    assert found.judged(NO_DOUBT) == found.judged(Doubt(1.0))


def test_a_live_test_teaches_doubt_and_never_confidence() -> None:
    load = workload(3.0)
    foreseen = world().foresee(Settings(16, 256), load).judged(NO_DOUBT)
    slow, fast = (world(scale).foresee(Settings(16, 256), load).judged(NO_DOUBT) for scale in (1.4, 0.5))
    assert NO_DOUBT.after(foreseen, fast) == NO_DOUBT
    assert NO_DOUBT.after(foreseen, slow).itl_ratio > 1.2
