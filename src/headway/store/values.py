"""What the store takes as values: checked here once, so that an impossible one is refused with its field named.

The values are of any type, because they come from the bodies of clients.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from headway.store.errors import BadValue

_ID = re.compile(r"[A-Za-z0-9_-]{1,128}\Z")  # also the name of a file, so no dots and no slashes
_WINDOW = re.compile(r"([1-9][0-9]{0,5})([smhd])\Z")
_UNIT_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}

MAX_TEXT = 512
MAX_PAIRS = 16  # of OpenAI's metadata, with their lengths
MAX_KEY = 64
MAX_VALUE = 512


def identifier(value: Any, field: str = "id") -> str:
    if not isinstance(value, str) or not _ID.match(value):
        raise BadValue(
            f"{field} must be 1 to 128 letters, digits, '_' or '-', not {_short(value)}.",
            param=field,
        )
    return value


def text(value: Any, field: str, *, longest: int = MAX_TEXT, least: int = 1) -> str:
    """Raises `BadValue` for what is no text, too short or long, or no Unicode that a file can hold."""
    if not isinstance(value, str):
        raise BadValue(f"{field} must be a text, not {_short(value)}.", param=field)
    if not least <= len(value) <= longest:
        raise BadValue(f"{field} must have {least} to {longest} characters, not {len(value)}.", param=field)
    if "\0" in value:
        raise BadValue(f"{field} holds a NUL character.", param=field)
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise BadValue(
            f"{field} holds half a surrogate pair at character {error.start}; send well-formed Unicode.", param=field
        ) from None
    return value


def whole(value: Any, field: str, *, least: int = 0, greatest: int = 2**62) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= greatest:
        raise BadValue(f"{field} must be a whole number from {least} to {greatest}, not {_short(value)}.", param=field)
    return value


def seconds(value: Any, field: str, *, least: float = 0.0) -> float:
    """A time or a span of it. NaN and the infinities are in no range."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < least:
        raise BadValue(
            f"{field} must be a finite number of seconds, at least {least:g}, not {_short(value)}.", param=field
        )
    return float(value)


def pairs(
    value: Any,
    field: str,
    *,
    most: int = MAX_PAIRS,
    longest_key: int = MAX_KEY,
    longest: int = MAX_VALUE,
) -> dict[str, str]:
    """Names and texts; the limits that are not given are those of OpenAI's metadata."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise BadValue(f"{field} must be an object of texts, not {_short(value)}.", param=field)
    if len(value) > most:
        raise BadValue(f"{field} may have {most} pairs, not {len(value)}.", param=field)
    return {
        text(key, field, longest=longest_key): text(entry, f"{field}.{key}", longest=longest, least=0)
        for key, entry in value.items()
    }


def window_s(value: Any) -> int:
    """Seconds of a `completion_window`: OpenAI knows "24h"; here any whole number of s, m, h or d."""
    found = _WINDOW.match(value) if isinstance(value, str) else None
    if found is None:
        raise BadValue(
            f"completion_window must be a whole number and a unit, as in '24h' or '30m', not {_short(value)}.",
            param="completion_window",
        )
    return int(found[1]) * _UNIT_S[found[2]]


def _short(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 80 else f"{shown[:77]}..."
