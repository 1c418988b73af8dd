"""Advice in the words of the server that it is about: one table of flags by kind, and what is left out elsewhere."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from headway.doctor.diagnose import diagnose
from headway.doctor.effect import with_effects
from headway.doctor.facts import Facts, Settings
from headway.metrics.server_flags import FLAGS, GATEWAY, PUT_BEFORE, flag_of, in_words_of
from headway.metrics.server_names import KINDS
from tests.doctor.making import facts, spread

QUEUED = {"ttft_s": spread(5.0, 6.0, 8.0), "queue_s": spread(4.9, 5.9, 7.9)}
STALLED = {"itl_s": spread(0.02, 0.6, count=3_000), **QUEUED}
FULL_SLOTS = facts({"running": 16.0, "waiting": 40.0}, spreads=QUEUED)
SICK = (
    FULL_SLOTS,
    facts({"running": 10.0, "waiting": 8.0, "kv_ratio": 0.99}, spreads=QUEUED),
    facts({"running": 50.0, "waiting": 8.0, "kv_ratio": 1.0}, {"preemptions": 150.0}, QUEUED),
    facts({"running": 16.0, "waiting": 8.0}, spreads={**QUEUED, "decode_s": spread(*[1.0] * 9, *[40.0] * 2)}),
    facts({"waiting": 8.0, "running": [2.0, 3.0, 4.0] * 20 + [3.0]}, {"prompt_tokens": 400_000.0}, QUEUED),
    facts({"waiting": 3.0}, {"prompt_tokens": 400_000.0}, STALLED, settings=Settings(16, 16_384)),
    facts(spreads={"tokenise_s": spread(0.4), "ttft_s": spread(0.5, 0.6)}),
)
# Of other servers: what nobody there has, and a gateway before them does not make up for.
ONLY_OURS = ("--kv-full", "--slo-itl", "--slo-ttft", "--kv-cache-gib", "--prefix-cache-scope")


def advice(made: Facts) -> list[str]:
    return [change.words for finding in diagnose(made).findings for change in finding.changes]


@pytest.mark.parametrize(
    ("kind", "setting"),
    [
        ("headway", "--max-num-seqs 56"),
        ("vllm", "--max-num-seqs 56"),
        ("sglang", "--max-running-requests 56"),
        ("tgi", "--max-batch-size 56"),
        ("llamacpp", "--parallel 56"),
    ],
)
def test_the_exact_setting_is_the_server_s(kind: str, setting: str) -> None:
    assert advice(replace(FULL_SLOTS, kind=kind))[0] == setting


@pytest.mark.parametrize("kind", sorted(FLAGS))
def test_no_other_server_is_told_what_only_headway_has(kind: str) -> None:
    """Each flag that is named is one of its own, or said to be of the gateway to put before it."""
    for made in SICK:
        for words in advice(replace(made, kind=kind)):
            flags = re.findall(r"--[a-z][a-z-]+", re.sub(r"`[^`]*`", "", words))
            own = {*FLAGS[kind].values(), "--cache-type-v"}
            front = {f"--{name.replace('_', '-')}" for name in GATEWAY}
            assert set(flags) <= own | front, words
            assert PUT_BEFORE in words or set(flags) <= own, words
            assert not set(flags) & set(ONLY_OURS), words


def test_headway_is_told_its_own_flags_and_nobody_s_else() -> None:
    said = " ".join(words for made in SICK for words in advice(made))
    assert "--kv-full wait" in said
    assert "--slo-itl" in said
    assert "--gpu-memory-utilization" not in said
    assert "--api-server-count" not in said
    assert PUT_BEFORE not in said


def test_who_tells_headway_s_configuration_is_headway_whatever_its_metrics_are_called() -> None:
    told = replace(FULL_SLOTS.settings, told={"kv_full": "preempt"})
    assert replace(FULL_SLOTS, kind="vllm", settings=told).speaks == "headway"


def test_a_value_has_its_own_name_as_well() -> None:
    words = "--kv-cache-dtype u8, which holds twice as many tokens"
    assert in_words_of("vllm", words) == "--kv-cache-dtype fp8, which holds twice as many tokens"
    assert in_words_of("headway", words) == words
    assert in_words_of("sglang", "a bound: --max-waiting 8") == "a bound: --max-queued-requests 8"
    assert in_words_of("vllm", "a bound: --max-waiting 8") == f"a bound: --max-waiting 8{PUT_BEFORE}"
    assert in_words_of("vllm", "`headway serve --worker URL` weighs each") == "`headway serve --worker URL` weighs each"


def test_what_is_simulated_is_named_as_what_is_advised() -> None:
    made = replace(FULL_SLOTS, kind="sglang")
    (finding, *_) = with_effects(diagnose(made).findings, made)
    assert any(line.startswith("with max-running-requests 56: ") for line in finding.effect)


def test_the_table_is_of_known_servers() -> None:
    assert set(FLAGS) <= set(KINDS)
    assert flag_of("", "max_num_seqs") == flag_of("headway", "max_num_seqs") == "--max-num-seqs"
