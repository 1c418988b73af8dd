"""Writes docs/reference from the code, and a test holds it current. Only logs.md there is written by hand, and tested.

`make docs` runs it. Each page is made from the object that the program itself uses.
"""

from __future__ import annotations

import importlib
import io
import json
import pkgutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from rich.console import Console

import headway
from headway.cli import app, version
from headway.cli.config import MODEL_KEY, SERVE_KEYS, Key
from headway.core.errors import HeadwayError, Refused
from headway.core.request import MOVES, State
from headway.gateway.openapi import describe
from headway.metrics.names import METRICS
from headway.models import DEFAULT_MODEL
from headway.models.convert import ARCHITECTURES, MATRIX_TYPES, VECTOR_TYPES
from headway.models.fetch import BUILT_IN
from headway.models.gguf_tokenizer import PRE_TOKENIZERS, TOKENIZER_MODELS
from headway.models.ir_directory import FILES, REQUIRED

REFERENCE = Path(__file__).parent / "reference"
HELP_WIDTH = 100
NOTE = "<!-- Made by docs/generate.py. Do not edit: change the code and run `make docs`. -->"

CONFIGURATION = """# Configuration file

`headway serve --config FILE` reads TOML. Keys are the flags' names without the dashes in front; a flag wins over the
file, the file over the default. An unknown key, a wrong type and a value out of range end the start with a line that
names file, key and limit."""

HTTP_API = """# HTTP API

The shapes are OpenAI's. A running server describes itself at `/openapi.json`, from the same types that check requests.
Every error has the body `{"error": {"message", "type", "param", "code"}}`; 429 and 503 carry `Retry-After` and
`retry-after-ms`."""


IR_FACTS = """`config.json` must state `vocab_size` and the positions the model was trained for. The tokenizer's decoder
must be byte-level or sentence-piece, and none of its ids beyond `vocab_size`."""


def table(*columns: str, rows: Iterator[tuple[str, ...]]) -> str:
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines)


# -- cli.md and configuration.md ---------------------------------------------------------------------------------


def cli() -> str:
    parts = ["# Command line"]
    for command in ([], ["serve"], ["generate"], ["fetch"]):
        page = io.StringIO()
        app.help_print(command, console=Console(file=page, width=HELP_WIDTH, color_system=None))
        text = "\n".join(line.rstrip() for line in page.getvalue().strip().splitlines())
        parts.append(f"## headway {' '.join(command)}".rstrip() + f"\n\n```text\n{text}\n```")
    return "\n\n".join(parts)


def configuration() -> str:
    def rows() -> Iterator[tuple[str, ...]]:
        for key in (MODEL_KEY, *SERVE_KEYS):
            default = key.setting.default if key.default is None else f"`{toml(key.default)}`"
            yield f"`{key.name}`", type_name(key), default, key.setting.help

    return "\n\n".join([CONFIGURATION, table("key", "type", "default", "meaning", rows=rows())])


def toml(value: str | float) -> str:
    """A value as the file would have it."""
    return json.dumps(value)


def type_name(key: Key) -> str:
    if get_origin(key.kind) is Literal:
        return ", ".join(f"`{choice}`" for choice in get_args(key.kind))
    low, high = key.setting.low, key.setting.high
    limits = [f"from {low:,}"] * (low > float("-inf")) + [f"to {high:,}"] * (high < float("inf"))
    words = {int: "integer", float: "number", str: "string", bool: "`true`, `false`"}
    return " ".join([words[key.kind], *limits])


# -- http-api.md -------------------------------------------------------------------------------------------------


def http_api() -> str:
    document = describe([DEFAULT_MODEL], version())
    schemas = document["components"]["schemas"]
    parts = [HTTP_API]
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            parts.append(f"## {method.upper()} {path}")
            if headers := [one for one in operation.get("parameters", ()) if one["in"] == "header"]:
                rows = ((f"`{one['name']}`", shape(one["schema"]), one["description"]) for one in headers)
                parts.append(table("header", "value", "", rows=rows))
            if body := operation.get("requestBody"):
                name = body["content"]["application/json"]["schema"]["$ref"].rsplit("/", 1)[-1]
                parts.append(fields(schemas, name))
            answers = (
                f"{code} ({answer['description'].rstrip('.')})" for code, answer in operation["responses"].items()
            )
            parts.append(f"Answers: {', '.join(answers)}.")
    return "\n\n".join(parts)


def fields(schemas: dict[str, Any], name: str) -> str:
    required = schemas[name].get("required", [])
    properties = schemas[name]["properties"]
    lacking = [field for field, schema in properties.items() if "lacks the feature" in schema.get("description", "")]
    rows = (
        (f"`{field}`" + (" (required)" if field in required else ""), shape(schema), note(schema))
        for field, schema in properties.items()
        if field not in lacking
    )
    text = table("field", "value", "", rows=rows)
    if lacking:
        names = ", ".join(f"`{field}`" for field in sorted(lacking))
        text += f"\n\nKnown, but not offered; refused by name when they ask for something: {names}."
    return text


def note(schema: dict[str, Any]) -> str:
    found = [schema.get("description", "")] + [part.get("description", "") for part in schema.get("anyOf", ())]
    return " ".join(text for text in found if text)


