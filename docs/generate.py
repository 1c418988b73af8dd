"""Writes docs/reference from the code, and a test holds it current. Only logs.md there is written by hand, and tested.
So it does with what `headway explain` knows of deploy/prometheus.

`make docs` runs it. Each page is made from the object that the program itself uses.
"""

from __future__ import annotations

import importlib
import io
import json
import math
import pkgutil
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import yaml
from cyclopts import App
from rich.console import Console

import headway
from headway.cli import app, version
from headway.cli.bench.flags import NOT_OF, PROFILE_KEYS
from headway.cli.config import MODEL_KEY, SERVE_KEYS, Key
from headway.cli.explain.entries import KINDS, PROMETHEUS, Entry, entries
from headway.cli.explain.words import CODES
from headway.cli.fleet.tables import TENANT_KEYS, TOKENIZER_KEYS, WORKER_KEYS
from headway.cli.goals import GOALS
from headway.cli.toml_file import toml
from headway.core.errors import HeadwayError, Refused
from headway.core.request import MOVES, State
from headway.gateway.background.metrics import BACKGROUND_METRICS
from headway.gateway.fleet.metrics import FLEET_METRICS
from headway.gateway.openapi import describe
from headway.loadtest.bench.options import PROFILES
from headway.loadtest.report.csv_file import COLUMNS
from headway.loadtest.report.json_file import json_schema
from headway.loadtest.result import SCHEMA_VERSION, Word
from headway.metrics.names import METRICS, Metric
from headway.metrics.vllm_names import VLLM_METRICS
from headway.models import DEFAULT_MODEL
from headway.models.convert import ARCHITECTURES, MATRIX_TYPES, VECTOR_TYPES
from headway.models.fetch import BUILT_IN
from headway.models.gguf_tokenizer import PRE_TOKENIZERS, TOKENIZER_MODELS
from headway.models.ir_directory import FILES, REQUIRED
from headway.setting import Setting

REFERENCE = Path(__file__).parent / "reference"
RULES = Path(__file__).parents[1] / "deploy" / "prometheus"
HELP_WIDTH = 100
NOTE = "<!-- Made by docs/generate.py. Do not edit: change the code and run `make docs`. -->"

CONFIGURATION = """# Configuration file

`headway serve --config FILE` reads TOML. Keys are the flags' names without the dashes in front; a flag wins over the
file, the file over the default. An unknown key, a wrong type and a value out of range end the start with a line that
names file, key and limit."""

GATEWAY_TABLES = """## Tables of a gateway

Of `headway serve` with workers: [the guide](../guide/gateway.md). A complaint names file, line and key."""

GOALS_ARE = """# Goals

What `headway serve --goal NAME` sets, each with its reason. Flags and the configuration file overrule it. Some of it is
set for an engine only, or for a gateway only: a gateway does not know how many slots its workers have, and an engine
trims nothing. `headway serve --goal NAME --print-config` prints all that holds, as a file to begin with."""

METRICS_ARE = "Prometheus text at `/metrics`. Units are part of the name."
FLEET_METRICS_ARE = "With `--worker`, beside those above that are no engine's. What a worker does not say is not there."
STORE_METRICS_ARE = "With `--store`."
VLLM_METRICS_ARE = """With `--metrics-names vllm`, beside our own. A gateway tells those that it knows; several models
are one, their names with commas between."""

WORDS_ARE = """# Words

What has no page of its own. `headway explain NAME` tells these and all others: metrics, flags, goals, states."""

MEANINGS = {
    "worker": {
        "url": "Where it is: `http://HOST:PORT` or `https://…`. Needed.",
        "id": "Its name here; left out, `HOST:PORT`.",
        "kind": "What it is; left out, that is found out.",
        "pool": "Whose requests it takes; left out, `online`.",
        "models": "What it serves; left out, what it lists.",
        "weight": "Its share of the work beside the others; left out, 1.",
        "api-key-env": "The environment variable that holds its API key.",
        "first-sequences": "Requests in flight before anything is known; left out, 8.",
        "most-sequences": "Most requests in flight; 0 or left out, its window alone decides.",
        "priority": "vLLM and SGLang: it was started with priority scheduling, so pass `priority` on.",
        "verify-tls": "`false` takes any certificate.",
        "ca-file": "Certificates to trust instead of the system's.",
        "gpu-metrics-url": "An exporter with DCGM's names, for its memory.",
        "connect-timeout": "Seconds to connect; left out, 5.",
        "first-byte-timeout": "Seconds from sending to the first byte; left out, 300.",
        "gap-timeout": "Seconds of silence in an answer; left out, 60.",
        "total-timeout": "Seconds for all of an answer; left out, no limit.",
    },
    "tenant": {
        "name": "As in `headway keys create`; `*` is for who has no table, and for what a table leaves out. Needed.",
        "max-input-tokens": "Of one prompt. Of this and all that follow, 0 is no limit.",
        "max-output-tokens": "Of one request.",
        "max-concurrency": "Requests inside at a time, waiting or running.",
        "requests-per-minute": "Calls; the samples of one call are one.",
        "tokens-per-minute": "Prompt tokens that had to be computed, and output.",
        "weight": "Its share of the tokens while others want them too; left out, 1.",
        "priority": "What its requests stand at; lower is sooner. They may ask for a higher number only.",
        "lanes": "Those it may use; left out, all.",
    },
    "tokenizer": {
        "model": "The model whose prompts it counts. Needed.",
        "path": "A `tokenizer.json`, or the folder that has it. Needed.",
    },
}

