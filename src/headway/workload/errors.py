"""`WorkloadError`, and the checks of numbers that raise it: what was wrong, where, the limit, what to do."""

from __future__ import annotations

from typing import Any

# Times up to here are exact to the nanosecond in a double, so a trace survives being written and read: 26 days.
MAX_S = 2**51 / 1e9
MAX_TOKENS = 10_000_000
MIN_RATE, MAX_RATE = 1e-6, 1e6


class WorkloadError(ValueError):
    """A load that cannot be made as described. `field` is the setting or the column at fault, where there is one."""

    def __init__(self, message: str, *, field: str = "") -> None:
        super().__init__(message)
        self.field = field


def check_number(field: str, value: Any, low: float, high: float, unit: str = "") -> float:
    """`value` as a float within `low`…`high`.

    Raises:
        WorkloadError: it is no number, NaN or out of range.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise WorkloadError(f"{field} must be a number, not {shown(value)}", field=field)
    if not low <= value <= high:  # NaN is neither
        raise WorkloadError(f"{field} must be {_between(low, high, unit)}, not {shown(value)}", field=field)
    return float(value)


def check_whole(field: str, value: Any, low: int, high: int, unit: str = "") -> int:
    """`value` as an int within `low`…`high`; 12.0 is whole.

    Raises:
        WorkloadError: it is no number, not whole, or out of range.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        if low <= value <= high:
            return value
        raise WorkloadError(f"{field} must be {_between(low, high, unit)}, not {shown(value)}", field=field)
    read = check_number(field, value, low, high, unit)
    if not read.is_integer():
        raise WorkloadError(f"{field} must be a whole number, not {shown(value)}", field=field)
    return int(read)


def check_rate(field: str, value: Any, low: float = MIN_RATE) -> float:
    """A rate in requests per second."""
    return check_number(field, value, low, MAX_RATE, "requests/s")


def check_seconds(field: str, value: Any) -> float:
    """A length of time that is more than nothing."""
    return check_number(field, value, 1e-9, MAX_S, "s")


def shown(value: Any) -> str:
    """A bad value as a message shows it: short, and on one line."""
    if isinstance(value, int) and value.bit_length() > 256:  # Python refuses to print the longest ones
        return f"a number of about {int(value.bit_length() * 0.30103):,} digits"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _between(low: float, high: float, unit: str) -> str:
    return f"{_plain(low)} to {_plain(high)}{' ' + unit if unit else ''}"


def _plain(value: float) -> str:
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.10g}"
