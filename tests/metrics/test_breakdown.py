"""Requests by tenant, lane, worker and model: nothing is lost, nothing counts down, and labels are bounded."""

from __future__ import annotations

import re

from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from headway.metrics.breakdown import BATCH, MOST_NAMED, OTHER, Breakdown, Calls, Ended, _told
from headway.metrics.gaps import AllGaps, Gaps
from headway.metrics.names import BY_ITL_BUCKETS_S, DIMENSIONS, OUTCOMES

outcomes = st.sampled_from([one for one in OUTCOMES if one != "late"])
names = st.sampled_from(["a", "b", "c", "d", "e", "f"])


def ended(
    outcome: str, tokens: int, kept: dict[str, bool] | None = None, labels: dict[str, str] | None = None
) -> Ended:
    all_gaps = AllGaps()
    gaps = Gaps(all_gaps)
    for _ in range(tokens):
        all_gaps.note(gaps, 0.02, 1)
    return Ended(
        outcome=outcome,
        input_tokens=10 * tokens,
        cached_tokens=tokens,
        output_tokens=tokens,
        ttft_s=0.1 if tokens else None,
        duration_s=0.5,
        gaps=gaps,
        promises=kept or {},
        labels=labels or {},
    )


@settings(deadline=None)
@given(st.lists(st.tuples(outcomes, st.integers(0, 50), names, names), max_size=80))
def test_every_dimension_adds_up_to_all(calls: list[tuple[str, int, str, str]]):
    counted = Calls()
    for outcome, tokens, tenant, worker in calls:
        labels = {"tenant": tenant, "lane": "short", "worker": worker, "model": "m"}
        counted.ended(ended(outcome, tokens, labels=labels))
    assert sum(counted.outcomes.values()) == len(calls)
    for dimension in DIMENSIONS:
        cells = [cell for _, cell in counted.by[dimension].cells()]
        for outcome, count in counted.outcomes.items():
            assert sum(cell.outcomes.get(outcome, 0) for cell in cells) == count
        assert sum(cell.output_tokens for cell in cells) == sum(tokens for _, tokens, _, _ in calls)
        assert sum(cell.itl_s.count for cell in cells) == sum(tokens for _, tokens, _, _ in calls)
        assert sum(cell.ttft_s.count for cell in cells) == sum(tokens > 0 for _, tokens, _, _ in calls)


def test_good_is_what_kept_every_promise():
    calls = Calls()
    calls.ended(ended("good", 1, {"ttft": True, "itl": True}))
    calls.ended(ended("good", 1, {"ttft": True, "itl": False}))
    calls.ended(ended("failed", 1, {"ttft": False}))
    calls.ended(ended("good", 1))
    assert {how: count for how, count in calls.outcomes.items() if count} == {"good": 2, "late": 1, "failed": 1}
    assert calls.promises == {("ttft", "yes"): 2, ("itl", "yes"): 1, ("itl", "no"): 1}


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.lists(st.tuples(st.integers(0, 80), st.integers(0, 3000)), min_size=1, max_size=40), max_size=12),
    st.integers(1, 5),
)
def test_labels_are_bounded_and_no_series_counts_down(batches: list[list[tuple[int, int]]], most: int):
    """A name may lose its series to a busier one, and then begins anew; what all others are together never falls."""
    breakdown = Breakdown(most)
    before: dict[str, int] = {}
    told = 0
    for batch in batches:
        add(breakdown, [(f"t{name}", tokens) for name, tokens in batch])
        told += sum(tokens for _, tokens in batch)
        now = {name: cell.output_tokens for name, cell in breakdown.cells()}
        assert len(now) <= most + 1
        assert sum(now.values()) <= told
        assert now.get(OTHER, 0) >= before.get(OTHER, 0)
        kept = set(now) & set(before)
        if set(before) <= set(now):  # nobody was displaced
            assert all(now[name] >= before[name] for name in kept)
        before = now