HTTP_API = """# HTTP API

The shapes are OpenAI's. A running server describes itself at `/openapi.json`, from the same types that check requests;
a gateway has [routes of its own](../guide/gateway.md#administration), and passes the rest on.
Every error has the body `{"error": {"message", "type", "param", "code"}}`; 429 and 503 carry `Retry-After` and
`retry-after-ms`."""


LOAD_REPORT = """# Files of a load test

`headway bench --output FOLDER` writes three files of one run: `run.json`, `run.csv` and `run.html`. The HTML is for
people and may change; the other two are described here.

## JSON

One object, a `Run`, one field a line. `schema_version` is {version}; it changes with the meaning of a field. Times are
in seconds, and what is unknown is `null`, never 0. `headway.loadtest.report.json_file.json_schema()` gives the same as
JSON Schema."""

LOAD_CSV = """One line a request, in order of schedule, all requests of the run: also those of warm-up and cool-down.
Times are seconds after the start of the run, to the nanosecond; an empty cell is unknown. A text that a spreadsheet
would take for a formula is written with an apostrophe before it."""

IR_FACTS = """`config.json` must state `vocab_size` and the positions the model was trained for. The tokenizer's decoder
must be byte-level or sentence-piece, and none of its ids beyond `vocab_size`."""


def table(*columns: str, rows: Iterator[tuple[str, ...]]) -> str:
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines)


# -- cli.md and configuration.md ---------------------------------------------------------------------------------


def cli() -> str:
    parts = ["# Command line", help_of([])]
    for command in commands(app):
        group, *names = command
        if not names or names[0] not in PROFILES:
            parts.append(help_of(command))
        elif group == "bench" and names != ["concurrency"]:  # which has no flags of its own; `simulate` takes the same
            parts.append(profile_flags(names[0]))
    return "\n\n".join(parts)


def commands(group: App, at: tuple[str, ...] = ()) -> Iterator[list[str]]:
    """All that are shown, each after its group."""
    shown = [name for name in group if not name.startswith("-") and group[name].show]
    for name in sorted(shown, key=lambda name: group[name].sort_key or 0):
        yield [*at, name]
        yield from commands(group[name], (*at, name))


def help_of(command: list[str]) -> str:
    page = io.StringIO()
    app.help_print(command, console=Console(file=page, width=HELP_WIDTH, color_system=None))
    text = "\n".join(line.rstrip() for line in page.getvalue().strip().splitlines())
    return f"## headway {' '.join(command)}".rstrip() + f"\n\n```text\n{text}\n```"


def profile_flags(name: str) -> str:
    """A profile's own flags: all others are the same for every profile."""

    def rows() -> Iterator[tuple[str, ...]]:
        for key in PROFILE_KEYS[name]:
            default = key.setting.default or ("" if key.default in (None, (), False) else f"`{key.default}`")
            names = ", ".join(f"`--{flag}`" for flag in key.setting.names or (key.name,))
            yield names, default, key.setting.help

    url = "URL FILE" if name == "trace" else "URL"
    about = f"`headway bench {name} {url}`: {PROFILES[name].__doc__}"
    lacking = ", ".join(f"`--{field.replace('_', '-')}`" for field in NOT_OF.get(name, ()))
    without = f" and {lacking}" if lacking else ""
    own = f"{about} Flags of its own, beside those of `headway bench` but for the group Profile{without}:"
    return "\n\n".join([f"## headway bench {name}", own, table("flag", "default", "meaning", rows=rows())])


