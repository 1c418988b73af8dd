"""What makes `--policy vllm` vLLM's: each fact beside what ours does in its place."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from headway.core.request import Slo
from tests.laws.stimuli import Ask, Story, asks, setups
from tests.laws.world import MS, Setup, World


def both(**fields) -> dict[str, World]:
    return {policy: World(Setup(policy=policy, **fields)) for policy in ("vllm", "headway")}


@settings(max_examples=80, deadline=None)
@given(setups, st.lists(asks, max_size=10), st.integers(1, 4))
def test_first_come_first_served_whatever_was_promised(setup, todo, per_step):
    front = replace(setup.front, queue_timeout_ns=0, lanes=setup.front.lanes[:1])
    world = World(replace(setup, policy="vllm", front=front))
    Story([replace(ask, priority=0) for ask in todo], per_step).play(world)
    started = world.decided("start")
    assert started == sorted(started, key=lambda name: int(name[1:]))


def test_a_tight_deadline_does_not_pass_anybody():
    for policy, world in both(max_num_seqs=1, num_blocks=100).items():
        assert world.submit(Ask(4, 4, slo=Slo(ttft_ns=100 * MS)).request("calm"))
        assert world.submit(Ask(4, 4, slo=Slo(ttft_ns=20 * MS), family=1).request("urgent"))
        world.run()
        assert world.decided("start")[0] == ("calm" if policy == "vllm" else "urgent")


def test_a_prompt_takes_the_whole_budget_beside_streams():
    for policy, world in both(max_num_batched_tokens=64, num_blocks=100).items():
        assert world.submit(Ask(4, 60, ignore_eos=True, slo=Slo(itl_ns=MS)).request("chat"))
        assert world.step()
        assert world.submit(Ask(150, 4, family=1).request("long"))
        assert world.step()
        assert (world.steps[-1].prefill_tokens == 63) is (policy == "vllm")


def test_the_newest_pays_whatever_it_costs_and_whatever_was_promised():
    for policy, world in both(num_blocks=12, max_num_seqs=3).items():
        hungry = [Ask(6, 20, ignore_eos=True, family=i) for i in range(3)]
        hungry[2] = replace(hungry[2], slo=Slo(itl_ns=100 * MS))
        Story(hungry, 3).play(world)
        assert world.decided("preempt")[0] == ("r2" if policy == "vllm" else "r1")


def test_the_loop_over_the_waiting_ends_at_the_first_that_does_not_fit():
    for policy, world in both(num_blocks=10, max_num_seqs=4, max_num_batched_tokens=64).items():
        assert world.submit(Ask(20, 9, ignore_eos=True).request("running"))
        assert world.step()
        assert world.submit(Ask(30, 2, family=1).request("big"))
        assert world.submit(Ask(3, 2, family=2).request("small"))
        assert world.step()
        assert ("small" in world.decided("start")) is (policy == "headway")


def test_nothing_starts_in_a_step_that_preempted():
    world = World(Setup(policy="vllm", num_blocks=12, max_num_seqs=4))
    Story([Ask(6, 20, ignore_eos=True, family=i) for i in range(6)], 1).play(world)
    times = {kind: {one.now_ns for one in world.decisions if one.kind == kind} for kind in ("preempt", "start")}
    assert times["preempt"]
    assert not times["preempt"] & times["start"]


def test_one_budget_in_order_of_start_so_an_older_prompt_goes_before_a_younger_stream():
    """A resumed or chunked prompt that started first takes the budget first; ours gives whoever streams its token."""
    for policy, world in both(max_num_batched_tokens=16, num_blocks=100).items():
        assert world.submit(Ask(100, 4, ignore_eos=True).request("long"))
        assert world.submit(Ask(4, 40, ignore_eos=True, slo=Slo(ttft_ns=MS), family=1).request("chat"))
        while not world.tokens["long"]:
            world.step()
        assert (len(world.tokens["chat"]) > 1) is (policy == "headway")
