"""Everything that has a meaning, from the tables that docs/reference is made of: nothing is told twice in two ways.

Modules that load a server, which takes seconds, are imported where their kind is listed.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.cli.explain.words import (
    ANSWER_HEADERS,
    CODES,
    COLUMN_WORDS,
    COLUMNS,
    FIGURES,
    FINISHED_WELL,
    LEVELS,
    STATUS_CODES,
)
from headway.cli.goals import GOALS
from headway.core.errors import HeadwayError, Refused
from headway.core.front.ladder import MARKS, Level
from headway.core.lanes import LaneLimits
from headway.core.request import MOVES, State
from headway.doctor.finding import CAUSES
from headway.doctor.remedies import REMEDIES
from headway.metrics.names import METRICS, OUTCOMES, Metric

if TYPE_CHECKING:
    from headway.cli.config import Key

# What deploy/prometheus has, as docs/generate.py read it: an installed package is without that folder.
PROMETHEUS = Path(__file__).with_name("prometheus.json")
# Where errors are: to import the whole package for them takes seconds.
ERROR_MODULES = (
    *("engine.supervisor", "gateway.app", "gateway.fleet", "gateway.fleet.admin", "gateway.background.batch.source"),
    *("offline.errors", "store.errors", "wire.asker", "workers.worker"),
)
_THEIR_PACKAGES = tuple(
    f"headway.{name}." for name in ("core", "engine", "gateway", "offline", "store", "wire", "workers")
)


@dataclass(frozen=True, slots=True)
class Entry:
    """`facts`: what there is to know beside the meaning, by its name. `page`: where docs/reference has it.

    `also`: other names of it.
    """

    kind: str
    name: str
    meaning: str
    facts: Mapping[str, str] = field(default_factory=dict)
    page: str = ""
    also: tuple[str, ...] = ()


def _metrics() -> Iterator[Entry]:
    from headway.gateway.background.metrics import BACKGROUND_METRICS
    from headway.gateway.fleet.metrics import FLEET_METRICS
    from headway.metrics.vllm_names import VLLM_METRICS

    tables = (
        ("engine and gateway", METRICS),
        ("gateway", FLEET_METRICS),
        ("--store", BACKGROUND_METRICS),
        ("--metrics-names vllm", VLLM_METRICS),
    )
    for of, table in tables:
        for metric in table.values():
            yield Entry("metric", metric.name, metric.meaning, _metric_facts(metric, of), "metrics.md")


def _metric_facts(metric: Metric, of: str) -> dict[str, str]:
    facts = {"type": metric.kind, "of": of}
    if metric.labels:
        facts["labels"] = ", ".join(metric.labels)
    if metric.buckets:
        facts["buckets"] = ", ".join(f"{bound:g}" for bound in metric.buckets)
    return facts


def _outcomes() -> Iterator[Entry]:
    for name, meaning in OUTCOMES.items():
        yield Entry("outcome", name, meaning, {"label of": "headway_requests_total"}, "words.md")


def _lanes() -> Iterator[Entry]:
    from headway.cli.config import ServeConfig
    from headway.cli.fleet.parts import lanes

    for lane in lanes(ServeConfig()):
        yield Entry("lane", lane.name, lane_meaning(lane), page="words.md")


def lane_meaning(lane: LaneLimits) -> str:
    """By the limits in force without a flag."""
    if lane.pool:
        return f"Work for the pool {lane.pool}, which nobody waits for."
    longer = []
    if lane.min_prompt_tokens:
        longer.append(f"a prompt of {lane.min_prompt_tokens:,} tokens or more (--long-prompt-tokens)")
    if lane.min_output_tokens:
        longer.append(f"an output of up to {lane.min_output_tokens:,} tokens or more (--long-output-tokens)")
    return f"Requests with {' and '.join(longer)}." if longer else "Requests that belong to no other lane."


def _levels() -> Iterator[Entry]:
    for level in Level:
        facts = {"level": str(level.value), "entered at": f"a pressure of {MARKS[level]:g}"}
        also = (f"level {level.value}", str(level.value))  # as alerts and `top` tell it
        yield Entry("level", level.name.lower(), LEVELS[level], facts, "words.md", also)


def _errors() -> Iterator[Entry]:
    told: set[str] = set()
    for kind in error_classes():
        if kind.code:
            summary = " ".join((kind.__doc__ or "").split("\n\n")[0].split())
            facts = {"status": _status(kind.code, kind.status), "type": kind.type}
            if issubclass(kind, Refused):
                facts["Retry-After"] = "yes"
            told.add(kind.code)
            yield Entry("error", kind.code, CODES.get(kind.code, summary), facts, "errors.md")
    for code, meaning in CODES.items():
        if code not in told:
            facts = {"status": status} if (status := _status(code)) else {}
            yield Entry("error", code, meaning, facts, "words.md")


def _status(code: str, *own: int) -> str:
    """All that it may be answered with."""
    return ", ".join(map(str, sorted({*own, *(status for status, codes in STATUS_CODES.items() if code in codes)})))


def _statuses() -> Iterator[Entry]:
    codes: dict[str, dict[str, str]] = {}
    for entry in _errors():
        for status in entry.facts.get("status", "").split(", "):
            if status:
                codes.setdefault(status, {})[entry.name] = entry.meaning
    for status, meanings in sorted(codes.items()):
        phrase = HTTPStatus(int(status)).phrase
        yield Entry("status", status, f"{phrase}, with one of these codes.", meanings, "errors.md", (f"HTTP {status}",))


def error_classes() -> Iterator[type[HeadwayError]]:
    """The error tree, as far as clients and operators meet it; parents first."""
    for module in ERROR_MODULES:
        importlib.import_module(f"headway.{module}")

    def walk(kind: type[HeadwayError]) -> Iterator[type[HeadwayError]]:
        yield kind
        for child in sorted(kind.__subclasses__(), key=lambda child: child.__name__):
            if child.__module__.startswith(_THEIR_PACKAGES):  # whatever else this process has loaded
                yield from walk(child)

    return walk(HeadwayError)


def _states() -> Iterator[Entry]:
    for state, moves in MOVES.items():
        after = ", ".join(to.value for to in State if to in moves)
        yield Entry(
            "state", state.value, f"A request may become {after}." if after else "The end.", page="lifecycle.md"
        )


def _goals() -> Iterator[Entry]:
    from headway.cli.toml_file import toml

    for name, goal in GOALS.items():
        sets = {choice_name: f"{toml(choice.value)}: {choice.why}" for choice_name, choice in goal.choices.items()}
        facts = {field_name.replace("_", "-"): text for field_name, text in sets.items()}
        yield Entry("goal", name, f"Settings for {goal.about}: headway serve --goal {name}.", facts, "goals.md")


def _flags() -> Iterator[Entry]:
    from headway.cli.bench.flags import PROFILE_KEYS
    from headway.cli.config import SERVE_KEYS

    told: set[str] = set()
    of = [("serve", key) for key in SERVE_KEYS]
    of += [(f"bench {name}", key) for name, keys in PROFILE_KEYS.items() for key in keys]
    for command, key in of:
        entry = _flag(command, key)
        if f"{entry.name} {entry.meaning}" not in told:  # most of a bench's flags are every profile's
            told.add(f"{entry.name} {entry.meaning}")
            yield entry


def _flag(command: str, key: Key) -> Entry:
    from headway.cli.toml_file import toml

    facts = {"of": f"headway {command}"}
    default = key.setting.default or ("" if key.default in (None, (), False) else toml(key.default))
    if default:
        facts["default"] = default
    low, high = key.setting.low, key.setting.high
    if low > float("-inf"):
        facts["at least"] = f"{low:,.10g}"
    if high < float("inf"):
        facts["at most"] = f"{high:,.10g}"
    page = "configuration.md" if command == "serve" else "cli.md"
    return Entry("flag", f"--{key.setting.names[0] if key.setting.names else key.name}", key.setting.help, facts, page)


def _headers() -> Iterator[Entry]:
    from headway.gateway.promises import HEADERS

    for name, (_, meaning) in HEADERS.items():
        yield Entry("header", name, f"{meaning}; in ms.", {"of": "requests"}, "http-api.md")
    for name, meaning in ANSWER_HEADERS.items():
        yield Entry("header", name, meaning, {"of": "answers"}, "words.md")


def _figures() -> Iterator[Entry]:
    for name, letters in FIGURES.items():
        facts, also = ({"stands for": letters}, (letters,)) if letters else ({}, ())
        yield Entry("figure", name, figure_meaning(name), facts, "words.md", also)


def figure_meaning(name: str) -> str:
    """As the module says that computes it. Empty where docstrings were stripped (python -OO)."""
    from headway.metrics import goodput, latency

    if name == "finished well":
        return FINISHED_WELL
    if name == "goodput":
        first, _, _ = (goodput.__doc__ or "").partition("\n\n")
        return _sentence(first.partition(": ")[2])
    rows = (line.strip("| ").split(" | ", 1) for line in (latency.__doc__ or "").splitlines() if line.startswith("| "))
    return _sentence({row[0]: row[1] for row in rows if len(row) == 2}.get(name, ""))


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}.".replace("\n", " ") if text else ""


def _verdicts() -> Iterator[Entry]:
    from headway.loadtest.result import Word

    for word in Word:
        yield Entry("verdict", word.value, word.meaning, {"exit status": str(word.exit_code)}, "words.md")


def _causes() -> Iterator[Entry]:
    for cause, seen in CAUSES.items():
        yield Entry("cause", cause, seen, {"remedy": REMEDIES[cause]}, "words.md")


def _alerts() -> Iterator[Entry]:
    return (Entry("alert", name, page="words.md", **told) for name, told in _prometheus("alerts").items())


def _rules() -> Iterator[Entry]:
    return (Entry("rule", name, page="words.md", **told) for name, told in _prometheus("rules").items())


def _prometheus(kind: str) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(PROMETHEUS.read_text())[kind]
    return told


def _columns() -> Iterator[Entry]:
    meanings = {entry.name: entry.meaning for entry in (*_metrics(), *_rules())}
    for word, name in COLUMNS.items():
        yield Entry("column", word, meanings[name], {"as": name}, "words.md")
    for word, meaning in COLUMN_WORDS.items():
        yield Entry("column", word, meaning, page="words.md")


KINDS: Mapping[str, tuple[str, Callable[[], Iterator[Entry]]]] = {
    "metric": ("a name at /metrics", _metrics),
    "outcome": ("how a request ended", _outcomes),
    "lane": ("a class of work", _lanes),
    "level": ("a level of degradation", _levels),
    "error": ("the code of a refusal or failure", _errors),
    "state": ("where a request is", _states),
    "goal": ("settings for a purpose", _goals),
    "flag": ("a flag, and its key in the configuration file", _flags),
    "header": ("a header of requests and answers", _headers),
    "figure": ("a figure of a load test", _figures),
    "verdict": ("what a load test says of itself", _verdicts),
    "cause": ("what headway doctor finds", _causes),
    "status": ("an HTTP status, and its codes", _statuses),
    "alert": ("an alert of deploy/prometheus", _alerts),
    "rule": ("a recording rule of deploy/prometheus", _rules),
    "column": ("a word of headway top", _columns),
}

# Whose names no other kind has, and that load no server: a name among them is looked for no further.
BY_THEMSELVES = ("figure", "level", "goal")


def entries(kind: str) -> list[Entry]:
    return list(KINDS[kind][1]())
