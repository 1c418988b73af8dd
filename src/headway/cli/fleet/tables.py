"""`[[worker]]`, `[[tenant]]` and `[[tokenizer]]` of a configuration file. Every complaint names file, line and key."""

from __future__ import annotations

import difflib
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from headway.cli.toml_file import Document, read_document
from headway.core.errors import ConfigError
from headway.core.fleet.worker import WorkerSpec
from headway.core.front.tenants import NO_LIMITS, TenantLimits

TABLES = ("worker", "tenant", "tokenizer")
EVERYBODY = "*"  # the tenant whose limits hold for all that have none of their own
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}")

Where = Callable[[str], str]  # a key -> what precedes a complaint about it


@dataclass(frozen=True, slots=True)
class WorkerTable:
    """A worker as its operator describes it."""

    url: str
    spec: WorkerSpec
    kind: str = ""
    api_key: str = field(default="", repr=False)
    priority: bool = False
    verify_tls: bool = True
    ca_file: str = ""
    gpu_metrics_url: str = ""
    timeouts: Mapping[str, float] = field(default_factory=dict)  # in the words of `RemoteConfig`


@dataclass(frozen=True, slots=True)
class TokenizerTable:
    model: str
    path: str


@dataclass(frozen=True, slots=True)
class FleetTables:
    """What the tables of one file say."""

    workers: tuple[WorkerTable, ...] = ()
    default_limits: TenantLimits = NO_LIMITS
    limits: Mapping[str, TenantLimits] = field(default_factory=dict)
    tokenizers: tuple[TokenizerTable, ...] = ()


@dataclass(frozen=True, slots=True)
class _Key:
    """What one key takes. Numbers lie between `low` and `high`."""

    kind: type
    low: float = -math.inf
    high: float = math.inf
    words: tuple[str, ...] = ()


_COUNT = _Key(int, 0, 2**53)
_SECONDS = _Key(float, 0, 86_400)
_KINDS = ("vllm", "sglang", "llamacpp", "tgi", "headway", "openai")
_TIMEOUTS = {
    "connect-timeout": "connect_s",
    "first-byte-timeout": "first_byte_s",
    "gap-timeout": "between_bytes_s",
    "total-timeout": "total_s",
}
WORKER_KEYS = {
    "url": _Key(str),
    "id": _Key(str),
    "kind": _Key(str, words=_KINDS),
    "pool": _Key(str),
    "models": _Key(list),
    "weight": _Key(float, 1e-6, 1e6),
    "api-key-env": _Key(str),
    "first-sequences": _Key(int, 1, 65_536),
    "most-sequences": _Key(int, 0, 65_536),
    "priority": _Key(bool),
    "verify-tls": _Key(bool),
    "ca-file": _Key(str),
    "gpu-metrics-url": _Key(str),
    **dict.fromkeys(_TIMEOUTS, _SECONDS),
}
TENANT_KEYS = {
    "name": _Key(str),
    "max-input-tokens": _COUNT,
    "max-output-tokens": _COUNT,
    "max-concurrency": _COUNT,
    "requests-per-minute": _COUNT,
    "tokens-per-minute": _COUNT,
    "weight": _Key(float, 1e-6, 1e6),
    "priority": _Key(int, -(2**31), 2**31),
    "lanes": _Key(list),
}
TOKENIZER_KEYS = {"model": _Key(str), "path": _Key(str)}


def read_tables(path: Path, environment: Mapping[str, str] = os.environ) -> FleetTables:
    """Raises ConfigError. What is no table is read by others."""
    return tables_in(read_document(path), environment)


def tables_in(document: Document, environment: Mapping[str, str] = os.environ) -> FleetTables:
    """Raises ConfigError."""
    tables: dict[str, list[tuple[dict[str, Any], Where]]] = {}
    for kind in TABLES:
        found = document.keys.get(kind, [])
        if kind == "worker" and is_texts(found):
            found = []  # the same as flags, and read with them
        if not is_tables(found):
            raise ConfigError(
                f"{document.where(kind)}: {kind} must be tables, each under its own [[{kind}]].", param=kind
            )
        tables[kind] = [(one, _where(document, kind, number)) for number, one in enumerate(found)]
    default, limits = _tenants(tables["tenant"])
    return FleetTables(
        workers=_workers(tables["worker"], environment),
        default_limits=default,
        limits=limits,
        tokenizers=tuple(_tokenizer(table, where) for table, where in tables["tokenizer"]),
    )


def is_tables(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, dict) for one in value)


