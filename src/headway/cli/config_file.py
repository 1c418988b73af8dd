"""`--config FILE`: TOML whose keys are the flags' names. Every complaint names file, line, key and limit."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from headway.cli.config import Key
from headway.cli.fleet.tables import TABLES, is_tables, is_texts
from headway.cli.toml_file import Document, read_document
from headway.core.errors import ConfigError

WORDS = {bool: "true or false", int: "an integer", float: "a number", str: "a string"}


def read_config(path: Path, known: Sequence[Key]) -> dict[str, Any]:
    """Checked values by key name. Raises ConfigError."""
    return config_in(read_document(path), known)


def config_in(document: Document, known: Sequence[Key]) -> dict[str, Any]:
    """Checked values by key name; what tables say is read by `fleet.tables`. Raises ConfigError."""
    by_name = {key.name: key for key in known}
    table = {name: value for name, value in document.keys.items() if name not in TABLES or not is_tables(value)}
    for name, value in table.items():
        if isinstance(value, dict) and name not in by_name:
            raise ConfigError(
                f"{document.where(name)}: [{name}]: tables are not used here; write its keys at the top of the file.",
                param=name,
            )
        if name not in by_name:
            raise ConfigError(
                f"{document.where(name)}: unknown key {name!r}.{_suggestion(name, list(by_name))}", param=name
            )
    return {name: _checked(document, by_name[name], value) for name, value in table.items()}


def _suggestion(name: str, known: list[str]) -> str:
    """The nearest known key; a key written with underscores is nearest to itself with dashes."""
    near = difflib.get_close_matches(name.replace("_", "-").lower(), known, n=1, cutoff=0.5)
    return f" Did you mean {near[0]!r}?" if near else " `headway serve --help` lists the keys."


def _checked(document: Document, key: Key, value: Any) -> Any:
    kind = key.kind
    where = f"{document.where(key.name)}: {key.name}"
    if get_origin(kind) is tuple:
        if not is_texts(value):
            raise ConfigError(f"{where} must be a list of strings, not {_shown(value)}.", param=key.name)
        return value
    if get_origin(kind) is Literal:
        choices = get_args(kind)
        if value not in choices and (not isinstance(value, str) or value not in key.aliases):
            raise ConfigError(f"{where} must be one of {', '.join(choices)}, not {_shown(value)}.", param=key.name)
        return value
    # bool is an int to Python, not to a reader of the file; an integer is a fine number.
    right = type(value) is kind or (kind is float and type(value) is int)
    if not right:
        raise ConfigError(f"{where} must be {WORDS[kind]}, not {_shown(value)}.", param=key.name)
    if isinstance(value, int | float) and (complaint := key.complaint(value)):
        raise ConfigError(f"{where} {complaint}.", param=key.name)
    return value


def _shown(value: Any) -> str:
    """A value as the file has it, not as Python would."""
    return str(value).lower() if isinstance(value, bool) else repr(value)
