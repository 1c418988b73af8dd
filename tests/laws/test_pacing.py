"""The ITL promise, held by an exact model: a step takes no longer than promised, but for what prefill is owed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.core.pace import Shape
from headway.core.request import BATCH, ONLINE, Slo, State
from headway.core.scheduler.policies import HEADWAY
from headway.core.scheduler.scheduler import YIELD_EVERY
from tests.laws.stimuli import Ask, asks, setups
from tests.laws.world import MS, STEP_TIME, Setup, World

ROOMY = Setup(num_blocks=800, block_size=4, max_num_seqs=8, max_num_batched_tokens=64)


@settings(max_examples=200, deadline=None)
@given(
    setups.map(lambda setup: replace(setup, num_blocks=1000, policy="headway")),
    st.lists(asks, max_size=10),
    st.integers(1, 4),
)
def test_a_step_takes_no_longer_than_the_itl_of_those_who_stream(setup, todo, per_step):
    """Predicted <= max(itl / margin, decode alone); beyond that only the owed block, one step in YIELD_EVERY."""
    world = World(setup)
    owed_tokens = max(setup.block_size, setup.chunk_multiple_tokens)
    requests = [ask.request(f"r{i}") for i, ask in enumerate(todo)]
    starved = 0
    while True:
        for request in requests[:per_step]:
            world.submit(request)
        del requests[:per_step]
        decided = len(world.decisions)
        known = set(world.scheduler.residents.by_handle)
        step = world.plan()
        if step is None:
            if not requests:
                break
            continue
        decoding = [world.seqs[row.seq] for row in step.rows if world.seqs[row.seq].request.state is State.DECODE]
        promises = [seq.request.slo.itl_ns for seq in decoding if seq.request.slo.itl_ns]
        if promises and step.prefill_tokens:
            decode_ns = STEP_TIME.predict_ns(Shape(0, step.decode_tokens, step.context_tokens))
            allowed_ns = max(min(promises) / setup.margin, decode_ns)
            if STEP_TIME.predict_ns(step.shape) > allowed_ns + 1:
                assert starved >= YIELD_EVERY - 1, "too long, and nothing was owed"
                assert step.prefill_tokens <= owed_tokens
        seated = {one.why.removeprefix("slot for ") for one in world.decisions[decided:] if one.why.startswith("slot")}
        prompts = [seq for seq in world.scheduler.running if seq.request.state is State.PREFILL]
        begun = any(seq.handle in known or seq.request.id in seated for seq in prompts)
        starved = starved + 1 if begun and not step.prefill_tokens else 0
        world.commit(step, world.compute(step))


@settings(max_examples=150, deadline=None)
@given(
    setups.map(lambda setup: replace(setup, num_blocks=1000, policy="headway")),
    st.lists(asks.map(lambda ask: replace(ask, priority=0)), max_size=10),
)
def test_nobody_is_started_who_would_push_decode_over_what_was_promised(setup, todo):
    world = World(setup)
    for i, ask in enumerate(todo):
        world.submit(ask.request(f"r{i}"))
    while True:
        known = set(world.scheduler.residents.by_handle)
        step = world.plan()
        if step is None:
            break
        running = world.scheduler.running
        promises = [seq.request.slo.itl_ns for seq in running if seq.request.slo.itl_ns]
        if promises and len(running) > 1 and any(seq.handle not in known for seq in running):
            context = sum(len(seq.tokens) for seq in running)
            assert STEP_TIME.predict_ns(Shape(0, len(running), context)) * setup.margin <= min(promises)
        world.commit(step, world.compute(step))


@pytest.mark.parametrize(("pool", "left"), [(ONLINE, 0.0), (BATCH, 0.15)])
def test_a_long_prompt_is_cut_to_what_the_streams_can_bear_and_no_smaller(pool, left):
    """Of a batch's, less than that: it leaves them something for steps that take longer than predicted."""
    promised_ns = MS
    itl_ns = promised_ns * (1 - left)
    world = World(ROOMY)
    assert world.submit(Ask(4, 60, ignore_eos=True, slo=Slo(itl_ns=promised_ns)).request("chat"))
    assert world.step()
    long = Ask(150, 4, ignore_eos=True, family=1).request("long")
    long.pool = pool
    assert world.submit(long)
    while not world.tokens["long"]:
        assert world.step()
        step = world.steps[-1]
        assert STEP_TIME.predict_ns(step.shape) <= itl_ns
        if not world.tokens["long"]:
            chunk = next(row for row in step.rows if not row.samples)
            one_more = STEP_TIME.prefill_ns(chunk.start, len(chunk.tokens) + 1)
            decode = Shape(0, step.decode_tokens, step.context_tokens)
            assert STEP_TIME.predict_ns(decode) + one_more > itl_ns


