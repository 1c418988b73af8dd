"""Laws of the scheduler: what must hold for any arrivals, any limits and any cancellations."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.core.request import State
from headway.core.scheduler import BrokenOutcome, SchedulerLimits
from headway.core.step import Outcome, RowResult
from tests.laws.world import Setup, World, alone, finished, make_copy, make_request

setups = st.builds(
    Setup,
    num_blocks=st.integers(4, 40),
    block_size=st.sampled_from([1, 4, 8]),
    max_num_seqs=st.integers(1, 6),
    max_num_batched_tokens=st.sampled_from([8, 12, 16, 64]),
    chunk_multiple_tokens=st.sampled_from([1, 4, 8]),
)
requests = st.lists(st.tuples(st.integers(1, 60), st.integers(1, 30), st.booleans(), st.integers(0, 3)), max_size=14)
# At each step: cancel this one (by index), or nobody.
cancellations = st.dictionaries(st.integers(0, 60), st.integers(0, 13), max_size=6)


@settings(max_examples=300, deadline=None)
@given(setups, requests, cancellations, st.integers(1, 5))
def test_every_request_ends_exactly_once_and_nothing_is_left(setup, asked, cancel_at, per_step):
    world = World(setup)
    todo = [make_request(f"r{i}", *shape[:2], ignore_eos=shape[2], seed=shape[3]) for i, shape in enumerate(asked)]
    refused: set[str] = set()
    inside: set[str] = set()
    at = 0
    while True:
        for request in todo[:per_step]:
            (inside if world.submit(request) else refused).add(request.id)
        del todo[:per_step]
        step = world.plan()
        if at in cancel_at:  # while a step is in flight: the hard moment
            world.cancel(f"r{cancel_at[at]}")
        if step is not None:
            world.commit(step, world.compute(step))
        at += 1
        assert at < 5_000, "starved"
        if step is None and not todo:
            break
    for request_id in refused:
        assert request_id not in world.ends
    cancelled_waiting = {name for name in inside if name not in world.ends}
    assert all(int(name[1:]) in cancel_at.values() for name in cancelled_waiting)
    for name, end in world.ends.items():
        assert end.usage.output_tokens == len(world.tokens[name])
        assert end.state in {State.FINISHED, State.CANCELLED}
        assert end.times.arrival_ns <= end.times.started_ns <= end.times.ended_ns
    world.check_empty()


@settings(max_examples=200, deadline=None)
@given(setups, requests)
def test_chunking_batching_and_preemption_never_change_tokens(setup, asked):
    world = World(setup)
    made = [make_request(f"r{i}", *shape[:2], ignore_eos=shape[2], seed=shape[3]) for i, shape in enumerate(asked)]
    inside = [request for request in made if world.submit(make_copy(request))]
    world.run()
    for request in inside:
        assert finished(world, request.id)
        assert world.tokens[request.id] == alone(request)


def test_the_tight_worlds_above_really_preempt():
    """The law of unchanged tokens says nothing unless sequences do lose their KV."""
    world = World(Setup(num_blocks=8, block_size=4, max_num_seqs=4))
    made = [make_request(f"r{i}", 6, 20, ignore_eos=True) for i in range(4)]
    for request in made:
        assert world.submit(make_copy(request))
    world.run()
    assert world.scheduler.counters.preemptions > 0
    assert all(world.tokens[request.id] == alone(request) for request in made)


def test_decode_never_stands_still_while_a_long_prompt_enters():
    world = World(Setup(num_blocks=100, max_num_batched_tokens=16))
    assert world.submit(make_request("chat", 4, 60, ignore_eos=True))
    world.step()
    assert world.submit(make_request("long", 150, 4, ignore_eos=True))
    while not world.tokens["long"]:
        before = len(world.tokens["chat"])
        assert world.step()
        assert len(world.tokens["chat"]) == before + 1
        assert world.steps[-1].prefill_tokens <= 15
    assert len(world.steps) == 1 + 10  # 150 prompt tokens at 15 a step


def test_a_finished_sequence_makes_room_in_the_very_next_step():
    world = World(Setup(max_num_seqs=1))
    for name in ("first", "second"):
        assert world.submit(make_request(name, 3, 2, ignore_eos=True))
    world.run()
    assert [len(step.rows) for step in world.steps] == [1, 1, 1, 1]
    assert world.ends["second"].times.started_ns > world.ends["first"].times.ended_ns


def test_two_half_fed_prompts_that_fill_the_cache_do_not_wait_for_each_other_for_ever():
    world = World(Setup(num_blocks=10, block_size=4, max_num_seqs=4, max_num_batched_tokens=8))
    for i in range(4):
        assert world.submit(make_request(f"r{i}", 30, 8, ignore_eos=True))
    world.run(500)
    assert all(finished(world, f"r{i}") for i in range(4))


def test_a_preempted_sequence_comes_back_before_anything_new_and_keeps_its_age():
    world = World(Setup(num_blocks=6, block_size=4, max_num_seqs=3))
    for name in ("a", "b"):
        assert world.submit(make_request(name, 8, 14, ignore_eos=True))
    assert world.submit(make_request("late", 4, 4, ignore_eos=True))
    world.run(500)
    assert world.scheduler.counters.preemptions > 0
    assert list(world.ends) == ["a", "b", "late"]


def test_abort_fails_what_runs_keeps_what_waits_and_empties_the_cache():
    world = World(Setup(max_num_seqs=2))
    for name in ("a", "b", "waits"):
        assert world.submit(make_request(name, 5, 5))
    step = world.plan()
    assert step is not None
    world.take(world.scheduler.abort(world.now))
    assert {name: end.state for name, end in world.ends.items()} == {"a": State.FAILED, "b": State.FAILED}
    assert world.pool.used_blocks == 0
    world.run()
    assert finished(world, "waits")
    world.check_empty()


@pytest.mark.parametrize("broken", ["nothing", "twice", "stranger", "empty", "another step"])
def test_an_outcome_that_does_not_answer_its_step_is_refused_whole(broken):
    world = World(Setup())
    assert world.submit(make_request("a", 5, 5))
    step = world.plan()
    assert step is not None
    good = world.compute(step)
    (result,) = good.results
    bad = {
        "nothing": Outcome(step.id, []),
        "twice": Outcome(step.id, [result, result]),
        "stranger": Outcome(step.id, [RowResult(99, [1])]),
        "empty": Outcome(step.id, [RowResult(result.seq, [])]),
        "another step": Outcome(step.id + 1, [result]),
    }[broken]
    with pytest.raises(BrokenOutcome):
        world.scheduler.commit(step, bad, world.now)
    world.commit(step, good)  # nothing of the bad one was applied
    assert world.tokens["a"] == result.tokens


def test_a_handle_is_dropped_exactly_once_after_its_end():
    world = World(Setup(max_num_seqs=2))
    for i in range(6):
        assert world.submit(make_request(f"r{i}", 5, 3))
    world.run()
    dropped = [handle for step in world.steps for handle in step.dropped]
    begun = [row.seq for step in world.steps for row in step.rows if row.begin is not None]
    assert len(set(dropped)) == len(dropped)
    assert len(set(begun)) == len(begun) == 6
    assert set(dropped) <= set(begun)


@settings(max_examples=50, deadline=None)
@given(setups, requests)
def test_planning_is_deterministic_and_blind_to_the_clock(setup, asked):
    def steps(start: int):
        world = World(setup, now=start)
        for i, shape in enumerate(asked):
            world.submit(make_request(f"r{i}", *shape[:2], ignore_eos=shape[2]))
        world.run()
        return world.steps

    assert steps(0) == steps(10**15)


@pytest.mark.parametrize(
    "limits", [(0, 8, 1), (4, 3, 1), (1, 16, 32)], ids=["no slot", "budget below slots", "budget below a chunk"]
)
def test_limits_that_would_starve_somebody_are_refused(limits):
    with pytest.raises(ValueError, match="must be at least"):
        SchedulerLimits(*limits)
