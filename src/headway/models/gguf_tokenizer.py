"""From a GGUF's metadata to a `tokenizer.json`: vocabulary and merges are in the file, the splitting rule is a name.

A GGUF names its pre-tokenizer (`tokenizer.ggml.pre`) and leaves the rule to the reader. A wrong rule yields a model
that works and is quietly worse, so a name we do not know is refused, not guessed. The rules are those of the models'
own published tokenizers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from headway.core.errors import ModelError
from headway.models.gguf_file import GgufFile

_CONTROL, _USER_DEFINED = 3, 4  # values of tokenizer.ggml.token_type

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


@dataclass(frozen=True, slots=True)
class _Rule:
    """How text is cut into words before merging, and what the model family does besides."""

    split: Callable[[], list[Any]]
    nfc: bool = False
    whole_words: bool = False  # a word that is a token needs no merges
    add_bos: bool = False  # when the metadata does not say


def _splits(*patterns: str) -> Callable[[], list[Any]]:
    return lambda: [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]


_SMOLLM = _Rule(lambda: [pre_tokenizers.Digits(individual_digits=True), *_splits(_GPT2)()])
_PLAIN_GPT2 = _Rule(_splits(_GPT2))
# What llama.cpp reads into a file that says "default". A file that says nothing is refused: it predates the key.
_DEFAULT = _Rule(_splits(r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"))
_LLAMA3 = _Rule(_splits(_WORDS % r"\p{N}{1,3}"), whole_words=True, add_bos=True)
_QWEN2 = _Rule(_splits(_WORDS % r"\p{N}"), nfc=True)

# tokenizer.ggml.pre -> rule. The only names accepted.
PRE_TOKENIZERS: dict[str, _Rule] = {
    "smollm": _SMOLLM,
    "gpt-2": _PLAIN_GPT2,
    "default": _DEFAULT,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
}
TOKENIZER_MODELS = ("gpt2",)  # byte-level BPE; the converter takes no other


def check_tokenizer(gguf: GgufFile) -> None:
    """Refuse, by name, a tokenizer we cannot build exactly.

    Raises:
        ModelError: an unknown tokenizer model or pre-tokenizer, or lists that contradict each other.
    """
    model, pre = gguf.metadata.get("tokenizer.ggml.model"), gguf.metadata.get("tokenizer.ggml.pre")
    if model not in TOKENIZER_MODELS:
        raise _refused(
            gguf,
            f"tokenizer model {model!r} is not supported; supported: {', '.join(TOKENIZER_MODELS)} (byte-level BPE)",
        )
    if not isinstance(pre, str) or pre not in PRE_TOKENIZERS:
        raise _refused(gguf, f"pre-tokenizer {pre!r} is not supported; supported: {', '.join(PRE_TOKENIZERS)}")
    tokens, types, merges = _list(gguf, "tokens"), _list(gguf, "token_type"), _list(gguf, "merges")
    if not all(isinstance(text, str) for text in (*tokens, *merges)):
        raise _refused(gguf, "the vocabulary and its merges should be lists of strings")
    if not tokens or len(types) != len(tokens):
        raise _refused(gguf, f"the vocabulary has {len(tokens)} tokens and {len(types)} token types")
    if len(set(tokens)) != len(tokens):
        raise _refused(gguf, "the vocabulary has the same token twice")
    known = set(tokens)
    for merge in merges:
        left, _, right = merge.partition(" ")
        if left not in known or right not in known or left + right not in known:
            raise _refused(gguf, f"the merge {merge!r} is of tokens the vocabulary does not hold")


def _refused(gguf: GgufFile, why: str) -> ModelError:
    return ModelError(f"{gguf.path}: {why}.", code="unsupported_tokenizer")


def _list(gguf: GgufFile, key: str) -> list[Any]:
    value = gguf.metadata.get(f"tokenizer.ggml.{key}")
    return value if isinstance(value, list) else []


def adds_bos(gguf: GgufFile) -> bool:
    """Whether a plain text is preceded by the beginning-of-sequence token: the file's word, else its family's habit."""
    rule = PRE_TOKENIZERS[gguf.metadata["tokenizer.ggml.pre"]]
    return bool(gguf.metadata.get("tokenizer.ggml.add_bos_token", rule.add_bos)) and token_id(gguf, "bos") is not None


def token_id(gguf: GgufFile, role: str) -> int | None:
    """The id of `bos`, `eos`, `eot`, …, when the metadata names one that exists."""
    value = gguf.metadata.get(f"tokenizer.ggml.{role}_token_id")
    return value if isinstance(value, int) and 0 <= value < len(_list(gguf, "tokens")) else None


def control_tokens(gguf: GgufFile) -> dict[str, int]:
    """Text to id of the tokens that steer rather than say something."""
    return {
        str(t): i
        for i, (t, kind) in enumerate(zip(_list(gguf, "tokens"), _list(gguf, "token_type"), strict=True))
        if kind == _CONTROL
    }


def write_tokenizer(gguf: GgufFile, path: Path) -> None:
    """Build the tokenizer and save it as `path`.

    Raises:
        ModelError: as `check_tokenizer`.
    """
    check_tokenizer(gguf)
    tokens, types = _list(gguf, "tokens"), _list(gguf, "token_type")
    rule = PRE_TOKENIZERS[gguf.metadata["tokenizer.ggml.pre"]]
    merges = [tuple(merge.split(" ", 1)) for merge in _list(gguf, "merges")]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=rule.whole_words))
    if rule.nfc:
        tokenizer.normalizer = normalizers.NFC()
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*rule.split(), byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [
            AddedToken(t, special=True, normalized=False)
            for t, kind in zip(tokens, types, strict=True)
            if kind == _CONTROL
        ]
    )
    tokenizer.add_tokens(
        [
            AddedToken(t, special=False, normalized=False)
            for t, kind in zip(tokens, types, strict=True)
            if kind == _USER_DEFINED
        ]
    )
    bos = token_id(gguf, "bos")
    if adds_bos(gguf) and bos is not None:
        text = tokens[bos]
        tokenizer.post_processor = processors.TemplateProcessing(single=f"{text} $A", special_tokens=[(text, bos)])
    tokenizer.save(str(path), pretty=False)
