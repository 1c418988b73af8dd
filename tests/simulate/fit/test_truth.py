"""A synthetic server with known coefficients and settings is recovered, from whatever it left behind."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import msgspec
import numpy as np
import pytest

from headway.core.pace import Shape
from headway.metrics import bench_result
from headway.simulate.fit import (
    Belief,
    Demand,
    Observed,
    Server,
    StepFit,
    covers,
    fit,
    fit_bytes,
    load_fit,
    read_bench,
    read_folder,
    read_step_log,
    serve,
)
from headway.simulate.fit.settings import server_of
from headway.simulate.sizing import hardware_named, shape_from_config
from tests.simulate.fit import worlds

pytestmark = pytest.mark.slow

TYPICAL = [
    Shape(0, 24, 24 * 300, 0),
    Shape(0, 8, 8 * 200, 0),
    Shape(488, 24, 7_000, 100_000),
    Shape(200, 10, 2_000, 20_000),
]
LLAMA = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "torch_dtype": "bfloat16",
}  # fmt: skip


def step_ns(found: StepFit, work: Shape) -> float:
    c = found.cost
    return c.step_time.predict_ns(work) + (c.prefill_step_ns if work.prefill_tokens else 0)


def true_ns(work: Shape) -> float:
    return worlds.TRUTH.step_time.predict_ns(work) + (worlds.TRUTH.prefill_step_ns if work.prefill_tokens else 0)


def folder_of(tmp_path: Path, asked: Demand, server: Server = worlds.SERVER, *, meta: bool = True) -> Path:
    run = worlds.served(asked, server)
    worlds.write_requests(tmp_path / "requests.jsonl", run)
    worlds.write_series(tmp_path / "timeseries.csv", run, server)
    if meta:
        flags = {"max_num_seqs": server.max_num_seqs, "max_num_batched_tokens": server.max_num_batched_tokens}
        said = {
            "vllm_version": "0.19.0",
            "engine_kwargs": flags,
            "kv_cache": {"num_gpu_blocks": (server.num_blocks or 0) + 1, "block_size": 16},
        }
        (tmp_path / "meta.json").write_text(json.dumps(said))
    return tmp_path


def test_a_step_log_gives_back_its_coefficients(tmp_path: Path) -> None:
    worlds.write_step_log(tmp_path / "steps.jsonl")
    found = fit(logs=[read_step_log(tmp_path / "steps.jsonl")])
    for work in TYPICAL:
        assert step_ns(found, work) == pytest.approx(true_ns(work), rel=0.03)
    assert found.server.max_num_seqs == 48
    assert found.server.num_blocks == 900
    assert found.residuals[0].median_error < 0.05
    assert found.valid.max_decode_seqs == 47


def test_the_rest_of_a_run_is_predicted_from_its_first_third(tmp_path: Path) -> None:
    observed = read_folder(folder_of(tmp_path, worlds.demand()))
    until_s = observed.finished_by(1 / 3)
    found = fit(observed=[observed.until(until_s)])
    again = serve(observed.demand, found.server, found.cost)
    rest = observed.last_s > until_s
    assert 75 <= rest.sum() <= 80  # several may end with the step in which the third is full
    seen = {
        "queue": (observed.scheduled_s - observed.queued_s, again.queue_s),
        "prefill": (observed.first_s - observed.scheduled_s, again.prefill_s),
        "e2e": (observed.last_s - observed.arrival_s, again.e2e_s),
    }
    for name, (measured, predicted) in seen.items():
        assert np.mean(predicted[rest]) == pytest.approx(np.mean(measured[rest]), rel=0.05), name
    for work in TYPICAL[:1] + TYPICAL[2:]:
        assert step_ns(found, work) == pytest.approx(true_ns(work), rel=0.10)
    assert covers(found, again) > 0.9


def test_settings_that_nobody_told_are_inferred(tmp_path: Path) -> None:
    asked = worlds.demand(90, rate=40.0)
    observed = read_folder(folder_of(tmp_path, asked, replace_blocks(4_000), meta=False))
    server = server_of(observed, {})
    assert server.max_num_seqs == 24
    assert server.known["max_num_seqs"] == "inferred"
    assert server.num_blocks == pytest.approx(4_000, rel=0.05)
    found = fit(observed=[observed], given={"max_num_seqs": 24, "whole_prompt_kv": True})
    assert found.server.max_num_batched_tokens == 512
    assert found.server.known["max_num_batched_tokens"] == "inferred"
    assert found.server.plans_ahead


def replace_blocks(blocks: int) -> Server:
    return msgspec.structs.replace(worlds.SERVER, num_blocks=blocks)


def test_a_bench_result_tells_steps_and_what_a_request_costs_outside(tmp_path: Path) -> None:
    """The client is 15 ms away, and sees neither queue nor schedule."""
    asked = worlds.demand(100, rate=6.0)
    run = serve(asked, worlds_without_plan(), worlds.TRUTH)
    away_s = 0.015
    with (tmp_path / "run.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["index", "fate", "sent_s", "first_s", "last_s", "input_tokens", "output_tokens"])
        for n in range(len(asked)):
            sent = asked.arrival_ns[n] / 1e9
            row = [n, "ok", sent, run.first_ns[n] / 1e9 + away_s, run.last_ns[n] / 1e9 + away_s]
            table.writerow([*row, asked.prompt_tokens[n], asked.output_tokens[n]])
    (tmp_path / "run.json").write_text(
        json.dumps({"schema_version": bench_result.VERSION, "environment": {"flags": {}}})
    )
    observed = read_bench(tmp_path / "run.json")
    given = {
        "max_num_seqs": 24,
        "max_num_batched_tokens": 512,
        "num_blocks": 1_200,
        "plans_ahead": False,
        "whole_prompt_kv": True,
    }
    found = fit(observed=[observed], given=given)
    for work in TYPICAL[1:]:
        assert step_ns(found, work) == pytest.approx(true_ns(work), rel=0.15)
    # Where it is told apart from what a step costs, it is told right.
    assert found.request_ns == pytest.approx(15e6, abs=8e6)


def worlds_without_plan() -> Server:
    return msgspec.structs.replace(worlds.SERVER, plans_ahead=False)


def test_sources_are_mixed(tmp_path: Path) -> None:
    """Few steps on a device that is known: together better than the belief, and it is all in the file."""
    worlds.write_step_log(tmp_path / "steps.jsonl", count=60)
    log = read_step_log(tmp_path / "steps.jsonl")
    belief = Belief.of(shape_from_config(LLAMA, where="config.json", name="llama"), hardware_named("RTX 4090"))
    alone, mixed = fit(belief=belief), fit([log], belief=belief)
    off = [np.mean([abs(step_ns(found, work) / true_ns(work) - 1) for work in TYPICAL]) for found in (alone, mixed)]
    assert off[1] < 0.05 < off[0]
    assert mixed.sources == ["steps.jsonl", "roofline of llama on RTX-4090"]
    path = tmp_path / "fit.json"
    path.write_bytes(fit_bytes(mixed))
    assert load_fit(path) == mixed


def test_what_is_carried_to_the_same_device_stays() -> None:
    shape = shape_from_config(LLAMA, where="config.json", name="llama")
    here, there = (Belief.of(shape, hardware_named(name)) for name in ("RTX 4090", "H100"))
    measured = here.laid().values
    assert here.carried(measured, here) == pytest.approx(measured, rel=0.02, abs=1.0)
    moved = here.carried(measured, there)
    assert moved[1] < measured[1] / 2  # arithmetic is several times faster there


def test_later_times_are_unseen() -> None:
    run = worlds.served(worlds.demand(40))
    whole = Observed(
        "x", run.demand.arrival_ns / 1e9, run.demand.prompt_tokens, run.demand.output_tokens, run.queued_ns / 1e9,
        run.scheduled_ns / 1e9, run.first_ns / 1e9, run.last_ns / 1e9,
    )  # fmt: skip
    until_s = whole.finished_by(0.5)
    seen = whole.until(until_s)
    assert 20 <= np.isfinite(seen.last_s).sum() < 30
    assert np.nanmax(seen.first_s) <= until_s
    assert np.array_equal(seen.prompt_tokens, whole.prompt_tokens)
