"""An OpenVINO IR directory: is it a model, and what does it say about itself.

`openvino_model.xml` and `.bin` are the graph and its weights; `tokenizer.json`, `config.json`,
`generation_config.json`, `tokenizer_config.json` and `chat_template.jinja` are written beside them by Hugging Face's
exporters.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway.core.errors import ModelError

XML, BIN = "openvino_model.xml", "openvino_model.bin"
TOKENIZER = "tokenizer.json"
# What a repository must give us, and nothing more: the weights of other runtimes stay where they are.
FILES = (
    XML,
    BIN,
    TOKENIZER,
    "config.json",
    "generation_config.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template*",
)
_CONSTANT = re.compile(rb'<data [^>]*?\boffset="(\d+)"[^>]*?\bsize="(\d+)"')
_SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


@dataclass(frozen=True, slots=True)
class IrFacts:
    """What the configuration files state."""

    context_tokens: int
    vocab_size: int
    layers: int
    kv_heads: int
    head_dim: int
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None
    special_tokens: dict[str, str]
    chat_template: str | None


def check_is_model(directory: Path) -> None:
    """Refuse a directory that is no model, naming what it lacks.

    Raises:
        ModelError: a file is missing, is not an IR graph, or the weights are shorter than the graph says.
    """
    missing = [name for name in (XML, BIN, TOKENIZER, "config.json") if not (directory / name).is_file()]
    if missing:
        raise ModelError(
            f"{directory} is not an OpenVINO model directory: it lacks {', '.join(missing)}. "
            "`optimum-cli export openvino --model NAME DIRECTORY` writes one.",
            code="not_a_model",
        )
    check_extents(directory)


def check_extents(directory: Path) -> None:
    """Compare the weights the graph points at with the size of the weights file.

    Raises:
        ModelError: missing or empty files, not a graph, or a truncated weights file.
    """
    try:
        graph = (directory / XML).read_bytes()
        have_bytes = (directory / BIN).stat().st_size
    except OSError as error:
        raise ModelError(f"cannot read {error.filename}: {error.strerror}", code="not_a_model") from error
    if b"<net" not in graph[:4096] or b"</net>" not in graph[-64:]:
        raise ModelError(f"{directory / XML} is not a complete OpenVINO graph", code="not_a_model")
    need_bytes = max((int(offset) + int(size) for offset, size in _CONSTANT.findall(graph)), default=0)
    if have_bytes < need_bytes:
        raise ModelError(
            f"{directory / BIN} is truncated: the graph needs {need_bytes:,} bytes and the file has {have_bytes:,}. "
            "Fetch it again.",
            code="not_a_model",
        )


def read_facts(directory: Path) -> IrFacts:
    """Read the configuration files of a checked directory.

    Raises:
        ModelError: a file is not JSON, or a number that serving needs is not there.
    """
    config = _json(directory / "config.json")
    nested = config.get("text_config")
    text: dict[str, Any] = nested if isinstance(nested, dict) else config
    generation = _json(directory / "generation_config.json")
    tokenizer = {**_json(directory / "special_tokens_map.json"), **_json(directory / "tokenizer_config.json")}
    heads = _number(directory, text, "num_attention_heads")
    special = {name: token for name in _SPECIAL_NAMES if (token := _token_text(tokenizer.get(name))) is not None}
    return IrFacts(
        context_tokens=_number(directory, text, "max_position_embeddings", "n_positions", "seq_length"),
        vocab_size=_number(directory, text, "vocab_size"),
        layers=_number(directory, text, "num_hidden_layers", "n_layer"),
        kv_heads=_number(directory, {"num_key_value_heads": heads, **_stated(text)}, "num_key_value_heads"),
        head_dim=_number(
            directory, {"head_dim": _stated(text).get("hidden_size", 0) // heads, **_stated(text)}, "head_dim"
        ),
        # Generation's own list wins where there is one, as in Transformers: the end of a turn may be only there.
        eos_token_ids=_ids(generation.get("eos_token_id"))
        or _ids(config.get("eos_token_id", text.get("eos_token_id"))),
        bos_token_id=next(iter(_ids(generation.get("bos_token_id")) or _ids(text.get("bos_token_id"))), None),
        special_tokens=special,
        chat_template=_chat_template(directory, tokenizer),
    )


def _json(path: Path) -> dict[str, Any]:
    """The object in `path`, empty when there is no such file."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ModelError(f"cannot read {path}: {error}", code="not_a_model") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path} should hold a JSON object", code="not_a_model")
    return value


def _number(directory: Path, config: dict[str, Any], *names: str) -> int:
    for name in names:
        value = config.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    raise ModelError(f"{directory / 'config.json'} states no positive {' or '.join(names)}", code="not_a_model")


def _stated(config: dict[str, Any]) -> dict[str, Any]:
    """Without the keys that are written and null."""
    return {key: value for key, value in config.items() if value is not None}


def _ids(value: Any) -> tuple[int, ...]:
    values = value if isinstance(value, list) else [value]
    return tuple(dict.fromkeys(v for v in values if isinstance(v, int) and not isinstance(v, bool)))


def _token_text(value: Any) -> str | None:
    """A special token is written as its text, or as an object with `content`."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _chat_template(directory: Path, tokenizer: dict[str, Any]) -> str | None:
    """The file of its own wins over the tokenizer's configuration; of several named templates, `default`."""
    own = directory / "chat_template.jinja"
    if own.is_file():
        return own.read_text(encoding="utf-8")
    source = _json(directory / "chat_template.json").get("chat_template") or tokenizer.get("chat_template")
    if isinstance(source, list):
        named = {t.get("name"): t.get("template") for t in source if isinstance(t, dict)}
        source = named.get("default") or next(iter(named.values()), None)
    return source if isinstance(source, str) else None
