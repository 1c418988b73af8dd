"""Conversion: refused by name before it starts, done once, and never fatal to us."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import gguf
import pytest

from headway.core.errors import ModelError
from headway.models import Model, Progress, convert, load_model
from headway.models.gguf_file import read_gguf
from headway.models.ir_directory import check_extents
from headway.models.model import _key
from tests.models import tiny_gguf

SOURCE = str(Path(__file__).parents[2] / "src")


class Usage(NamedTuple):
    total: int
    used: int
    free: int


LOAD = """
import json, sys
from headway.models import load_model
stages = []
model = load_model(sys.argv[1], report=lambda p: stages.append(p.stage))
print(json.dumps({"directory": str(model.directory), "stages": stages}))
"""


def environment(**changes: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": SOURCE, **changes}


@pytest.fixture
def no_child(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("the converter must not start")

    monkeypatch.setattr(subprocess, "run", refuse)


def test_a_converted_directory_holds_the_graph_and_the_tokenizer_only(tiny_model: Model) -> None:
    names = sorted(path.name for path in tiny_model.directory.iterdir())
    assert names == ["openvino_model.bin", "openvino_model.xml", "tokenizer.json"]
    check_extents(tiny_model.directory)


def test_the_facts_are_the_metadata(tiny_file: Path, tiny_model: Model) -> None:
    assert tiny_model == Model(
        name="tiny",
        directory=tiny_model.directory,
        tokenizer_file=tiny_model.directory / "tokenizer.json",
        chat_template=tiny_gguf.TEMPLATE,
        special_tokens={"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"},
        eos_token_ids=(2, 0),  # the file's own, and the end of text that every chat model may also say
        context_tokens=512,
        vocab_size=300,
    )


@pytest.mark.parametrize("architecture", ["qwen2", "qwen3"])
def test_the_other_architectures_convert(tmp_path: Path, architecture: str) -> None:
    file = tiny_gguf.write(tmp_path / "other.gguf", architecture=architecture, pre="qwen2")
    check_extents(load_model(str(file), cache=tmp_path / "cache").directory)


@pytest.mark.usefixtures("no_child")
@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"architecture": "gemma3"}, "architecture is 'gemma3'; supported are llama, qwen2, qwen3"),
        ({"matrix": gguf.GGMLQuantizationType.Q5_0}, "has type Q5_0; supported here are F16"),
        ({"matrix": gguf.GGMLQuantizationType.BF16}, "has type BF16"),
        ({"architecture": "qwen2", "without": ["blk.0.attn_q.bias"]}, "the first is blk.0.attn_q.bias"),
        ({"architecture": "qwen3", "without": ["blk.0.attn_k_norm.weight"]}, "the first is blk.0.attn_k_norm"),
        ({"without": ["blk.0.attn_k.weight"]}, "1 tensors are missing, the first is blk.0.attn_k.weight"),
        ({"without": ["epsilon"]}, "metadata lacks llama.attention.layer_norm_rms_epsilon"),
        ({"without": ["token_embd.weight", "output_norm.weight"]}, "2 tensors are missing"),
        ({"more": lambda w: w.add_uint16("split.count", 3)}, "merge them"),
        ({"more": lambda w: w.add_key_length(0)}, "attention.key_length is 0"),
        ({"tokenizer_model": "llama"}, "tokenizer model 'llama' is not supported; supported: gpt2"),
        ({"pre": "tekken"}, "pre-tokenizer 'tekken' is not supported; supported: smollm"),
        ({"pre": None}, "pre-tokenizer None"),
        ({"zeroed": ["token_embd.weight"]}, "all zeros"),
    ],
)
def test_what_cannot_be_converted_is_refused_by_name(tmp_path: Path, changes: dict[str, object], says: str) -> None:
    file = tiny_gguf.write(tmp_path / "odd.gguf", **changes)  # type: ignore[arg-type]
    with pytest.raises(ModelError, match=says):
        load_model(str(file), cache=tmp_path / "cache")
    assert not list((tmp_path / "cache").glob("converted/*"))


def test_a_file_that_kills_the_converter_is_an_error_that_names_the_signal(tmp_path: Path) -> None:
    file = tiny_gguf.write(tmp_path / "shrinks.gguf")
    header = read_gguf(file)
    os.truncate(file, min(t.start for t in header.tensors.values()))  # between our check and the converter's reading
    folder = tmp_path / "out"
    folder.mkdir()
    with pytest.raises(ModelError, match=r"killed by SIG(SEGV|BUS)") as caught:
        convert.convert(header, folder)
    assert caught.value.code == "conversion_failed"


def test_what_the_converter_says_is_passed_on(tmp_path: Path) -> None:
    file = tiny_gguf.write(tmp_path / "model.gguf")
    header = read_gguf(file)
    file.unlink()
    folder = tmp_path / "out"
    folder.mkdir()
    with pytest.raises(ModelError, match=r"exited with status 1: \[load_gguf\]"):
        convert.convert(header, folder)


@pytest.mark.usefixtures("no_child")
def test_a_full_disk_is_refused_before_the_work(
    tiny_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10**9, 10**9 - 4321, 4321))
    with pytest.raises(ModelError, match=r"converting tiny.gguf needs [\d,]+ bytes, and 4,321 are free in .*converted"):
        load_model(str(tiny_file), cache=tmp_path)


@pytest.mark.parametrize(
    "case",
    [
        (False, "with an error", "no_space"),
        (False, "silently", "no_space"),
        (True, "with an error", "conversion_failed"),
        (True, "silently", "not_a_model"),
    ],
)
def test_a_disk_that_fills_under_the_converter(
    tiny_file: Path, tiny_model: Model, monkeypatch: pytest.MonkeyPatch, case: tuple[bool, str, str]
) -> None:
    room, fails, code = case
    cache = tiny_file.parent / f"cache-{fails}-{room}"

    def child(command: list[str], **options: object) -> subprocess.CompletedProcess[bytes]:
        if not room:
            monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10**9, 10**9, 0))
        folder = Path(command[-1]).parent
        shutil.copy(tiny_model.directory / "openvino_model.xml", folder)
        (folder / "openvino_model.bin").write_bytes(b"short")
        failed = fails == "with an error"
        return subprocess.CompletedProcess(command, int(failed), b"", b"basic_ios::clear: iostream error")

    monkeypatch.setattr(subprocess, "run", child)
    with pytest.raises(ModelError) as caught:
        load_model(str(tiny_file), cache=cache)
    assert caught.value.code == code
    assert not [path for path in cache.glob("converted/*") if path.is_dir()]


def test_the_second_load_converts_nothing_and_a_rewritten_file_is_converted_again(tmp_path: Path) -> None:
    file, stages = tiny_gguf.write(tmp_path / "model.gguf"), list[Progress]()
    first = load_model(str(file), cache=tmp_path / "cache", report=stages.append)
    assert {p.stage for p in stages} == {"convert", "tokenizer"}
    stages.clear()
    assert load_model(str(file), cache=tmp_path / "cache", report=stages.append) == first
    assert stages == []
    moved = file.rename(tmp_path / "elsewhere.gguf").rename(file)
    os.utime(moved, ns=(1, 1))
    again = load_model(str(file), cache=tmp_path / "cache", report=stages.append)
    assert stages
    assert again.directory != first.directory
    assert dataclasses.replace(again, directory=first.directory, tokenizer_file=first.tokenizer_file) == first


def test_two_processes_convert_once(tiny_file: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", LOAD, str(tiny_file)]
    running = [
        subprocess.Popen(command, env=environment(HEADWAY_CACHE=str(tmp_path)), stdout=subprocess.PIPE)
        for _ in range(2)
    ]
    answers = [json.loads(process.communicate()[0]) for process in running]
    assert answers[0]["directory"] == answers[1]["directory"]
    assert sorted(len(answer["stages"]) for answer in answers) == [0, 3]


def test_what_a_killed_process_left_is_swept_and_damage_is_noticed(tiny_file: Path, tmp_path: Path) -> None:
    place = tmp_path / "converted" / _key(read_gguf(tiny_file))
    left = place.with_name(f".{place.name}.building-dead")
    (left / "ready").mkdir(parents=True)
    assert load_model(str(tiny_file), cache=tmp_path).directory == place
    assert not left.exists()
    os.truncate(place / "openvino_model.bin", 100)
    with pytest.raises(ModelError, match="truncated"):
        load_model(str(tiny_file), cache=tmp_path)


TELEMETRY = """
import sys
from headway.models import telemetry
telemetry.turn_off()
import openvino, openvino_genai
assert "openvino.tools.ovc" in sys.modules
stub = sys.modules["openvino.tools.ovc"].telemetry
assert type(stub).__module__.endswith("telemetry_stub"), type(stub)
"""


def test_the_child_runs_this_package_and_nothing_of_the_current_folder(
    tiny_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("headway", "json", "openvino_genai"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the wrong one')")
    monkeypatch.chdir(tmp_path)
    check_extents(load_model(str(tiny_file), cache=tmp_path / "cache").directory)


def test_nothing_is_reported_or_written_at_home(tiny_file: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    quiet = environment(HOME=str(home), HEADWAY_CACHE=str(tmp_path / "cache"))
    subprocess.run([sys.executable, "-c", TELEMETRY], env=quiet, check=True)
    subprocess.run([sys.executable, "-c", LOAD, str(tiny_file)], env=quiet, check=True, stdout=subprocess.DEVNULL)
    assert list(home.rglob("*")) == []
