"""What `headway serve` is to do, from four layers: a flag wins over the file, the file over `--goal`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from headway.cli.config import MODEL_KEY, SERVE_KEYS, ServeConfig, serve_config
from headway.cli.config_file import config_in
from headway.cli.fleet.tables import TABLES, FleetTables, is_tables, tables_in
from headway.cli.goals import GOALS
from headway.cli.toml_file import Document, read_document
from headway.core.errors import ConfigError

Layer = Literal["flag", "file", "goal", "default"]
KEYS = {key.field: key for key in (MODEL_KEY, *SERVE_KEYS)}
_BY_NAME = {key.name: key for key in KEYS.values()}


@dataclass(frozen=True, slots=True)
class Effective:
    """What holds. `model` None: nobody named one. `layers` says of each field where its value is from."""

    model: str | None
    config: ServeConfig
    tables: FleetTables
    layers: Mapping[str, Layer]
    raw_tables: Mapping[str, list[dict[str, Any]]]  # as the file has them

    @property
    def is_gateway(self) -> bool:
        return bool(self.config.worker or self.config.local_workers or self.tables.workers)

    def value(self, name: str) -> Any:
        """Of a field, wherever it is kept."""
        if name == MODEL_KEY.field:
            return self.model
        return getattr(self.config if hasattr(self.config, name) else self.config.engine, name)


@dataclass(frozen=True, slots=True)
class Layers:
    """What a command line says. `flags`: by field, those that were given. Its file is read anew each time."""

    model: str | None = None
    path: Path | None = None
    flags: Mapping[str, Any] = field(default_factory=dict)

    def read(self) -> Effective:
        """Raises ConfigError, with file, line and key where the file is what is wrong."""
        document = read_document(self.path) if self.path is not None else None
        filed = _filed(document) if document is not None else {}
        given = {**self.flags, **({MODEL_KEY.field: self.model} if self.model is not None else {})}
        tables = tables_in(document) if document is not None else FleetTables()
        settings = {**filed, **given}
        goal = settings.get("goal")
        chosen = _chosen(goal, settings, tables)
        settings = {**chosen, **settings}
        layers: dict[str, Layer] = dict.fromkeys(KEYS, "default")
        layers.update(dict.fromkeys(chosen, "goal"))
        layers.update(dict.fromkeys(filed, "file"))
        layers.update(dict.fromkeys(given, "flag"))
        model = settings.pop(MODEL_KEY.field, None)
        try:
            config = serve_config(settings)
        except ConfigError as error:
            raise _placed(error, document, layers, goal) from error
        return Effective(model, config, tables, layers, _raw_tables(document))


def _filed(document: Document) -> dict[str, Any]:
    """By field, as flags are."""
    said = config_in(document, list(KEYS.values()))
    return {_BY_NAME[name].field: _BY_NAME[name].typed(value) for name, value in said.items()}


def _raw_tables(document: Document | None) -> dict[str, list[dict[str, Any]]]:
    keys = document.keys if document is not None else {}
    return {name: keys[name] for name in TABLES if keys.get(name) and is_tables(keys[name])}


def _chosen(goal: str | None, settings: Mapping[str, Any], tables: FleetTables) -> dict[str, Any]:
    """What the goal sets, for what this is going to be."""
    if goal is None:
        return {}
    gateway = settings.get("worker") or settings.get("local_workers") or tables.workers
    return {name: choice.value for name, choice in GOALS[goal].of("gateway" if gateway else "engine").items()}


def _placed(
    error: ConfigError, document: Document | None, layers: Mapping[str, Layer], goal: str | None
) -> ConfigError:
    """Settings that do not go together: said with where the file has one of them, or that the goal has set it."""
    named = [name for name in layers if name in (error.param, *re.findall(r"\w+", error.message))]
    filed = [name for name in named if layers[name] == "file"]
    chosen = [name for name in named if layers[name] == "goal"]
    message = error.message
    if filed and document is not None:
        message = f"{document.where(KEYS[filed[0]].name)}: {message}"
    if chosen:
        message = f"{message} (--goal {goal} sets {', '.join(chosen)})"
    return ConfigError(message, param=error.param, code=error.code)