@pytest.mark.parametrize(("pool", "started"), [(ONLINE, True), (BATCH, False)])
def test_a_batch_starts_nobody_whose_decode_would_need_what_it_leaves(pool, started):
    world = World(ROOMY)
    two_decode_ns = STEP_TIME.predict_ns(Shape(0, 2, 20))
    assert world.submit(Ask(4, 60, ignore_eos=True, slo=Slo(itl_ns=round(two_decode_ns / 0.95))).request("chat"))
    assert world.step()
    other = Ask(4, 4, ignore_eos=True, family=1).request("other")
    other.pool = pool
    assert world.submit(other)
    assert world.step()
    assert (len(world.scheduler.running) == 2) is started


def test_with_nobody_streaming_the_whole_budget_is_prefill_s():
    world = World(ROOMY)
    assert world.submit(Ask(150, 4, slo=Slo(itl_ns=1)).request("long"))
    assert world.step()
    assert world.steps[-1].prefill_tokens == 64


def test_without_a_promise_decode_goes_on_and_prefill_takes_the_rest():
    world = World(replace(ROOMY, max_num_batched_tokens=16))
    assert world.submit(Ask(4, 60, ignore_eos=True).request("chat"))
    assert world.step()
    assert world.submit(Ask(150, 4, ignore_eos=True, family=1).request("long"))
    while not world.tokens["long"]:
        before = len(world.tokens["chat"])
        assert world.step()
        assert len(world.tokens["chat"]) == before + 1
        assert world.steps[-1].prefill_tokens <= 15
    assert len(world.steps) == 1 + 10  # 150 prompt tokens at 15 a step


# -- priorities ------------------------------------------------------------------------------------------------------


def full_of(priority: int, slots: int = 2, **setup: int) -> World:
    world = World(Setup(max_num_seqs=slots, num_blocks=100, **setup))  # type: ignore[arg-type]
    for i in range(slots):
        assert world.submit(Ask(4, 30, ignore_eos=True, family=i, priority=priority).request(f"running{i}"))
    assert world.step()
    return world


@pytest.mark.parametrize(("waiting", "taken"), [(0, True), (1, False), (2, False)])
def test_a_slot_is_taken_from_a_lower_priority_and_from_nobody_else(waiting, taken):
    world = full_of(1)
    assert world.submit(Ask(4, 4, ignore_eos=True, family=7, priority=waiting).request("urgent"))
    assert world.step()
    assert world.decided("preempt") == (["running1"] if taken else [])
    assert ("urgent" in world.decided("start")) is taken
    world.run()
    assert all(world.finished(name) for name in world.tokens)


def test_the_lowest_priority_pays_first():
    world = World(Setup(max_num_seqs=3, num_blocks=100))
    for i, priority in enumerate((1, 3, 2)):
        assert world.submit(Ask(4, 30, ignore_eos=True, family=i, priority=priority).request(f"p{priority}"))
    assert world.step()
    assert world.submit(Ask(4, 2, ignore_eos=True, family=7, priority=0).request("urgent"))
    assert world.step()
    assert world.decided("preempt") == ["p3"]


@pytest.mark.parametrize("most", [1, 2])
def test_nobody_loses_its_slot_more_often_than_max_preemptions(most):
    world = full_of(1, slots=1, max_preemptions=most)
    for i in range(40):
        world.submit(Ask(4, 2, ignore_eos=True, family=2 + i, priority=0).request(f"urgent{i}"))
        assert world.step()
    assert world.decided("preempt") == ["running0"] * most
    assert world.finished("running0")
    assert HEADWAY.max_preemptions == 2
