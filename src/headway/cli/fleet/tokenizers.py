"""Exact token counts for a model whose tokenizer is at hand, though the model itself runs elsewhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from headway.core.errors import ConfigError, ModelError
from headway.models import ChatTemplate, Tokenizer

SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


class TokenizerCounter:
    """Meets `gateway.fleet.Counter`. `path`: a tokenizer.json, or the folder that has one and its configuration."""

    def __init__(self, path: Path) -> None:
        folder = path if path.is_dir() else path.parent
        file = path / "tokenizer.json" if path.is_dir() else path
        try:
            self._tokenizer = Tokenizer(file)
            source, special = _template(folder)
            self._template = ChatTemplate(source, special)
        except (ModelError, ValueError, OSError) as error:
            raise ConfigError(f"The tokenizer {path} cannot be used: {error}", param="path") from error

    def chat(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None) -> int:
        text = self._template.render(messages, tools=tools)
        return len(self._tokenizer.encode(text, add_special_tokens=False))

    def text(self, text: str) -> int:
        return len(self._tokenizer.encode(text))


def _template(folder: Path) -> tuple[str | None, dict[str, str]]:
    """The chat template of a Hugging Face folder, and the tokens that it may write."""
    try:
        said = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        said = {}
    if not isinstance(said, dict):
        raise ValueError(f"{folder / 'tokenizer_config.json'} should hold a JSON object")
    source = said.get("chat_template")
    if (own := folder / "chat_template.jinja").exists():
        source = own.read_text(encoding="utf-8")
    elif isinstance(source, list):  # several, by name
        named = {one.get("name"): one.get("template") for one in source if isinstance(one, dict)}
        source = named.get("default")
    special = {}
    for name in SPECIAL:
        token = said.get(name)
        token = token.get("content") if isinstance(token, dict) else token
        if isinstance(token, str):
            special[name] = token
    return source if isinstance(source, str) else None, special
