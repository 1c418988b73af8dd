"""What a probe says of errors and memory: bounds that are the user's, and what nobody saw."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from headway.loadtest.probe import LoadAnswer, Requirements, opinion, pooled
from headway.loadtest.report import curve
from headway.loadtest.result import Interval, Slo
from headway.loadtest.stable import Search
from tests.loadtest import queues
from tests.loadtest.runs import load, run
from tests.loadtest.test_stable import breaking_at, scripted, searched


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({}, "no KV use and no preemptions"),
        ({"preempted_ratio": 0.0}, "no KV use"),
        ({"kv_used_ratio": 0.5, "preempted_ratio": 0.0}, None),
    ],
)
def test_memory_that_nobody_saw_is_said_not_to_have_been_seen(told, words):
    answer, _ = searched(breaking_at(33.0, **told), Search(start=32.0))
    shown = run(queues.records(queues.single(np.array([1.0]), np.array([0.1]))), load(10.0), slo=Slo(ttft_s=1.0))
    evidence = curve.stable_headline(answer, shown, Requirements())[3]
    line = f"Memory was not seen to be tight or not: the server told {words}."
    assert [said for said in evidence if said.startswith("Memory")] == ([line] if words else [])


def test_the_bounds_of_errors_and_memory_are_the_users():
    for changes, wanted in (
        ({"error_ratio": 0.2}, Requirements(errors=0.25)),
        ({"kv_used_ratio": 0.97}, Requirements(kv_used_ratio=0.98)),
        ({"preempted_ratio": 0.4}, Requirements(preempted_ratio=0.5)),
    ):
        assert opinion([scripted(8, 1.0, **changes)], Requirements(), repeats=1).answer is LoadAnswer.BREAKS
        assert opinion([scripted(8, 1.0, **changes)], wanted, repeats=1).answer is LoadAnswer.HOLDS


def test_probes_are_pooled_by_those_that_were_judged():
    """Of the first 1,000 nearly all were due too shortly before it was cut."""
    cut, whole = scripted(8, 0.5, undecided=900), scripted(8, 1.0)
    nobody = replace(cut, good=Interval(value=None), undecided=1000)
    found = pooled([cut, whole, nobody])
    assert found.value == pytest.approx((100 * 0.5 + 1000 * 1.0) / 1100)
