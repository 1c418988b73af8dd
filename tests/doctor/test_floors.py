"""What may not be said: that all is well while a promise is broken, what the evidence does not hold, what is set so."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from headway.doctor.diagnose import diagnose
from headway.doctor.facts import Client, Facts, Part, Promise, Settings
from headway.doctor.finding import Change, in_effect
from headway.doctor.recorder import Recorder
from headway.doctor.scrape import read_scrape
from headway.doctor.spread import Spread
from tests.doctor.making import SAMPLES, facts, lognormal, rising, spread

QUEUED = {"ttft_s": spread(1.5, 2.0, 3.0), "queue_s": spread(1.4, 1.9, 2.9)}
FEW_LATE = spread(*[0.1] * 18, *[9.0] * 2)


def causes(made: Facts) -> list[str]:
    return [finding.cause for finding in diagnose(made).findings]


@pytest.mark.parametrize(
    "late",
    [
        {"spreads": {"ttft_s": spread(1.5), "queue_s": spread(0.01), "prefill_s": spread(1.49)}},
        {"spreads": {"ttft_s": FEW_LATE, "queue_s": spread(0.01), "prefill_s": spread(0.07)}},
        {"spreads": {"itl_s": spread(*[0.02] * 40, *[0.8] * 1, count=4_100)}, "step_time": None},
        {"spreads": {"e2e_s": spread(45.0), "decode_s": None}},
        {"client": Client(ttft_s=spread(1.4), server_ttft_s=spread(0.9)), "spreads": {"ttft_s": spread(0.9)}},
        {"client": Client(itl_s=spread(0.4, count=3_000))},
        {"client": Client(e2e_s=spread(45.0))},
    ],
)
def test_nobody_is_healthy_who_breaks_a_promise(late: dict[str, Any]) -> None:
    diagnosis = diagnose(facts(**late))
    assert not diagnosis.healthy
    assert diagnosis.findings or "later than promised" in diagnosis.blind


def test_a_broken_promise_that_nothing_explains_is_said_with_its_figure() -> None:
    made = facts(spreads={"ttft_s": FEW_LATE, "queue_s": spread(0.01), "prefill_s": spread(0.95)})
    assert "TTFT p95 is 9.00 s" in diagnose(made).blind


@pytest.mark.parametrize("share", [0.0, 0.1, 0.17])
def test_who_hardly_ever_waits_is_not_overloaded(share: float) -> None:
    """Nor where prompts are unequal, and take next to nothing of the engine's time."""
    waiting = [3.0 if place < share * SAMPLES else 0.0 for place in range(SAMPLES)]
    for prompts in (lognormal(250.0, 0.4), spread(*[100.0] * 15, *[8_000.0] * 2)):
        late = {"ttft_s": FEW_LATE, "queue_s": spread(0.02), "prefill_s": spread(0.9), "prompt_tokens": prompts}
        assert causes(facts({"waiting": waiting}, {"prompt_tokens": 1_500.0}, late)) == []


def test_a_queue_that_is_a_tenth_of_the_wait_is_not_why_it_is_late() -> None:
    late = {"ttft_s": spread(5.0), "queue_s": spread(0.2), "prefill_s": spread(4.8)}
    assert "slot-limit" not in causes(facts({"running": 16.0, "waiting": 0.1}, spreads=late))


def test_prompts_of_one_length_are_no_long_ones_among_short() -> None:
    """A full step of them takes 1 s: they stall streams, all of them."""
    stalled = {"itl_s": spread(*[0.02] * 97, *[1.0] * 3, count=3_000), "prompt_tokens": spread(8_000.0)}
    large = Settings(max_num_seqs=16, max_num_batched_tokens=8_192)
    found = diagnose(facts(totals={"prompt_tokens": 300_000.0}, spreads=stalled, settings=large)).findings
    assert [one.cause for one in found] == ["decode-starvation"]
    assert not any("make up 0%" in line for line in found[0].evidence)


def test_prompts_that_take_no_time_do_not_stall_streams() -> None:
    stalled = {"itl_s": spread(*[0.02] * 97, *[1.0] * 3, count=3_000), "prompt_tokens": spread(100.0)}
    large = Settings(max_num_seqs=16, max_num_batched_tokens=8_192)
    made = facts(totals={"prompt_tokens": 12_000.0}, spreads=stalled, settings=large)
    assert causes(made) in ([], ["engine-stalls"])