def shape(schema: dict[str, Any]) -> str:
    """A JSON schema in a few words."""
    if "$ref" in schema:
        return str(schema["$ref"]).rsplit("/", 1)[-1]
    if "anyOf" in schema:
        return " or ".join(shape(part) for part in schema["anyOf"] if part.get("type") != "null")
    if "enum" in schema:
        return ", ".join(f"`{json.dumps(value)}`" for value in schema["enum"] if value is not None)
    kind = str(schema.get("type", "anything"))
    if kind == "array":
        longest = f"at most {schema['maxItems']:,} of " if "maxItems" in schema else ""
        return f"list of {longest}{shape(schema.get('items', {}))}"
    words = {"minimum": "from", "exclusiveMinimum": "above", "maximum": "to", "exclusiveMaximum": "below"}
    limits = [f"{word} {schema[limit]:,}" for limit, word in words.items() if limit in schema]
    if "maxLength" in schema:
        limits.append(f"of at most {schema['maxLength']:,} characters")
    return " ".join([kind, *limits])


# -- models.md ---------------------------------------------------------------------------------------------------


def models() -> str:
    def listed(names: Iterable[str]) -> str:
        return ", ".join(f"`{name}`" for name in names)

    built_in = (
        (f"`{one.name}`", f"`{one.package}=={one.version}`", f"{one.file_bytes / 1e6:.0f} MB", f"`{one.sha256}`")
        for one in BUILT_IN.values()
    )
    gguf: Iterator[tuple[str, ...]] = iter(
        [
            ("architecture", listed(ARCHITECTURES)),
            ("type of matrices", listed(MATRIX_TYPES)),
            ("type of vectors", listed(VECTOR_TYPES)),
            ("tokenizer model (`tokenizer.ggml.model`)", listed(TOKENIZER_MODELS)),
            ("pre-tokenizer (`tokenizer.ggml.pre`)", listed(PRE_TOKENIZERS)),
        ]
    )
    return "\n\n".join(
        [
            "# Supported models",
            "Anything else is refused by name, before it is fetched or converted as far as that can be known.",
            "## Built-in names",
            table("name", "package", "file", "sha256 of the file", rows=built_in),
            "## GGUF files",
            "One file (not split), little-endian, versions 2 and 3.",
            table("", "supported", rows=gguf),
            "## OpenVINO IR folders and hub repositories",
            f"Needed: {listed(REQUIRED)}. Read when there: {listed(f for f in FILES if f not in REQUIRED)}.",
            IR_FACTS,
        ]
    )


# -- metrics.md, errors.md, lifecycle.md -------------------------------------------------------------------------


def metrics() -> str:
    rows = (
        (f"`{metric.name}`", metric.kind, ", ".join(f"`{label}`" for label in metric.labels), metric.meaning)
        for metric in METRICS.values()
    )
    return "# Metrics\n\nPrometheus text at `/metrics`. Units are part of the name.\n\n" + table(
        "name", "kind", "labels", "meaning", rows=rows
    )


def errors() -> str:
    """The error tree, wherever in the package its leaves are."""
    for module in pkgutil.walk_packages(headway.__path__, "headway."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)

    def rows(kind: type[HeadwayError], depth: int) -> Iterator[tuple[str, ...]]:
        waits = "yes" if issubclass(kind, Refused) else ""
        summary = " ".join((kind.__doc__ or "").split("\n\n")[0].split())
        name = "&nbsp;" * 4 * depth + f"`{kind.__name__}`"
        yield name, str(kind.status), kind.type, kind.code or "", waits, summary
        for child in sorted(kind.__subclasses__(), key=lambda child: child.__name__):
            if child.__module__.startswith("headway."):  # tests may have their own
                yield from rows(child, depth + 1)

    return "# Errors\n\nOne tree; an HTTP edge answers with the status.\n\n" + table(
        "error", "status", "type", "code", "Retry-After", "meaning", rows=rows(HeadwayError, 0)
    )


def lifecycle() -> str:
    rows = (
        (f"`{state.value}`", ", ".join(f"`{to.value}`" for to in State if to in moves) or "(terminal)")
        for state, moves in MOVES.items()
    )
    arrows = [f"  {state.value} --> {to.value}" for state, moves in MOVES.items() for to in State if to in moves]
    ends = [f"  {state.value} --> [*]" for state in State if state.terminal]
    diagram = "\n".join(["stateDiagram-v2", f"  [*] --> {State.WAITING.value}", *arrows, *ends])
    return "\n\n".join(
        [
            "# Lifecycle of a request",
            "The table in `core/request.py`; a move that is not in it is a defect.",
            table("state", "may become", rows=rows),
            f"```mermaid\n{diagram}\n```",
        ]
    )


PAGES: dict[str, Callable[[], str]] = {
    "cli.md": cli,
    "configuration.md": configuration,
    "http-api.md": http_api,
    "models.md": models,
    "metrics.md": metrics,
    "errors.md": errors,
    "lifecycle.md": lifecycle,
}


def pages() -> dict[str, str]:
    """Content by file name."""
    return {name: f"{NOTE}\n\n{make()}\n" for name, make in PAGES.items()}


if __name__ == "__main__":
    REFERENCE.mkdir(exist_ok=True)
    for name, content in pages().items():
        (REFERENCE / name).write_text(content)
        print(f"wrote {REFERENCE / name}")
