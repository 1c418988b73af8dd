"""Advice in the brief's words: each rule from the facts that call for it, and silence without them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.core.pace import StepTime
from headway.simulate.advice import Facts, Finding, Latency, advise
from headway.simulate.slots import Steps

MS = 1e6
# A step takes 5 ms, each decoding sequence 0.2 ms more, each prompt token 0.02 ms.
STEPS = Steps(StepTime(5 * MS, 0.02 * MS, 0.2 * MS, 0.0, 0.0), 500)
CALM = Facts(
    max_num_seqs=64,
    max_num_batched_tokens=2_048,
    running=20,
    waiting=0.0,
    kv_used_ratio=0.3,
    preemptions=0,
    requests=1_000,
    ttft=Latency(0.2, 1.0),
    itl=Latency(0.02, 0.1),
    full_budget_ratio=0.1,
    steps=STEPS,
)


def said(facts: Facts) -> dict[str, Finding]:
    found = {f"{finding.change} {finding.setting}": finding for finding in advise(facts)}
    for finding in found.values():
        assert any(sign.isdigit() for sign in finding.why), finding  # each with its numbers
    return found


def test_a_calm_server_needs_nothing() -> None:
    assert advise(CALM) == []


def test_nothing_known_nothing_said() -> None:
    assert advise(Facts(max_num_seqs=64, max_num_batched_tokens=2_048)) == []


def test_queues_with_room_ask_for_more_sequences() -> None:
    finding = said(replace(CALM, running=64, waiting=5.0))["raise max_num_seqs"]
    assert (finding.now, finding.to) == (64, 128)
    assert "5.0 requests wait" in finding.why
    assert "KV 30% used" in finding.why


def test_no_more_sequences_than_kv_holds() -> None:
    finding = said(replace(CALM, running=64, waiting=5.0, kv_used_ratio=0.7))["raise max_num_seqs"]
    assert finding.to is not None
    assert 64 < finding.to <= 64 / 0.7


def test_no_more_sequences_than_the_promise_allows() -> None:
    """5 ms + 0.2 ms each, within 90% of 25 ms: 87."""
    finding = said(replace(CALM, running=64, waiting=5.0, itl=Latency(0.018, 0.025)))["raise max_num_seqs"]
    assert finding.to == 87


@pytest.mark.parametrize("changes", [{"kv_used_ratio": 0.9}, {"itl": Latency(0.0178, 0.018)}])
def test_queues_without_room_ask_for_replicas(changes: dict[str, object]) -> None:
    found = said(replace(CALM, running=64, waiting=5.0, **changes))  # type: ignore[arg-type]
    assert list(found) == ["raise replicas"]


def test_a_batch_that_brings_nothing_more_is_not_raised() -> None:
    """Steps that grow as the batch does."""
    facts = replace(CALM, running=64, waiting=5.0, steps=Steps(StepTime(0.0, 0.0, MS, 0.0, 0.0)), itl=None)
    assert list(said(facts)) == ["raise replicas"]


@pytest.mark.parametrize(
    "changes",
    [
        {"preemptions": 100, "kv_used_ratio": 0.99},
        {"out_of_memory": 2},
        {"kv_used_ratio": 0.97, "ttft": Latency(2.0, 1.0)},
        {"kv_used_ratio": 0.97, "e2e": Latency(9.0, None, before_s=3.0)},
        {"running": 64, "e2e": Latency(9.0, None, before_s=3.0)},
    ],
)
def test_full_kv_preemptions_and_a_worse_tail_ask_for_fewer_sequences(changes: dict[str, object]) -> None:
    found = said(replace(CALM, **changes))  # type: ignore[arg-type]
    assert "lower max_num_seqs" in found
    assert "raise max_num_seqs" not in found


def test_decode_that_is_too_slow_alone_asks_for_fewer_sequences() -> None:
    """At 64: 17.8 ms of 15 ms. Within 90%: 42."""
    finding = said(replace(CALM, running=64, itl=Latency(0.018, 0.015)))["lower max_num_seqs"]
    assert finding.to == 42


def test_prompts_that_break_itl_ask_for_a_smaller_budget() -> None:
    """Decode of 20 takes 9 ms; with 2,028 prompt tokens 49.6 ms of 40 ms. Within 90%: 1,350 + 20."""
    found = said(replace(CALM, itl=Latency(0.049, 0.040)))
    assert list(found) == ["lower max_num_batched_tokens"]
    assert found["lower max_num_batched_tokens"].to == 1_370


def test_a_late_first_token_with_free_slots_asks_for_a_larger_budget() -> None:
    found = said(replace(CALM, ttft=Latency(1.5, 1.0), full_budget_ratio=0.9))
    assert list(found) == ["raise max_num_batched_tokens"]
    assert found["raise max_num_batched_tokens"].to == 4_070  # 5 + 4 + 0.02 × 4,050 ms is 90% of 100 ms
    tight = said(replace(CALM, ttft=Latency(1.5, 1.0), full_budget_ratio=0.9, itl=Latency(0.04, 0.06)))
    to = tight["raise max_num_batched_tokens"].to
    assert to is not None
    assert 2_048 < to <= 2_270  # 5 + 4 + 0.02 × 2,250 ms is 90% of 60 ms


def test_a_model_that_is_wrong_is_told() -> None:
    found = said(replace(CALM, decode_step_s=0.020))
    assert list(found) == ["repeat fit"]


def test_findings_are_sentences() -> None:
    (finding,) = advise(replace(CALM, running=64, waiting=5.0))
    assert str(finding).startswith("Raise max_num_seqs from 64 to 128: ")
    assert str(finding).endswith(".")


ratios = st.none() | st.floats(0, 1)
seconds = st.floats(1e-4, 100)
latencies = st.none() | st.builds(Latency, seconds, st.none() | seconds, st.none() | seconds)
facts = st.builds(
    Facts,
    max_num_seqs=st.integers(1, 1_024),
    max_num_batched_tokens=st.integers(1_024, 16_384),
    running=st.none() | st.floats(0, 1_024),
    waiting=st.none() | st.floats(0, 500),
    kv_used_ratio=ratios,
    preemptions=st.none() | st.integers(0, 100),
    requests=st.none() | st.integers(0, 1_000),
    ttft=latencies,
    itl=latencies,
    e2e=latencies,
    full_budget_ratio=ratios,
    decode_step_s=st.none() | seconds,
    steps=st.none() | st.builds(Steps, st.just(STEPS.time), st.floats(0, 10_000)),
)


@given(facts)
@settings(max_examples=200, deadline=None)
def test_advice_is_of_one_mind(seen: Facts) -> None:
    """Nothing is both raised and lowered, and a number goes where the word says."""
    found = advise(seen)
    touched = [finding.setting for finding in found]
    assert len(touched) == len(set(touched))
    for finding in found:
        if finding.to is not None and finding.now is not None:
            assert finding.to >= 1
            assert (finding.to > finding.now) is (finding.change == "raise")
