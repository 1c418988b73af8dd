"""What no server can have meant is told with file, line and field, and nothing is guessed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headway.cli import status
from headway.core.errors import ConfigError
from headway.metrics import bench_result
from headway.simulate.fit import fit, fit_bytes, load_fit, read_bench, read_requests, read_series, read_step_log
from tests.simulate.fit import worlds

Lines = list[dict[str, Any]]


def lines_of(path: Path) -> Lines:
    return [json.loads(line) for line in path.read_text().splitlines()]


def write(path: Path, lines: Lines) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("good")
    worlds.write_requests(folder / "requests.jsonl", worlds.served(worlds.demand(30)))
    worlds.write_step_log(folder / "steps.jsonl", count=60)
    return folder


REQUESTS: list[tuple[str, Callable[[Lines], object], str]] = [
    ("missing", lambda lines: lines[4].pop("input_toks"), r"line 5: no field 'input_toks'"),
    ("NaN", lambda lines: lines[4].update(first_token_ts=float("nan")), r"line 5: no JSON"),
    ("text", lambda lines: lines[4].update(output_toks="many"), r"line 5: output_toks is 'many', and must be a number"),
    ("negative", lambda lines: lines[2].update(output_toks=-3), r"line 3: output_toks is -3.* at least 1"),
    ("half", lambda lines: lines[2].update(input_toks=2.5), r"line 3: input_toks is 2.5, and must be a whole number"),
    ("unsorted", lambda lines: lines[7].update(last_token_ts=1.0), r"line 8: last_token_ts is 1.0, before first_token"),
    ("twice", lambda lines: lines.append(lines[0]), r"line 31: request_id 'r0' was there before"),
    ("few", lambda lines: lines.__delitem__(slice(5, None)), r"5 requests finished; .* at least 20"),
    ("none", lambda lines: lines.clear(), "no requests"),
]


@pytest.mark.parametrize(("spoil", "said"), [case[1:] for case in REQUESTS], ids=[case[0] for case in REQUESTS])
def test_requests(good: Path, tmp_path: Path, spoil: Callable[[Lines], object], said: str) -> None:
    lines = lines_of(good / "requests.jsonl")
    spoil(lines)
    with pytest.raises(ConfigError, match=said):
        read_requests(write(tmp_path / "requests.jsonl", lines))


STEPS: list[tuple[str, Callable[[Lines], object], str]] = [
    ("headless", lambda lines: lines.pop(0), r"line 1: a step log begins with .* 'header'"),
    ("version", lambda lines: lines[0].update(version=9), r"line 1: log 'step' of version 9; .* version 1"),
    ("decisions", lambda lines: lines[0].update(log="decision"), r"line 1: log 'decision'"),
    ("missing", lambda lines: lines[3].pop("context_tokens"), r"line 4: no field 'context_tokens'"),
    ("negative", lambda lines: lines[3].update(prefill_tokens=-1), r"line 4: prefill_tokens is -1"),
    ("backwards", lambda lines: lines[3].update(committed_ns=5), r"line 4: committed_ns is 5, before planned_ns"),
    ("unsorted", lambda lines: lines.insert(2, lines.pop(9)), r"line 4: planned_ns is .* order of time"),
    ("few", lambda lines: lines.__delitem__(slice(9, None)), r"8 steps; .* at least 50"),
]


@pytest.mark.parametrize(("spoil", "said"), [case[1:] for case in STEPS], ids=[case[0] for case in STEPS])
def test_step_logs(good: Path, tmp_path: Path, spoil: Callable[[Lines], object], said: str) -> None:
    lines = lines_of(good / "steps.jsonl")
    spoil(lines)
    with pytest.raises(ConfigError, match=said):
        read_step_log(write(tmp_path / "steps.jsonl", lines))


def test_a_line_that_was_cut_off_at_the_end_is_left_out(good: Path, tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    path.write_text((good / "steps.jsonl").read_text() + '{"kind": "step", "planned_')
    assert len(read_step_log(path).shapes) == 60


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ("1,0,0,3,0,x", "line 2: kv_cache_pct is 'x'"),
        ("1,0,0,3,0,nan", "line 2: kv_cache_pct is nan"),
        ("1,0,0,-3,0,1", "line 2: running is -3"),
        ("1,0,0,3,0,1\n1,0,0,3,0,1", "line 3: t is 1, after 1"),
        ("", "no rows"),
    ],
)
def test_series(tmp_path: Path, rows: str, said: str) -> None:
    path = tmp_path / "timeseries.csv"
    path.write_text(f"t,prompt_throughput,gen_throughput,running,waiting,kv_cache_pct\n{rows}\n")
    with pytest.raises(ConfigError, match=said):
        read_series(path)


def test_bench_results(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text(json.dumps({"schema_version": 7}))
    with pytest.raises(ConfigError, match="schema_version is 7"):
        read_bench(path)
    path.write_text(json.dumps({"schema_version": bench_result.VERSION}))
    with pytest.raises(ConfigError, match=r"run.csv is not beside it"):
        read_bench(path)
    (tmp_path / "run.csv").write_text("index,fate,sent_s,first_s,last_s,input_tokens\n0,ok,0,1,2,5\n")
    with pytest.raises(ConfigError, match=r"line 2: no field 'output_tokens'"):
        read_bench(path)
    (tmp_path / "run.csv").write_text("fate,sent_s,first_s,last_s,input_tokens,output_tokens\nok,3,1,2,5,5\n")
    with pytest.raises(ConfigError, match=r"line 2: sent_s 3.0, first_s 1.0 .* not in order"):
        read_bench(path)


def test_fit_files(good: Path, tmp_path: Path) -> None:
    found = fit(logs=[read_step_log(good / "steps.jsonl")])
    whole = msgspec.json.decode(fit_bytes(found))
    path = tmp_path / "fit.json"

    def said(**changes: Any) -> str:
        path.write_bytes(msgspec.json.encode({**whole, **changes}))
        with pytest.raises(ConfigError) as caught:
            load_fit(path)
        return caught.value.message

    assert "is of version 2" in said(schema_version=2)
    assert "has no `schema_version`" in said(schema_version=None)
    assert "`coefficients.step_ns` is missing" in said(coefficients={})
    below = {**whole["coefficients"], "step_ns": {"value": -1.0, "low": 0.0, "high": 0.0}}
    assert "`coefficients.step_ns` is -1.0" in said(coefficients=below)
    assert "`server.policy` is 'sjf'; known are headway, vllm" in said(server={**whole["server"], "policy": "sjf"})
    assert "$.valid" in said(valid={})
    with pytest.raises(ConfigError, match="cannot be read"):
        load_fit(tmp_path / "nowhere.json")


CONFIG = {
    "model_type": "llama",
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "vocab_size": 32000,
    "torch_dtype": "bfloat16",
}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "nothing to fit"),
        (["config.json"], "Give --gpu"),
        (["config.json", "--gpu", "H1000"], "no GPU or CPU 'H1000' in the table; nearest: "),
        (["steps.jsonl", "--gpu", "H100"], "give the model as well"),
        (["config.json", "config.json", "--gpu", "H100"], "two models are given"),
        (["steps.jsonl", "--max-num-seqs", "0"], "--max-num-seqs is 0, and must be at least 1"),
        (["steps.jsonl", "--policy", "sjf"], "known are headway, vllm"),
        (["steps.jsonl", "-o", "no/such/folder/fit.json"], "cannot write no/such/folder/fit.json"),
        (["nowhere.jsonl"], "nowhere.jsonl: cannot be read"),
    ],
)
def test_the_command_says_what_is_wrong_in_a_line(
    good: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    said: str,
) -> None:
    monkeypatch.chdir(good)
    (good / "config.json").write_text(json.dumps(CONFIG))
    assert status(["fit", *arguments]) == 2
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert last.startswith("headway: ")
    assert said in last


def test_the_command_writes_a_file_that_can_be_read(
    good: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "fit.json"
    assert status(["fit", str(good / "steps.jsonl"), "-o", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "a decoding sequence" in shown
    assert "max-num-seqs 48 (given)" in shown
    assert load_fit(path).server.num_blocks == 900
