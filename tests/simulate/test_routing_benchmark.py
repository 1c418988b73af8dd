"""What the routing benchmark compares: sides that differ in what they say they do, and a yardstick none can have."""

from __future__ import annotations

import argparse

import numpy as np

from benchmarks import virtual
from benchmarks.routing import CHAT, OURS, SIDES, all_in_one, dearest_last, fleet_of, front_of
from benchmarks.virtual import S
from headway.cli.goals import GOALS
from headway.simulate import simulate

GIVEN = argparse.Namespace(workers=4, policy="vllm", scrape_s=1.0)


def test_the_promises_are_those_of_the_goal_that_one_side_is_given():
    chat = GOALS["chat"].choices
    assert (chat["slo_ttft"].value, chat["slo_itl"].value) == (virtual.TTFT_S, virtual.ITL_S)
    assert front_of(CHAT).queue_timeout_ns == chat["queue_timeout"].value * S
    assert all(front_of(side).queue_timeout_ns == 0 for side in SIDES if side != CHAT)


def test_whoever_is_refused_is_not_good_and_the_others_gain_by_it():
    load = virtual.at_rate(virtual.skewed(400, 0, 8_192), 20.0)
    given = argparse.Namespace(workers=1, policy="vllm", scrape_s=1.0)
    ends = {}
    for side in (OURS, CHAT):
        run = simulate(load, fleet_of(side, given))
        finished = np.array([record.finished for record in run.records])
        good = virtual.good(run)
        assert not (good & ~finished).any()
        ends[side] = finished.mean(), good.mean()
    assert ends[OURS][0] == 1.0 > ends[CHAT][0]
    assert ends[CHAT][1] >= ends[OURS][1]


def test_the_yardstick_has_the_speed_and_the_room_of_all_and_lets_the_dearest_tenth_wait():
    (large,) = all_in_one(GIVEN).workers
    worker = virtual.worker("headway")
    assert large.capacity_tokens == 4 * worker.capacity_tokens
    assert large.cost.prefill_token_ns * 4 == worker.cost.prefill_token_ns
    assert large.cost.step_ns == worker.cost.step_ns
    load = virtual.skewed(500, 0, 8_192)
    requests = dearest_last(load, virtual.at_rate(load, 10.0))
    last = np.array([one.priority for one in requests], bool)
    assert 0.08 <= last.mean() <= 0.12
    dear = [(one.prompt_tokens, one.output_tokens) for one, late in zip(load, last, strict=True) if late]
    cheap = [(one.prompt_tokens, one.output_tokens) for one, late in zip(load, last, strict=True) if not late]
    assert not any(a[0] <= b[0] and a[1] <= b[1] for a in dear for b in cheap if a != b)
