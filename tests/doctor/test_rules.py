"""Rules by first principles: what is certain of a queue, a step or a batch must be said, and nothing else."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

from headway.core.pace import Shape, StepTime, chunk_attention
from headway.doctor.diagnose import Diagnosis, diagnose
from headway.doctor.facts import Client, Facts, Part, Promise, Settings
from headway.doctor.finding import CHAPTERS
from headway.doctor.rules import RULES
from headway.doctor.rules.case import study
from headway.doctor.rules.streams import budget_change
from headway.simulate import advice
from tests.doctor.making import SAMPLES, facts, lognormal, series, spread

QUEUED = {"ttft_s": spread(1.5, 2.0, 3.0), "queue_s": spread(1.4, 1.9, 2.9)}
SKEWED = spread(*[100.0] * 15, *[8_000.0] * 2)


def causes(made: Facts) -> list[str]:
    return [finding.cause for finding in diagnose(made).findings]


def first(made: Facts) -> str:
    return next(iter(causes(made)), "")


def test_a_healthy_server_is_healthy() -> None:
    assert diagnose(facts()).healthy


def test_waiting_while_all_slots_are_taken_is_the_slots() -> None:
    found = diagnose(facts({"running": 16.0, "waiting": 8.0}, spreads=QUEUED)).findings[0]
    assert found.cause == "slot-limit"
    (change, *_) = found.changes
    assert change.setting == "max_num_seqs"
    assert float(change.value or 0) > 16


def test_the_limit_of_slots_need_not_be_told() -> None:
    untold = Settings(kv_tokens=40_000.0)
    assert first(facts({"running": 12.0, "waiting": 8.0}, spreads=QUEUED, settings=untold)) == "slot-limit"


def test_more_slots_are_not_advised_where_decode_is_too_slow_already() -> None:
    """The remedy for one would be the harm of the other."""
    slow = StepTime(20e6, 120e3, 20e6, 0.0, 0.0)  # 16 sequences: 340 ms
    made = facts(
        {"running": 16.0, "waiting": 8.0}, spreads={**QUEUED, "itl_s": spread(0.34, 0.36, count=3_000)}, step_time=slow
    )
    assert first(made) == "oversized-batch"
    assert "slot-limit" not in causes(made)
    (change, *_) = diagnose(made).findings[0].changes
    assert slow.step_ns + float(change.value or 0) * slow.decode_seq_ns <= 0.25e9


def test_waiting_while_kv_is_full_is_kv() -> None:
    assert first(facts({"running": 5.0, "waiting": 8.0, "kv_ratio": 0.98}, spreads=QUEUED)) == "kv-exhausted"


def test_full_slots_and_full_kv_are_kv() -> None:
    """More slots would not help."""
    made = facts({"running": 16.0, "waiting": 8.0, "kv_ratio": 0.99}, spreads=QUEUED)
    assert "slot-limit" not in causes(made)
    assert first(made) == "kv-exhausted"


def test_a_head_that_needs_more_than_is_free_is_blocked_by_kv() -> None:
    made = facts({"running": 3.0, "waiting": 2.0, "waiting_tokens": 30_000.0, "kv_ratio": 0.7}, spreads=QUEUED)
    found = diagnose(made).findings[0]
    assert found.cause == "kv-exhausted"
    assert "head" in found.title


def test_waiting_while_slots_and_kv_are_free_is_the_prompts() -> None:
    made = facts(
        {"waiting": [0.0, 3.0] * 30 + [0.0], "running": [2.0, 3.0, 4.0, 5.0] * 15 + [3.0]},
        {"prompt_tokens": 120_000.0},
        {**QUEUED, "prompt_tokens": SKEWED},
    )
    assert first(made) == "long-prompt-interference"


def test_prompts_of_one_length_cannot_be_the_long_ones() -> None:
    running = [2.0, 3.0, 4.0] * 20 + [3.0]
    assert first(facts({"waiting": 3.0, "running": running}, {"prompt_tokens": 400_000.0}, QUEUED)) == "overload"


def test_lengths_that_are_not_told_are_nobody_s_fault() -> None:
    made = facts(
        {"waiting": 3.0, "running": [2.0, 3.0, 4.0] * 20 + [3.0]},
        {"prompt_tokens": 400_000.0},
        {**QUEUED, "prompt_tokens": None},
    )
    assert first(made) == "overload"
    assert "long-prompt-interference" not in causes(made)


@pytest.mark.parametrize(
    ("lengths", "cause"), [([512.0], "overload"), ([100.0] * 9 + [8_000.0], "long-prompt-interference")]
)
def test_before_anybody_ends_those_who_wait_tell_how_long_prompts_are(lengths: list[float], cause: str) -> None:
    waiting_tokens = [3.0 * length for length in lengths] * SAMPLES
    made = facts(
        {"waiting": 3.0, "waiting_tokens": waiting_tokens[:SAMPLES], "running": [2.0, 3.0, 4.0] * 20 + [3.0]},
        {"prompt_tokens": 100_000.0},
        spreads={**QUEUED, "prompt_tokens": None},
    )
    finding = diagnose(made).findings[0]
    assert finding.cause == cause
    assert any(re.search(rf"median (prompt is of )?{lengths[0]:.0f}\b", line) for line in finding.evidence)


def test_a_balance_below_the_slots_is_not_their_limit_where_steps_are_full() -> None:
    running = {"waiting": 30.0, "running": 14.0}
    assert first(facts(running, spreads=QUEUED)) == "slot-limit"  # a lane's own, for all that is told
    full = facts({**running, "step_tokens": 512.0}, {"prompt_tokens": 400_000.0}, QUEUED)
    assert first(full) == "overload"


def test_work_done_twice_is_thrash_and_explains_the_queue() -> None:
    made = facts(
        {"running": 16.0, "waiting": 8.0, "kv_ratio": 0.99},
        {"preemptions": 150.0, "recomputed_tokens": 15_000.0},
        QUEUED,
    )
    assert first(made) == "preemption-thrash"


def test_a_few_preemptions_are_no_finding() -> None:
    assert diagnose(facts(totals={"preemptions": 4.0})).healthy


def test_a_few_preemptions_are_a_symptom_of_kv() -> None:
    made = facts(
        {"running": 5.0, "waiting": 8.0, "kv_ratio": 0.98}, {"preemptions": 40.0, "recomputed_tokens": 1_000.0}, QUEUED
    )
    assert first(made) == "kv-exhausted"


@pytest.mark.parametrize("told", [True, False])
def test_preprocessing(told: bool) -> None:
    late = {"ttft_s": spread(0.6, 0.62), "queue_s": spread(0.01), "prefill_s": spread(0.07)}
    made = facts(spreads={**late, **({"tokenise_s": spread(0.5)} if told else {})})
    assert first(made) == "slow-preprocessing"


def test_what_a_growing_queue_leaves_over_is_not_preprocessing() -> None:
    """Queue times are told at a request's end, TTFT at its first token: while the queue grows they differ."""
    made = facts({"running": 16.0, "waiting": 30.0}, spreads={"ttft_s": spread(9.0), "queue_s": spread(4.0)})
    assert "slow-preprocessing" not in causes(made)


