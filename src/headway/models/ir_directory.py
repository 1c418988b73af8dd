"""An OpenVINO IR directory: is it a model, and what does it say about itself.

`openvino_model.xml` and `.bin` are the graph and its weights; `tokenizer.json`, `config.json`,
`generation_config.json`, `tokenizer_config.json` and `chat_template.jinja` are written beside them by Hugging Face's
exporters.
"""

from __future__ import annotations

import json
import logging
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway.core.errors import ModelError
from headway.core.request import SAMPLING_RANGES

XML, BIN = "openvino_model.xml", "openvino_model.bin"
TOKENIZER = "tokenizer.json"
REQUIRED = (XML, BIN, TOKENIZER, "config.json")
# What is taken from a repository, and nothing more: the weights of other runtimes stay where they are.
FILES = (
    *REQUIRED,
    "generation_config.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template*",
)
_CONSTANT = re.compile(rb'<data [^>]*?\boffset="(\d+)"[^>]*?\bsize="(\d+)"')
# Transformers' words that are also ours.
_SAMPLING_NAMES = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
_log = logging.getLogger(__name__)
_SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


@dataclass(frozen=True, slots=True)
class IrFacts:
    """What the configuration files state."""

    context_tokens: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    special_tokens: dict[str, str]
    chat_template: str | None
    sampling_defaults: dict[str, float]


def check_is_model(directory: Path) -> None:
    """Refuse a directory that is no model, naming what it lacks.

    Raises:
        ModelError: a file is missing, is not an IR graph, or the weights are shorter than the graph says.
    """
    missing = [name for name in REQUIRED if not (directory / name).is_file()]
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
    special = {name: token for name in _SPECIAL_NAMES if (token := _token_text(tokenizer.get(name))) is not None}
    return IrFacts(
        context_tokens=_number(directory, text, "max_position_embeddings", "n_positions", "seq_length"),
        vocab_size=_number(directory, text, "vocab_size"),
        # Generation's own list wins where there is one, as in Transformers: the end of a turn may be only there.
        eos_token_ids=_ids(generation.get("eos_token_id"))
        or _ids(config.get("eos_token_id", text.get("eos_token_id"))),
        special_tokens=special,
        chat_template=_chat_template(directory, tokenizer),
        sampling_defaults=_sampling_defaults(generation),
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


def _ids(value: Any) -> tuple[int, ...]:
    values = value if isinstance(value, list) else [value]
    return tuple(dict.fromkeys(v for v in values if isinstance(v, int) and not isinstance(v, bool)))


def _sampling_defaults(generation: dict[str, Any]) -> dict[str, float]:
    """How the model's makers would sample from it. `"do_sample": false` says that they would not."""
    if generation.get("do_sample") is False:
        return {}
    said = {name: generation[name] for name in _SAMPLING_NAMES if generation.get(name) is not None}
    found: dict[str, float] = {}
    for name, value in said.items():
        low, high = SAMPLING_RANGES[name]
        whole = name != "top_k" or isinstance(value, int)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and whole and low <= value <= high:
            found[name] = value
        else:
            _log.warning("generation_config.json recommends %s = %r, which is out of range and ignored", name, value)
    return found


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
