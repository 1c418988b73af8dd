"""Step logs: of a real simulated run, cut short, of several runs, and what is none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.pathologies import CONTROLS, Scenario, watch
from benchmarks.watched import Watched
from headway.core.errors import ConfigError
from headway.doctor.diagnose import diagnose
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