def test_a_network_that_takes_longer_than_the_server() -> None:
    assert first(facts(client=Client(network_s=0.3, network_probes=5))) == "network-delay"
    assert diagnose(facts(client=Client(network_s=0.02, network_probes=5))).healthy


def test_a_network_that_is_slow_and_not_most_of_it_is_none() -> None:
    made = facts(spreads=QUEUED, client=Client(network_s=0.3, network_probes=5))
    assert "network-delay" not in causes(made)


def test_decode_that_prompts_take_the_time_of() -> None:
    starved = spread(*[0.02] * 6, *[0.6] * 4, count=3_000)
    large = Settings(max_num_seqs=16, max_num_batched_tokens=8_192)
    made = facts(
        totals={"prompt_tokens": 400_000.0},
        spreads={"itl_s": starved, "prompt_tokens": lognormal(2_500.0, 0.1)},
        settings=large,
    )
    assert first(made) == "decode-starvation"
    totals = {"prompt_tokens": 400_000.0}
    skewed = facts(totals=totals, spreads={"itl_s": starved, "prompt_tokens": SKEWED}, settings=large)
    assert first(skewed) == "long-prompt-interference"


@pytest.mark.parametrize(("alone_s", "cause"), [(0.05, "decode-starvation"), (0.24, "kv-exhausted")])
def test_kv_that_is_full_of_streams_that_crawl(alone_s: float, cause: str) -> None:
    """Each holds its blocks for as long as it streams: were they quick, KV would have room. Or would not."""
    made = facts(
        {"running": 16.0, "waiting": 8.0, "kv_ratio": 0.99},
        {"prompt_tokens": 400_000.0, "preemptions": 80.0, "recomputed_tokens": 6_000.0},
        {"itl_s": spread(*[0.3] * 5, *[0.6] * 5, count=3_000), "prompt_tokens": lognormal(2_500.0, 0.1), **QUEUED},
        settings=Settings(max_num_seqs=64, max_num_batched_tokens=8_192, kv_tokens=60_000.0),
        step_time=StepTime(alone_s * 1e9, 120e3, 0.0, 0.0, 0.0),
    )
    assert first(made) == cause


