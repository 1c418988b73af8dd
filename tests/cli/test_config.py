"""Flags and configuration file: one source, flags win, and every mistake is named with its limit."""

from __future__ import annotations

import json
import math
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.cli import app, status
from headway.cli.complaints import INSTEAD
from headway.cli.config import MODEL_KEY, SERVE_KEYS, Key, ServeConfig
from headway.cli.config_file import read_config
from headway.cli.layers import Layers
from headway.core.errors import ConfigError
from headway.engine.config import EngineConfig
from headway.models import DEFAULT_MODEL
from headway.setting import Setting

KNOWN = (MODEL_KEY, *SERVE_KEYS)


def parse(*arguments: str) -> tuple[str, ServeConfig]:
    """What `headway serve ARGUMENTS` would start with."""
    _, bound, _ = app.parse_args(["serve", *arguments], exit_on_error=False, print_error=False)
    flags = dict(bound.kwargs)
    effective = Layers(next(iter(bound.args), None), flags.pop("config", None), flags).read()
    return effective.model or DEFAULT_MODEL, effective.config


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "headway.toml"
    path.write_text(text)
    return path


def test_defaults_are_the_dataclass_defaults() -> None:
    assert parse() == ("smollm2-135m", ServeConfig())


def test_flags_reach_both_parts() -> None:
    model, settings = parse("some.gguf", "--port", "9001", "--max-num-seqs", "8", "--kv-cache-dtype", "u8")
    assert model == "some.gguf"
    assert settings.port == 9001
    assert settings.engine == EngineConfig(max_num_seqs=8, kv_cache_dtype="u8")


def test_a_file_fills_what_no_flag_gave(tmp_path: Path) -> None:
    path = written(tmp_path, 'model = "other.gguf"\nport = 9002\nmax-num-seqs = 4\nkv-cache-gib = 1\nthreads = 2\n')
    model, settings = parse("--config", str(path), "--max-num-seqs", "16")
    assert model == "other.gguf"
    assert (settings.port, settings.engine.kv_cache_gib, settings.engine.threads) == (9002, 1.0, 2)
    assert settings.engine.max_num_seqs == 16, "flags win"


def test_a_switch_is_true_or_false_in_a_file_and_has_two_flags(tmp_path: Path) -> None:
    off = str(written(tmp_path, "pace = false\n"))
    assert parse()[1].engine.pace
    assert not parse("--no-pace")[1].engine.pace
    assert not parse("--config", off)[1].engine.pace
    assert parse("--config", off, "--pace")[1].engine.pace, "flags win"


def test_the_positional_model_wins_over_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, 'model = "other.gguf"\n')
    assert parse("mine.gguf", "--config", str(path))[0] == "mine.gguf"


def test_every_setting_is_both_a_flag_and_a_key(tmp_path: Path) -> None:
    """A file that says every default changes nothing; a key that had no flag would fail here."""
    lines = [f"{key.name} = {json.dumps(key.default)}" for key in KNOWN if key.default is not None]
    path = written(tmp_path, "\n".join(lines))
    assert len(tomllib.loads(path.read_text())) >= 15
    assert parse("--config", str(path)) == parse()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("max-num-sequences = 4", "unknown key 'max-num-sequences'. Did you mean 'max-num-seqs'?"),
        ("max_num_seqs = 4", "unknown key 'max_num_seqs'. Did you mean 'max-num-seqs'?"),
        ("zzz = 4", "unknown key 'zzz'. `headway serve --help` lists the keys."),
        ("[engine]\nport = 1", "[engine]: tables are not used here; write its keys at the top of the file."),
        ("port = '8000'", "port must be an integer, not '8000'."),
        ("port = true", "port must be an integer, not true."),
        ("port = 8000.0", "port must be an integer, not 8000.0."),
        ("port = 70000", "port must be between 0 and 65,535, not 70,000."),
        ("host = 1", "host must be a string, not 1."),
        ("max-num-seqs = 0", "max-num-seqs must be between 1 and 4,096, not 0."),
        ("max-waiting = -1", "max-waiting must be at least 1, not -1."),
        ("kv-cache-gib = nan", "kv-cache-gib must be a finite number, not nan."),
        ("queue-timeout = inf", "queue-timeout must be a finite number, not inf."),
        ("kv-cache-dtype = 'f16'", "kv-cache-dtype must be one of bf16, u8, f32, not 'f16'."),
        ("kv-cache-dtype = 8", "kv-cache-dtype must be one of bf16, u8, f32, not 8."),
        ("pace = 1", "pace must be true or false, not 1."),
        ("pace = 'no'", "pace must be true or false, not 'no'."),
        ("policy = 'vlm'", "policy must be one of headway, vllm, not 'vlm'."),
        ("slo-itl = -0.1", "slo-itl must be between 0 and 3,600, not -0.1."),
        ("step-log = false", "step-log must be a string, not false."),
        ("dtype = ['bf16']", "dtype must be one of auto, bf16, f32, not ['bf16']."),
        ("port = ", "not valid TOML: "),
    ],
)
def test_a_mistake_in_the_file_names_file_key_and_limit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, expected: str
) -> None:
    path = written(tmp_path, text)
    assert status(["serve", "--config", str(path)]) == 2
    complaint = capsys.readouterr().err
    assert complaint.startswith(f"headway: {path}: not valid TOML" if "TOML" in expected else f"headway: {path}:1: ")
    assert expected in complaint
    assert complaint.count("\n") == 1, "one line, no traceback"