def configuration() -> str:
    def rows() -> Iterator[tuple[str, ...]]:
        for key in (MODEL_KEY, *SERVE_KEYS):
            default = key.setting.default if key.default is None else f"`{toml(key.default)}`"
            yield f"`{key.name}`", type_name(key), default, key.setting.help

    parts = [CONFIGURATION, table("key", "type", "default", "meaning", rows=rows()), GATEWAY_TABLES]
    for name, keys in (("worker", WORKER_KEYS), ("tenant", TENANT_KEYS), ("tokenizer", TOKENIZER_KEYS)):
        assert set(keys) == set(MEANINGS[name]), f"[[{name}]] has other keys than are explained"
        known = ((f"`{key}`", table_type(keys[key]), meaning) for key, meaning in MEANINGS[name].items())
        parts += [f"### `[[{name}]]`", table("key", "type", "meaning", rows=known)]
    return "\n\n".join(parts)


def table_type(key: Any) -> str:
    if key.words:
        return ", ".join(f"`{word}`" for word in key.words)
    # A limit that nobody reaches is not told.
    low, high = (limit if abs(limit) < 2**31 else math.copysign(math.inf, limit) for limit in (key.low, key.high))
    return type_name(Key("", key.kind, Setting("", "", low, high), None))


def type_name(key: Key) -> str:
    if get_origin(key.kind) is Literal:
        return ", ".join(f"`{choice}`" for choice in get_args(key.kind))
    if key.kind is list or get_origin(key.kind) is tuple:
        return "list of strings"
    low, high = key.setting.low, key.setting.high
    limits = [f"from {low:,.10g}"] * (low > float("-inf")) + [f"to {high:,.10g}"] * (high < float("inf"))
    words = {int: "integer", float: "number", str: "string", bool: "`true`, `false`"}
    return " ".join([words[key.kind], *limits])


# -- http-api.md -------------------------------------------------------------------------------------------------


def http_api() -> str:
    document = describe([DEFAULT_MODEL], version(), store=True)
    schemas = document["components"]["schemas"]
    parts = [HTTP_API]
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            parts.append(f"## {method.upper()} {path}")
            if headers := [one for one in operation.get("parameters", ()) if one["in"] == "header"]:
                rows = ((f"`{one['name']}`", shape(one["schema"]), one["description"]) for one in headers)
                parts.append(table("header", "value", "", rows=rows))
            if query := [one for one in operation.get("parameters", ()) if one["in"] == "query"]:
                parts.append(table("query", "", rows=((f"`{one['name']}`", one["description"]) for one in query)))
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
    if "prefixItems" in schema:
        return f"[{', '.join(map(shape, schema['prefixItems']))}]"
    if kind == "array":
        longest = f"at most {schema['maxItems']:,} of " if "maxItems" in schema else ""
        return f"list of {longest}{shape(schema.get('items', {}))}"
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"object of {shape(schema['additionalProperties'])}"
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


# -- load-report.md ----------------------------------------------------------------------------------------------


def load_report() -> str:
    schema = json_schema()
    structs = schema["$defs"]
    order = ["Run", *(name for name in structs if name != "Run")]
    parts = [LOAD_REPORT.format(version=SCHEMA_VERSION)]
    for name in order:
        about = " ".join(structs[name].get("description", "").split()).replace("None", "`null`")
        parts += [f"### {name}", about, load_fields(structs, name)]
    parts += ["## CSV", LOAD_CSV]
    parts.append(table("column", "meaning", rows=((f"`{one.name}`", one.meaning) for one in COLUMNS)))
    return "\n\n".join(part for part in parts if part)


def load_fields(structs: dict[str, Any], name: str) -> str:
    if name == Word.__name__:  # a schema sorts its words; these have an order
        return shape({"enum": list(Word)})
    rows = ((f"`{field}`", shape(one)) for field, one in structs[name]["properties"].items())
    return table("field", "value", rows=rows)


# -- metrics.md, errors.md, lifecycle.md -------------------------------------------------------------------------


def metrics() -> str:
    def listed(found: Iterable[Metric]) -> str:
        rows = (
            (f"`{metric.name}`", metric.kind, ", ".join(f"`{label}`" for label in metric.labels), metric.meaning)
            for metric in found
        )
        return table("name", "kind", "labels", "meaning", rows=rows)

    own, fleet, kept, vllm = (
        listed(table.values()) for table in (METRICS, FLEET_METRICS, BACKGROUND_METRICS, VLLM_METRICS)
    )
    gateway = f"## Of a gateway\n\n{FLEET_METRICS_ARE}\n\n{fleet}\n\n## Of a store\n\n{STORE_METRICS_ARE}\n\n{kept}"
    others = f"## Under vLLM's names\n\n{VLLM_METRICS_ARE}\n\n{vllm}"
    return f"# Metrics\n\n{METRICS_ARE}\n\n{own}\n\n{gateway}\n\n{others}"


