"""`headway plan` from outside: what is printed, what is written, and one line for what was asked wrongly."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headway.cli import status
from headway.cli.plan.hardware import Offer, parse_offer
from headway.core.pace import Shape
from headway.simulate.fit import fit, fit_bytes, read_step_log
from tests.cli.running import Server
from tests.simulate.fit import worlds

CONFIG = {
    "model_type": "llama", "torch_dtype": "bfloat16", "hidden_size": 4096, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256,
    "max_position_embeddings": 131072, "tie_word_embeddings": False,
}  # fmt: skip
LOAD = ("--request-rate", "1", "--input-len", "100", "--output-len", "8", "--requests", "20", "--quiet")
LIMITS = ("--max-num-seqs", "8", "--max-num-batched-tokens", "512")


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "llama-8b" / "config.json"
    path.parent.mkdir()
    path.write_text(json.dumps(CONFIG))
    return str(path)


@pytest.fixture
def measured(tmp_path: Path) -> str:
    """A fit of a server that ran on something with no name."""
    worlds.write_step_log(tmp_path / "steps.jsonl")
    path = tmp_path / "fit.json"
    path.write_bytes(fit_bytes(fit([read_step_log(tmp_path / "steps.jsonl")])))
    return str(path)


def test_a_plan_is_printed_and_written(config, tmp_path, capsys):
    out, page = tmp_path / "plan.json", tmp_path / "plan.html"
    code = status(
        ["plan", config, *LOAD, *LIMITS, "--slo-ttft", "0.5", "--hardware", "H100=2.5", "--hardware", "2xL40S=0.9",
         "--json", str(out), "--html", str(page)]
    )  # fmt: skip
    assert code == 0
    shown = capsys.readouterr().out
    for word in (
        "1 replica of 2 × L40S",
        "--max-num-seqs 8",
        "KV use",
        "headroom",
        "per M out",
        "What was planned for",
    ):
        assert word in shown
    document = json.loads(out.read_text())
    assert document["schema_version"] == 1
    assert document["chosen"] == "2 × L40S"
    assert [option["price_per_hour"] for option in document["options"]] == [1.8, 2.5]
    text = page.read_text()
    assert "Plotly" in text
    assert "Throughput and latency" in text


@pytest.mark.slow
def test_the_curve_is_measured_on_a_live_server(config, tmp_path, capsys):
    out = tmp_path / "plan.json"
    with Server("--executor", "simulated") as server:
        code = status(
            ["plan", config, *LOAD, "--max-num-seqs", "2", "--slo-ttft", "2", "--percentile", "50", "--hardware",
             "H100=2.5", "--measure", server.url, "--measure-window", "4", "--measure-output", str(tmp_path / "kept"),
             "--json", str(out), "--html", str(tmp_path / "plan.html")]
        )  # fmt: skip
    assert code == 0
    assert "measured output" in " ".join(capsys.readouterr().out.split())
    (found,) = json.loads(out.read_text())["measured"]
    assert found["concurrency"] == 2
    assert found["output_token_rate"] > 0
    assert (tmp_path / "kept").is_dir()


def test_json_alone_is_what_stdout_holds(config, capfd):
    assert (
        status(["plan", config, *LOAD, *LIMITS, "--slo-ttft", "0.5", "--hardware", "H100=2.5", "--json", "/dev/stdout"])
        == 0
    )
    printed, said = capfd.readouterr()
    assert json.loads(printed)["chosen"] == "H100"
    assert "1 replica of H100" in said


def test_nothing_holds_has_a_status_of_its_own(config, capsys):
    assert status(["plan", config, *LOAD, "--slo-itl", "0.001", "--hardware", "H100=2.5"]) == 9
    shown = " ".join(capsys.readouterr().out.split())
    assert "No hardware keeps it" in shown
    assert "One decode step at batch 1 takes" in shown


def test_a_fit_of_an_unnamed_machine_is_planned_under_any_name(measured, capsys):
    load = ("--request-rate", "0.5", "--input-len", "100", "--output-len", "10", "--requests", "20", "--quiet")
    assert status(["plan", measured, *load, "--slo-ttft", "5", "--hardware", "here=0.2", "--max-num-seqs", "4"]) == 0
    assert "1 replica of here" in capsys.readouterr().out


def test_what_was_not_measured_is_said(measured, capsys):
    load = ("--request-rate", "0.1", "--input-len", "6000", "--output-len", "20", "--requests", "20", "--quiet")
    assert status(["plan", measured, *load, "--slo-e2e", "900", "--hardware", "here=0.2"]) == 9
    assert "outside what was measured" in " ".join(capsys.readouterr().out.split())


def test_a_hardware_file(config, tmp_path, capsys):
    path = tmp_path / "prices.toml"
    path.write_text('[[hardware]]\nname = "H100"\nprice_per_hour = 2.5\n\n[[hardware]]\nname = "EPYC-9654"\n'
                    'price_per_hour = 0.5\nmemory_gib = 256\n')  # fmt: skip
    assert status(["plan", config, *LOAD, *LIMITS, "--slo-ttft", "3", "--hardware-file", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "EPYC-9654" in shown
    assert "H100" in shown


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--request-rate", "1", "--hardware", "H100=1"], "nothing is promised"),
        (["--slo-ttft", "1", "--hardware", "H100=1"], "--request-rate, --trace and --bench"),
        (["--slo-ttft", "1", "--request-rate", "1"], "--hardware NAME=PRICE"),
        (["--slo-ttft", "1", "--request-rate", "0", "--hardware", "H100=1"], "--request-rate"),
        (["--slo-ttft", "nan", "--request-rate", "1", "--hardware", "H100=1"], "finite"),
        (["--slo-ttft", "1", "--request-rate", "1", "--hardware", "H100=-1"], "price of H100 is -1"),
        (["--slo-ttft", "1", "--request-rate", "1", "--hardware", "H100=nan"], "price of H100 is nan"),
        (["--slo-ttft", "1", "--request-rate", "1", "--hardware", "H100=much"], "'much' is no price"),
        (["--slo-ttft", "1", "--request-rate", "1", "--hardware", "RTX 409=1"], "nearest: RTX-4090"),
        (["--slo-ttft", "1", "--request-rate", "1", "--hardware", "3xH100=1"], "does not go into the 32 attention"),
        (["--slo-ttft", "1", "--trace", "TRACE", "--hardware", "H100=1"], "is empty"),
        (["--slo-ttft", "1", "--trace", "TRACE", "--input-len", "9", "--hardware", "H100=1"], "--input-len"),
        (["--slo-ttft", "1", "--request-rate", "1", "--input-len", "200000", "--hardware", "H100=1"], "131,072"),
        (["--slo-ttft", "1", "--request-rate", "1", "--hardware-file", "none.toml"], "none.toml: cannot be read"),
    ],
)
def test_bad_input_is_told_in_one_line(arguments, said, config, tmp_path, capsys):
    trace = tmp_path / "empty.jsonl"
    trace.touch()
    assert status(["plan", config, *(str(trace) if word == "TRACE" else word for word in arguments)]) == 2
    message = capsys.readouterr().err
    assert said in message
    assert message.count("\n") == 1


def test_a_fit_says_nothing_of_other_hardware(measured, capsys):
    load = ("--request-rate", "1", "--slo-ttft", "1", "--hardware", "H100=1", "--hardware", "L4=1")
    assert status(["plan", measured, *load]) == 2
    assert "give the model as well" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "offer"),
    [
        ("H100=2.5", Offer("H100", 2.5)),
        ("2xH100=2.5", Offer("H100", 2.5, 2)),
        ("4 × RTX 4090=0", Offer("RTX 4090", 0.0, 4)),
    ],
)
def test_offers(text: str, offer: Offer) -> None:
    assert parse_offer(text) == offer


def test_shapes_have_what_the_range_is_about() -> None:
    """`Valid.covers` and the words of a plan speak of the same four things."""
    assert Shape._fields == ("prefill_tokens", "decode_seqs", "context_tokens", "attention_tokens")
