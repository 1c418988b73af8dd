"""A directory is a model, or the error names what it lacks."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from headway.core.errors import ModelError
from headway.models import Model, load_model

CONFIG: dict[str, Any] = {
    "max_position_embeddings": 512,
    "vocab_size": 300,
    "eos_token_id": 2,
    "bos_token_id": 1,
}


@pytest.fixture
def directory(tiny_model: Model, tmp_path: Path) -> Path:
    """The converted tiny model with the configuration an exporter would write."""
    copy = Path(shutil.copytree(tiny_model.directory, tmp_path / "tiny-ir"))
    write(copy, "config.json", CONFIG)
    return copy


def write(directory: Path, name: str, value: Any) -> None:
    (directory / name).write_text(json.dumps(value))


def test_the_facts_are_the_configuration(directory: Path) -> None:
    write(directory, "tokenizer_config.json", {"eos_token": {"content": "<|im_end|>"}, "chat_template": "from config"})
    assert load_model(str(directory)) == Model(
        name="tiny-ir",
        directory=directory,
        tokenizer_file=directory / "tokenizer.json",
        chat_template="from config",
        special_tokens={"eos_token": "<|im_end|>"},
        eos_token_ids=(2,),
        context_tokens=512,
        vocab_size=300,
        sampling_defaults={},
    )


def test_an_empty_directory_names_everything_a_model_needs(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="is not an OpenVINO model directory") as caught:
        load_model(str(tmp_path))
    for name in ("openvino_model.xml", "openvino_model.bin", "tokenizer.json", "config.json"):
        assert name in caught.value.message


@pytest.mark.parametrize("name", ["openvino_model.xml", "openvino_model.bin", "tokenizer.json", "config.json"])
def test_a_missing_file_is_named_and_no_other(directory: Path, name: str) -> None:
    (directory / name).unlink()
    with pytest.raises(ModelError, match=f"lacks {name}\\.") as caught:
        load_model(str(directory))
    assert caught.value.code == "not_a_model"


def test_truncated_weights_are_noticed_at_the_last_byte(directory: Path) -> None:
    weights = directory / "openvino_model.bin"
    size = weights.stat().st_size
    os.truncate(weights, size - 1)
    with pytest.raises(ModelError, match=f"needs {size:,} bytes and the file has {size - 1:,}"):
        load_model(str(directory))


@pytest.mark.parametrize("content", ["", "<html></html>", "<?xml version='1.0'?><net name='m'><layers>"])
def test_a_graph_that_is_none_is_refused(directory: Path, content: str) -> None:
    (directory / "openvino_model.xml").write_text(content)
    with pytest.raises(ModelError, match="not a complete OpenVINO graph"):
        load_model(str(directory))


@pytest.mark.parametrize("content", ["{", "[]", "null", "\x00"])
@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json", "generation_config.json"])
def test_broken_json_names_the_file(directory: Path, name: str, content: str) -> None:
    (directory / name).write_text(content)
    with pytest.raises(ModelError, match=name):
        load_model(str(directory))


@pytest.mark.parametrize("content", ["{", "{}", '{"model": {"type": "BPE"}}'])
def test_a_broken_tokenizer_names_the_file(directory: Path, content: str) -> None:
    (directory / "tokenizer.json").write_text(content)
    with pytest.raises(ModelError, match=r"tokenizer\.json"):
        load_model(str(directory))


@pytest.mark.parametrize("key", ["max_position_embeddings", "vocab_size"])
@pytest.mark.parametrize("value", [None, 0, -1, "512", True, 1.5])
def test_a_number_that_serving_needs_is_named(directory: Path, key: str, value: object) -> None:
    write(directory, "config.json", {**CONFIG, key: value})
    with pytest.raises(ModelError, match=key):
        load_model(str(directory))


def test_a_tokenizer_wider_than_the_embedding_is_refused_with_both_widths(directory: Path) -> None:
    """Its last ids would be fed to an embedding that has no such rows, and fail the step of everybody."""
    write(directory, "config.json", {**CONFIG, "vocab_size": 258})
    with pytest.raises(
        ModelError, match=r"tokenizer\.json has token ids up to 2\d\d, .* config\.json is 258"
    ) as caught:
        load_model(str(directory))
    assert caught.value.code == "not_a_model"
    write(directory, "config.json", {**CONFIG, "vocab_size": 320})  # a padded embedding is usual
    assert load_model(str(directory)).vocab_size == 320


@pytest.mark.parametrize(
    ("generation", "config", "tokenizer", "expected"),
    [
        ({"eos_token_id": [2, 0]}, 1, None, (2, 0)),
        ({"eos_token_id": 0}, 2, None, (0,)),
        ({}, [2, 2, 0], None, (2, 0)),
        ({}, None, "<|endoftext|>", (0,)),
        ({}, None, None, ()),
    ],
)
def test_what_ends_generation(
    directory: Path, generation: dict[str, Any], config: object, tokenizer: str | None, expected: tuple[int, ...]
) -> None:
    write(directory, "generation_config.json", generation)
    write(directory, "config.json", {**CONFIG, "eos_token_id": config})
    write(directory, "tokenizer_config.json", {"eos_token": tokenizer})
    assert load_model(str(directory)).eos_token_ids == expected


@pytest.mark.parametrize(
    ("generation", "expected"),
    [
        ({}, {}),
        (
            {"do_sample": True, "temperature": 0.7, "top_p": 0.8, "top_k": 20, "min_p": 0, "repetition_penalty": 1.05},
            {"temperature": 0.7, "top_p": 0.8, "top_k": 20, "min_p": 0, "repetition_penalty": 1.05},
        ),
        ({"temperature": 0.6, "typical_p": 0.5, "max_length": 20}, {"temperature": 0.6}),
        ({"do_sample": False, "temperature": 0.6, "top_p": 0.9}, {}),
        ({"temperature": None, "top_p": True, "top_k": 1.5, "min_p": "0.1"}, {}),
        ({"temperature": 9, "top_p": 0, "top_k": -1, "repetition_penalty": float("nan")}, {}),
    ],
)
def test_recommended_sampling(directory: Path, generation: dict[str, Any], expected: dict[str, float]) -> None:
    write(directory, "generation_config.json", generation)
    assert load_model(str(directory)).sampling_defaults == expected


def test_a_recommendation_out_of_range_is_told(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(directory, "generation_config.json", {"temperature": 9})
    load_model(str(directory))
    assert "recommends temperature = 9" in caplog.text


def test_the_template_of_its_own_file_wins(directory: Path) -> None:
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}]
    write(directory, "tokenizer_config.json", {"chat_template": named})
    assert load_model(str(directory)).chat_template == "plain"
    write(directory, "chat_template.json", {"chat_template": "processor's"})
    assert load_model(str(directory)).chat_template == "processor's"
    (directory / "chat_template.jinja").write_text("own")
    assert load_model(str(directory)).chat_template == "own"
