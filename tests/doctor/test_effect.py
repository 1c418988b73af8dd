"""What a change would do, simulated: only where it can be, and as the simulator itself says."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from headway.doctor.diagnose import diagnose
from headway.doctor.effect import with_effects
from headway.doctor.facts import Asked, Facts
from headway.doctor.finding import Change, Finding
from tests.doctor.making import facts, spread

QUEUED = {"ttft_s": spread(1.5, 2.0, 3.0), "queue_s": spread(1.4, 1.9, 2.9)}
MANY = tuple(Asked(0.1 * number, 200, 60) for number in range(60))


def p95s(line: str) -> tuple[float, float]:
    before, after = (float(value) for value in re.findall(r"TTFT p95 ([\d.]+) s", line))
    return before, after


def effects(made: Facts, *changes: Change) -> tuple[str, ...]:
    finding = Finding("slot-limit", "", "concurrency", ("1",), "high", changes)
    return with_effects([finding], made)[0].effect


def test_more_slots_shorten_a_queue_for_slots() -> None:
    made = facts({"running": 16.0, "waiting": 8.0}, spreads=QUEUED)
    made = replace(made, settings=replace(made.settings, max_num_seqs=4), demand=MANY)
    (line,) = effects(made, Change("", "max_num_seqs", 16))
    before, after = p95s(line)
    assert after < before / 2


def test_a_second_replica_helps_and_fewer_slots_do_not() -> None:
    made = facts()
    made = replace(made, settings=replace(made.settings, max_num_seqs=4), demand=MANY)
    replicas, fewer = effects(made, Change("", "replicas"), Change("", "max_num_seqs", 2))
    assert p95s(replicas)[1] < p95s(replicas)[0]
    assert p95s(fewer)[1] > p95s(fewer)[0]


def test_no_model_and_no_words() -> None:
    assert effects(replace(facts(), demand=MANY, step_time=None), Change("", "max_num_seqs", 16)) == ()


def test_too_few_requests_and_no_words() -> None:
    assert effects(replace(facts(), demand=MANY[:5]), Change("", "max_num_seqs", 16)) == ()


@pytest.mark.parametrize("setting", ["", "max_model_len", "prefix_cache_scope", "long_prompt_slots"])
def test_what_cannot_be_simulated_is_not(setting: str) -> None:
    assert effects(replace(facts(), demand=MANY), Change("", setting, 3)) == ()


@pytest.mark.slow
def test_requests_are_made_up_where_only_their_lengths_are_known() -> None:
    """The same facts give the same words."""
    made = facts({"running": 16.0, "waiting": 8.0}, spreads=QUEUED)
    once, again = (with_effects(diagnose(made).findings, made)[0].effect for _ in range(2))
    assert once
    assert once == again
