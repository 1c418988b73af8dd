"""Reading numbers out of somebody else's JSON: by any of the names they go by, and only if they can be true."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from headway.core.errors import ModelError

# More than any model has: what is above it is a mistake, and must not become a loop of that length.
MAX_COUNT = 10**12
MAX_LAYERS = 4096


class Fields:
    """A mapping with `where` it came from, for messages. A field that is null counts as absent."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self.values = values
        self.where = where

    def first(self, *names: str) -> tuple[str, Any] | None:
        """The first of these names that is there, and its value."""
        for name in names:
            if (value := self.values.get(name)) is not None:
                return name, value
        return None

    def has(self, *names: str) -> bool:
        return self.first(*names) is not None

    def count(self, *names: str, default: int | None = None, least: int = 1, most: int = MAX_COUNT) -> int:
        """A whole number from `least` to `most`.

        Raises:
            ModelError: none of the names is there and there is no default, or the value is no such number.
        """
        found = self.first(*names)
        if found is None:
            if default is None:
                raise self.missing(*names)
            return default
        name, value = found
        if isinstance(value, float) and math.isfinite(value) and value == int(value):
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise self.bad(name, value, f"a whole number from {least:,} to {most:,}")
        return value

    def number(self, *names: str, default: float) -> float:
        """A finite number above 0."""
        found = self.first(*names)
        if found is None:
            return default
        name, value = found
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
            raise self.bad(name, value, "a finite number above 0")
        return float(value)

    def flag(self, *names: str, default: bool) -> bool:
        found = self.first(*names)
        if found is None:
            return default
        if not isinstance(found[1], bool):
            raise self.bad(*found, "true or false")
        return found[1]

    def text(self, *names: str, default: str = "") -> str:
        found = self.first(*names)
        return default if found is None else str(found[1])

    def items(self, *names: str) -> list[Any] | None:
        """A list, or None when it is absent."""
        found = self.first(*names)
        if found is None:
            return None
        if isinstance(found[1], str) or not isinstance(found[1], Sequence):
            raise self.bad(*found, "a list")
        return list(found[1])

    def counts(self, name: str) -> list[int] | None:
        """A list of whole numbers, or None when it is absent or a single number."""
        value = self.values.get(name)
        if not isinstance(value, list):
            return None
        if not value or not all(type(item) is int and 0 <= item <= MAX_COUNT for item in value) or not any(value):
            raise self.bad(name, value, "a list of whole numbers that are not all 0")
        return value

    def inner(self, *names: str) -> Fields | None:
        """A nested object, or None when it is absent."""
        found = self.first(*names)
        if found is None:
            return None
        if not isinstance(found[1], Mapping):
            raise self.bad(*found, "an object")
        return Fields(found[1], f"{self.where}: {found[0]}")

    def missing(self, *names: str) -> ModelError:
        several = f"none of {', '.join(names)}" if len(names) > 1 else f"no {names[0]}"
        return ModelError(
            f"{self.where} has {several}, which sizing needs. Give the model's own config.json (of a text model, or "
            "with a text_config), or a GGUF file.",
            code="bad_config",
            param=names[0],
        )

    def bad(self, name: str, value: Any, wanted: str) -> ModelError:
        return ModelError(f"{self.where}: {name} is {value!r}, not {wanted}", code="bad_config", param=name)
