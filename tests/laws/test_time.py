"""Time is an argument: plans follow from what happened and in what order, not from what o'clock it was. And leaps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.core.alarms import NEVER
from headway.core.front.front import FrontLimits
from headway.core.scheduler.step import Step
from tests.laws.stimuli import Ask, plain_asks, setups, stories
from tests.laws.world import MS, Setup, World


@settings(max_examples=80, deadline=None)
@given(setups, stories, st.sampled_from([1, MS, 10**18]))
def test_the_same_stimuli_give_the_same_steps_at_any_time_of_day(setup, story, later):
    worlds = [story.play(World(setup, now=start)) for start in (0, later)]
    one, other = worlds
    assert [replace(step, planned_ns=0) for step in one.steps] == [replace(step, planned_ns=0) for step in other.steps]
    assert one.tokens == other.tokens
    assert {name: end.state for name, end in one.ends.items()} == {name: end.state for name, end in other.ends.items()}
    assert one.left.keys() == other.left.keys()
    assert [decision.kind for decision in one.decisions] == [decision.kind for decision in other.decisions]
    assert one.now == other.now - later


# -- leaps -------------------------------------------------------------------------------------------------------------


def drive(world: World, asks: list[Ask], gap: int, most_steps: int) -> list[Step]:
    """Two requests every `gap` steps; leaps never pass an arrival, nor what time does to those who wait."""
    todo = [ask.request(f"r{i}") for i, ask in enumerate(asks)]
    due, at = 0, 0
    singles: list[Step] = []
    while True:
        while todo and at >= due:
            for request in todo[:2]:
                world.submit(request)
            del todo[:2]
            due += gap
        most = min(most_steps, due - at) if todo else most_steps
        timeless = min(world.front.give_up.next_ns, world.front.lanes.stands_until_ns) == NEVER
        step = world.plan(most if timeless else 1)
        if step is None:
            if not todo:
                return singles
            at = due
            continue
        assert step.repeat <= most
        outcome = world.compute(step)
        done = list(split(step, [result.tokens for result in outcome.results]))
        singles += done
        at += len(done)
        world.commit(step, outcome)


def split(step: Step, tokens: list[list[int]]) -> Iterator[Step]:
    """The single steps that a leap stood for, without what a leap may not know: tables and when."""
    for done in range(len(tokens[0]) if step.repeat > 1 else 1):
        rows = [
            replace(
                row,
                start=row.start + done,
                tokens=[tokens[i][done - 1]] if done else list(row.tokens),
                blocks=[],
                begin=None,
            )
            for i, row in enumerate(step.rows)
        ]
        context = step.context_tokens + done * step.decode_tokens
        yield replace(step, id=0, rows=rows, context_tokens=context, dropped=[], planned_ns=0, repeat=1)


@settings(max_examples=150, deadline=None)
@given(
    setups,
    st.lists(plain_asks, max_size=10),
    st.integers(1, 60),
    st.sampled_from([2, 7, 1000]),
)
def test_leaps_equal_single_steps(setup, asks, gap, most_steps):
    """The same steps, tokens, ends at the same nanosecond; the same blocks, cache and evictions left behind."""
    single, leaping = World(setup), World(setup)
    assert drive(single, asks, gap, 1) == drive(leaping, asks, gap, most_steps)
    assert leaping.tokens == single.tokens
    assert leaping.now == single.now
    for name, end in single.ends.items():
        assert replace(leaping.ends[name], request=end.request, error=end.error) == end
    assert leaping.decisions == single.decisions
    assert leaping.pool._empty == single.pool._empty
    ours, theirs = ([(run.key, run.blocks) for run in world.pool._idle] for world in (leaping, single))
    assert ours == theirs
    assert leaping.pool._runs.keys() == single.pool._runs.keys()
    assert leaping.pool.counters == single.pool.counters
    counted, expected = leaping.scheduler.counters, single.scheduler.counters
    for name in ("steps", "prefill_tokens", "decode_tokens", "preemptions", "recomputed_tokens", "ended"):
        assert getattr(counted, name) == getattr(expected, name)


def test_a_leap_goes_as_far_as_is_certain_and_stops_when_somebody_ends():
    world = World(Setup())
    assert world.submit(Ask(4, 30, ignore_eos=True).request("long"))
    assert world.submit(Ask(4, 12, ignore_eos=True, family=1).request("short"))
    assert world.step(most_steps=100)  # prefill
    assert world.scheduler.horizon() == 11
    assert world.step(most_steps=100)
    assert world.steps[-1].repeat == 11
    assert world.finished("short")
    assert world.step(most_steps=5)
    assert len(world.tokens["long"]) == 12 + 5


@pytest.mark.parametrize("most_steps", [1, 50])
def test_a_leap_takes_no_block_that_single_steps_would_not_take(most_steps):
    """An output that ends of itself, long before it could: the blocks ahead of it, and what they held, are back."""
    world = World(Setup(num_blocks=12, block_size=4, mean_output_tokens=4.0))
    assert world.submit(Ask(9, 1, family=1).request("earlier"))
    world.run()
    cached = world.pool.cached_blocks
    assert world.submit(Ask(4, 40).request("ends early"))
    while world.step(most_steps):
        pass
    assert len(world.tokens["ends early"]) < 20
    assert world.pool.counters.evictions == 0
    assert world.pool.cached_blocks >= cached


def test_an_end_that_a_plan_decided_is_told_as_soon_as_by_single_steps():
    """Who is rejected by a plan hears of it from that plan's commit: no leap may keep it waiting."""
    hungry = [Ask(6, 20, ignore_eos=True, family=i) for i in range(4)]
    setup = Setup(num_blocks=12, block_size=4, max_num_seqs=4, kv_full="reject")
    single, leaping = World(setup), World(setup)
    assert drive(single, hungry, 1, 1) == drive(leaping, hungry, 1, 100)
    assert single.decided("reject")
    assert leaping.decisions == single.decisions