def test_rare_stalls_are_long_prompts() -> None:
    stalled = spread(*[0.02] * 96, *[1.2] * 4, count=3_000)
    large = Settings(max_num_seqs=16, max_num_batched_tokens=8_192)
    made = facts(
        totals={"prompt_tokens": 300_000.0}, spreads={"itl_s": stalled, "prompt_tokens": SKEWED}, settings=large
    )
    assert first(made) == "long-prompt-interference"


@pytest.mark.parametrize("longest", [300.0, 2_000.0, 20_000.0])
def test_the_token_budget_that_is_advised_keeps_what_was_promised(longest: float) -> None:
    """Its step has the sequences that decode in it, what they hold, and what the longest prompt's end attends to."""
    made = facts(
        {"running": 12.0, "kv_tokens": 30_000.0},
        {"prompt_tokens": 400_000.0},
        {"itl_s": spread(*[0.03] * 5, *[0.6] * 5, count=3_000), "prompt_tokens": spread(100.0, longest)},
        settings=Settings(max_num_seqs=16, max_num_batched_tokens=16_384, kv_tokens=400_000.0),
        step_time=StepTime(12e6, 18e3, 200e3, 140.0, 2.0),
        prefill_step_ns=5e6,
        promise=Promise(itl_s=0.1, said=True),
    )
    (change,) = budget_change(study(made))
    tokens = round(float(change.value or 0))
    model, chunk = made.step_time, tokens - 12
    assert model is not None
    attention = chunk_attention(max(0, round(longest) - chunk), chunk) if chunk <= longest else chunk * longest / 2
    took_s = (model.predict_ns(Shape(chunk, 12, 30_000, round(attention))) + 5e6) / 1e9
    assert 0.08 < took_s <= 0.1


def test_no_budget_is_advised_where_decode_alone_leaves_no_room_for_prompts() -> None:
    made = facts(
        {"running": 12.0}, promise=Promise(itl_s=0.1, said=True), step_time=StepTime(92e6, 18e3, 0.0, 0.0, 0.0)
    )
    assert budget_change(study(made)) == ()


@pytest.mark.parametrize(("kv_ratio", "seqs"), [(0.5, 27), (0.3, 29)])  # 85% of KV; a step of 17.8 ms, of 90% of 20
def test_the_same_facts_are_advised_the_same_by_the_doctor_and_by_plan(kv_ratio: float, seqs: int) -> None:
    seen = facts(
        {"running": 16.0, "waiting": 80.0, "kv_ratio": kv_ratio, "kv_tokens": 16 * 1_000.0},
        spreads=QUEUED,
        promise=Promise(itl_s=0.02, said=True),
        step_time=StepTime(5e6, 18e3, 300e3, 140.0, 2.0),
    )
    engine = advice.Facts(
        max_num_seqs=16, max_num_batched_tokens=512, running=16, waiting=80.0, kv_used_ratio=kv_ratio,
        itl=advice.Latency(0.012, 0.02), steps=study(seen).steps,
    )  # fmt: skip
    (planned,) = advice.advise(engine)
    found = {finding.cause: finding for finding in diagnose(seen).findings}["slot-limit"]
    assert found.changes[0].value == planned.to == seqs