def test_a_file_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert status(["serve", "--config", str(tmp_path / "no.toml")]) == 2
    assert "cannot be read: No such file" in capsys.readouterr().err


def test_a_file_that_is_not_text(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not valid TOML"):
        read_config(path, KNOWN)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["serve", "--port", "y"], '--port: unable to convert "y" into int'),
        (["serve", "--port", "99999"], "It must be between 0 and 65,535."),
        (["serve", "--kv-cache-gib", "nan"], "It must be a finite number."),
        (["serve", "--dtype", "fp16"], 'Choose from: "auto", "bf16", "f32".'),
        (["serve", "--pace=maybe"], '--pace: unable to convert "maybe" into bool'),
        (["serve", "--policy", "sglang"], 'Choose from: "headway", "vllm".'),
        (["serve", "--kv-full", "drop"], 'Choose from: "preempt", "wait", "reject".'),
        (["serve", "--long-prompt-slots", "0"], "It must be at least 1."),
        (["serve", "--prot", "1"], "Did you mean --port?"),
        (["serve", "a", "b"], "serve takes one argument, the model; this is too much: b\n"),
        (["serve", "--model", "X"], "Unknown option: --model. The model is an argument: headway serve X\n"),
        (["serve", "--model=X"], "The model is an argument: headway serve X\n"),
        (["serve", "--port", "0", "--model"], "The model is an argument: headway serve MODEL\n"),
        (["serve", "--tensor-parallel-size=2"], "Unknown option: --tensor-parallel-size. One model runs on the cores"),
        (["serve", "--gpu-memory-utilization", "0.9"], "--kv-cache-gib says how much"),
        (["generate", "hi", "there"], "generate takes one argument, the prompt, in quotes; this is too much: there\n"),
        (["serv"], "serv"),
        (["serve", "--max-num-seqs", "512"], "max_num_batched_tokens is 256 and must be at least 512"),
    ],
)
def test_a_mistake_in_the_flags(capsys: pytest.CaptureFixture[str], arguments: list[str], expected: str) -> None:
    assert status(arguments) == 2
    complaint = capsys.readouterr().err
    assert complaint.startswith("headway: ")
    assert expected in complaint
    assert "Traceback" not in complaint


@pytest.mark.parametrize(
    ("given", "expected"), [("bfloat16", ("bf16", "bf16")), ("float32", ("f32", "f32")), ("auto", ("auto", None))]
)
def test_vllms_names_of_types(tmp_path: Path, given: str, expected: tuple[str, str | None]) -> None:
    path = str(written(tmp_path, f"dtype = '{given}'\nkv-cache-dtype = '{given}'\n"))
    for arguments in (["--dtype", given, "--kv-cache-dtype", given], ["--config", path]):
        engine = parse(*arguments)[1].engine
        assert (engine.dtype, engine.kv_cache_dtype) == expected


def test_every_flag_said_to_exist_exists_and_every_other_does_not() -> None:
    flags = {f"--{key.name}" for key in SERVE_KEYS}
    assert not set(INSTEAD) & flags
    named = {flag for hint in INSTEAD.values() for flag in re.findall(r"--[\w-]+", hint)}
    assert named <= flags


def test_u8_needs_room_for_an_aligned_chunk(tmp_path: Path) -> None:
    path = written(tmp_path, "max-num-seqs = 4\nmax-num-batched-tokens = 16\n")
    assert parse("--config", str(path))[1].engine.max_num_batched_tokens == 16
    with pytest.raises(ConfigError, match="must be at least 35"):
        parse("--config", str(path), "--kv-cache-dtype", "u8")


@given(low=st.integers(-5, 5), width=st.integers(0, 10), value=st.floats())
def test_a_setting_takes_exactly_what_lies_within_its_limits(low: int, width: int, value: float) -> None:
    key = Key("some_name", float, Setting("", "", low, low + width), 0.0)
    inside = low <= value <= low + width
    complaint = key.complaint(value)
    assert (complaint is None) is inside
    if not inside and math.isfinite(value):
        assert f"between {low} and {low + width}" in str(complaint)


# A file of any keys and values is either understood or refused by name; nothing else escapes.
values: st.SearchStrategy[Any] = st.one_of(st.integers(-(2**40), 2**40), st.floats(), st.booleans(), st.just("bf16"))


@given(name=st.sampled_from([key.name for key in KNOWN]), value=values)
def test_any_value_is_taken_or_refused_by_name(tmp_path_factory: pytest.TempPathFactory, name: str, value: Any) -> None:
    path = tmp_path_factory.mktemp("config") / "headway.toml"
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    path.write_text(f"{name} = {text}\n")
    try:
        assert list(read_config(path, KNOWN)) == [name]
    except ConfigError as error:
        assert error.param == name
        assert str(path) in error.message
