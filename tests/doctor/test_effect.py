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


def p95s(*lines: str) -> list[float]:
    return [float(value) for line in lines for value in re.findall(r"TTFT p95 ([\d.]+) s", line)]


def kept(*lines: str) -> list[int]:
    return [int(part) for line in lines for part in re.findall(r"(\d+)% as promised", line)]


def effects(made: Facts, *changes: Change) -> tuple[str, ...]:
    finding = Finding("slot-limit", "", "concurrency", ("1",), "high", changes)
    return with_effects([finding], made)[0].effect


def test_more_slots_shorten_a_queue_for_slots() -> None:
    made = facts({"running": 16.0, "waiting": 8.0}, spreads=QUEUED)
    made = replace(made, settings=replace(made.settings, max_num_seqs=4), demand=MANY)
    before, after = p95s(*effects(made, Change("", "max_num_seqs", 16)))
    assert after < before / 2


def test_a_second_replica_helps_and_fewer_slots_do_not() -> None:
    made = facts()
    made = replace(made, settings=replace(made.settings, max_num_seqs=4), demand=MANY)
    before, replicas, fewer = p95s(*effects(made, Change("", "replicas"), Change("", "max_num_seqs", 2)))
    assert replicas < before < fewer


def test_what_helps_stands_first_and_what_does_not_last() -> None:
    made = facts()
    made = replace(made, settings=replace(made.settings, max_num_seqs=4), demand=MANY)
    fewer, unknown, more = (
        Change("", "max_num_seqs", 2),
        Change("", "max_model_len"),
        Change("", "max_num_seqs", 16),
    )
    finding = Finding("slot-limit", "", "concurrency", ("1",), "high", (fewer, unknown, more))
    (told,) = with_effects([finding], made)
    assert told.changes == (more, unknown, fewer)
    assert [line.endswith(", no better") for line in told.effect] == [False, False, True]
    before, with_more, with_fewer = kept(*told.effect)
    assert with_fewer < before < with_more


def test_a_stall_in_a_stream_is_a_broken_promise() -> None:
    """Long prompts among short answers: a smaller budget a step keeps streams moving, whatever the mean says."""
    mixed = tuple(Asked(0.3 * number, 16_000 if number % 10 == 9 else 100, 60) for number in range(60))
    made = facts()
    made = replace(made, settings=replace(made.settings, max_num_batched_tokens=16_384, kv_tokens=1e6), demand=mixed)
    before, after = kept(*effects(made, Change("", "max_num_batched_tokens", 2_048)))
    assert after >= before + 20


def test_what_a_step_with_a_prompt_costs_more_is_in_it() -> None:
    """A fit of a GPU has it; the core's model has no term for it."""
    made = replace(facts(), demand=MANY)
    plain, graphs = (effects(one, Change("", "replicas")) for one in (made, replace(made, prefill_step_ns=5e7)))
    assert p95s(*graphs)[0] > p95s(*plain)[0] + 0.04


def test_no_model_and_no_words() -> None:
    assert effects(replace(facts(), demand=MANY, step_time=None), Change("", "max_num_seqs", 16)) == ()


def test_too_few_requests_and_no_words() -> None:
    assert effects(replace(facts(), demand=MANY[:5]), Change("", "max_num_seqs", 16)) == ()


@pytest.mark.parametrize("setting", ["", "max_model_len", "prefix_cache_scope", "long_output_slots"])
def test_what_cannot_be_simulated_is_not(setting: str) -> None:
    assert effects(replace(facts(), demand=MANY), Change("", setting, 3)) == ()


@pytest.mark.slow
def test_requests_are_made_up_where_only_their_lengths_are_known() -> None:
    """The same facts give the same words."""
    made = facts({"running": 16.0, "waiting": 8.0}, spreads=QUEUED)
    once, again = (with_effects(diagnose(made).findings, made)[0].effect for _ in range(2))
    assert once
    assert once == again
