"""What fits into a step: by hand, by search, and by what the simulator then makes of it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.core.pace import StepTime, chunk_attention
from headway.core.scheduler.limits import SchedulerLimits
from headway.core.scheduler.policies import POLICIES
from headway.executors.simulated import StepCost
from headway.simulate import VirtualRequest, VirtualSettings, VirtualWorker, simulate
from headway.simulate.slots import GAINS, KV_AIM, Steps, seqs_by_kv

COST = StepCost(4_000_000, 20_000, 100_000, 20, 2.0, 3_000_000)
STREAMS, PROMPT = 8, 20_000


def test_a_step_by_hand() -> None:
    """Of 1,000 tokens 10 decode, 300 of KV each; 990 are the end of a prompt of 5,000."""
    steps = Steps(StepTime(7.0, 5.0, 3.0, 0.1, 0.01), 300, 5_000, 11.0)
    prompt_ns = 5 * 990 + 0.01 * chunk_attention(5_000 - 990, 990)
    assert steps.step_s(1_000, 10) * 1e9 == pytest.approx(7 + 3 * 10 + 0.1 * 3_000 + prompt_ns + 11)
    assert steps.decode_s(10) * 1e9 == pytest.approx(7 + 3 * 10 + 0.1 * 3_000)


def test_a_step_of_more_than_the_longest_prompt_is_of_several_whole_ones() -> None:
    steps = Steps(StepTime(0.0, 0.0, 0.0, 0.0, 1.0), prompt_tokens=100)
    assert steps.step_s(300, 0) * 1e9 == 3 * chunk_attention(0, 100)


def test_prompts_of_unknown_length_are_as_long_as_the_step() -> None:
    assert Steps(StepTime(0.0, 0.0, 0.0, 0.0, 1.0)).step_s(4_000, 0) * 1e9 == chunk_attention(0, 4_000)


def longest_gap_s(budget_tokens: int) -> float:
    """Of eight streams beside which a long prompt is computed, in the simulator."""
    worker = VirtualWorker(
        limits=SchedulerLimits(16, budget_tokens), num_blocks=8_000, block_size=16, cost=COST, policy=POLICIES["vllm"]
    )
    streams = [VirtualRequest(f"s{place}", 0, 500, 1_000, 200) for place in range(STREAMS)]
    asked = [*streams, VirtualRequest("long", 400_000_000, PROMPT, 4, 4)]
    run = simulate(asked, VirtualSettings(workers=(worker,), log_tokens=True))
    gaps = [np.diff(np.array(record.token_ns)) for record in run.records if record.id != "long"]
    return float(max(each[8:].max() for each in gaps)) / 1e9  # the first are beside one another's prompts


def test_the_budget_that_keeps_a_promise_keeps_it_and_not_by_much() -> None:
    promise_s = 0.1
    steps = Steps(COST.step_time, 600, PROMPT, COST.prefill_step_ns)
    budget = steps.budget_within(8_192, STREAMS, promise_s)
    assert longest_gap_s(budget) <= promise_s
    assert longest_gap_s(budget) > 0.9 * promise_s
    assert longest_gap_s(budget + budget // 8) > promise_s


cost = st.floats(0, 1e6)
models = st.builds(
    Steps,
    st.builds(StepTime, st.floats(1, 1e8), cost, cost, st.floats(0, 1e3), st.floats(0, 1e3)),
    st.floats(0, 1e4),
    st.none() | st.floats(1, 1e5),
    st.floats(0, 1e8),
)


@given(models, st.integers(1, 8_192), st.floats(0, 512), st.floats(1e-4, 1))
@settings(max_examples=200, deadline=None)
def test_what_fits_fits_and_one_more_would_not(steps: Steps, most: int, seqs: float, within_s: float) -> None:
    for found, took_s in (
        (steps.budget_within(most, seqs, within_s), lambda tokens: steps.step_s(tokens, seqs)),
        (steps.seqs_within(most, within_s), steps.decode_s),
    ):
        assert found == 0 or took_s(found) <= within_s
        assert found == most or took_s(found + 1) > within_s


def test_what_a_larger_batch_brings() -> None:
    """A step of 10 ms and 1 ms each: 16 take 26 ms, 64 take 74; what grows as the batch does brings nothing."""
    shared = Steps(StepTime(10e6, 0.0, 1e6, 0.0, 0.0))
    assert shared.gain(16, 64) == pytest.approx(4 * 26 / 74)
    assert shared.pays(16, 64)
    alone = Steps(StepTime(0.0, 0.0, 1e6, 0.0, 0.0))
    assert alone.gain(16, 64) == pytest.approx(1.0)
    assert not alone.pays(16, 64)
    assert Steps(StepTime(0.0, 1.0, 0.0, 0.0, 0.0)).gain(16, 64) == 4  # decode that costs nothing


def test_a_gain_is_asked_for_each_doubling() -> None:
    """A step for which four times the batch brings a little less than two doublings must, and one a little more."""
    for gain, pays in ((GAINS**2 - 0.01, False), (GAINS**2 + 0.01, True)):
        each = (4 / gain - 1) / (64 - 16 * 4 / gain)  # of a constant 1: (1 + 64 e) / (1 + 16 e) = 4 / gain
        steps = Steps(StepTime(1e9, 0.0, each * 1e9, 0.0, 0.0))
        assert steps.gain(16, 64) == pytest.approx(gain)
        assert steps.pays(16, 64) is pays


def test_slots_by_kv() -> None:
    assert seqs_by_kv(0.5 / 16) == pytest.approx(KV_AIM * 32)
    assert seqs_by_kv(1_000, 40_000) == pytest.approx(KV_AIM * 40)
    assert seqs_by_kv(0.0) == math.inf
