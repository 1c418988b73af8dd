"""Step logs: of a real simulated run, cut short, of several runs, and what is none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.pathologies import CONTROLS, Scenario, watch
from benchmarks.watched import Watched
from headway.core.errors import ConfigError
from headway.doctor.diagnose import diagnose
from headway.doctor.rules.case import study
from headway.doctor.step_log import read_steps
from tests.cli.running import Server

LIGHT = next(one for one in CONTROLS if one.name == "light chat")


@pytest.fixture(scope="module")
def run() -> Watched:
    """Twenty seconds of a light load."""
    scenario = Scenario(LIGHT.name, "", LIGHT.load, from_s=0.0, window_s=20.0)
    watched = watch(scenario, 0, "headway")
    assert isinstance(watched, Watched)
    watched.run()
    return watched


@pytest.fixture
def log(run: Watched, tmp_path: Path) -> Path:
    path = tmp_path / "steps.jsonl"
    path.write_text(run.step_log())
    return path


def test_it_says_what_the_records_say(run: Watched, log: Path) -> None:
    facts = read_steps(log)
    ended = [record for record in run.records.values() if record.finished]
    assert facts.requests == len(ended)
    ttft = facts.service.spread("ttft_s")
    assert ttft is not None
    assert ttft.sum == pytest.approx(sum((record.ttft_ns or 0) / 1e9 for record in ended))
    counters = run.engines[0].scheduler.counters
    # Series begin and end within the log: a step that is cut is not counted.
    assert facts.service.increase("prompt_tokens") == pytest.approx(counters.prefill_tokens, rel=0.05)
    assert facts.service.increase("generation_tokens") == pytest.approx(counters.decode_tokens, rel=0.05)


def test_the_model_of_steps_is_found_again(run: Watched, log: Path) -> None:
    model, truth = read_steps(log).step_time, run.engines[0].cost
    assert model is not None
    assert model.step_ns == pytest.approx(truth.step_ns, rel=0.05)
    assert model.prefill_token_ns == pytest.approx(truth.prefill_token_ns, rel=0.05)


def test_only_the_last_seconds(log: Path) -> None:
    whole, last = read_steps(log), read_steps(log, 10.0)
    assert last.service.window_s == pytest.approx(10.0, abs=1.0)
    assert (last.requests or 0) < (whole.requests or 0)


def test_only_the_last_run(log: Path) -> None:
    text = log.read_text()
    log.write_text(text + text)
    lines = [json.loads(line) for line in text.splitlines()]
    assert read_steps(log).requests == sum(line["kind"] == "request" for line in lines)


def test_lines_cut_short_are_passed_over(log: Path) -> None:
    before = read_steps(log).requests
    lines = log.read_text().splitlines()
    lines.insert(len(lines) // 2, '{"kind": "step", "step": 9, "plan')
    log.write_text("\n".join(lines) + '\n{"kind": "requ')
    assert read_steps(log).requests == before


def test_a_line_cut_short_does_not_cost_the_fit(log: Path) -> None:
    before = read_steps(log).step_time
    lines = log.read_text().splitlines()
    lines[40] = lines[40][:30]
    log.write_text("\n".join(lines) + "\n")
    facts = read_steps(log)
    assert before is not None
    assert facts.step_time is not None
    assert not facts.notes
    assert facts.step_time.step_ns == pytest.approx(before.step_ns, rel=0.02)
    assert facts.step_time.prefill_token_ns == pytest.approx(before.prefill_token_ns, rel=0.02)


def test_why_there_is_no_fit_is_told_as_it_is(log: Path) -> None:
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    number = next(place for place, line in enumerate(lines) if line["kind"] == "step") + 3
    del lines[number]["attention_tokens"]
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    facts = read_steps(log)
    assert facts.step_time is None
    assert any("not fitted" in note and "attention_tokens" in note for note in facts.notes)


def test_who_was_preempted_before_the_window_is_not_preempted_in_it(log: Path) -> None:
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    steps = [line for line in lines if line["kind"] == "step"]
    for line in steps[len(steps) // 4 :]:
        line["preempted"] = 3
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert read_steps(log).service.increase("preemptions") == 3
    assert read_steps(log, 5.0).service.increase("preemptions") == 0


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "no header"),
        ('{"kind": "step"}\n', "begins with a line of kind 'header'"),
        ('{"kind": "header", "log": "decision"}\n', "not a decision log"),
        ('{"kind": "header", "log": "step"}\n', "no steps"),
        ('{"kind": "header", "log": "step"}\n{"kind": "step", "planned_ns": "soon"}\n', "planned_ns is 'soon'"),
    ],
)
def test_what_is_no_step_log(tmp_path: Path, content: str, says: str) -> None:
    path = tmp_path / "log"
    path.write_text(content)
    with pytest.raises(ConfigError, match=says):
        read_steps(path)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_steps(tmp_path / "nowhere")


def test_few_steps_are_judged_without_a_fit(log: Path) -> None:
    lines = log.read_text().splitlines()
    log.write_text("\n".join(lines[:30]) + "\n")
    facts = read_steps(log)
    assert facts.step_time is None
    assert any("not fitted" in note for note in facts.notes)
    diagnose(facts)


@pytest.mark.slow
def test_a_real_servers_log_is_read(tmp_path: Path) -> None:
    import urllib.request

    path = tmp_path / "steps.jsonl"
    with Server("--executor", "simulated", "--step-log", str(path)) as server:
        body = json.dumps(
            {"model": "simulated", "prompt": "hello there", "max_tokens": 80, "ignore_eos": True}
        ).encode()
        request = urllib.request.Request(f"{server.url}/v1/completions", body, {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=30) as answer:
            assert answer.status == 200
    facts = read_steps(path)
    assert facts.requests == 1
    assert facts.settings.max_num_seqs == 64


def test_slots_that_are_given_back_at_a_step_s_end_were_taken_in_it(tmp_path: Path) -> None:
    """Two slots, six who wait, and answers of one step: after each step nobody runs, in each two do."""
    lines: list[dict[str, object]] = [
        {
            "kind": "header",
            "log": "step",
            "config": {"max_num_seqs": 2, "max_num_batched_tokens": 256, "slo_itl": 0.2},
            "executor": {"num_blocks": 4, "block_size": 16},
        }
    ]
    for number in range(400):
        begin_ns, end_ns = 10**9 + number * 100_000_000, 10**9 + number * 100_000_000 + 99_000_000
        step = dict.fromkeys(
            ("prefill_tokens", "decode_tokens", "running", "preempted", "kv_tokens", "kv_blocks_used"), 0
        )
        lines.append({"kind": "step", **step, "planned_ns": begin_ns, "committed_ns": end_ns, "waiting": 6})
        ended = {"kind": "request", "end": "length", "arrival_ns": begin_ns - 300_000_000, "cached_tokens": 0}
        ended |= {"prompt_tokens": 31, "output_tokens": 1, "queue_s": 0.3, "prefill_s": 0.099, "decode_s": 0.0}
        lines += [{**ended, "e2e_s": 0.399}] * 2
    path = tmp_path / "steps.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    facts = read_steps(path)
    assert set(facts.service.gauge("running")[1:-1]) == {2.0}
    assert set(facts.service.gauge("kv_tokens")[1:-1]) == {64.0}
    assert set(facts.service.gauge("kv_ratio")[1:-1]) == {1.0}
    waited = study(facts).waited
    assert waited is not None
    assert waited.kv + waited.slots > 0.97  # all but the sample at the last step's end
    assert facts.settings.now("slo_itl") == 0.2
