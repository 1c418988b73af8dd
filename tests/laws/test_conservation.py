"""Law number one: every request that enters ends in exactly one terminal event; and nothing it held stays held.

The audit around every plan and commit (`audit.py`) recounts blocks, references, what is set aside, slots, lane caps,
budgets and admission's counters, whatever arrives, leaves or dies.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from headway.core.errors import ConfigError, KvExhausted
from headway.core.request import State
from headway.core.scheduler.limits import SchedulerLimits
from headway.core.scheduler.step import BrokenOutcome, Outcome, RowResult
from tests.laws.stimuli import Ask, Story, setups, stories
from tests.laws.world import Setup, World


@settings(max_examples=400, deadline=None)
@given(setups, stories)
def test_every_request_ends_exactly_once_and_nothing_is_left(setup, story):
    world = story.play(World(setup))
    world.audit.at_rest()
    cancelled = {f"r{index}" for index in story.cancels.values()}
    for name, end in world.ends.items():
        if end.state is State.CANCELLED:
            assert name in cancelled
        elif end.state is State.FAILED and not story.deaths:
            assert isinstance(end.error, KvExhausted)
            assert setup.kv_full == "reject"
        assert end.state in {State.FINISHED, State.CANCELLED, State.FAILED}
    assert all(expire is not None or name in cancelled for name, expire in world.left.items())


@settings(max_examples=150, deadline=None)
@given(setups, stories)
def test_counters_equal_a_recount_of_the_steps(setup, story):
    story = Story(story.asks, story.per_step, story.cancels)  # steps that died are not counted
    world = story.play(World(setup))
    counters = world.scheduler.counters
    done = world.steps
    assert counters.steps == len(done)
    assert counters.prefill_tokens == sum(step.prefill_tokens for step in done)
    assert counters.decode_tokens == sum(step.decode_tokens for step in done)
    assert len(world.decided("preempt")) == counters.preemptions
    assert len(world.decided("reject")) == sum(isinstance(end.error, KvExhausted) for end in world.ends.values())
    assert sorted(world.decided("end")) == sorted(world.ends)
    assert sorted(world.decided("start")) == sorted(world.ends)


def test_a_finished_sequence_makes_room_in_the_very_next_step():
    world = World(Setup(max_num_seqs=1))
    for name in ("first", "second"):
        assert world.submit(Ask(3, 2, ignore_eos=True).request(name))
    world.run()
    assert [len(step.rows) for step in world.steps] == [1, 1, 1, 1]
    assert world.ends["second"].times.started_ns >= world.ends["first"].times.ended_ns


def test_abort_fails_what_runs_keeps_what_waits_and_empties_the_cache():
    world = World(Setup(max_num_seqs=2))
    for name in ("a", "b", "waits"):
        assert world.submit(Ask(5, 5).request(name))
    assert world.plan() is not None
    world.abort()
    assert {name: end.state for name, end in world.ends.items()} == {"a": State.FAILED, "b": State.FAILED}
    assert world.pool.used_blocks == world.pool.cached_blocks == 0
    world.run()
    assert world.finished("waits")
    world.audit.at_rest()


@pytest.mark.parametrize("broken", ["nothing", "twice", "stranger", "empty", "another step"])
def test_an_outcome_that_does_not_answer_its_step_is_refused_whole(broken):
    world = World(Setup())
    assert world.submit(Ask(5, 5).request("a"))
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


@settings(max_examples=60, deadline=None)
@given(setups, stories)
def test_a_handle_is_begun_once_and_dropped_once_after_its_end(setup, story):
    story = Story(story.asks, story.per_step, story.cancels)  # a new executor knows nobody: no deaths here
    world = story.play(World(setup))
    dropped = [handle for step in world.steps for handle in step.dropped]
    begun = [row.seq for step in world.steps for row in step.rows if row.begin is not None]
    assert len(set(dropped)) == len(dropped)
    assert len(set(begun)) == len(begun)
    assert set(dropped) <= set(begun)


@pytest.mark.parametrize(
    "limits",
    [(0, 8, 1), (4, 3, 1), (1, 16, 32), (4, 8, 8)],
    ids=["no slot", "budget below slots", "budget below a chunk", "no chunk beside the decodes"],
)
def test_limits_that_would_starve_somebody_are_refused(limits):
    with pytest.raises(ConfigError, match="must be at least"):
        SchedulerLimits(*limits)
