"""Tokenizers to make prompts with: the default model's, and small ones of other kinds."""

from __future__ import annotations

from pathlib import Path

import pytest
import tokenizers

from headway.models import load_model
from headway.workload.tokens import TokenizerFile
from headway.workload.words import WORDS


@pytest.fixture(scope="session")
def real_tokenizer() -> TokenizerFile:
    """Byte-level BPE with a large vocabulary, as most models have it."""
    return TokenizerFile(load_model("smollm2-135m").tokenizer_file)


@pytest.fixture(scope="session")
def word_level(tmp_path_factory: pytest.TempPathFactory) -> TokenizerFile:
    """One token a word, punctuation by itself, everything unknown alike."""
    vocabulary = {word: place for place, word in enumerate(["[UNK]", *WORDS, *"abcdefghij.,;:!?"])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return _saved(tokenizer, tmp_path_factory.mktemp("word") / "tokenizer.json")


@pytest.fixture(scope="session")
def characters(tmp_path_factory: pytest.TempPathFactory) -> TokenizerFile:
    """One token a byte: no word is a token."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    return _saved(tokenizer, tmp_path_factory.mktemp("characters") / "tokenizer.json")


@pytest.fixture(scope="session")
def over_borders(tmp_path_factory: pytest.TempPathFactory) -> TokenizerFile:
    """BPE that was never told of words: it merges the end of one with the beginning of the next."""
    letters = [*"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 .,;:!?'-\n"]
    pairs = [
        ("e", " "),
        ("d", " "),
        ("s", " "),
        ("e ", "s"),
        ("t", "h"),
        ("d ", "b"),
        ("s ", "c"),
        ("a", "r"),
        ("i", "n"),
    ]
    vocabulary = {token: i for i, token in enumerate(["[UNK]", *letters, *(a + b for a, b in pairs)])}
    model = tokenizers.models.BPE(vocabulary, pairs, unk_token="[UNK]")
    return _saved(tokenizers.Tokenizer(model), tmp_path_factory.mktemp("borders") / "tokenizer.json")


@pytest.fixture(scope="session", params=["real", "word_level", "characters", "over_borders"])
def any_tokenizer(request: pytest.FixtureRequest) -> TokenizerFile:
    name = "real_tokenizer" if request.param == "real" else request.param
    found: TokenizerFile = request.getfixturevalue(name)
    return found


def _saved(tokenizer: tokenizers.Tokenizer, path: Path) -> TokenizerFile:
    tokenizer.save(str(path))
    return TokenizerFile(path)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whatever uses the default model says so, for those who want to leave it out (`-m "not model"`)."""
    for item in items:
        callspec = getattr(item, "callspec", None)
        of_real = callspec is not None and callspec.params.get("any_tokenizer") == "real"
        if of_real or "real_tokenizer" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.model)
