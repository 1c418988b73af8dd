"""What the user says of a server with `--note NAME=VALUE`: it fills what the server does not tell."""

from __future__ import annotations

import re
from collections.abc import Iterable

from headway.loadtest.errors import InvalidPlan
from headway.loadtest.result import Environment

# Names as people write them -> our fields.
FIELDS = {
    "precision": "precision",
    "dtype": "precision",
    "quantisation": "quantisation",
    "quantization": "quantisation",
    "device": "device",
    "gpu": "device",
    "device_count": "device_count",
    "gpus": "device_count",
    "memory": "memory_bytes",
    "framework": "framework",
}
_UNITS = {"": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40, "kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12}
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([kmgt]i?b|)b?", re.IGNORECASE)
_WHOLE = re.compile(r"[1-9][0-9]{0,5}")


def check_notes(noted: Iterable[tuple[str, str]]) -> None:
    """Raises InvalidPlan for a value that its field cannot take, before any load."""
    for name, value in noted:
        _value(name, value)


def note(environment: Environment, noted: Iterable[tuple[str, str]]) -> None:
    """What the server told itself stays; the note is kept beside it."""
    for name, value in noted:
        environment.noted[name] = value
        field = _field(name)
        if field is not None and getattr(environment, field) is None:
            setattr(environment, field, _value(name, value))


def _field(name: str) -> str | None:
    return FIELDS.get(name.lower().replace("-", "_").replace(" ", "_"))


def _value(name: str, value: str) -> str | int:
    match _field(name):
        case "device_count":
            if not _WHOLE.fullmatch(value):
                raise InvalidPlan(f"--note {name} takes a whole number from 1, not {value!r}.")
            return int(value)
        case "memory_bytes":
            found = _SIZE.fullmatch(value.strip())
            if found is None:
                raise InvalidPlan(f"--note {name} takes a size such as 80GiB, or bytes, not {value!r}.")
            return int(float(found[1]) * _UNITS[found[2].lower()])
        case None:
            return value
        case field:
            if not value:
                raise InvalidPlan(f"--note {name} says nothing: give the server's {field}.")
            return value