def standing(from_s: int, until_s: int, name: str = "engine", **signals: float) -> Part:
    """Four run throughout, and between these seconds no step is taken."""
    at = np.arange(float(SAMPLES))
    steps = np.minimum(at, from_s) + np.maximum(0.0, at - until_s)
    made = facts().service
    totals = {**made.totals, "steps": 40 * steps, "generation_tokens": 160 * steps}
    return replace(made, name=name, totals={key: one for key, one in totals.items() if key not in signals})


@pytest.mark.parametrize("seconds", [4, 9, 30])
def test_an_engine_that_takes_no_step_while_requests_run_stands_still(seconds: int) -> None:
    """Whatever latencies say: those who wait for their token have none yet."""
    (finding, *_) = diagnose(replace(facts(), service=standing(10, 10 + seconds))).findings
    assert finding.cause == "engine-stalls"
    assert f"no step for {seconds} s while 4 requests" in finding.evidence[0]


def test_it_stands_still_as_well_where_nobody_has_been_served() -> None:
    made = replace(facts(spreads={"ttft_s": None, "e2e_s": None, "itl_s": None}), step_time=None)
    service = standing(0, 60)
    silent = replace(service, spreads={}, totals={**service.totals, "ended": rising(0.0)})
    assert causes(replace(made, service=silent)) == ["engine-stalls"]


def test_one_of_several_engines_that_stands_still_is_named() -> None:
    workers = (standing(60, 60, "a"), standing(20, 45, "b"))
    (finding, *_) = diagnose(facts(workers=workers)).findings
    assert finding.evidence[0].startswith("b took no step for 25 s")


def test_who_rests_does_not_stand_still() -> None:
    """Nor who takes a step that long: 30,000 prompt tokens in one of 4 s."""
    service = standing(10, 40)
    idle = np.where((np.arange(SAMPLES) > 10) & (np.arange(SAMPLES) < 40), 0.0, 4.0)
    assert diagnose(replace(facts(), service=replace(service, gauges={**service.gauges, "running": idle}))).healthy
    slow = replace(facts(), service=standing(10, 14), settings=Settings(max_num_seqs=16, max_num_batched_tokens=30_000))
    long = replace(slow.service, spreads={**slow.service.spreads, "prompt_tokens": spread(30_000.0)})
    assert "engine-stalls" not in causes(replace(slow, service=long))


def test_a_stop_that_only_streams_felt_is_not_overload() -> None:
    """SIGSTOP for 9 s: who could have counted it stood still as well, and each stream has one gap that long."""
    gaps = Spread.of_buckets(
        {0.025: 3_000.0, 0.05: 3_010.0, 7.5: 3_010.0, 10.0: 3_014.0}, 3_000 * 0.02 + 10 * 0.04 + 36
    )
    assert gaps is not None
    assert gaps.surely == 7.5
    late = {"ttft_s": FEW_LATE, "queue_s": spread(0.02), "prefill_s": spread(0.9), "itl_s": gaps}
    waiting = [3.0 if place < 4 else 0.0 for place in range(SAMPLES)]
    (finding, *others) = diagnose(facts({"waiting": waiting}, {"prompt_tokens": 1_500.0}, late)).findings
    assert (finding.cause, others) == ("engine-stalls", [])
    assert "at least 7.5 s" in finding.evidence[0]


