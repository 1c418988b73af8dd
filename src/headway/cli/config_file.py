"""`--config FILE`: TOML whose keys are the flags' names. Every complaint names the file, the key and the limit."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from cyclopts import App, ArgumentCollection, Token

from headway.cli.config import Key
from headway.cli.fleet.tables import TABLES, is_tables, is_texts
from headway.core.errors import ConfigError

WORDS = {bool: "true or false", int: "an integer", float: "a number", str: "a string"}


def read_config(path: Path, known: Sequence[Key]) -> dict[str, Any]:
    """Checked values by key name. Raises ConfigError."""
    try:
        with path.open("rb") as file:
            table = tomllib.load(file)
    except OSError as error:
        raise ConfigError(f"{path}: the configuration file cannot be read: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not valid TOML: {error}.") from error
    by_name = {key.name: key for key in known}
    for name in TABLES:  # what they say is read by `fleet.tables`
        if name in table and is_tables(table[name]):
            del table[name]
    for name in table:
        if isinstance(table[name], dict) and name not in by_name:
            raise ConfigError(
                f"{path}: [{name}]: tables are not used here; write its keys at the top of the file.", param=name
            )
        if name not in by_name:
            raise ConfigError(f"{path}: unknown key {name!r}.{_suggestion(name, list(by_name))}", param=name)
    return {name: _checked(path, by_name[name], value) for name, value in table.items()}


def _suggestion(name: str, known: list[str]) -> str:
    """The nearest known key; a key written with underscores is nearest to itself with dashes."""
    near = difflib.get_close_matches(name.replace("_", "-").lower(), known, n=1, cutoff=0.5)
    return f" Did you mean {near[0]!r}?" if near else " `headway serve --help` lists the keys."


def _checked(path: Path, key: Key, value: Any) -> Any:
    kind = key.kind
    where = f"{path}: {key.name}"
    if get_origin(kind) is tuple:
        if not is_texts(value):
            raise ConfigError(f"{where} must be a list of strings, not {_toml(value)}.", param=key.name)
        return value
    if get_origin(kind) is Literal:
        choices = get_args(kind)
        if value not in choices and (not isinstance(value, str) or value not in key.aliases):
            raise ConfigError(f"{where} must be one of {', '.join(choices)}, not {_toml(value)}.", param=key.name)
        return value
    # bool is an int to Python, not to a reader of the file; an integer is a fine number.
    right = type(value) is kind or (kind is float and type(value) is int)
    if not right:
        raise ConfigError(f"{where} must be {WORDS[kind]}, not {_toml(value)}.", param=key.name)
    if isinstance(value, int | float) and (complaint := key.complaint(value)):
        raise ConfigError(f"{where} {complaint}.", param=key.name)
    return value


def _toml(value: Any) -> str:
    """A value as the file has it, not as Python would."""
    return str(value).lower() if isinstance(value, bool) else repr(value)


def apply_config_file(known: Sequence[Key]) -> Any:
    """A cyclopts `config` hook: fills what no flag gave from the file that `--config` names."""

    def hook(_app: App, _commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
        by_name = {argument.name.lstrip("-").lower(): argument for argument in arguments}
        named = by_name["config"].tokens
        if not named:
            return
        path = Path(named[-1].value)
        for name, value in read_config(path, known).items():
            argument = by_name[name]
            if not argument.tokens:
                for place, one in enumerate(value if isinstance(value, list) else [value]):
                    argument.append(Token(keyword=name, value=str(one), source=str(path), index=place))

    return hook