def words() -> str:
    """What has no page of its own; `headway explain` tells it as well."""
    parts = [WORDS_ARE]
    for kind, (about, _) in KINDS.items():
        told = [entry for entry in entries(kind) if entry.page == "words.md"]
        if kind == "error":
            told = [entry for entry in entries(kind) if entry.name in CODES]
        if told:
            rows = ((f"`{entry.name}`", entry.meaning, _facts(entry)) for entry in told)
            parts += [f"## {kind}: {about}", table("", "meaning", "", rows=rows)]
    return "\n\n".join(parts)


def _facts(entry: Entry) -> str:
    return "; ".join(f"{name} {value}" for name, value in entry.facts.items())


def errors() -> str:
    """The error tree, wherever in the package its leaves are."""
    for module in pkgutil.walk_packages(headway.__path__, "headway."):
        if not module.name.endswith(("__main__", ".tracing")):  # the latter needs an extra, and has no errors
            importlib.import_module(module.name)

    def rows(kind: type[HeadwayError], depth: int) -> Iterator[tuple[str, ...]]:
        waits = "yes" if issubclass(kind, Refused) else ""
        summary = " ".join((kind.__doc__ or "").split("\n\n")[0].split())
        name = "&nbsp;" * 4 * depth + f"`{kind.__name__}`"
        yield name, str(kind.status), kind.type, kind.code or "", waits, summary
        for child in sorted(kind.__subclasses__(), key=lambda child: (child.__name__, child.__module__)):
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


# -- goals.md ----------------------------------------------------------------------------------------------------


def goals() -> str:
    named = {key.field: key.name for key in SERVE_KEYS}
    parts = [GOALS_ARE]
    for name, goal in GOALS.items():
        rows = (
            (f"`{named[field]}`", f"`{toml(choice.value)}`", choice.only or "both", choice.why)
            for field, choice in goal.choices.items()
        )
        parts += [f"## {name}", f"For {goal.about}.", table("key", "value", "of", "why", rows=rows)]
    return "\n\n".join(parts)


PAGES: dict[str, Callable[[], str]] = {
    "cli.md": cli,
    "configuration.md": configuration,
    "goals.md": goals,
    "http-api.md": http_api,
    "models.md": models,
    "load-report.md": load_report,
    "metrics.md": metrics,
    "words.md": words,
    "errors.md": errors,
    "lifecycle.md": lifecycle,
}


def prometheus() -> str:
    """Alerts and recording rules for `headway explain`, by name: what is meant, and what else there is to know."""
    alerts = {rule["alert"]: {"meaning": _untemplated(rule["annotations"]["summary"]), "facts": {
        "look": rule["annotations"]["look"],
        "while": " ".join(rule["expr"].split()),
        "for": rule["for"],
        "severity": rule["labels"]["severity"],
    }} for rule in _rules("headway.alerts.yml")}  # fmt: skip
    meanings = _comments((RULES / "headway.rules.yml").read_text())
    rules = {
        rule["record"]: {"meaning": meanings[rule["record"]], "facts": {"query": " ".join(rule["expr"].split())}}
        for rule in _rules("headway.rules.yml")
    }
    return json.dumps({"alerts": alerts, "rules": rules}, indent=1) + "\n"


def _rules(file: str) -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load((RULES / file).read_text())["groups"] for rule in group["rules"]]


def _untemplated(summary: str) -> str:
    """`{{ $labels.worker }}` is WORKER, `{{ $value | humanize }}` VALUE."""
    return re.sub(r"\{\{ \$(?:labels\.)?(\w+)[^}]*\}\}", lambda found: found[1].upper(), summary)


def _comments(text: str) -> dict[str, str]:
    """What stands before each recording rule, by its name."""
    found = re.finditer(r"((?:^ *# .*\n)+) *- record: (\S+)", text, re.MULTILINE)
    return {one[2]: " ".join(line.strip("# ") for line in one[1].splitlines()) for one in found}


def pages() -> dict[str, str]:
    """Content by file name."""
    return {name: f"{NOTE}\n\n{make()}\n" for name, make in PAGES.items()}


if __name__ == "__main__":
    PROMETHEUS.write_text(prometheus())  # first: the reference has it as well
    print(f"wrote {PROMETHEUS}")
    REFERENCE.mkdir(exist_ok=True)
    for name, content in pages().items():
        (REFERENCE / name).write_text(content)
        print(f"wrote {REFERENCE / name}")