@pytest.mark.parametrize(
    ("words", "told", "holds"),
    [
        ("headway --slo-itl 0.25 keeps it", {"slo_itl": 0.25}, True),
        ("headway --slo-itl 0.25 keeps it", {"slo_itl": 0.1}, True),
        ("headway --slo-itl 0.25 keeps it", {"slo_itl": 0.0}, False),
        ("headway --slo-itl 0.25 keeps it", {}, False),
        ("--kv-full wait: set aside", {"kv_full": "wait"}, True),
        ("--kv-full wait: set aside", {"kv_full": "preempt"}, False),
        ("--long-prompt-tokens 400 and --long-prompt-slots 2", {"long_prompt_tokens": 300}, False),
        (
            "--long-prompt-tokens 400 and --long-prompt-slots 2",
            {"long_prompt_tokens": 300, "long_prompt_slots": 2},
            True,
        ),
        ("--kv-cache-dtype u8 (vLLM: fp8)", {"kv_cache_dtype": "u8"}, True),
        ("--max-num-seqs 32", {"max_num_seqs": 16}, False),
        ("another replica", {"max_num_seqs": 16}, False),
    ],
)
def test_what_is_set_so_already(words: str, told: dict[str, object], holds: bool) -> None:
    assert in_effect(Change(words), Settings(told=told)) is holds


def test_no_finding_advises_what_is_set_so_already() -> None:
    """Each of the sick, with all that it is told to set in effect, is told the rest."""
    wanted = {
        "slo_itl": 0.25, "ttft_limit": 1.0, "kv_full": "wait", "max_waiting": 1, "clamp_output_tokens": 1,
        "long_prompt_tokens": 1, "long_prompt_slots": 1, "long_output_slots": 1, "kv_cache_dtype": "u8",
        "prefix_cache_scope": "shared",
    }  # fmt: skip
    sick = (
        facts({"waiting": 8.0, "running": [2.0, 3.0, 4.0] * 20 + [3.0]}, {"prompt_tokens": 400_000.0}, QUEUED),
        facts({"running": 50.0, "waiting": 8.0, "kv_ratio": 1.0}, {"preemptions": 150.0}, QUEUED),
        facts({"running": 16.0, "waiting": 8.0}, spreads={**QUEUED, "decode_s": spread(*[1.0] * 9, *[40.0] * 2)}),
        facts({"waiting": 3.0}, {"prompt_tokens": 400_000.0}, {"itl_s": spread(0.02, 0.6, count=3_000), **QUEUED}),
    )
    for made in sick:
        settings = replace(made.settings, told=wanted)
        found = diagnose(replace(made, settings=settings)).findings
        assert found
        for finding in found:
            assert finding.changes, finding.cause
            assert not any(in_effect(change, settings) for change in finding.changes), finding.changes


def test_fewer_slots_are_not_advised_where_there_are_no_more() -> None:
    made = facts({"running": 8.0, "kv_tokens": 4_000.0}, {"preemptions": 150.0}, {"output_tokens": spread(100.0)})
    for finding in diagnose(made).findings:
        assert not [change for change in finding.changes if change.setting == "max_num_seqs"]


def gateway(in_flight: float, window: float, **given: object) -> Facts:
    signals = {"in_flight": in_flight, "window_seqs": window, "running": 3.0, "waiting": 9.0, "kv_ratio": None}
    made = facts(signals, spreads={**QUEUED, "prefill_s": None}, settings=Settings(), step_time=None)
    return replace(made, **given)  # type: ignore[arg-type]


def test_a_gateway_names_its_windows_and_whom_to_ask() -> None:
    (finding,) = diagnose(gateway(3.0, 3.4, worker_urls=("http://a:1", "http://b:2"))).findings
    assert finding.cause == "full-windows"
    assert "3.0 of 3.4" in finding.evidence[0]
    assert finding.changes[0].words == "ask the workers: `headway doctor http://a:1`, `headway doctor http://b:2`"


def test_of_a_gateway_s_workers_nothing_is_guessed() -> None:
    """There is room in their windows: neither slots nor steps can be seen from here."""
    diagnosis = diagnose(gateway(3.0, 64.0))
    assert not diagnosis.findings
    assert "ask the workers: `headway doctor URL`" in diagnosis.blind


def test_promises_are_told_with_the_metrics() -> None:
    """A gateway's first, else the longest of its engines': in a Prometheus' history as well."""
    recorder = Recorder()
    for at_s in range(2):
        recorder.add(
            read_scrape("headway_slo_ttft_seconds 0.5\nheadway_slo_itl_seconds 0.15\nheadway_steps_total 1\n"), at_s
        )
    found = recorder.facts()
    assert found.promise == Promise(0.5, 0.15, said=True)
    assert found.settings.now("slo_itl") == 0.15