def test_what_an_oversized_batch_costs_is_counted_once() -> None:
    """Of 100 tokens each comes 150 ms later than is accepted."""
    crawling = {"itl_s": spread(0.4, count=3_000), "output_tokens": spread(100.0)}
    made = facts({"running": 16.0}, spreads=crawling, step_time=StepTime(80e6, 0.0, 20e6, 0.0, 0.0))
    (finding, *_) = diagnose(made).findings
    assert finding.cause == "oversized-batch"
    assert finding.cost_s == pytest.approx(15.0)


def test_fewer_sequences_are_as_many_as_kv_holds_at_their_end() -> None:
    """Of 40,000 tokens, 85% for those that hold 800 on average and 50 more at the end."""
    made = facts(
        {"running": 50.0, "kv_tokens": 40_000.0, "kv_ratio": 1.0},
        {"preemptions": 150.0, "recomputed_tokens": 15_000.0},
        {"output_tokens": spread(100.0)},
        settings=Settings(max_num_seqs=64, max_num_batched_tokens=512, kv_tokens=40_000.0),
    )
    found = {finding.cause: finding for finding in diagnose(made).findings}["preemption-thrash"]
    assert [change.value for change in found.changes if change.setting == "max_num_seqs"] == [40]


def test_stalls_that_no_step_can_make_are_not_the_prompts() -> None:
    """512 tokens are 61 ms here: a gap of 1.2 s is somebody else's doing."""
    stalled = spread(*[0.02] * 96, *[1.2] * 4, count=3_000)
    made = facts(totals={"prompt_tokens": 90_000.0}, spreads={"itl_s": stalled, "prompt_tokens": SKEWED})
    assert first(made) == "engine-stalls"
    thrown_out = facts(totals={"prompt_tokens": 90_000.0, "preemptions": 3.0}, spreads={"itl_s": stalled})
    assert "engine-stalls" not in causes(thrown_out)


def test_a_machine_too_slow_for_one_is_no_oversized_batch() -> None:
    slow = StepTime(400e6, 120e3, 50e3, 0.0, 0.0)
    assert first(facts(spreads={"itl_s": spread(0.41, count=3_000)}, step_time=slow)) == "slow-machine"


def test_bursts_need_an_average_that_would_fit() -> None:
    at = range(61)
    waiting = [float(max(0, 40 - 4 * (number % 20))) if number % 20 < 10 else 0.0 for number in at]
    running = [16.0 if number % 20 < 10 else 1.0 for number in at]
    made = facts({"waiting": waiting, "running": running}, spreads=QUEUED)
    ended = np.cumsum([4.0 if number % 20 < 11 else 0.2 for number in at])
    totals = {**made.service.totals, "ended": ended}
    service = Part("engine", made.service.times_s, made.service.gauges, totals, made.service.spreads)
    assert first(Facts("headway", service, settings=made.settings, step_time=made.step_time)) == "bursts"
    always = facts({"running": 16.0, "waiting": 8.0}, spreads=QUEUED)
    assert "bursts" not in causes(always)


def test_a_few_long_answers_that_hold_the_slots() -> None:
    held = spread(*[1.0] * 9, *[40.0] * 2)
    made = facts({"running": 16.0, "waiting": 8.0}, spreads={**QUEUED, "decode_s": held})
    assert first(made) == "long-outputs"


def test_answers_that_are_simply_long() -> None:
    made = facts(spreads={"e2e_s": spread(58.0, 62.0), "decode_s": spread(57.0, 61.0)})
    assert first(made) == "long-outputs"


def test_a_cache_that_fills_is_cold_and_one_that_never_finds_is_not() -> None:
    made = facts({"waiting": 2.0}, {"lookup_tokens": 60_000.0}, QUEUED)
    hits = np.concatenate((np.zeros(40), np.linspace(0.0, 18_000.0, 21)))
    totals = {**made.service.totals, "hit_tokens": hits}
    service = Part("engine", made.service.times_s, made.service.gauges, totals, made.service.spreads)
    filling = Facts("headway", service, settings=made.settings, step_time=made.step_time)
    assert first(filling) == "cold-cache"
    never = facts({"waiting": 2.0}, {"lookup_tokens": 60_000.0, "hit_tokens": 0.0, "evictions": 9_000.0}, QUEUED)
    assert "cold-cache" not in causes(never)


def worker(name: str, running: float, waiting: float) -> Part:
    return Part(name, np.arange(61.0), {"running": series(running), "waiting": series(waiting)})


