"""What is not told is neither short nor somebody's fault."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from headway.doctor.diagnose import Diagnosis, diagnose
from headway.doctor.facts import Settings
from headway.doctor.report import text
from headway.doctor.rules.case import study
from tests.doctor.making import facts, lognormal, spread

QUIET = 50  # of 61 samples: then somebody waits
LATE = [0.0] * QUIET + [14.0] * 11


def without_times(running: float | list[float], waiting: float) -> Diagnosis:
    """As llama.cpp: who runs and who waits, and what was computed; no time, and not how many ended."""
    names = ("ttft_s", "queue_s", "prefill_s", "itl_s", "e2e_s", "decode_s", "prompt_tokens", "output_tokens")
    made = facts(
        {"running": running, "waiting": waiting, "kv_ratio": None},
        {"ended": None, "steps": None},
        dict.fromkeys(names),
        settings=Settings(),
        step_time=None,
    )
    return diagnose(replace(made, kind="llamacpp"))


def test_a_wait_of_unknown_length_is_no_short_one() -> None:
    """Five wait for each that runs, at a height that never changes."""
    found = without_times(4.0, 20.0)
    assert [finding.cause for finding in found.findings] == ["slot-limit"]
    assert found.findings[0].confidence == "medium"
    assert found.findings[0].changes[0].words.startswith("--parallel ")
    said = text(replace(found, split=replace(found.split, network_s=0.001)), "it")
    assert "0.00 s" not in said


def test_who_waits_beside_as_many_that_run_and_for_no_reason_is_told() -> None:
    found = without_times([2.0, 3.0, 5.0, 7.0] * 15 + [2.0], 20.0)
    assert not found.findings
    assert "20.0 requests wait while 4.2 run" in found.blind


def test_a_few_that_wait_for_an_unknown_time_are_not_called_late() -> None:
    assert "cannot be seen" in without_times(4.0, 1.0).blind


def test_prompts_that_take_hardly_any_time_are_in_nobody_s_way() -> None:
    """200 wait beside 10 of 64 slots, with prompts 2 % of the engine's time: it cannot be told why."""
    waits = {"ttft_s": spread(15, 20, 25), "queue_s": spread(15, 20, 25), "prefill_s": None}
    made = facts(
        {"running": 10.0, "waiting": 200.0, "kv_ratio": None},
        {"prompt_tokens": 6_000.0, "generation_tokens": 21_000.0, "ended": 700.0, "steps": None},
        {**waits, "prompt_tokens": lognormal(90.0, 0.1)},
        settings=Settings(max_num_seqs=64),
    )
    found = diagnose(made)
    assert not found.findings
    assert "does not say why" in found.blind


def test_trouble_in_the_last_moments_is_judged_by_these_moments() -> None:
    """Prompts take a tenth of the engine's time at most, and a third of it while somebody waits for them."""
    made = facts(
        {"running": [2.0, 3.0, 4.0, 5.0] * 15 + [3.0], "waiting": LATE},
        spreads={
            "ttft_s": spread(*[0.1] * 17, *[4.0] * 3),
            "queue_s": spread(*[0.02] * 17, *[3.0] * 3),
            "prompt_tokens": spread(*[100.0] * 15, *[8_000.0] * 2),
        },
    )
    computed = np.concatenate((np.linspace(0.0, 4_000.0, QUIET), np.linspace(4_000.0, 34_000.0, 12)[1:]))
    part = replace(made.service, totals={**made.service.totals, "prompt_tokens": computed})
    case = study(replace(made, service=part))
    assert case.prefill_share is not None
    assert case.prefill_queued is not None
    assert case.prefill_share < 0.1
    assert case.prefill_queued > 0.25
    assert [found.cause for found in diagnose(case.facts).findings][:1] == ["long-prompt-interference"]


def test_who_has_waited_too_long_and_is_not_done_counts_as_late() -> None:
    """Those who ended were in time; 17 are inside who waited three seconds each."""
    waiting = {"running": 3.0, "waiting": LATE}
    found = diagnose(facts(waiting))
    assert not found.healthy
    assert "the 17 that are still inside have waited" in "; ".join(study(found.facts).missed)
    assert diagnose(facts({"running": 3.0, "waiting": [0.0] * 60 + [3.0]})).healthy
