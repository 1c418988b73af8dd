"""What a name can mean, and the default model's facts."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import pytest

from headway.core.errors import ModelError
from headway.models import Model, cache_folder, load_model
from tests.models.test_ir_directory import CONFIG


def test_the_default_model_is_what_its_card_says(default_model: Model) -> None:
    assert default_model.name == "smollm2-135m"
    assert (default_model.context_tokens, default_model.vocab_size) == (8192, 49_152)
    assert default_model.eos_token_ids == (2, 0)
    assert default_model.special_tokens["eos_token"] == "<|im_end|>"
    assert default_model.tokenizer_file.parent == default_model.directory
    assert default_model.sampling_defaults == {"temperature": 0.2, "top_p": 0.9}


@pytest.mark.parametrize(
    "name", ["no-such-thing", "a/b/c", "./nope", "owner/", "no such/model", "x" * 5000, "~nobody-here/x", "nul\0byte"]
)
def test_a_name_that_is_nothing_says_what_it_could_be(name: str) -> None:
    with pytest.raises(ModelError, match="no file or directory here, no built-in name") as caught:
        load_model(name)
    assert caught.value.code == "model_not_found"


def test_a_missing_gguf_is_said_as_one(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"cannot read .*gone\.gguf: No such file"):
        load_model(str(tmp_path / "gone.gguf"))


def test_a_file_that_is_no_model_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("nothing to see here, and enough of it to be a header")
    with pytest.raises(ModelError, match="not a GGUF model"):
        load_model(str(file))


def test_a_link_is_served_under_its_own_name_and_not_converted_again(
    tiny_file: Path, tiny_model: Model, tmp_path: Path
) -> None:
    link = tmp_path / "link.gguf"
    link.symlink_to(tiny_file)
    cache = tiny_model.directory.parents[1]
    assert load_model(str(link), cache=cache) == dataclasses.replace(tiny_model, name="link")


def test_this_directory_has_a_name(tiny_model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(shutil.copytree(tiny_model.directory, tmp_path / "here"))
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "below").mkdir()
    monkeypatch.chdir(folder / "below")
    assert load_model("..").name == "here"
    monkeypatch.chdir(folder)
    assert load_model(".").name == "here"


def test_where_the_cache_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("HEADWAY_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_folder() == tmp_path / ".cache" / "headway"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "headway"
    monkeypatch.setenv("HEADWAY_CACHE", "~/own")
    assert cache_folder() == tmp_path / "own"
    assert cache_folder(tmp_path / "given") == tmp_path / "given"