def test_a_hot_worker_beside_idle_ones() -> None:
    uneven = (worker("a", 16, 9), worker("b", 4, 0), worker("c", 5, 0))
    assert first(facts({"running": 25.0, "waiting": 9.0}, spreads=QUEUED, workers=uneven)) == "hot-worker"
    even = (worker("a", 16, 3), worker("b", 16, 3), worker("c", 16, 3))
    assert "hot-worker" not in causes(facts({"running": 48.0, "waiting": 9.0}, spreads=QUEUED, workers=even))


def decoding(name: str, gap_s: float, tokens: float) -> Part:
    return Part(
        name,
        np.arange(61.0),
        {"running": series(gap_s * tokens / 60), "waiting": series(0.0)},
        {"generation_tokens": np.linspace(0.0, tokens, 61)},
        {"itl_s": spread(gap_s, count=3_000)},
    )


def test_a_worker_that_is_slower_than_the_others_is_not_simply_a_hot_one() -> None:
    slow = (decoding("a", 0.6, 6_000), decoding("b", 0.02, 6_000), decoding("c", 0.02, 6_000))
    found = diagnose(facts({"waiting": 0.0}, workers=slow)).findings
    assert [finding.cause for finding in found] == ["slow-worker"]  # though most streams are quick
    assert "a is slower" in found[0].title
    hot = (decoding("a", 0.6, 30_000), *slow[1:])  # which yields more, since it has more
    assert "slow-worker" not in causes(facts({"waiting": 0.0}, workers=hot))
    unfelt = (decoding("a", 0.06, 6_000), *slow[1:])  # within what is promised
    assert diagnose(facts({"waiting": 0.0}, workers=unfelt)).healthy


def test_who_is_alone_has_only_its_own_prompt_to_wait_for() -> None:
    """Whatever the model of steps says of a prompt's length."""
    quick = StepTime(8e6, 10e3, 8e6, 0.0, 0.0)
    alone = facts(
        {"running": [1.0, 0.0, 0.0] * 20 + [0.0]},
        {"prompt_tokens": 120 * 9_000.0},
        {"ttft_s": spread(2.0), "queue_s": spread(0.01), "prefill_s": spread(1.9), "prompt_tokens": spread(9_000.0)},
        step_time=quick,
    )
    assert causes(alone) == ["long-prompts"]


def test_intervals_that_are_not_alike_are_no_bursts() -> None:
    """Every second scrape failed, here and there three in a row: a steady load all the same."""
    kept = [number for number in range(61) if number % 2 == 0 and number % 14 != 6]
    made = facts({"running": 16.0, "waiting": 8.0}, spreads=QUEUED)
    service = Part(
        "engine",
        made.service.times_s[kept],
        {name: one[kept] for name, one in made.service.gauges.items()},
        {name: 20 * one[kept] for name, one in made.service.totals.items()},
        made.service.spreads,
    )
    assert first(Facts("headway", service, settings=made.settings, step_time=made.step_time)) == "slot-limit"


def test_a_batch_of_one_that_nobody_saw_is_not_told_of() -> None:
    """From a window in which the batch never changed, a step's constant and what a sequence adds cannot be told."""
    crawling = {"itl_s": spread(0.5, 0.6, count=3_000)}
    totals = {"prompt_tokens": 3_000.0, "generation_tokens": 24_000.0, "steps": None}
    always = facts({"running": 200.0}, totals, crawling, step_time=None)
    assert first(always) == "oversized-batch"
    ((change, *_),) = [finding.changes for finding in diagnose(always).findings if finding.cause == "oversized-batch"]
    assert 50 < float(change.value or 0) < 120  # in proportion


def test_of_few_samples_nothing_is_sure() -> None:
    made = facts({"running": 16.0, "waiting": 8.0}, spreads=QUEUED)
    few = slice(0, 61, 10)
    service = Part(
        "engine",
        made.service.times_s[few],
        {name: one[few] for name, one in made.service.gauges.items()},
        {name: one[few] for name, one in made.service.totals.items()},
        made.service.spreads,
    )
    (finding, *_) = diagnose(Facts("headway", service, settings=made.settings, step_time=made.step_time)).findings
    assert (finding.cause, finding.confidence) == ("slot-limit", "low")


