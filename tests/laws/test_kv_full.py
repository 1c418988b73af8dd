"""When a running sequence needs a block and none is free. Who may pay is checked by `audit.py` in every world."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.core.errors import ContextLengthExceeded, KvExhausted
from headway.core.request import Slo, State
from tests.laws.stimuli import Ask, Story, plain_asks, setups
from tests.laws.world import MS, Setup, World

TIGHT = Setup(num_blocks=12, block_size=4, max_num_seqs=4)
HUNGRY = [Ask(6, 20, ignore_eos=True, family=i) for i in range(4)]  # 7 blocks each at their longest


@pytest.mark.parametrize("mode", ["preempt", "wait", "reject"])
@settings(max_examples=60, deadline=None)
@given(
    setup=setups.map(lambda setup: replace(setup, num_blocks=max(9, setup.num_blocks // 3), max_num_seqs=6)).filter(
        lambda setup: setup.max_num_batched_tokens >= 5 + setup.chunk_multiple_tokens
    ),
    todo=st.lists(plain_asks, min_size=2, max_size=10),
)
def test_at_full_kv_everybody_still_ends(mode, setup, todo):
    """In `preempt` and `wait` all of them finish; in `reject` some fail, and are told why and when to come back."""
    world = Story(todo, 10).play(World(replace(setup, kv_full=mode, front=replace(setup.front, queue_timeout_ns=0))))
    world.audit.at_rest()
    for end in world.ends.values():
        if end.state is State.FAILED:
            assert mode == "reject"
            assert isinstance(end.error, KvExhausted)
            assert (end.error.status, end.error.retry_after_s) == (503, 5.0)
        else:
            assert end.state is State.FINISHED


def test_preempt_takes_it_from_the_cheapest_and_never_from_the_oldest():
    world = Story(HUNGRY, 4).play(World(TIGHT))
    assert len(world.decided("preempt")) > 0
    assert "r0" not in world.decided("preempt")
    assert all(end.state is State.FINISHED for end in world.ends.values())
    assert {decision.why.split()[0] for decision in world.decisions if decision.kind == "preempt"} == {"block"}


def test_preempt_spares_who_has_the_tightest_promise():
    """The victim has the least to recompute against the most slack: of two alike, the one that nobody promised."""
    asks = [HUNGRY[0], replace(HUNGRY[1], slo=Slo(itl_ns=100 * MS)), HUNGRY[2]]
    world = Story(asks, 3).play(World(TIGHT))
    assert world.decided("preempt")[0] == "r2"
    asks = [HUNGRY[0], HUNGRY[1], replace(HUNGRY[2], slo=Slo(itl_ns=100 * MS))]
    world = Story(asks, 3).play(World(TIGHT))
    assert world.decided("preempt")[0] == "r1"


def test_a_lower_priority_pays_before_a_higher_one():
    asks = [HUNGRY[0], replace(HUNGRY[1], priority=1), HUNGRY[2]]
    world = Story(asks, 3).play(World(TIGHT))
    assert world.decided("preempt")[0] == "r1"


def test_who_has_paid_enough_comes_back_with_its_worst_case_and_pays_no_more():
    world = Story([*HUNGRY, *HUNGRY], 8).play(World(replace(TIGHT, max_preemptions=1)))
    committed = [one.request for one in world.decisions if one.kind == "readmit" and one.why == "committed"]
    assert set(committed) == set(world.decided("preempt"))
    assert len(committed) == len(set(committed))


def test_the_oldest_beside_those_who_paid_enough_waits_where_it_is():
    """It loses nothing: they have blocks set aside and end, and their blocks are its."""
    world = World(Setup(num_blocks=15, block_size=1, max_num_seqs=3, max_preemptions=1, prefix_cache=False))
    for i, (name, prompt, output) in enumerate((("old", 2, 10), ("mid", 4, 4), ("young", 1, 7))):
        assert world.submit(Ask(prompt, output, ignore_eos=True, family=i, priority=i // 2).request(name))
    assert world.step()
    old = world.seq("old")
    stalled = 0
    while world.step():
        stalled += old.request.state is State.DECODE and old.handle not in fed(world)
    assert stalled > 0
    assert world.decided("preempt") == ["young"]
    assert all(world.finished(name) for name in ("old", "mid", "young"))


def fed(world: World) -> set[int]:
    return {row.seq for row in world.steps[-1].rows}


def test_wait_never_preempts_because_it_never_starts_what_might_not_fit():
    world = Story(HUNGRY, 4).play(World(replace(TIGHT, kv_full="wait")))
    assert world.decided("preempt") == []
    most = max(len(step.rows) for step in world.steps)
    assert most == 1  # 12 blocks hold one worst case of 7
    assert all(end.state is State.FINISHED for end in world.ends.values())


def test_reject_fails_the_newest_and_says_why():
    world = Story(HUNGRY, 4).play(World(replace(TIGHT, kv_full="reject")))
    failed = [name for name, end in world.ends.items() if end.state is State.FAILED]
    assert failed
    assert failed[0] == max(failed)
    assert "r0" not in failed
    assert world.decided("preempt") == []


@pytest.mark.parametrize("mode", ["preempt", "wait", "reject"])
@pytest.mark.parametrize(("tokens", "fits"), [(48, True), (49, False)])
def test_what_can_never_fit_is_refused_at_submit_and_what_just_fits_is_served(mode, tokens, fits):
    world = World(replace(TIGHT, kv_full=mode))
    request = Ask(tokens - 20, 20, ignore_eos=True).request("large")
    if fits:
        assert world.submit(request)
        world.run()
        assert world.finished("large")
    else:
        with pytest.raises(ContextLengthExceeded, match="48 tokens"):
            world.front.submit(request, world.now)


def test_a_prompt_is_not_started_into_its_own_preemption():
    """A start needs KV for the whole prompt and its first token, and what begun prompts will still need is theirs."""
    world = World(Setup(num_blocks=8, block_size=4, max_num_seqs=4, max_num_batched_tokens=8))
    assert world.submit(Ask(19, 1, ignore_eos=True).request("begun"))  # 5 blocks, of which a step feeds 2
    assert world.step()
    urgent = Slo(ttft_ns=100 * MS)
    assert world.submit(Ask(19, 8, ignore_eos=True, family=1, slo=urgent).request("urgent"))  # 5 of the 6 that are free
    world.run()
    assert world.decided("preempt") == []
    assert list(world.ends) == ["begun", "urgent"]


def test_a_slot_whose_blocks_others_share_is_not_taken_for_blocks_that_are_not_there():
    world = World(Setup(num_blocks=8, block_size=4, max_num_seqs=3, max_num_batched_tokens=32))
    assert world.submit(Ask(17, 3, ignore_eos=True).request("first"))  # 5 blocks
    assert world.step()
    assert world.submit(Ask(17, 3, ignore_eos=True, priority=1).request("sharer"))  # 4 of them, and one of its own
    assert world.submit(Ask(5, 3, ignore_eos=True, family=1).request("other"))  # the last 2
    assert world.step()
    assert world.pool.free_blocks == 0
    assert world.submit(Ask(9, 2, ignore_eos=True, family=2).request("urgent"))  # needs 3; "sharer" frees one
    assert world.step()
    assert world.decided("preempt") == []
    world.run()
    assert all(world.finished(name) for name in world.tokens)