def is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def worker_table(
    table: Mapping[str, Any], where: Where = lambda key: key, environment: Mapping[str, str] = os.environ
) -> WorkerTable:
    """One worker, from a file or from an operator's request. Raises ConfigError."""
    said = _checked(table, WORKER_KEYS, where, needed="url")
    url = said["url"].rstrip("/")
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"{where('url')}: {url!r} is no address; write http://HOST:PORT.", param="url")
    if parts.username or parts.password:
        raise ConfigError(f"{where('url')}: keys do not belong into an address; use api-key-env.", param="url")
    name = said.get("id", parts.netloc)
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{where('id')}: {name[:80]!r} is not a usable name for a worker.", param="id")
    key = ""
    if variable := said.get("api-key-env"):
        key = environment.get(variable, "")
        if not key:
            raise ConfigError(
                f"{where('api-key-env')}: the environment has no {variable[:80]}; set it to the worker's API key.",
                param="api-key-env",
            )
    return WorkerTable(
        url=url,
        spec=WorkerSpec(
            id=name,
            pool=said.get("pool", "online"),
            models=frozenset(_words(said.get("models", []), where, "models")),
            weight=float(said.get("weight", 1.0)),
            first_sequences=said.get("first-sequences", 8),
            most_sequences=said.get("most-sequences", 0),
        ),
        kind=said.get("kind", ""),
        api_key=key,
        priority=said.get("priority", False),
        verify_tls=said.get("verify-tls", True),
        ca_file=said.get("ca-file", ""),
        gpu_metrics_url=said.get("gpu-metrics-url", ""),
        timeouts={ours: float(said[key]) for key, ours in _TIMEOUTS.items() if key in said},
    )


def _workers(tables: Sequence[tuple[dict[str, Any], Where]], environment: Mapping[str, str]) -> tuple[WorkerTable, ...]:
    workers: dict[str, WorkerTable] = {}
    for table, where in tables:
        worker = worker_table(table, where, environment)
        if worker.spec.id in workers:
            raise ConfigError(
                f"{where('id')}: there is a worker {worker.spec.id!r} above already; give each its own id.", param="id"
            )
        workers[worker.spec.id] = worker
    return tuple(workers.values())


def _tenants(tables: Sequence[tuple[dict[str, Any], Where]]) -> tuple[TenantLimits, dict[str, TenantLimits]]:
    """Limits for everybody, and of those that have their own: what such a table leaves out is as for everybody."""
    said = {}
    for table, where in tables:
        one = _checked(table, TENANT_KEYS, where, needed="name")
        if one["name"] in said:
            raise ConfigError(f"{where('name')}: there is a tenant {one['name']!r} above already.", param="name")
        said[one["name"]] = (one, where)
    default, limits = NO_LIMITS, {}
    if EVERYBODY in said:
        default = _limits(*said.pop(EVERYBODY), NO_LIMITS)
    for name, (one, where) in said.items():
        limits[name] = _limits(one, where, default)
    return default, limits


def _limits(said: Mapping[str, Any], where: Where, default: TenantLimits) -> TenantLimits:
    def of(key: str) -> Any:
        return said.get(key, getattr(default, key.replace("-", "_")))

    return TenantLimits(
        max_input_tokens=of("max-input-tokens"),
        max_output_tokens=of("max-output-tokens"),
        max_concurrency=of("max-concurrency"),
        requests_per_minute=of("requests-per-minute"),
        tokens_per_minute=of("tokens-per-minute"),
        weight=float(of("weight")),
        priority=of("priority"),
        lanes=tuple(_words(of("lanes"), where, "lanes")),
    )


def _tokenizer(table: dict[str, Any], where: Where) -> TokenizerTable:
    said = _checked(table, TOKENIZER_KEYS, where, needed="model")
    if "path" not in said:
        raise ConfigError(
            f"{where('path')}: say where the tokenizer is: a tokenizer.json, or its folder.", param="path"
        )
    return TokenizerTable(said["model"], said["path"])


def _checked(table: Mapping[str, Any], known: Mapping[str, _Key], where: Where, *, needed: str) -> dict[str, Any]:
    for name, value in table.items():
        if name not in known:
            near = difflib.get_close_matches(name.replace("_", "-").lower(), known, n=1, cutoff=0.5)
            hint = f" Did you mean {near[0]!r}?" if near else f" There are {', '.join(known)}."
            raise ConfigError(f"{where(name)}: unknown key.{hint}", param=name)
        if wrong := _wrong(known[name], value):
            raise ConfigError(f"{where(name)}: must be {wrong}, not {_shown(value)}.", param=name)
    if needed not in table:
        raise ConfigError(f"{where(needed)}: it is missing, and has to be there.", param=needed)
    return dict(table)


def _wrong(key: _Key, value: Any) -> str:
    """What the value should be; empty when it is."""
    if key.words:
        return "" if value in key.words else f"one of {', '.join(key.words)}"
    if key.kind is bool:
        return "" if isinstance(value, bool) else "true or false"
    if key.kind is str:
        return "" if isinstance(value, str) and value else "text"
    if key.kind is list:
        good = isinstance(value, list) and all(isinstance(one, str) and one for one in value)
        return "" if good else "a list of texts"
    whole = key.kind is int
    if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
        return "a whole number" if whole else "a number"
    if not key.low <= value <= key.high:  # NaN is in no range
        return f"between {key.low:g} and {key.high:g}"
    return ""


def _words(values: Sequence[str], where: Where, key: str) -> Sequence[str]:
    if len(set(values)) < len(values):
        raise ConfigError(f"{where(key)}: something stands there twice.", param=key)
    return values


def _where(document: Document, table: str, number: int) -> Where:
    """`FILE:LINE: [[table]] key` of the so many-th table of its kind."""

    def where(key: str) -> str:
        return f"{document.where_in(table, number, key)}: [[{table}]] {key}"

    return where


def _shown(value: Any) -> str:
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
