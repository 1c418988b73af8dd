"""The tokenizer built from a GGUF's metadata is the model's own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.core.errors import ModelError
from headway.models import DEFAULT_MODEL, Model, Tokenizer, cache_folder
from headway.models.fetch import BUILT_IN
from headway.models.gguf_file import read_gguf
from headway.models.gguf_tokenizer import PRE_TOKENIZERS, adds_bos, check_tokenizer, write_tokenizer
from tests.models import tiny_gguf


def build(folder: Path, **changes: object) -> Tokenizer:
    file = tiny_gguf.write(folder / "model.gguf", **changes)  # type: ignore[arg-type]
    write_tokenizer(read_gguf(file), folder / "tokenizer.json")
    return Tokenizer(folder / "tokenizer.json")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A tokenizer file for every rule we claim to know."""
    files = {}
    for pre in PRE_TOKENIZERS:
        folder = tmp_path_factory.mktemp(pre)
        build(folder, pre=pre)
        files[pre] = folder / "tokenizer.json"
    return files


def words(file: Path, text: str) -> list[str]:
    """How the rule cuts `text`, written as text again."""
    tokenizer = tokenizers.Tokenizer.from_file(str(file))
    if tokenizer.normalizer is not None:
        text = tokenizer.normalizer.normalize_str(text)
    pieces = tokenizer.pre_tokenizer.pre_tokenize_str(text)
    return [text[start:end] for _, (start, end) in pieces]


# From the published behaviour of each family: digits alone, in threes or in runs; case of contractions; newlines.
@pytest.mark.parametrize(
    ("pre", "text", "expected"),
    [
        ("smollm", "in 1234 days", ["in", " ", "1", "2", "3", "4", " days"]),
        ("smollm", "I'll, I'LL", ["I", "'ll", ",", " I", "'", "LL"]),
        ("smollm", "a  b\n\n c", ["a", " ", " b", "\n\n", " c"]),
        ("gpt-2", "in 1234 days", ["in", " 1234", " days"]),
        ("gpt-2", "x = (y)", ["x", " =", " (", "y", ")"]),
        ("default", "in 12345 days!", ["in", " ", "123", "45", " days", "!"]),
        ("llama-bpe", "in 12345 days", ["in", " ", "123", "45", " days"]),
        ("llama-bpe", "I'LL say(x)\n\nb", ["I", "'LL", " say", "(x", ")\n\n", "b"]),
        ("qwen2", "in 123 days", ["in", " ", "1", "2", "3", " days"]),
        ("qwen2", "e\u0301a", ["\u00e9a"]),  # composed first
        ("llama-bpe", "e\u0301a", ["e", "\u0301a"]),
    ],
)
def test_text_is_cut_as_the_family_cuts_it(built: dict[str, Path], pre: str, text: str, expected: list[str]) -> None:
    assert words(built[pre], text) == expected


@pytest.mark.parametrize(
    ("alias", "rule"), [("llama3", "llama-bpe"), ("llama-v3", "llama-bpe"), ("deepseek-r1-qwen", "qwen2")]
)
def test_aliases_are_the_same_rule(built: dict[str, Path], alias: str, rule: str) -> None:
    assert json.loads(built[alias].read_text()) == json.loads(built[rule].read_text())


@pytest.mark.parametrize("pre", [pre for pre, rule in PRE_TOKENIZERS.items() if not rule.nfc])
@given(text=st.text(st.characters(exclude_categories=["Cs"])))
@settings(max_examples=60, deadline=None)
def test_every_text_comes_back(built: dict[str, Path], pre: str, text: str) -> None:
    tokenizer = Tokenizer(built[pre])
    tokens = tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.decode(tokens, skip_special_tokens=False) == text


def test_merges_are_applied_in_order(tmp_path: Path) -> None:
    tokenizer = build(tmp_path)
    assert [tokenizer.token_text(t) for t in tokenizer.encode("hello world")] == ["hello", " w", *"orld"]