def add(breakdown: Breakdown, calls: list[tuple[str, int]]) -> None:
    told = _told([Ended("good", output_tokens=tokens) for _, tokens in calls], ["good"] * len(calls))
    breakdown.add([name for name, _ in calls], told)


def test_the_busiest_have_series_of_their_own():
    """Many who come once do not crowd out those who come to stay, even when they come first."""
    breakdown = Breakdown()
    add(breakdown, [(f"once-{number}", 10) for number in range(500)])
    for _ in range(50):
        add(breakdown, [(f"big-{number}", 1000) for number in range(MOST_NAMED)])
    named = {name for name, _ in breakdown.cells()}
    assert {f"big-{number}" for number in range(MOST_NAMED)} <= named
    assert len(named - {OTHER}) == MOST_NAMED


def test_gauges_of_now_stand_by_the_same_names_and_lose_nothing():
    breakdown = Breakdown(3)
    add(breakdown, [("a", 1), ("b", 1)])
    assert breakdown.bounded({}) == {"a": 0, "b": 0}  # nobody is inside, and dashboards go on
    # Room for one more: the highest of those that are new.
    assert breakdown.bounded({"a": 1, "c": 2, "d": 5, OTHER: 9}) == {"a": 1, "b": 0, "d": 5, OTHER: 11}
    add(breakdown, [("c", 1)])
    assert breakdown.bounded({"d": 5}) == {"a": 0, "b": 0, "c": 0, OTHER: 5}
    many = {f"invented-{number}": number for number in range(1_000)}
    told = breakdown.bounded(many)
    assert len(told) == 4
    assert sum(told.values()) == sum(many.values())


def test_who_takes_how_much_is_told_as_fairness_counts_it():
    """As `Usage.computed_tokens`: what was found in a cache costs nothing. And nobody is missing from the whole."""
    calls = Calls()
    for number in range(MOST_NAMED + 5):
        calls.ended(Ended("good", 100, 90, 10, labels={"tenant": f"t{number}"}))
    calls.refused("limited", {"tenant": "t0"})
    told = calls.by["tenant"].computed_tokens()
    assert told == {**{f"t{number}": 20 for number in range(MOST_NAMED)}, OTHER: 100}


def test_prompts_are_counted_once_their_answer_began():
    calls = Calls()
    for outcome, output in (("good", 5), ("good", 0), ("cancelled", 3), ("cancelled", 0), ("expired", 0)):
        calls.ended(Ended(outcome, 100, 90, output))
    assert calls.begun_tokens == 300


def test_its_text_is_prometheus_and_says_the_same():
    calls = Calls()
    for tenant in ("a", 'b"\\'):
        calls.ended(ended("good", 3, labels={"tenant": tenant, "lane": "short", "worker": "w", "model": "m"}))
    families = {family.name: family for family in text_string_to_metric_families(calls.text())}
    counts = {sample.labels["tenant"]: sample.value for sample in families["headway_tenant_output_tokens"].samples}
    assert counts == {"a": 3.0, 'b"\\': 3.0}
    itl = families["headway_lane_inter_token_latency_seconds"].samples
    assert {sample.value for sample in itl if sample.name.endswith("_count")} == {6.0}
    assert len(re.findall("headway_lane_inter_token_latency_seconds_bucket", calls.text())) == len(BY_ITL_BUCKETS_S) + 1


def test_what_is_added_up_later_is_what_was_told():
    """Over more than one batch, one at a time and together."""
    calls = Calls()
    for number in range(2 * BATCH + 7):
        calls.ended(ended("good", number % 5, labels={"tenant": f"t{number % 3}", "model": "m"}))
        if number % 100 == 0:
            assert sum(cell.outcomes["good"] for _, cell in calls.by["tenant"].cells()) == number + 1
    assert dict(calls.by["model"].cells())["m"].outcomes == {"good": 2 * BATCH + 7}
    assert calls.output_tokens.count == 2 * BATCH + 7
