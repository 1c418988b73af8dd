"""Nobody starves. Every bound is a formula of the limits, written beside the law that holds it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.core.front.front import FrontLimits
from headway.core.request import Slo, State
from headway.core.scheduler.policies import HEADWAY
from headway.core.scheduler.scheduler import YIELD_EVERY
from tests.laws.stimuli import Ask, Story, plain_stories, setups, stories
from tests.laws.world import MS, STEP_TIME, Setup, World

ROOMY = Setup(num_blocks=800, block_size=4, max_num_seqs=8, max_num_batched_tokens=64)


@settings(max_examples=150, deadline=None)
@given(setups, stories)
def test_no_step_is_wasted_so_everything_ends(setup, story):
    """Each step feeds at least a token, and a token is fed again only when its sequence was preempted:

    steps <= (1 + max_preemptions) * sum of (prompt + max_tokens), at full KV, in every mode.
    """
    story = Story(story.asks, story.per_step, story.cancels)
    setup = replace(setup, policy="headway")
    world = story.play(World(setup))
    worst = sum(ask.prompt_tokens + ask.max_tokens for ask in story.asks)
    assert len(world.steps) <= (1 + setup.core_policy.max_preemptions) * worst


# -- prefill beside decode that has no time to spare -----------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    block_size=st.sampled_from([1, 4, 8]),
    multiple=st.sampled_from([1, 4, 8]),
    prompts=st.lists(st.integers(20, 150), min_size=1, max_size=3),
    streams=st.integers(1, 3),
    spare_ns=st.integers(0, 100_000),
)
def test_a_begun_prompt_gets_a_block_in_every_few_steps(block_size, multiple, prompts, streams, spare_ns):
    """In any YIELD_EVERY steps on end before which a prompt stands begun, prefill gets a block, or what remains."""
    world = World(replace(ROOMY, block_size=block_size, chunk_multiple_tokens=multiple))
    for i in range(streams):
        # As much as these streams need at their end; hardly anything for prefill.
        itl_ns = int(STEP_TIME.step_ns + 8 * STEP_TIME.decode_seq_ns + 600 * STEP_TIME.context_token_ns) + spare_ns
        assert world.submit(Ask(4, 190, ignore_eos=True, family=i, slo=Slo(itl_ns=itl_ns)).request(f"stream{i}"))
    assert world.step()
    world.scheduler.model.margin = 1.9  # the promise is tight from now on, whatever it was when they started
    for i, prompt in enumerate(prompts):
        assert world.submit(Ask(prompt, 2, family=5 + i).request(f"long{i}"))
    record: list[tuple[bool, int]] = []  # was there a begun prompt, and what it got
    while world.scheduler.busy and len(record) < 180:
        begun = any(seq.request.state is State.PREFILL for seq in world.scheduler.running)
        assert world.step()
        record.append((begun, world.steps[-1].prefill_tokens))
    for at in range(len(record) - YIELD_EVERY + 1):
        window = record[at : at + YIELD_EVERY]
        if all(begun for begun, _ in window):
            got = sum(tokens for _, tokens in window)
            ended = any(seq.times.first_token_ns for seq in world.seqs.values() if seq.request.max_tokens == 2)
            assert got >= min(block_size, *prompts) or (got > 0 and ended)


@pytest.mark.parametrize("multiple", [1, 4, 8])
def test_a_long_prompt_under_streams_that_own_all_time_has_a_bounded_first_token(multiple):
    """Steps to the first token <= YIELD_EVERY * ceil(prompt / max(block, multiple))."""
    world = World(replace(ROOMY, chunk_multiple_tokens=multiple))
    assert world.submit(Ask(4, 190, ignore_eos=True, slo=Slo(itl_ns=MS)).request("stream"))
    assert world.step()
    assert world.submit(Ask(150, 2, ignore_eos=True, family=1).request("long"))
    assert world.step()
    world.scheduler.model.margin = 4.0  # from here on decode alone takes longer than it may
    steps = 0
    while not world.tokens["long"]:
        assert world.step()
        steps += 1
    assert steps <= YIELD_EVERY * -(-150 // max(4, multiple))
    assert steps > 150 // 16  # and the streams did not simply give way
    assert "long" in world.decided("yield")


def test_what_was_owed_to_a_prompt_that_left_is_owed_to_nobody():
    world = World(replace(ROOMY, chunk_multiple_tokens=8))
    assert world.submit(Ask(4, 60, ignore_eos=True, slo=Slo(itl_ns=MS)).request("stream"))
    assert world.step()
    assert world.submit(Ask(150, 2, family=1).request("long"))
    assert world.step()
    world.scheduler.model.margin = 4.0
    for _ in range(YIELD_EVERY - 1):
        assert world.step()
    world.cancel("long")
    assert world.step()
    assert world.steps[-1].prefill_tokens == 0


@settings(max_examples=40, deadline=None)
@given(st.sampled_from([4, 8]), st.integers(2, 4), st.integers(20, 60))
def test_alignment_never_starves_a_prompt_beside_streams(multiple, slots, prompt):
    """The budget holds every slot's decode and a whole chunk: a prompt moves in every step, however little is left."""
    setup = Setup(block_size=4, chunk_multiple_tokens=multiple, max_num_seqs=slots, num_blocks=200)
    world = World(replace(setup, max_num_batched_tokens=slots - 1 + multiple))
    for i in range(slots - 1):
        assert world.submit(Ask(3, 100, ignore_eos=True, family=i).request(f"stream{i}"))
    while not all(world.tokens.values()):
        assert world.step()
    assert world.submit(Ask(prompt, 2, family=9).request("long"))
    before = len(world.steps)
    while not world.tokens["long"]:
        assert world.step()
    assert len(world.steps) - before <= -(-prompt // multiple)


# -- those who wait --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("slots", [1, 3])
def test_an_aged_request_starts_when_the_next_slot_is_free(slots):
    """Under an endless stream of higher priorities: wait <= age_bound + the longest that a running one takes."""
    bound_ns = 40 * MS
    world = World(Setup(num_blocks=100, max_num_seqs=slots, front=FrontLimits(age_bound_ns=bound_ns)))
    for i in range(slots):
        assert world.submit(Ask(4, 6, ignore_eos=True, priority=0, family=i).request(f"first{i}"))
    assert world.step()
    assert world.submit(Ask(4, 6, ignore_eos=True, priority=9, family=1).request("low"))
    low = next(iter(world.front.lanes))
    for i in range(400 * slots):
        world.submit(Ask(4, 6, ignore_eos=True, priority=0, family=i).request(f"high{i}"))
        if i % slots:
            continue
        assert world.step()
        if world.finished("low"):
            break
    service_ns = max(end.times.ended_ns - end.times.started_ns for name, end in world.ends.items() if name != "low")
    times = world.ends["low"].times
    assert times.started_ns - low.arrival_ns <= bound_ns + service_ns
    assert times.started_ns >= low.aged_at_ns  # not sooner: priorities count for something
    # Its slot may be taken from it, and each time it is back as soon as who took it is done.
    interrupted = HEADWAY.max_preemptions + 1
    assert times.ended_ns - times.started_ns <= interrupted * 3 * service_ns


@pytest.mark.parametrize("policy", ["headway", "vllm"])
@pytest.mark.parametrize("mode", ["preempt", "wait", "reject"])
def test_a_request_without_kv_is_overtaken_a_bounded_number_of_times(mode, policy):
    """Overtaken <= max_overtakes; then nothing starts before it, and it starts as soon as those who ran are done."""
    setup = Setup(num_blocks=16, block_size=4, max_num_seqs=4, kv_full=mode, policy=policy)
    world = World(setup)
    assert world.submit(Ask(8, 12, ignore_eos=True, family=1).request("before"))
    assert world.step()
    assert world.submit(Ask(58, 2, ignore_eos=True, family=2).request("big"))  # 15 blocks of 16
    for i in range(200):
        world.submit(Ask(4, 4, ignore_eos=True, family=3 + i).request(f"small{i}"))
        assert world.step()
        if "big" in world.decided("start"):
            break
    started = world.decided("start")
    overtakers = started.index("big") - 1
    limit = setup.core_policy.max_overtakes
    assert overtakers == limit == len([one for one in world.decided("overtake") if one == "big"])
    for _ in range(100):
        world.step()
    assert world.finished("big") or (mode == "reject" and "big" in world.ends)


@pytest.mark.parametrize("aged_ms", [5, 60])
def test_a_preempted_sequence_comes_back_within_its_age_whatever_else_arrives(aged_ms):
    """Higher priorities may pass it while it is young. From age_bound on nothing starts before it is back:

    out <= age_bound + the longest that those who then run take.
    """
    world = World(Setup(num_blocks=10, max_num_seqs=8, front=FrontLimits(age_bound_ns=aged_ms * MS)))
    assert world.submit(Ask(8, 24, ignore_eos=True, priority=0).request("old"))
    assert world.submit(Ask(8, 20, ignore_eos=True, priority=1, family=1).request("low"))
    low = world.front.lanes
    aged_at_ns = next(request for request in low if request.id == "low").aged_at_ns
    out_at_ns = back_at_ns = 0
    for i in range(400):
        world.submit(Ask(4, 4, ignore_eos=True, priority=0, family=2 + i).request(f"small{i}"))
        assert world.step()
        if "low" in world.decided("preempt") and not out_at_ns:
            out_at_ns = world.now
        if "low" in world.decided("readmit"):
            back_at_ns = world.now
            break
    service_ns = max(end.times.ended_ns - end.times.started_ns for end in world.ends.values())
    assert out_at_ns
    assert back_at_ns <= max(out_at_ns, aged_at_ns) + service_ns
    before = len(world.steps)
    while not world.finished("low"):
        assert world.step()
    assert len(world.steps) - before <= (HEADWAY.max_preemptions + 1) * (8 + 20) + 2 * 24


def test_a_preempted_sequence_comes_back_before_anything_new_and_keeps_its_age():
    world = World(Setup(num_blocks=6, block_size=4, max_num_seqs=3))
    for i, name in enumerate(("a", "b")):
        assert world.submit(Ask(8, 14, ignore_eos=True, family=i).request(name))
    assert world.submit(Ask(4, 4, ignore_eos=True, family=3).request("late"))
    world.run(500)
    assert world.decided("preempt")
    assert list(world.ends) == ["a", "b", "late"]


def test_half_fed_prompts_that_fill_the_cache_do_not_wait_for_each_other_for_ever():
    world = World(Setup(num_blocks=10, block_size=4, max_num_seqs=4, max_num_batched_tokens=8))
    for i in range(4):
        assert world.submit(Ask(30, 8, ignore_eos=True, family=i).request(f"r{i}"))
    world.run(500)
    assert all(world.finished(f"r{i}") for i in range(4))


@settings(max_examples=100, deadline=None)
@given(setups, plain_stories, st.integers(1, 3))
def test_nobody_is_preempted_more_often_than_was_promised(setup, story, most):
    """Each at most max_preemptions times, for blocks and for slots together; then it comes back with its worst case."""
    world = World(replace(setup, policy="headway", max_preemptions=most))
    story.play(world)
    assert all(seq.preemptions <= most for seq in world.seqs.values())
    preempted = world.decided("preempt")
    for decision in world.decisions:
        if decision.kind == "readmit" and preempted.count(decision.request) < most:
            assert decision.why == "" or setup.kv_full == "wait"