def test_no_leap_while_somebody_is_half_fed():
    world = World(Setup(max_num_batched_tokens=16, max_num_seqs=3))
    assert world.submit(Ask(40, 14, ignore_eos=True).request("long"))
    assert world.step(most_steps=100)
    assert world.scheduler.horizon() == 1


def test_a_leap_goes_on_while_nobody_who_waits_or_was_preempted_can_start():
    world = World(Setup(num_blocks=6, block_size=4, max_num_seqs=3, front=FrontLimits(age_bound_ns=0)))
    for i, name in enumerate("abc"):
        assert world.submit(Ask(8, 14, ignore_eos=True, family=i).request(name))
    while not world.scheduler.preempted:
        assert world.step()
    assert len(world.front.lanes) == 1
    assert world.step(most_steps=100)
    assert world.steps[-1].repeat > 1
    world.run()
    assert all(world.finished(name) for name in "abc")


@pytest.mark.parametrize("policy", ["headway", "vllm"])
@pytest.mark.parametrize("twin", [False, True])
def test_no_leap_while_decode_may_publish_what_somebody_looks_for(policy, twin):
    """One that lost its KV finds more with every block that its twin, who writes the same, fills before it."""
    asks = [Ask(9, 30, ignore_eos=True, family=0 if twin else i) for i in range(3)]
    setup = Setup(num_blocks=14, block_size=4, max_num_seqs=3, policy=policy, front=FrontLimits(age_bound_ns=0))
    single, leaping = World(setup), World(setup)
    assert drive(single, asks, 1, 1) == drive(leaping, asks, 1, 1000)
    assert single.decided("preempt")
    assert leaping.decisions == single.decisions


@settings(max_examples=30, deadline=None)
@given(setups, stories)
def test_two_worlds_never_differ(setup, story):
    """Nothing in the core depends on hashes, ids of objects or an order that Python does not promise."""
    one, other = (story.play(World(setup)) for _ in range(2))
    assert one.steps == other.steps
    assert one.decisions == other.decisions
