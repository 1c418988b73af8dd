"""Models to test with: a tiny one made on the spot, and the default one from the user's cache."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.models import Model, Tokenizer, load_model
from tests.models import tiny_gguf


@pytest.fixture(scope="session")
def tiny_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_gguf.write(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


@pytest.fixture(scope="session")
def tiny_model(tiny_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Model:
    """The tiny file, converted."""
    return load_model(str(tiny_file), cache=tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session")
def default_model() -> Model:
    return load_model("smollm2-135m")


@pytest.fixture(scope="session")
def default_tokenizer(default_model: Model) -> Tokenizer:
    return Tokenizer(default_model.tokenizer_file)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whatever uses the default model says so, for those who want to leave it out (`-m "not model"`)."""
    for item in items:
        if "default_model" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.model)
