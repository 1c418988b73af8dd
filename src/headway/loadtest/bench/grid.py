"""The points of a sweep: every combination of some loads, and of some settings of the server."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from types import NoneType
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from headway.loadtest.bench.options import Options, Profile, name_of
from headway.loadtest.errors import InvalidPlan
from headway.setting import Setting

MAX_POINTS = 1000
# Of the server's options: no key, and nothing that the others were found out with.
VARIED_OF_SERVER = frozenset({"stream", "n", "temperature"})
# Where nothing is asked for: enough to see throughput rise and latency with it.
USUAL = {"concurrency": "1,2,4,8,16,32", "request_rate": "0.5,1,2,4,8"}
_NAME = re.compile(r"[A-Za-z][\w-]{0,63}")


@dataclass(frozen=True, slots=True)
class Axis:
    """What is varied, and its values as they were written."""

    name: str
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GridPoint:
    """One combination. `server` are its settings of the server."""

    number: int
    label: str
    profile: Profile
    options: Options
    server: Mapping[str, str]

    @property
    def file(self) -> str:
        """The stem of its files."""
        return f"{self.number:03}-{re.sub(r'[^A-Za-z0-9=._,-]+', '-', self.label)[:80]}"


def axes(texts: Sequence[str], flag: str) -> list[Axis]:
    """NAME=V1,V2,… each; with a semicolon anywhere, that separates instead. A name may come again with more values."""
    found: dict[str, list[str]] = {}
    for text in texts:
        name, equals, rest = text.partition("=")
        name = name.strip().removeprefix("--")
        values = [value.strip() for value in rest.split(";" if ";" in rest else ",")]
        if not equals or not _NAME.fullmatch(name) or not all(values):
            raise InvalidPlan(f"{flag} takes NAME=VALUE,VALUE,…, not {text!r}.")
        found.setdefault(name, []).extend(values)
    for name, values in found.items():
        if len(set(values)) < len(values):
            raise InvalidPlan(f"{flag} {name}: a value comes twice. Each is measured once.")
    return [Axis(name, tuple(values)) for name, values in found.items()]


def usual_axis(profile: Profile) -> Axis:
    """For a sweep that was not told what to vary."""
    for field, values in USUAL.items():
        if getattr(profile, field, None) is not None:
            return Axis(field.replace("_", "-"), tuple(values.split(",")))
    raise InvalidPlan(f"What is to be varied in the profile {name_of(profile)}? Give --vary NAME=V1,V2 or --setting.")


def points(profile: Profile, options: Options, loads: Sequence[Axis], server: Sequence[Axis]) -> list[GridPoint]:
    """Settings of the server change slowest: each costs a restart, or what it has cached. Raises InvalidPlan."""
    count = 1
    for axis in (*loads, *server):
        count *= len(axis.values)
    if count > MAX_POINTS:
        raise InvalidPlan(f"This grid has {count:,} points, the limit is {MAX_POINTS:,}. Vary less.")
    made = []
    combinations = itertools.product(*(axis.values for axis in server), *(axis.values for axis in loads))
    for number, values in enumerate(combinations, 1):
        settings = dict(zip((axis.name for axis in server), values, strict=False))
        changes = dict(zip((axis.name for axis in loads), values[len(server) :], strict=True))
        label = ", ".join(f"{name}={value}" for name, value in (*settings.items(), *changes.items()))
        changed, mine = profile, options
        for name, value in changes.items():
            changed, mine = _changed(changed, mine, name, value)
        made.append(GridPoint(number, label, changed, mine, settings))
    return made


def _changed(profile: Profile, options: Options, name: str, text: str) -> tuple[Profile, Options]:
    """The profile or the options with another value of the setting with this flag's name."""
    parts: tuple[tuple[str, Any], ...] = (("", profile), ("text", options.text), ("server", options.server))
    for place, part in parts:
        for field, kind, setting in _settings(type(part)):
            if place == "server" and field not in VARIED_OF_SERVER:
                continue
            if name in {field.replace("_", "-"), field, *setting.names}:
                part = replace(part, **{field: _value(name, kind, setting, text)})
                return (part, options) if not place else (profile, replace(options, **{place: part}))
    known = [field.replace("_", "-") for _, part in parts[:2] for field, _, _ in _settings(type(part))]
    known += sorted(VARIED_OF_SERVER)
    nearest = get_close_matches(name.replace("_", "-"), known, 1)
    meant = f" Did you mean {nearest[0]}?" if nearest else ""
    raise InvalidPlan(f"--vary {name}: the profile {name_of(profile)} has {', '.join(known)}.{meant}")


def _settings(kind: type) -> Iterator[tuple[str, Any, Setting]]:
    hints = get_type_hints(kind, include_extras=True)
    for field in dataclasses.fields(kind):
        hint = hints[field.name]
        if get_origin(hint) is Annotated:
            inner, setting = get_args(hint)
            if isinstance(setting, Setting):
                yield field.name, inner, setting


def _value(name: str, kind: Any, setting: Setting, text: str) -> Any:
    kinds = [one for one in get_args(kind) or (kind,) if one is not NoneType]
    try:
        if bool in kinds:
            return {"true": True, "false": False}[text.lower()]
        value = int(text) if int in kinds else float(text) if float in kinds else text
    except (ValueError, KeyError):
        raise InvalidPlan(f"--vary {name}: {text!r} is no value of it.") from None
    if not isinstance(value, str):
        try:
            setting.check(value)
        except ValueError as error:
            raise InvalidPlan(f"--vary {name}: it {error}.") from None
    return value