def test_who_runs_is_known_by_what_they_get() -> None:
    """A server that does not tell: 200 tokens a second, one in 0.02 s to each."""
    assert study(facts({"running": None})).running == pytest.approx(4.0, rel=0.02)


def test_without_latencies_nobody_is_called_healthy() -> None:
    silent = facts(spreads=dict.fromkeys(("ttft_s", "itl_s", "queue_s", "prefill_s", "e2e_s", "decode_s")))
    diagnosis = diagnose(silent)
    assert not diagnosis.healthy
    assert "neither TTFT nor ITL" in diagnosis.blind


def test_a_late_client_is_told_before_the_network() -> None:
    late = Client(ttft_s=spread(0.9), server_ttft_s=spread(0.1), lag_s=0.7)
    assert first(facts(client=late)) == "client-limited"


def test_a_promise_that_was_made_is_what_counts() -> None:
    made = facts({"running": 16.0, "waiting": 1.0}, spreads={"ttft_s": spread(0.5), "queue_s": spread(0.42)})
    assert diagnose(made).healthy
    strict = facts(
        {"running": 16.0, "waiting": 1.0},
        spreads={"ttft_s": spread(0.5), "queue_s": spread(0.42)},
        promise=Promise(ttft_s=0.3),
    )
    assert first(strict) == "slot-limit"


GAUGES = ("running", "waiting", "kv_ratio")
TOTALS = ("prompt_tokens", "generation_tokens", "steps", "ended")
SPREADS = ("ttft_s", "queue_s", "prefill_s", "itl_s", "e2e_s", "decode_s", "prompt_tokens", "output_tokens")


@pytest.mark.parametrize("unknown", [*GAUGES, *TOTALS, *SPREADS, "model", "settings"])
def test_what_is_unknown_is_neither_zero_nor_an_error(unknown: str) -> None:
    """A healthy server stays healthy, or cannot be told of, whatever it keeps to itself."""
    made = facts(
        {unknown: None} if unknown in GAUGES else {},
        {unknown: None} if unknown in TOTALS else {},
        {unknown: None} if unknown in SPREADS else {},
        **({"step_time": None} if unknown == "model" else {}),
        **({"settings": Settings()} if unknown == "settings" else {}),
    )
    assert not diagnose(made).findings


def test_rules_are_silent_where_nothing_is_known() -> None:
    empty = Facts("unknown", Part("all", np.zeros(0)))
    case = study(empty)
    assert [rule(case) for rule in RULES] == [None] * len(RULES)
    assert diagnose(empty).blind


def test_slow_streams_that_nothing_explains_are_not_called_healthy() -> None:
    made = facts(
        totals={"prompt_tokens": None, "generation_tokens": None, "steps": None},
        spreads={"itl_s": spread(0.6, count=3_000)},
        step_time=None,
    )
    diagnosis = diagnose(made)
    assert not diagnosis.findings
    assert "does not say why" in diagnosis.blind


def test_a_few_requests_blame_nobody() -> None:
    """The first ones of a server are slow: caches are cold, and code is loaded."""
    few = {"ttft_s": spread(0.6, count=2), "tokenise_s": spread(0.5, count=2), "queue_s": spread(0.01, count=2)}
    assert not diagnose(facts(spreads=few)).findings
    some = {name: spread(one.mean, count=10) for name, one in few.items()}
    (finding, *_) = diagnose(facts(spreads=some)).findings
    assert (finding.cause, finding.confidence) == ("slow-preprocessing", "low")


def test_every_finding_is_whole() -> None:
    """Evidence with numbers, a chapter of the brief, a change, and a cost that can be compared."""
    seen: list[Diagnosis] = [
        diagnose(facts({"running": 16.0, "waiting": 8.0}, spreads=QUEUED)),
        diagnose(facts({"running": 5.0, "waiting": 8.0, "kv_ratio": 0.98}, spreads=QUEUED)),
        diagnose(facts(client=Client(network_s=0.3, network_probes=5))),
    ]
    for diagnosis in seen:
        for finding in diagnosis.findings:
            assert any(character.isdigit() for line in finding.evidence for character in line)
            assert finding.chapter in CHAPTERS
            assert finding.changes
            assert math.isfinite(finding.cost_s)
            assert finding.cost_s >= 0