def test_control_tokens_are_special_and_user_tokens_are_text(tmp_path: Path) -> None:
    tokens = [*tiny_gguf.CONTROL, *tiny_gguf.byte_letters(), "<think>", "    "]
    types = [3] * 3 + [1] * 256 + [4, 4]
    tokenizer = build(tmp_path, tokens=tokens, token_types=types, merges=[])
    ids = tokenizer.encode("<think>a<|im_end|>    b")
    assert [tokens[i] for i in ids] == ["<think>", "a", "<|im_end|>", "    ", "b"]
    assert tokenizer.decode(ids) == "<think>a    b"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "<think>a<|im_end|>    b"


@pytest.mark.parametrize(
    ("pre", "stated", "expected"),
    [("smollm", None, False), ("llama-bpe", None, True), ("llama-bpe", False, False), ("smollm", True, True)],
)
def test_the_beginning_is_added_when_the_file_or_its_family_says_so(
    tmp_path: Path, pre: str, stated: bool | None, expected: bool
) -> None:
    more = (lambda w: None) if stated is None else (lambda w: w.add_add_bos_token(stated))
    tokenizer = build(tmp_path, pre=pre, more=more)
    assert adds_bos(read_gguf(tmp_path / "model.gguf")) == expected
    assert (tokenizer.encode("x")[0] == 1) == expected
    assert tokenizer.encode("x", add_special_tokens=False)[0] != 1


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"tokenizer_model": "llama"}, "'llama' is not supported; supported: gpt2"),
        ({"pre": "command-r"}, f"'command-r' is not supported; supported: {', '.join(PRE_TOKENIZERS)}"),
        ({"pre": None}, "pre-tokenizer None"),
        ({"merges": ["h e", "no such"]}, "'no such' is of tokens the vocabulary does not hold"),
        ({"merges": ["nospace"]}, "'nospace'"),
        ({"tokens": ["a", "b", "a"], "token_types": [1] * 3, "merges": []}, "same token twice"),
        ({"token_types": [1]}, "300 tokens and 1 token types"),
    ],
)
def test_what_cannot_be_built_exactly_is_refused_by_name(tmp_path: Path, changes: dict[str, object], says: str) -> None:
    with pytest.raises(ModelError, match=says):
        build(tmp_path, **changes)


# The other reading of the same metadata: OpenVINO GenAI's, in a process of its own.
OTHER = """
import json, sys
from headway.models import telemetry
telemetry.turn_off()
import openvino_genai
tokenizer = openvino_genai.Tokenizer(sys.argv[1])
texts = json.load(sys.stdin)
json.dump([tokenizer.encode(t, add_special_tokens=False).input_ids.data[0].tolist() for t in texts], sys.stdout)
"""
TEXTS = [
    "The quick brown fox jumps over the lazy dog.",
    "  leading, trailing   ",
    "tabs\tand\r\nlines\n\n\nand   runs",
    "don't DON'T we're I'LL 'tis",
    "1234567890 3.14159 1,000,000 x² ½ Ⅷ ٣",
    "naïve café — “quoted” … ½",
    "日本語と한국어 and ไทย, עברית",
    "🙂🇦🇹👩‍👩‍👧 emoji",
    "def f(x):\n    return {k: v for k, v in x.items() if v != 0}\n",
    "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n",
    "\u00a0nbsp\u2003em\u3000wide\u200bzero\ufeffbom\u2028line\u0085next",
    "a\u0301\u0302 combining e\u0301",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "https://example.org/path?query=1&other=%20#frag",
    "_snake_case CamelCase kebab-case ALLCAPS",
]


def test_the_default_model_counts_as_openvino_genai_counts(default_model: Model, default_tokenizer: Tokenizer) -> None:
    built_in = BUILT_IN[DEFAULT_MODEL]
    file = cache_folder() / built_in.name / built_in.file_name
    texts = TEXTS + [left + right for left in TEXTS for right in TEXTS]
    done = subprocess.run(
        [sys.executable, "-c", OTHER, str(file)], input=json.dumps(texts), capture_output=True, text=True, check=True
    )
    theirs = json.loads(done.stdout)
    ours = default_tokenizer.encode_batch(texts, add_special_tokens=False)
    assert dict(zip(texts, ours, strict=True)) == dict(zip(texts, theirs, strict=True))


def test_a_header_alone_is_enough_to_check(tmp_path: Path) -> None:
    check_tokenizer(read_gguf(tiny_gguf.write(tmp_path / "model.gguf")))
