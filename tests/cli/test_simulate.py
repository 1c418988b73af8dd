"""`headway simulate`: the report of a load test of what need not exist; bad input told in one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headway.cli import status
from headway.executors.simulated import StepCost
from headway.loadtest.bench.files import read
from headway.loadtest.report.json_file import load_run, run_bytes
from headway.simulate.fit.bench import read_bench
from headway.simulate.fit.model import Coefficient, Server, StepFit, Valid, fit_bytes
from headway.simulate.fit.terms import COLUMNS
from tests.loadtest.test_compare import records_of, run_of
from tests.simulate.test_replay_fleet import LINES, written

CONFIG = {
    "model_type": "llama", "torch_dtype": "bfloat16", "hidden_size": 4096, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256,
    "max_position_embeddings": 8192, "tie_word_embeddings": False,
}  # fmt: skip
COST = StepCost(5_000_000, 20_000, 10_000, 40, 1, 1_000_000)
REQUEST_NS = 3_000_000


@pytest.fixture
def fit(tmp_path: Path) -> Path:
    """A server that was measured: eight slots, 1,000 blocks, and what the steps of `COST` take."""
    values = (
        COST.step_ns,
        COST.prefill_token_ns,
        COST.decode_sequence_ns,
        COST.context_token_ns,
        COST.prefill_attention_ns,
        COST.prefill_step_ns,
        REQUEST_NS,
    )
    made = StepFit(
        model="tiny",
        device="a device",
        sources=["made up"],
        coefficients={
            name: Coefficient(value=value, low=value, high=value) for name, value in zip(COLUMNS, values, strict=True)
        },
        residuals=[],
        valid=Valid(
            steps=100,
            max_prefill_tokens=512,
            min_decode_seqs=1,
            max_decode_seqs=8,
            max_context_tokens=10_000,
            max_attention_tokens=1_000_000,
        ),
        server=Server(policy="vllm", max_num_seqs=8, max_num_batched_tokens=512, num_blocks=1_000),
    )
    path = tmp_path / "fit.json"
    path.write_bytes(fit_bytes(made))
    return path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "llama-8b" / "config.json"
    path.parent.mkdir()
    path.write_text(json.dumps(CONFIG))
    return path


@pytest.fixture
def simulated(fit: Path, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """The JSON of a run."""

    def run(*arguments: object) -> dict[str, Any]:
        path = tmp_path / "out.json"
        path.unlink(missing_ok=True)
        code = status(["simulate", *map(str, arguments), "--fit", str(fit), "--json", str(path), "--quiet"])
        assert code in {0, 4, 5, 6}
        found: dict[str, Any] = json.loads(path.read_bytes())
        return found

    return run


def complaint(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert status(["simulate", *map(str, arguments), "--quiet"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("headway: ")
    assert said.err.count("\n") == 1
    return said.err


def value(run: dict[str, Any], name: str, percentile: str = "50") -> float:
    found: float = run["summary"]["overall"]["distributions"][name]["percentiles"][percentile]["value"]
    return found


# -- what it says ------------------------------------------------------------------------------------------------------


def test_a_lone_client_meets_what_the_formula_says(simulated):
    run = simulated("concurrency", "--concurrency", 1, "--requests", 40, "--input-len", 100, "--output-len", 5)
    prefill_ns = COST.step_ns + COST.prefill_step_ns + 100 * COST.prefill_token_ns + 5_000 * COST.prefill_attention_ns
    first = COST.step_ns + COST.decode_sequence_ns + 100 * COST.context_token_ns
    assert value(run, "ttft") == pytest.approx((prefill_ns + REQUEST_NS) / 1e9)
    assert value(run, "itl") == pytest.approx(first / 1e9, rel=1e-3)


def test_it_says_that_nothing_was_measured(simulated, fit, capsys, tmp_path):
    run = simulated("rate", "--request-rate", 20, "--duration", 20)
    assert run["simulation"].startswith("tiny on a device, policy vllm")
    assert any("not measured" in remark for remark in run["verdict"]["remarks"])
    assert "up to 512 prompt tokens" in run["load"]["settings"]["the fit holds for"]
    assert capsys.readouterr().out.count("Simulated") >= 2
    page = tmp_path / "page.html"
    assert status(["simulate", "--fit", str(fit), "--requests", "50", "--html", str(page), "--quiet"]) in {0, 6}
    assert "Simulated, not measured" in page.read_text()


def test_a_workload_that_leaves_the_fit_is_told(simulated):
    inside = simulated("--concurrency", 4, "--requests", 60)
    outside = simulated("--concurrency", 32, "--requests", 60, "--max-num-seqs", 32)
    said = [
        any("Outside what was measured" in remark for remark in run["verdict"]["remarks"]) for run in (inside, outside)
    ]
    assert said == [False, True]
    [told] = [remark for remark in outside["verdict"]["remarks"] if "Outside" in remark]
    assert "decoding sequences (the fit saw 8)" in told


@pytest.mark.slow
def test_the_same_seed_is_the_same_file_and_another_is_not(fit, tmp_path):
    files = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        folder = tmp_path / name
        command = ["simulate", "rate", "--request-rate", "30", "--duration", "10", "--seed", str(seed)]
        status([*command, "--fit", str(fit), "--output", str(folder), "--quiet"])
        files.append((folder / "run.json").read_bytes())
    assert files[0] == files[1] != files[2]


@pytest.mark.parametrize("workers", [(), ("--workers", 2)])
@pytest.mark.parametrize(
    "profile",
    [
        ("concurrency",), ("rate",), ("ramp",), ("mix",), ("long-context",), ("long-output",),
        ("burst", "--base-rate", "10", "--burst-rate", "40", "--period", "6"),
    ],
)  # fmt: skip
def test_every_profile_runs_on_an_engine_and_behind_a_gateway(simulated, profile, workers):
    run = simulated(*profile, "--duration", 6, *workers)
    assert run["load"]["profile"] == profile[0]
    assert run["summary"]["overall"]["fates"]["ok"] > 0


@pytest.mark.slow
def test_fewer_slots_make_requests_wait(simulated):
    load = ("rate", "--request-rate", 15, "--duration", 30)
    usual, narrow = simulated(*load), simulated(*load, "--max-num-seqs", 1)
    assert narrow["environment"]["flags"]["max-num-seqs"] == "1"
    assert value(narrow, "ttft") > 10 * value(usual, "ttft")


@pytest.mark.slow
def test_more_workers_serve_more(simulated):
    load = ("rate", "--request-rate", 60, "--duration", 20)
    rates = [simulated(*load, "--workers", workers)["summary"]["overall"]["request_rate"] for workers in (1, 4)]
    assert rates[1] > 1.5 * rates[0]


def test_a_servers_file_says_what_its_flags_would(simulated, tmp_path):
    path = tmp_path / "headway.toml"
    path.write_text('port = 1234\nmax-num-seqs = 2\n\n[[tenant]]\nname = "a"\nmax-concurrency = 1\n')
    flags = simulated("--requests", 30, "--config", path)["environment"]["flags"]
    assert flags["max-num-seqs"] == "2"
    over = simulated("--requests", 30, "--config", path, "--max-num-seqs", 3)["environment"]["flags"]
    assert over["max-num-seqs"] == "3"
    held = simulated("--requests", 60, "--config", path, "--workers", 1, "--tenants", "a", "--concurrency", 4)
    assert held["summary"]["overall"]["fates"]["limited"] > 0


# -- beside a measurement ----------------------------------------------------------------------------------------------


def test_it_stands_beside_a_measurement(simulated, tmp_path, capsys):
    simulated("rate", "--request-rate", 8, "--requests", 300)
    measured = tmp_path / "measured.json"
    measured.write_bytes(run_bytes(run_of(records_of(1))))
    code = status(["bench", "compare", str(tmp_path / "out.json"), str(measured)])
    assert code in {0, 7, 8}
    assert "TTFT p50" in capsys.readouterr().out


@pytest.mark.slow
def test_a_bench_result_is_replayed(simulated, fit, tmp_path):
    first = tmp_path / "first"
    for profile in (("rate", "--request-rate", "20"), ("concurrency", "--concurrency", "5")):
        folder = first.with_name(f"first-{profile[0]}")
        command = ["simulate", *profile, "--duration", "10", "--input-len", "50:400", "--output-len", "5:40"]
        status([*command, "--fit", str(fit), "--output", str(folder), "--quiet"])
        before, records = read(folder)
        again = simulated("--replay", folder)
        assert again["load"]["loop"] == before.load.loop
        assert again["summary"]["overall"]["requests"] > 0
        after = load_run(tmp_path / "out.json")
        for name in ("ttft", "e2e"):
            one, other = (run.summary.overall.distributions[name].mean for run in (before, after))
            assert one == pytest.approx(other, rel=0.05)
        assert len(records) > 0


def test_what_a_load_tester_writes_can_be_fitted(fit, tmp_path):
    """The file and its table, read by who does not know their writer: the same requests, at the same times."""
    lengths = ["--requests", "60", "--input-len", "64", "--output-len", "16"]
    status(["simulate", "rate", "--fit", str(fit), "--request-rate", "5", *lengths, "--output", str(tmp_path / "run")])
    [result] = (tmp_path / "run").glob("*.json")
    observed = read_bench(result)
    assert len(observed.output_tokens) == 60
    assert set(observed.prompt_tokens) == {64}
    assert (observed.last_s > observed.first_s).all()


def test_an_engines_step_log_is_replayed(simulated, tmp_path):
    path = tmp_path / "steps.jsonl"
    lines: list[dict[str, object]] = [{"kind": "header", "log": "step", "version": 1}]
    lines += [
        {"kind": "request", "tenant": "", "prompt_tokens": 10 + i, "output_tokens": 5, "arrival_ns": 10**9 + i * 10**7}
        for i in range(50)
    ]
    path.write_text("\n".join(map(json.dumps, lines)))
    run = simulated("--replay", path)
    assert run["load"]["requests"] == 50
    assert run["load"]["rate"] == pytest.approx(50 / 0.49)
    assert run["summary"]["overall"]["distributions"]["input_tokens"]["min"] == 10


def test_a_gateways_log_is_replayed_with_everybody_who_came(simulated, tmp_path):
    run = simulated("--replay", written(tmp_path, *LINES), "--workers", 2)
    assert run["load"]["requests"] == 2
    assert "does not tell the output" in run["load"]["settings"]["notes"]
    assert run["summary"]["overall"]["distributions"]["input_tokens"]["max"] == 200


def test_a_trace_of_hashes_is_found_in_the_cache(simulated, tmp_path):
    rows = [
        {"timestamp": 1000 * i, "input_length": 1024, "output_length": 4, "hash_ids": [7, 100 + i]} for i in range(40)
    ]
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    run = simulated("trace", path)
    found = run["load"]["settings"]["prompt tokens found in the cache"]
    assert float(found.rstrip("%")) == pytest.approx(100 * 39 * 512 / (40 * 1024), abs=0.1)


# -- bad input ---------------------------------------------------------------------------------------------------------


def test_no_fit_is_told_with_what_to_give(capsys, model):
    assert "--fit FILE" in complaint(capsys)
    assert "Give --gpu" in complaint(capsys, "--model", model)
    assert "Give --model" in complaint(capsys, "--gpu", "H100")


def test_an_unknown_device_is_told_with_the_nearest(capsys, model):
    assert "RTX-4090" in complaint(capsys, "--model", model, "--gpu", "RTX 4099")


def test_a_model_too_large_for_its_device_is_told(capsys, model):
    said = complaint(capsys, "--model", model, "--device", "RTX 4060")
    assert "too large for one RTX-4060" in said


def test_a_trace_longer_than_the_model_is_told_by_request(capsys, model, tmp_path):
    path = tmp_path / "trace.jsonl"
    rows = [{"at_s": i, "input_tokens": 100 if i < 2 else 9_000, "output_tokens": 5} for i in range(4)]
    path.write_text("\n".join(map(json.dumps, rows)))
    said = complaint(capsys, "trace", path, "--model", model, "--gpu", "H100")
    assert "Request 3 of" in said
    assert "takes 8,192 together" in said
    assert "--max-input-len" in said


def test_what_can_never_be_scheduled_is_told(capsys, fit, tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_text('{"at_s": 0, "input_tokens": 15990, "output_tokens": 20}\n')
    said = complaint(capsys, "trace", path, "--fit", fit)
    assert "can never be scheduled" in said
    assert "16,000 tokens (1,000 blocks of 16)" in said


@pytest.mark.parametrize("wrong", ["nan", "0", "-1", "inf"])
def test_rates_that_mean_nothing(capsys, fit, wrong):
    assert "request-rate" in complaint(capsys, "rate", "--fit", fit, f"--request-rate={wrong}").lower()


def test_nan_in_a_trace_is_told_by_line(capsys, fit, tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_text(
        '{"at_s": 0, "input_tokens": 5, "output_tokens": 5}\n{"at_s": NaN, "input_tokens": 5, "output_tokens": 5}\n'
    )
    assert "trace.jsonl:2: at_s" in complaint(capsys, "trace", path, "--fit", fit)


def test_a_file_that_is_no_log_is_told(capsys, fit, tmp_path):
    path = tmp_path / "other.jsonl"
    path.write_text('{"a": 1}\n')
    assert "no log of headway" in complaint(capsys, "--replay", path, "--fit", fit)
    assert "cannot be read" in complaint(capsys, "--replay", tmp_path / "none.jsonl", "--fit", fit)
